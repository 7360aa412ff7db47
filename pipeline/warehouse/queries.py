"""Every query of the project, written once, in BigQuery's dialect; DuckDB runs its translation.

The functions take table addresses as a warehouse quotes them and literals that were checked; values
from people or data travel as query parameters (`@name`).
"""

import hashlib

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
    """One row: `edits` and `incomplete` of these (INT64), `first_edit` and `last_edit` (TIMESTAMP) of the label table."""
    return f"""
SELECT COUNT(*) AS edits, COUNTIF(image_id IS NULL OR image_id = '' OR updated_at IS NULL) AS incomplete,
  MIN(updated_at) AS first_edit, MAX(updated_at) AS last_edit
FROM {labels}"""


def labels_as_of(labels: str) -> str:
    """The labels as they stood at `@as_of`: the newest edit of each image, unless it withdraws it.

    RANK and not ROW_NUMBER: of two edits of one image at the same instant neither wins, both stay,
    and the gate reports the duplicate instead of a coin deciding a label. A label that is NULL withdraws nothing: it
    stays, for the gate to report.
    """
    columns = ", ".join(LABEL_COLUMNS)
    return f"""
SELECT {columns} FROM (
  SELECT {columns}, RANK() OVER (PARTITION BY image_id ORDER BY updated_at DESC) AS age
  FROM {labels}
  WHERE updated_at < @as_of
) WHERE age = 1 AND (label IS NULL OR label <> '')"""


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


def split_of(group: str, salt: str, train: float, val: float) -> str:
    """The split in which `examples` puts a group, computed here.

    Args:
        group: The product id, or the image id where there is none or images are split one by one.
        salt, train, val: As of `examples`.
    """
    position = hashlib.md5(f"{salt}{group}".encode(), usedforsecurity=False).hexdigest()[:8]
    train_end, val_end = split_bounds(train, val)
    return "train" if position < train_end else "val" if position < val_end else "eval"


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


# How many offending rows a query gives as examples.
EXAMPLES = 8


def class_counts(labels: str, most: int) -> str:
    """`label`, `n`, `total`: rows of each label, the `most` commonest first, and of all labels together.

    Bounded, because a column mixed up can make every row a label of its own. A label that is NULL counts as ''.

    Args:
        labels: Address of a table, or a query in brackets, with a column `label`.
        most: Most labels that are given.
    """
    return f"""
SELECT label, COUNT(*) AS n, SUM(COUNT(*)) OVER () AS total
FROM (SELECT COALESCE(label, '') AS label FROM {labels})
GROUP BY label ORDER BY n DESC, label LIMIT {most}"""


def duplicates(snapshot: str) -> str:
    """`image_id`, `n`, `labels`, `total`: the first images that stand there more than once, and their number."""
    return _counted(
        f"""
  SELECT image_id, COUNT(*) AS n, STRING_AGG(DISTINCT label, ', ' ORDER BY label) AS labels
  FROM {snapshot} WHERE TRIM(image_id) <> '' GROUP BY image_id HAVING COUNT(*) > 1""",
        order="image_id",
    )


def orphans(snapshot: str, index: str) -> str:
    """`image_id`, `label`, `total`: the first images that no shard holds, and their number."""
    return _counted(
        f"""
  SELECT s.image_id AS image_id, MIN(s.label) AS label
  FROM {snapshot} AS s LEFT JOIN {index} AS i ON s.image_id = i.image_id
  WHERE i.image_id IS NULL AND TRIM(s.image_id) <> '' GROUP BY s.image_id""",
        order="image_id",
    )


def null_labels(snapshot: str) -> str:
    """`image_id`, `total`: the first rows whose label is NULL or blank, and their number."""
    return _counted(f"SELECT image_id FROM {snapshot} WHERE label IS NULL OR TRIM(label) = ''", order="image_id")


def null_images(snapshot: str) -> str:
    """`product_id`, `label`, `total`: the first rows whose image_id is NULL or blank, and their number."""
    return _counted(
        f"SELECT product_id, label FROM {snapshot} WHERE image_id IS NULL OR TRIM(image_id) = ''",
        order="product_id, label",
    )


def straddling(examples_query: str) -> str:
    """`kind`, `id`, `splits`, `total`: the first products and images in more than one split, and their number."""
    return _counted(
        f"""
  SELECT kind, id, STRING_AGG(DISTINCT split, ', ' ORDER BY split) AS splits
  FROM (
    SELECT 'image' AS kind, image_id AS id, split FROM ({examples_query})
    UNION ALL
    SELECT 'product' AS kind, product_id AS id, split FROM ({examples_query}) WHERE TRIM(product_id) <> ''
  )
  GROUP BY kind, id HAVING COUNT(DISTINCT split) > 1""",
        order="kind, id",
    )


def split_sizes(examples_query: str) -> str:
    """`split`, `n`: rows of each split that has any."""
    return f"SELECT split, COUNT(*) AS n FROM ({examples_query}) GROUP BY split ORDER BY split"


def eval_labels(examples_query: str) -> str:
    """`label`: the labels of the eval split, for `class_counts`."""
    return f"(SELECT label FROM ({examples_query}) WHERE split = 'eval')"


def edits_since(snapshot: str) -> str:
    """One row: `n` rows edited at or after `@since` (INT64), and `newest`, the last edit of all (TIMESTAMP)."""
    return f"SELECT COUNTIF(updated_at >= @since) AS n, MAX(updated_at) AS newest FROM {snapshot}"


