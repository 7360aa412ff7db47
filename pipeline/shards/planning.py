"""What a packing has to do, and the index that comes of it: relations over millions of rows, in DuckDB.

A plan is a folder beside the shards. It exists from the moment when `plan.json` does, and is carried out to its end
before another is made: a packing that is killed and started again gives the bytes of an unbroken one.

    plan/
        plan.json                           what the plan is for, and in which folder it is
        <name of its own>/
            bucket-00000.parquet            sources of one future shard, in the order of its records
            bucket-00000.packed.parquet     what became of them (packing.py)
            refused.parquet                 files whose names alone keep them out
            gone.parquet                    ids that were known and were not listed any more

Two machines may plan at once: each writes into a folder of its own, one of them gets to write `plan.json`, and both carry
out that plan.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow_hotfix  # noqa: F401, for CVE-2023-47248

from pipeline import files, storage
from pipeline.errors import PipelineError
from pipeline.shards import generations, packing, sources

INDEX_SCHEMA = pa.schema(
    [
        ("image_id", pa.string()),
        ("source_uri", pa.string()),
        ("source_version", pa.int64()),
        ("source_bytes", pa.int64()),
        ("source_sha256", pa.string()),
        ("revision", pa.int64()),
        ("shard", pa.string()),
        ("ordinal", pa.int64()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("bytes", pa.int64()),
        ("width", pa.int64()),
        ("height", pa.int64()),
        ("sha256", pa.string()),
        ("packing", pa.string()),
    ]
)

REFUSED_SCHEMA = pa.schema(
    [
        ("image_id", pa.string()),
        ("source_uri", pa.string()),
        ("source_version", pa.int64()),
        ("source_bytes", pa.int64()),
        ("source_sha256", pa.string()),
        ("reason", pa.string()),
    ]
)

CHANGES_SCHEMA = pa.schema(
    [("image_id", pa.string()), ("change", pa.string()), ("before_sha256", pa.string()), ("after_sha256", pa.string())]
)

INDEX_ROWS = 1_000_000
"""Rows of one file of the index: some 150 MB."""

# Photographs that are packed beforehand, to know how many shards there will be.
_PROBES = 64


@dataclasses.dataclass(frozen=True)
class Base:
    """What a packing starts from: the newest generation, or a rejected attempt after it.

    Attributes:
        folder: Where index and quarantine are; empty when there is nothing.
        shards: Facts of the shards, as in the manifest.
        index: Names of the files of the index.
    """

    folder: str = ""
    shards: dict = dataclasses.field(default_factory=dict)
    index: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Plan:
    """A plan, as `plan.json` says.

    Attributes:
        folder: URI of its folder.
        images: Where the photographs are.
        packing: The settings that decide about stored bytes, as JSON.
        previous: Number of the newest generation when it was made; 0 for none.
        base: Folder of its `Base`.
        listed: Photographs that were listed.
        fresh: Those of them that must be looked at.
        buckets: URIs of the buckets.
    """

    folder: str
    images: str
    packing: str
    previous: int
    base: str
    listed: int
    fresh: int
    buckets: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a plan.

    Attributes:
        digest: As in `Generation`.
        counts: `images`, `new`, `changed`, `packed`, `gone`, `kept`, `quarantined`, `vanished`.
        shards: Facts of the shards that the index points to.
        refused: Rows of the quarantine, by image id.
        differs: Whether anything differs from the generation before.
    """

    digest: str
    counts: dict[str, int]
    shards: dict[str, dict]
    refused: list[dict]
    differs: bool


class OvertakenError(Exception):
    """Another machine carried out or gave up the plan that this one was at."""


