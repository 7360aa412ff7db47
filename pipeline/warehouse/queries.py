"""Every query of the project, written once, in BigQuery's dialect; DuckDB runs its translation.

The functions take table addresses as a warehouse quotes them and literals that were checked; values
from people or data travel as query parameters (`@name`).
"""

from pipeline.warehouse.base import LABEL_COLUMNS

# Separates nothing: each value is preceded by its length, so no content can imitate another row.
_ROW_TEXT = "CONCAT({})".format(
    ", ".join(
        f"CAST(LENGTH({text}) AS STRING), ':', {text}"
        for text in (
            "COALESCE(image_id, '')",
            "COALESCE(product_id, '')",
            "COALESCE(label, '')",
            "COALESCE(source, '')",
            "CAST(UNIX_MICROS(updated_at) AS STRING)",
        )
    )
)


def label_bounds(labels: str) -> str:
    """One row: `edits` (INT64), `first_edit` and `last_edit` (TIMESTAMP) of the label table."""
    return f"SELECT COUNT(*) AS edits, MIN(updated_at) AS first_edit, MAX(updated_at) AS last_edit FROM {labels}"


def labels_as_of(labels: str) -> str:
    """The labels as they stood at `@as_of`: the newest edit of each image, unless it withdraws it.

    RANK and not ROW_NUMBER: of two edits of one image at the same instant neither wins, both stay,
    and the gate reports the duplicate instead of a coin deciding a label.
    """
    columns = ", ".join(LABEL_COLUMNS)
    return f"""
SELECT {columns} FROM (
  SELECT {columns}, RANK() OVER (PARTITION BY image_id ORDER BY updated_at DESC) AS age
  FROM {labels}
  WHERE updated_at < @as_of
) WHERE age = 1 AND label <> ''"""


def content_sums(table: str) -> str:
    """One row: `n` and `lane_0` to `lane_7`, which `base.checksum` digests."""
    lanes = ",\n  ".join(
        f"SUM(CAST(CONCAT('0x', SUBSTR(digest, {1 + 8 * lane}, 8)) AS INT64)) AS lane_{lane}" for lane in range(8)
    )
    return f"""
SELECT COUNT(*) AS n,
  {lanes}
FROM (SELECT TO_HEX(SHA256({_ROW_TEXT})) AS digest FROM {table})"""


def split_bounds(train: float, val: float) -> tuple[str, str]:
    """Where on the hash line `train` and `val` end, as eight hexadecimal digits each."""
    return tuple(f"{min(round(share * 16**8), 16**8 - 1):08x}" for share in (train, train + val))


def examples(snapshot: str, index: str, group_by: str, salt: str, train: float, val: float) -> str:
    """The rows that become Examples: labels joined to the image shards, with each image's split.

    Args:
        snapshot: Address of the snapshot table.
        index: Address of the shard index.
        group_by: `product_id` or `image_id`.
        salt: Letters, digits, `_` and `-` (checked by the settings).
        train: Share of `train`.
        val: Share of `val`; the rest is `eval`.

    Returns:
        SQL without parameters, because TFX's BigQuery executor passes none. Columns: image_id,
        product_id, label, source, split, shard (STRING); ordinal, bytes, width, height (INT64).
    """
    train_end, val_end = split_bounds(train, val)
    group = f"COALESCE(NULLIF(s.{group_by}, ''), s.image_id)"
    return f"""
SELECT image_id, product_id, label, source,
  CASE WHEN position < '{train_end}' THEN 'train' WHEN position < '{val_end}' THEN 'val' ELSE 'eval' END AS split,
  shard, ordinal, bytes, width, height
FROM (
  SELECT s.image_id, s.product_id, s.label, s.source,
    SUBSTR(TO_HEX(MD5(CONCAT('{salt}', {group}))), 1, 8) AS position,
    i.shard, i.ordinal, i.bytes, i.width, i.height
  FROM {snapshot} AS s JOIN {index} AS i ON s.image_id = i.image_id
)"""


def class_counts(snapshot: str) -> str:
    """`label`, `n`: rows of each class."""
    return f"SELECT label, COUNT(*) AS n FROM {snapshot} GROUP BY label ORDER BY label"


def duplicates(snapshot: str) -> str:
    """`image_id`, `n`, `labels`: images that stand there more than once."""
    return f"""
SELECT image_id, COUNT(*) AS n, STRING_AGG(DISTINCT label, ', ' ORDER BY label) AS labels
FROM {snapshot} GROUP BY image_id HAVING COUNT(*) > 1 ORDER BY image_id"""


def orphans(snapshot: str, index: str) -> str:
    """`image_id`, `label`: rows whose image no shard holds."""
    return f"""
SELECT s.image_id AS image_id, MIN(s.label) AS label
FROM {snapshot} AS s LEFT JOIN {index} AS i ON s.image_id = i.image_id
WHERE i.image_id IS NULL GROUP BY s.image_id ORDER BY image_id"""


def split_counts(examples_query: str) -> str:
    """`split`, `label`, `n`: how the classes spread over the splits."""
    return f"SELECT split, label, COUNT(*) AS n FROM ({examples_query}) GROUP BY split, label ORDER BY split, label"


def relabelled(snapshot: str, baseline: str) -> str:
    """`image_id`, `before`, `after`: images whose label differs from the baseline snapshot's."""
    return f"""
SELECT s.image_id AS image_id, MIN(b.label) AS before_label, MIN(s.label) AS after_label
FROM {snapshot} AS s JOIN {baseline} AS b ON s.image_id = b.image_id
WHERE s.label <> b.label GROUP BY s.image_id ORDER BY image_id"""


def common_images(snapshot: str, baseline: str) -> str:
    """One row, `n`: images that both snapshots hold."""
    return f"""
SELECT COUNT(DISTINCT s.image_id) AS n
FROM {snapshot} AS s JOIN {baseline} AS b ON s.image_id = b.image_id"""