def confusions(snapshot: str, baseline: str) -> str:
    """`before_label`, `after_label`, `n`, `first_image`, `last_image`, `total`: the commonest changes of label.

    An image counts once, by the label that sorts first where a duplicate gives it several; `total` is the number of all
    images whose label differs from the baseline snapshot's.
    """
    one_label = "SELECT image_id, MIN(label) AS label FROM {} GROUP BY image_id"
    return f"""
SELECT before_label, after_label, COUNT(*) AS n, MIN(image_id) AS first_image, MAX(image_id) AS last_image,
  SUM(COUNT(*)) OVER () AS total
FROM (
  SELECT s.image_id AS image_id, b.label AS before_label, s.label AS after_label
  FROM ({one_label.format(snapshot)}) AS s JOIN ({one_label.format(baseline)}) AS b ON s.image_id = b.image_id
  WHERE s.label <> b.label
)
GROUP BY before_label, after_label ORDER BY n DESC, before_label, after_label LIMIT {EXAMPLES}"""


def _differing(before: str, after: str) -> str:
    """`kind`, `image_id`, `before_label`, `after_label` of every image that two snapshots do not hold alike."""
    one_label = "SELECT image_id, MIN(COALESCE(label, '')) AS label FROM {} GROUP BY image_id"
    return f"""
  SELECT CASE WHEN b.image_id IS NULL THEN 'added' WHEN a.image_id IS NULL THEN 'removed' ELSE 'changed' END AS kind,
    COALESCE(a.image_id, b.image_id) AS image_id, COALESCE(b.label, '') AS before_label, COALESCE(a.label, '') AS after_label
  FROM ({one_label.format(before)}) AS b FULL OUTER JOIN ({one_label.format(after)}) AS a ON a.image_id = b.image_id
  WHERE b.image_id IS NULL OR a.image_id IS NULL OR a.label <> b.label"""


def label_changes(before: str, after: str, most: int) -> str:
    """`kind`, `before_label`, `after_label`, `n`, `first_image`, `last_image`, `total`: how the labels of two snapshots
    differ.

    An image counts once, as in `confusions`. `kind` is `added`, `removed` or `changed`; of each kind the `most` commonest
    pairs of labels are given, and in `total` the number of all its images.
    """
    return f"""
WITH differing AS ({_differing(before, after)}),
pairs AS (
  SELECT kind, before_label, after_label, COUNT(*) AS n, MIN(image_id) AS first_image, MAX(image_id) AS last_image,
    SUM(COUNT(*)) OVER (PARTITION BY kind) AS total,
    ROW_NUMBER() OVER (PARTITION BY kind ORDER BY COUNT(*) DESC, before_label, after_label) AS place
  FROM differing GROUP BY kind, before_label, after_label
)
SELECT kind, before_label, after_label, n, first_image, last_image, total FROM pairs WHERE place <= {most}
ORDER BY kind, n DESC, before_label, after_label"""


def label_changes_by_image(before: str, after: str) -> str:
    """`kind`, `image_id`, `before_label`, `after_label`: every image that `label_changes` counts."""
    return f"WITH differing AS ({_differing(before, after)}) SELECT * FROM differing ORDER BY kind, image_id"


def index_changes(before: str, after: str) -> str:
    """One row: `added`, `gone` and `changed` photographs (INT64) between two shard indexes, by their stored bytes."""
    return f"""
SELECT COUNTIF(b.image_id IS NULL) AS added, COUNTIF(a.image_id IS NULL) AS gone,
  COUNTIF(b.image_id IS NOT NULL AND a.image_id IS NOT NULL AND a.sha256 <> b.sha256) AS changed
FROM {before} AS b FULL OUTER JOIN {after} AS a ON a.image_id = b.image_id"""


def labels_of_image(snapshot: str, address: str) -> str:
    """`found_in`, `product_id`, `label`, `source`: the rows of the image `@image_id` in a snapshot."""
    return f"SELECT '{snapshot}' AS found_in, product_id, label, source FROM {address} WHERE image_id = @image_id"


def images_that_begin(snapshot: str, most: int) -> str:
    """`image_id`: at most `most` images of a snapshot whose id begins with `@beginning`, the shortest first."""
    return f"""
SELECT image_id FROM {snapshot} WHERE STARTS_WITH(image_id, @beginning)
GROUP BY image_id ORDER BY LENGTH(image_id), image_id LIMIT {most}"""


def places_of_image(index: str, address: str) -> str:
    """`found_in`, `shard`, `ordinal`: where the image `@image_id` lies by a shard index."""
    return f"SELECT '{index}' AS found_in, shard, ordinal FROM {address} WHERE image_id = @image_id"


def new_images(snapshot: str, baseline: str) -> str:
    """`image_id`: each image that the snapshot holds and the baseline does not, once."""
    return f"""
SELECT DISTINCT s.image_id AS image_id
FROM {snapshot} AS s LEFT JOIN {baseline} AS b ON s.image_id = b.image_id
WHERE b.image_id IS NULL AND s.image_id IS NOT NULL"""


def common_images(snapshot: str, baseline: str) -> str:
    """One row, `n`: images that both snapshots hold."""
    return f"""
SELECT COUNT(DISTINCT s.image_id) AS n
FROM {snapshot} AS s JOIN {baseline} AS b ON s.image_id = b.image_id"""


def _counted(select: str, order: str) -> str:
    """The first rows of a query and, as `total` in each, how many it has: counted in the warehouse, however many."""
    return f"""
WITH found AS ({select})
SELECT found.*, (SELECT COUNT(*) FROM found) AS total FROM found ORDER BY {order} LIMIT {EXAMPLES}"""