class _Database:
    """A DuckDB of one packing, which spills to the disk rather than take all memory.

    Rows come in and go out as Parquet files: the Arrow of TFX 1.16 is too old to be handed over in memory.
    """

    def __init__(self, folder: str):
        self._folder = folder
        self._connection = duckdb.connect(os.path.join(folder, "plan.duckdb"))
        self.run("SET memory_limit = '2GB'")
        self.run(f"SET temp_directory = '{_quoted(folder)}/spill'")

    def close(self) -> None:
        self._connection.close()

    def run(self, query: str, parameters: dict | None = None):
        return self._connection.execute(query, parameters)

    def one(self, query: str) -> int:
        return self.run(query).fetchone()[0]

    def create(self, table: str, schema: pa.Schema) -> None:
        types = {pa.string(): "VARCHAR", pa.int64(): "BIGINT"}
        columns = ", ".join(f'"{field.name}" {types[field.type]}' for field in schema)
        self.run(f"CREATE TABLE {table} ({columns})")

    def insert(self, table: str, rows: pa.Table) -> None:
        with self._file() as path:
            pq.write_table(rows, path)
            self._insert(table, path)

    def insert_file(self, table: str, uri: str) -> dict[bytes, bytes]:
        """Takes over the rows of a file; returns what its schema carries beside the columns."""
        if not storage.is_cloud(uri):
            return self._insert(table, uri)
        with self._file() as path:
            with storage.opened(uri) as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target, 2**20)
            return self._insert(table, path)

    def _insert(self, table: str, path: str) -> dict[bytes, bytes]:
        self.run(f"INSERT INTO {table} BY NAME SELECT * FROM read_parquet($path)", {"path": path})
        return pq.read_schema(path).metadata or {}

    def write(self, query: str, uri: str) -> None:
        # One row group after the other, in the query's order; the same rows give the same bytes.
        with storage.scratch(uri if storage.is_cloud(uri) else os.path.dirname(uri)) as folder:
            path = os.path.join(folder, "rows.parquet")
            self.run(f"COPY ({query}) TO '{_quoted(path)}' (FORMAT parquet, COMPRESSION zstd)")
            storage.publish(path, uri)

    @contextlib.contextmanager
    def _file(self) -> Iterator[str]:
        path = os.path.join(self._folder, "rows.parquet")
        try:
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _quoted(text: str) -> str:
    return text.replace("'", "''")


@contextlib.contextmanager
def _database() -> Iterator[_Database]:
    with tempfile.TemporaryDirectory(prefix="packing-") as folder:
        db = _Database(folder)
        try:
            yield db
        finally:
            db.close()


def read(root: str) -> Plan | None:
    """The plan below `root` that has not been carried out yet, or None."""
    try:
        content = json.loads(storage.read(storage.join(root, generations.PLAN, "plan.json")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if content.pop("format") != generations.FORMAT:
        # Of another version of this code: there is one, and it is for nothing.
        return Plan(folder="", images="", packing="", previous=-1, base="", listed=0, fresh=0, buckets=())
    return Plan(**content | {"buckets": tuple(content["buckets"])})


def drop(root: str) -> None:
    """Removes the plan below `root`, if there is one."""
    storage.remove_folder(storage.join(root, generations.PLAN))


def make(root: str, images: str, base: Base, sealed: bool, previous: int, packing_json: str, settings) -> Plan | None:
    """Lists the photographs, compares them with what is known, and writes a plan.

    Args:
        root: Folder of the shards.
        images: As for `sources.find`.
        base: What is known.
        sealed: Whether that is a generation, so that a plan without work need not be.
        previous: Number of the newest generation.
        packing_json: The settings that decide about stored bytes.
        settings: `ShardSettings`.

    Returns:
        The plan; None when nothing is new, changed or gone.

    Raises:
        PipelineError: No photograph is listed, or two have one id.
        OvertakenError: Another machine's plan was written first, and is carried out already.
    """
    folder = storage.join(root, generations.PLAN, uuid.uuid4().hex)
    with _database() as db:
        _load(db, base, "base", "base_refused")
        listed = _load_listing(db, images)
        _check_collisions(db)
        fresh = _find_fresh(db, packing_json)
        gone = db.one("SELECT count(*) FROM gone")
        named = db.one("SELECT count(*) FROM named ANTI JOIN base_refused USING (image_id, source_uri, reason)")
        if sealed and not fresh and not gone and not named:
            return None
        buckets = _write_buckets(db, folder, settings)
        db.write("SELECT image_id FROM gone ORDER BY image_id", storage.join(folder, "gone.parquet"))
        db.write("SELECT * FROM named ORDER BY image_id", storage.join(folder, "refused.parquet"))
    plan = Plan(folder, images, packing_json, previous, base.folder, listed, fresh, buckets)
    content = {"format": generations.FORMAT, **dataclasses.asdict(plan)}
    try:
        storage.create(storage.join(root, generations.PLAN, "plan.json"), files.to_json(content).encode())
    except FileExistsError:
        storage.remove_folder(folder)
        plan = read(root)
        if plan is None:
            raise OvertakenError from None
    return plan


def finish(plan: Plan, base: Base, previous: Base, into: str) -> Outcome:
    """Makes the index of what a plan gave, and writes it, the quarantine and the changes to the folder `into`.

    Args:
        plan: The plan; all its buckets are done.
        base: What it started from.
        previous: The generation before, which the new one is compared with.
        into: Folder that will be the generation's.

    Returns:
        What came of it.
    """
    with _database() as db:
        _load(db, base, "base", "base_refused")
        if previous == base:
            db.run("CREATE VIEW previous AS FROM base; CREATE VIEW previous_refused AS FROM base_refused")
        else:
            _load(db, previous, "previous", "previous_refused")
        shards = dict(base.shards)
        db.create("results", packing.RESULT_SCHEMA)
        for bucket in plan.buckets:
            carried = db.insert_file("results", packing.result_of(bucket))
            shards |= packing.shard_of(carried)
        db.create("gone", pa.schema([("image_id", pa.string())]))
        db.insert_file("gone", storage.join(plan.folder, "gone.parquet"))
        db.create("named", REFUSED_SCHEMA)
        db.insert_file("named", storage.join(plan.folder, "refused.parquet"))
        _make_index(db, plan.packing)

        digest = _write_index(db, into, plan.packing)
        refused = _dicts(db.run(f"SELECT {_names(REFUSED_SCHEMA)} FROM refused ORDER BY image_id, source_uri"))
        storage.write(storage.join(into, "quarantine.json"), files.to_json(refused).encode())
        db.write("SELECT * FROM changes ORDER BY image_id", storage.join(into, "changes.parquet"))
        used = {name for (name,) in db.run("SELECT DISTINCT shard FROM index").fetchall()}
        counts = {
            "images": db.one("SELECT count(*) FROM index"),
            "new": db.one("SELECT count(*) FROM index ANTI JOIN previous USING (image_id)"),
            "changed": db.one("SELECT count(*) FROM changes WHERE change = 'changed'"),
            "packed": db.one("SELECT count(*) FROM index ANTI JOIN previous USING (shard, ordinal)"),
            "gone": db.one("SELECT count(*) FROM changes WHERE change = 'gone'"),
            "quarantined": len(refused),
            "vanished": db.one(f"SELECT count(*) FROM results WHERE outcome = '{packing.VANISHED}'"),
        }
        counts["kept"] = counts["images"] - counts["packed"]
        differs = bool(
            db.one("SELECT count(*) FROM (SELECT * FROM index EXCEPT SELECT * FROM previous)")
            or db.one("SELECT count(*) FROM (SELECT * FROM previous EXCEPT SELECT * FROM index)")
            or db.one("SELECT count(*) FROM refused FULL JOIN previous_refused AS p USING (image_id, reason, source_uri, source_version)"
                " WHERE p.source_bytes IS NULL OR refused.source_bytes IS NULL",
            )
        )
    return Outcome(digest, counts, {name: shards[name] for name in sorted(used)}, refused, differs)


class OpenedIndex:
    """The index of a generation, to be asked by shard."""

    def __init__(self, db: _Database):
        self._db = db

    def digest(self, packing_json: str) -> str:
        """Digest of what it says, as the manifest has it."""
        return _digest(self._db, packing_json)

    def shards(self) -> dict[str, int]:
        """Name of each shard that it points to -> photographs there."""
        return dict(self._db.run("SELECT shard, count(*) FROM index GROUP BY shard").fetchall())

    def rows_of(self, shard: str) -> list[dict]:
        """Its rows for one shard, by ordinal."""
        return _dicts(self._db.run("SELECT * FROM index WHERE shard = $shard ORDER BY ordinal", {"shard": shard}))


@contextlib.contextmanager
def opened_index(generation: generations.Generation) -> Iterator[OpenedIndex]:
    """The index of a generation."""
    with _database() as db:
        db.create("unordered", INDEX_SCHEMA)
        for uri in generation.index_files():
            db.insert_file("unordered", uri)
        # By shard, so that one shard's rows are found without a look at the others.
        db.run("CREATE TABLE index AS FROM unordered ORDER BY shard, ordinal")
        db.run("DROP TABLE unordered")
        yield OpenedIndex(db)


def _load(db, base: Base, index: str, refused: str) -> None:
    db.create(index, INDEX_SCHEMA)
    db.create(refused, REFUSED_SCHEMA)
    for name in base.index:
        db.insert_file(index, storage.join(base.folder, name))
    if base.folder:
        rows = json.loads(storage.read(storage.join(base.folder, "quarantine.json")))
        db.insert(refused, pa.Table.from_pylist(rows, schema=REFUSED_SCHEMA))


def _load_listing(db, images: str) -> int:
    """Tables `listed` and `named`, the latter for files whose names alone keep them out; returns how many were found."""
    schema = pa.schema(
        [
            ("image_id", pa.string()),
            ("source_uri", pa.string()),
            ("source_bytes", pa.int64()),
            ("source_version", pa.int64()),
            ("problem", pa.string()),
        ]
    )
    db.create("found", schema)
    found = sources.find(images)
    while batch := list(itertools.islice(found, 50_000)):
        columns = zip(*((row.image_id, row.uri, row.bytes, row.version, row.problem) for row in batch))
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema)]
        db.insert("found", pa.Table.from_arrays(arrays, schema=schema))
    db.run("CREATE TABLE listed AS SELECT * EXCLUDE (problem) FROM found WHERE problem = ''")
    db.run(
        "CREATE TABLE named AS SELECT image_id, source_uri, source_version, source_bytes, '' AS source_sha256,"
        " problem AS reason FROM found WHERE problem <> ''"
    )
    if not (count := db.one("SELECT count(*) FROM found")):
        raise PipelineError(f"{images} holds no photograph: files that end in .jpg or .jpeg are wanted")
    return count


def _check_collisions(db) -> None:
    rows = db.run(
        "SELECT image_id, count(*), min(source_uri), max(source_uri) FROM listed GROUP BY image_id HAVING count(*) > 1"
        " ORDER BY image_id"
    ).fetchall()
    if rows:
        listed = "\n".join(f"  {image_id!r}: {first} and {last}" for image_id, _, first, last in rows[:10])
        more = f"\n  and {len(rows) - 10} more" if len(rows) > 10 else ""
        raise PipelineError(
            f"{len(rows)} image id(s) belong to more than one photograph. An id is the file's name without its ending, in "
            f"Unicode's composed form: rename one of\n{listed}{more}"
        )


def _find_fresh(db, packing_json: str) -> int:
    """Tables `fresh`, what must be looked at, and `gone`; returns the number of the first."""
    db.run(
        """
        CREATE TABLE known AS
        SELECT image_id, source_uri, source_bytes, source_version, source_sha256 FROM base
        UNION ALL
        SELECT image_id, source_uri, source_bytes, source_version, source_sha256 FROM base_refused WHERE source_sha256 <> ''
        """
    )
    db.run(
        """
        CREATE TABLE fresh AS
        SELECT listed.*, coalesce(known.source_sha256, '') AS known_sha256, sha256(listed.image_id) AS hash
        FROM listed LEFT JOIN known USING (image_id)
        WHERE (known.source_uri, known.source_bytes, known.source_version)
          IS DISTINCT FROM (listed.source_uri, listed.source_bytes, listed.source_version)
        """
    )
    db.run(
        """
        CREATE TABLE gone AS
        SELECT image_id FROM base ANTI JOIN listed USING (image_id)
        UNION
        SELECT image_id FROM base_refused ANTI JOIN found USING (image_id)
        """
    )
    return db.one("SELECT count(*) FROM fresh")


def _write_buckets(db, folder: str, settings) -> tuple[str, ...]:
    """Spreads `fresh` over buckets by hash, so that each is a fair sample and neither name nor day decides neighbours."""
    count = db.one("SELECT count(*) FROM fresh")
    if not count:
        return ()
    columns = _names(packing.BUCKET_SCHEMA)
    if settings.short_side == "original":
        expected = db.one("SELECT sum(source_bytes) FROM fresh")
    else:
        probes = _dicts(db.run(f"SELECT {columns} FROM fresh ORDER BY hash LIMIT {_PROBES}"))
        probes = [probe | {"known_sha256": ""} for probe in probes]
        expected = count * packing.mean_record_bytes(probes, settings)
    number = max(1, round(expected / settings.target_bytes))
    db.run(
        "CREATE TABLE spread AS SELECT *, ('0x' || substr(hash, 1, 8))::UBIGINT * $number // 4294967296 AS bucket FROM fresh"
        " ORDER BY bucket, hash, image_id",
        {"number": number},
    )
    names = []
    for (bucket,) in db.run("SELECT DISTINCT bucket FROM spread ORDER BY bucket").fetchall():
        names.append(storage.join(folder, f"bucket-{bucket:06d}.parquet"))
        query = f"SELECT {columns} FROM spread WHERE bucket = {bucket} ORDER BY hash, image_id"
        db.write(query, names[-1])
    return tuple(names)


def _make_index(db, packing_json: str) -> None:
    """Tables `index`, `refused` and `changes` of base, results and gone."""
    columns = _names(INDEX_SCHEMA)
    db.run(
        f"""
        CREATE TABLE index AS
        SELECT {columns} FROM base ANTI JOIN gone USING (image_id) ANTI JOIN results USING (image_id)
        UNION ALL BY NAME
        SELECT r.* EXCLUDE (outcome, reason), $packing AS packing,
          coalesce(previous.revision, 0) + CASE WHEN previous.source_sha256 = r.source_sha256 THEN 0 ELSE 1 END AS revision
        FROM results AS r LEFT JOIN previous USING (image_id) WHERE outcome = '{packing.PACKED}'
        UNION ALL BY NAME
        SELECT base.* REPLACE (r.source_uri AS source_uri, r.source_version AS source_version, r.source_bytes AS source_bytes)
        FROM base JOIN results AS r USING (image_id) WHERE r.outcome = '{packing.UNCHANGED}'
        """,
        {"packing": packing_json},
    )
    refused = _names(REFUSED_SCHEMA)
    db.run(
        f"""
        CREATE TABLE refused AS
        SELECT {refused} FROM named
        UNION ALL
        SELECT {refused} FROM results WHERE outcome IN ('{packing.REFUSED}', '{packing.UNREADABLE}')
        UNION ALL
        SELECT b.image_id, r.source_uri, r.source_version, r.source_bytes, b.source_sha256, b.reason
        FROM base_refused AS b JOIN results AS r USING (image_id) WHERE r.outcome = '{packing.UNCHANGED}'
        UNION ALL
        SELECT {refused} FROM base_refused ANTI JOIN gone USING (image_id) ANTI JOIN results USING (image_id)
          ANTI JOIN named USING (image_id) WHERE source_sha256 <> ''
        """
    )
    db.run(
        """
        CREATE TABLE changes AS
        SELECT image_id, 'changed' AS change, p.source_sha256 AS before_sha256, i.source_sha256 AS after_sha256
        FROM index AS i JOIN previous AS p USING (image_id) WHERE p.source_sha256 <> i.source_sha256
        UNION ALL
        SELECT image_id, 'gone', source_sha256, '' FROM previous ANTI JOIN index USING (image_id)
        """
    )


def _write_index(db, into: str, packing_json: str) -> str:
    """Writes the index in files of `INDEX_ROWS` rows, sorted by image id; returns the digest of what it says."""
    parts = max(1, -(-db.one("SELECT count(*) FROM index") // INDEX_ROWS))
    db.run("CREATE TABLE ordered AS SELECT row_number() OVER (ORDER BY image_id) - 1 AS position, * FROM index ORDER BY image_id")
    for part in range(parts):
        db.write(
            f"SELECT {_names(INDEX_SCHEMA)} FROM ordered WHERE position >= {part * INDEX_ROWS} AND "
            f"position < {(part + 1) * INDEX_ROWS} ORDER BY position",
            storage.join(into, f"index-{part:05d}-of-{parts:05d}.parquet"),
        )
    return _digest(db, packing_json)


def _digest(db, packing_json: str) -> str:
    rows = db.run("SELECT image_id, sha256, shard, ordinal FROM index ORDER BY image_id")
    chunks = iter(lambda: rows.fetchmany(100_000), [])
    return generations.index_digest(packing_json, itertools.chain.from_iterable(chunks))


def _dicts(cursor) -> list[dict]:
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row)) for row in cursor.fetchall()]


def _names(schema: pa.Schema) -> str:
    return ", ".join(f'"{name}"' for name in schema.names)
