"""BigQuery's emulator, bqemulator 1.4.0, with what BigQuery documents and this version lacks or does otherwise.

    .venv-bigquery/bin/python tests/cloud/bigquery_emulator.py FOLDER

Serves on two free ports of the loopback, prints them as one line of JSON, {"rest": ..., "grpc": ...}, and ends when its
standard input does, as it does when the process that started it dies. gs://BUCKET/NAME is the file FOLDER/BUCKET/NAME.
A line of standard input is a number: by how many seconds the clock, of which tables' histories are made, goes slow.
Runs in an environment of its own (requirements/bigquery_emulator.py). What is added, and why:

    offline start       DuckDB's extensions for GEOGRAPHY and Avro, which nobody here needs, would be downloaded
    one thread          REST answers from several threads and gRPC from others used one connection of DuckDB at once
    destination table   a query's destinationTable was ignored, and Beam reads a query by way of one
    dataset filter      datasets.list ignored its filter, so that Beam's clean-up deleted every dataset
    upload's type       Google's client sends the file of a load job as */*, which was refused
    upload's end        the last piece of a file may be sent again when the answer was lost, and gets the same one
    Parquet loads       a table that is not there is made from the file's own schema, as Parquet needs no other, and with the
                        labels of the load's destinationTableProperties
    WRITE_EMPTY loads   a table that is there is refused with `duplicate`, Already Exists, instead of `invalidQuery`
    job ids             a second job of one id is refused, so that a client may safely send a lost request again
    CREATE TABLE        a taken name is refused by its full name, and IF NOT EXISTS leaves that table's facts alone
    OPTIONS             labels, expiration_timestamp and friendly_name are kept; values may be constant expressions
    ALTER TABLE         SET OPTIONS did nothing, for SNAPSHOT TABLE too; columns stayed in the table's schema
    CREATE SNAPSHOT     IF NOT EXISTS, FOR SYSTEM_TIME AS OF and OPTIONS were not understood
    tables.get          expirationTime and snapshotDefinition were left out, and tables.patch dropped them
    bytes               totalBytesProcessed was 0 (dry runs too); now it is what the columns in the query hold
    maximumBytesBilled  a query over it is refused with `bytesBilledLimitExceeded`; 10 MB a table are billed at least
"""

import asyncio
import contextvars
import json
import logging
import re
import sys
from datetime import datetime, timedelta, timezone

import structlog

# Before the emulator is imported, which writes to standard output as it is.
structlog.configure(
    wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    logger_factory=structlog.PrintLoggerFactory(sys.stderr),
)

import fastapi.routing
import sqlglot
from bqemulator.api.routes import datasets, jobs, tables, upload
from bqemulator.catalog import ddl_sync
from bqemulator.catalog.etag import generate_etag
from bqemulator.catalog.models import TableMeta
from bqemulator.config import Settings
from bqemulator.domain.clock import SystemClock
from bqemulator.domain.errors import (
    AlreadyExistsError,
    InvalidQueryError,
    ResourceRef,
    resource_not_found,
)
from bqemulator.jobs import executor
from bqemulator.server import EmulatorServer
from bqemulator.storage.engine import DuckDBEngine
from bqemulator.storage.sql_identifiers import quoted_table_ref
from bqemulator.versioning.time_travel import rewrite_for_system_time
from fastapi import Query, Request
from sqlglot import exp

_NOTHING = "SELECT 1 LIMIT 0"

_SNAPSHOT = re.compile(
    r"\s*CREATE\s+SNAPSHOT\s+TABLE\s+(?P<lenient>IF\s+NOT\s+EXISTS\s+)?(?P<made>`[^`]+`|\S+)"
    r"\s+CLONE\s+(?P<source>`[^`]+`|[^\s;]+)"
    r"(?:\s+FOR\s+SYSTEM_TIME\s+AS\s+OF\s+(?P<instant>.+?))?(?:\s+OPTIONS\s*\((?P<options>.*)\))?\s*;?\s*",
    re.IGNORECASE | re.DOTALL,
)
_ALTER = re.compile(
    r"\s*ALTER\s+(?:SNAPSHOT\s+)?TABLE\s+(?P<lenient>IF\s+EXISTS\s+)?(?P<changed>`[^`]+`|\S+)"
    r"\s+SET\s+OPTIONS\s*\((?P<options>.*)\)\s*;?\s*",
    re.IGNORECASE | re.DOTALL,
)

# https://cloud.google.com/bigquery/pricing#data, data size calculation; a text takes two bytes more than it has.
_FIXED_SIZES = {"INTEGER": 8, "INT64": 8, "FLOAT": 8, "FLOAT64": 8, "TIMESTAMP": 8, "DATE": 8, "BOOLEAN": 1, "BOOL": 1}
_BILLED_AT_LEAST = 10 * 2**20  # of each table

# configuration.query of the job that is being run.
_configuration = contextvars.ContextVar("configuration", default={})  # noqa: B039  never changed in place


class _TooDear(InvalidQueryError):
    bq_reason = "bytesBilledLimitExceeded"


# --- Statements ---

_run = executor.execute_query_job


async def _execute(project, job, sql, parameters, context, *, caller=None, **rest):
    """Runs one query job: what the emulator does not understand here, the rest by the emulator."""

    async def run(text, name=job):
        return await _run(project, name, text, parameters, context, caller=caller, **rest)

    async def value(text):
        """The value of a constant expression."""
        name = f"{job}-value"
        await run(f"SELECT {text}", name)
        executor.JOB_SCHEMAS.pop(name, None)
        return executor.JOB_RESULTS.pop(name).column(0)[0].as_py()

    found = _SNAPSHOT.fullmatch(sql)
    if found:
        made, source = _table(found["made"], project), _table(found["source"], project)
        if not (found["lenient"] and context.catalog.get_table(*made)):
            options = await _options_of(found["options"], value)
            _make_snapshot(made, source, found["instant"] and await value(found["instant"]), options, context)
        return await run(_NOTHING)

    found = _ALTER.fullmatch(sql)
    if found:
        changed = context.catalog.get_table(*_table(found["changed"], project))
        if changed:
            _set(changed, await _options_of(found["options"], value), context)
        elif not found["lenient"]:
            raise resource_not_found(ResourceRef("table", *_table(found["changed"], project)))
        return await run(_NOTHING)

    tree = _parsed(sql)
    size, billed = _bytes(tree, project, context)
    limit = int(_configuration.get().get("maximumBytesBilled") or 0)
    if limit and billed > limit:
        raise _TooDear(f"Query exceeded limit for bytes billed: {limit}. {billed} or higher required.")
    made = _created(tree, project)
    if made and context.catalog.get_table(*made) and not tree.args.get("replace"):
        if tree.args.get("exists"):  # IF NOT EXISTS
            return await run(_NOTHING)
        raise _taken(made)
    options = await _values_of(tree.args["properties"], value) if made and tree.args.get("properties") else {}
    done = await run(sql)
    # Nothing is awaited from here on: no other request sees the table without its facts.
    if isinstance(tree, exp.Alter):
        changed = context.catalog.get_table(*_table_of(tree.this, project))
        _set(changed, {"schema_": ddl_sync._introspect_schema(*_table_of(tree.this, project), context)}, context)
    if made:
        _set(context.catalog.get_table(*made), options, context)
    done.statistics["query"]["totalBytesProcessed"] = str(size)
    done.statistics["query"]["totalBytesBilled"] = str(billed)
    return done


def _parsed(sql):
    try:
        return sqlglot.parse_one(sql, read="bigquery")
    except sqlglot.errors.SqlglotError:
        return None  # a script, or a mistake that the emulator will name


def _table(text, project):
    """Project, dataset and name of a table as a statement names it."""
    parts = text.replace("`", "").split(".")
    if len(parts) not in (2, 3):
        raise InvalidQueryError(f'Table "{text}" must be qualified with a dataset (e.g. dataset.table).')
    return tuple(parts) if len(parts) == 3 else (project, *parts)


def _taken(table):
    return AlreadyExistsError("Already Exists: Table {}:{}.{}".format(*table))


def _created(tree, project):
    """The table that a CREATE TABLE makes; None for any other statement."""
    if not isinstance(tree, exp.Create) or tree.kind != "TABLE" or tree.args.get("clone"):
        return None
    named = tree.find(exp.Table)
    return _table_of(named, project) if named.db else None


def _table_of(node, project):
    return node.catalog or project, node.db, node.name


async def _options_of(text, value):
    """OPTIONS(...) as fields of the emulator's TableMeta."""
    if not text:
        return {}
    tree = _parsed(f"CREATE TABLE d.t (c INT64) OPTIONS ({text})")
    if tree is None:
        raise InvalidQueryError(f"Syntax error in OPTIONS ({text})")
    return await _values_of(tree.args["properties"], value)


async def _values_of(properties, value):
    fields = {}
    for option in properties.expressions:
        if not isinstance(option, exp.Property) or "value" not in option.args:
            continue
        name, given = option.name.lower(), option.args["value"]
        if name == "labels":
            pairs = [pair.expressions for pair in given.expressions]
            fields["labels"] = {key.name: label.name for key, label in pairs}
        elif name in ("description", "friendly_name"):
            fields[name] = await value(given.sql("bigquery"))
        elif name == "expiration_timestamp":
            fields["expiration_time"] = _utc(await value(given.sql("bigquery")))
    return fields


def _utc(instant):
    return instant and (instant if instant.tzinfo else instant.replace(tzinfo=timezone.utc))


def _set(meta, fields, context):
    if fields:
        now = context.clock.now()
        etag = generate_etag(meta.project_id, meta.dataset_id, meta.table_id, str(now))
        context.catalog.update_table(meta.model_copy(update={**fields, "last_modified_time": now, "etag": etag}))


def _make_snapshot(made, source, instant, options, context):
    """Copies a table, as it is or was, to a table that DML refuses. Nothing is awaited: it happens at once."""
    meta = context.catalog.get_table(*source)
    if meta is None:
        raise resource_not_found(ResourceRef("table", *source))
    if context.catalog.get_dataset(*made[:2]) is None:
        raise resource_not_found(ResourceRef("dataset", *made[:2]))
    if context.catalog.get_table(*made):
        raise _taken(made)
    now = context.clock.now()
    read = quoted_table_ref(*source)
    if instant:
        then = context.snapshots.resolve_time_travel(*source, _utc(instant))
        read = f'"{then.duckdb_schema}"."{then.duckdb_table}"' if then else read
    copy = quoted_table_ref(*made)
    context.engine.execute(f"CREATE TABLE {copy} AS SELECT * FROM {read}")
    context.catalog.create_table(
        TableMeta(
            project_id=made[0],
            dataset_id=made[1],
            table_id=made[2],
            table_type="SNAPSHOT",
            schema=meta.schema_,
            # https://cloud.google.com/bigquery/docs/table-snapshots-intro: it starts with its base table's.
            **{"description": meta.description, "friendly_name": meta.friendly_name, "labels": meta.labels, **options},
            creation_time=now,
            last_modified_time=now,
            num_rows=context.engine.execute(f"SELECT COUNT(*) FROM {copy}").fetchone()[0],
            etag=generate_etag(*made, str(now)),
            base_table=".".join(source),
            snapshot_time=_utc(instant) or now,
        )
    )


# --- Bytes ---


def _bytes(tree, project, context):
    """Bytes that a query processes and bytes that it is billed: each column that it names, whole."""
    if tree is None:
        return 0, 0
    everything = tree.find(exp.Star) is not None
    named = {column.name for column in tree.find_all(exp.Column)}
    processed, tables_read = 0, 0
    made = _created(tree, project)
    references = {_table_of(node, project) for node in tree.find_all(exp.Table) if node.db} - {made}
    for reference in references:
        meta = context.catalog.get_table(*reference)
        if meta is None:
            continue
        tables_read += 1
        parts = []
        for field in meta.schema_.fields:
            if everything or field.name in named:
                column = '"' + field.name.replace('"', '""') + '"'
                text = f"2 + strlen(CAST({column} AS VARCHAR))"
                size = _FIXED_SIZES.get(field.type, text)
                parts.append(f"COALESCE(SUM(CASE WHEN {column} IS NOT NULL THEN {size} END), 0)")
        if parts:
            sums = f"SELECT {' + '.join(parts)} FROM {quoted_table_ref(*reference)}"
            processed += int(context.engine.execute(sums).fetchone()[0])
    return processed, max(processed, tables_read * _BILLED_AT_LEAST)


# --- Jobs ---

_run_or_failed, _handle_query = jobs._execute_query_or_failed_meta, jobs._handle_query_job
_dry_run, _dry_run_job = jobs._dry_run_response, jobs._build_dry_run_query_response
_load, _insert, _query, _upload = executor.execute_load_job, jobs.insert_job, jobs.query, upload.upload_chunk

_uploaded = {}  # what each upload that is complete was answered


async def _with_destination(*, project_id, job_id, bq_sql, query_config, ctx, **rest):
    """Writes a SELECT's rows to the table that the job names, then answers with that table's."""
    destination = query_config.get("destinationTable") or {}
    how = query_config.get("writeDisposition", "WRITE_EMPTY")
    if not destination.get("tableId") or isinstance(_parsed(bq_sql), (exp.Create, exp.Command)) or how == "WRITE_APPEND":
        return await _run_or_failed(
            project_id=project_id, job_id=job_id, bq_sql=bq_sql, query_config=query_config, ctx=ctx, **rest
        )
    table = f"`{destination.get('projectId') or project_id}.{destination['datasetId']}.{destination['tableId']}`"
    verb = "CREATE OR REPLACE TABLE" if how == "WRITE_TRUNCATE" else "CREATE TABLE"
    made = await _run_or_failed(
        project_id=project_id, job_id=job_id, bq_sql=f"{verb} {table} AS {bq_sql}", query_config={}, ctx=ctx, **rest
    )
    if made.error_result:
        return made
    size = made.statistics["query"]["totalBytesProcessed"]
    rest["query_params"] = None
    read = await _run_or_failed(
        project_id=project_id, job_id=job_id, bq_sql=f"SELECT * FROM {table}", query_config={}, ctx=ctx, **rest
    )
    read.statistics["query"]["totalBytesProcessed"] = size
    read.configuration.setdefault("query", {})["destinationTable"] = destination
    return read


async def _configured_query_job(project, job, config, *, dry_run, **rest):
    _configuration.set({} if dry_run else config["query"])
    return await _handle_query(project, job, config, dry_run=dry_run, **rest)


async def _sized_dry_run(*, project_id, bq_sql, ctx, **rest):
    answer = await _dry_run(project_id=project_id, bq_sql=bq_sql, ctx=ctx, **rest)
    return {**answer, "totalBytesProcessed": str(_bytes(_parsed(bq_sql), project_id, ctx)[0])}


async def _sized_dry_run_job(**rest):
    answer = await _dry_run_job(**rest)
    size = _bytes(_parsed(rest["bq_sql"]), rest["project_id"], rest["ctx"])[0]
    answer["statistics"]["query"]["totalBytesProcessed"] = answer["statistics"]["totalBytesProcessed"] = str(size)
    return answer


async def _load_job(project, job, config, context):
    load = config.get("load", {})
    named = load.get("destinationTable", {})
    table = (named.get("projectId", project), named.get("datasetId", ""), named.get("tableId", ""))
    files = [executor._resolve_uri(uri, context) for uri in load.get("sourceUris", [])]
    made = False
    if load.get("sourceFormat") == "PARQUET" and not load.get("schema") and context.catalog.get_table(*table) is None:
        _make_table_for(files, table, load.get("destinationTableProperties", {}).get("labels", {}), context)
        made = True
    try:
        return await _load(project, job, config, context)
    except InvalidQueryError as error:
        if "WRITE_EMPTY" not in error.message:
            raise
        said = {"reason": "duplicate", "message": _taken(table).message}
        return jobs._failed_job_meta(project, job, "LOAD", config, said, context.clock.now())
    except Exception:
        if made:  # a load job happens whole or not at all
            context.engine.execute(f"DROP TABLE IF EXISTS {quoted_table_ref(*table)}")
            context.catalog.delete_table(*table)
        raise


def _make_table_for(files, table, labels, context):
    if context.catalog.get_dataset(*table[:2]) is None:
        raise resource_not_found(ResourceRef("dataset", *table[:2]))
    context.engine.execute(f"CREATE TABLE {quoted_table_ref(*table)} AS SELECT * FROM read_parquet(?) LIMIT 0", [files])
    now = context.clock.now()
    context.catalog.create_table(
        TableMeta(
            project_id=table[0],
            dataset_id=table[1],
            table_id=table[2],
            schema=ddl_sync._introspect_schema(*table, context),
            labels=labels,
            creation_time=now,
            last_modified_time=now,
            etag=generate_etag(*table, str(now)),
        )
    )


# --- Routes ---


def _replace(router, name):
    """Takes the route called `name` out; returns a decorator that puts another in its place."""
    (old,) = [route for route in router.routes if getattr(route, "name", "") == name]
    router.routes.remove(old)
    path = old.path.removeprefix(router.prefix)
    return router.api_route(path, methods=list(old.methods), name=name)


@_replace(jobs.router, "insert_job")
async def _insert_job(project_id: str, request: Request, ctx: jobs._Ctx, caller: jobs._Caller):
    named = (await request.json()).get("jobReference", {}).get("jobId")
    if named and ctx.catalog.get_job(project_id, named):
        raise AlreadyExistsError(f"Already Exists: Job {project_id}:US.{named}")
    return await _insert(project_id, request, ctx, caller)


@_replace(jobs.router, "query")
async def _synchronous_query(project_id: str, request: Request, ctx: jobs._Ctx, caller: jobs._Caller):
    body = await request.json()
    _configuration.set({} if body.get("dryRun") else body)
    return await _query(project_id, request, ctx, caller)


@_replace(upload.router, "upload_chunk")
async def _upload_chunk(project_id: str, request: Request, ctx: upload._Ctx, upload_id: str = Query(default="")):
    if upload_id not in _uploaded:
        answer = await _upload(project_id, request, ctx, upload_id)
        if answer.status_code != 200:
            return answer
        _uploaded[upload_id] = answer
    return _uploaded[upload_id]


@_replace(datasets.router, "list_datasets")
async def _list_datasets(project_id: str, ctx: datasets._Ctx, filter: str = Query(default="")):
    wanted = [part.removeprefix("labels.").partition(":") for part in filter.split()]
    found = [
        dataset
        for dataset in ctx.catalog.list_datasets(project_id)
        if all(key in dataset.labels and (not colon or dataset.labels[key] == label) for key, colon, label in wanted)
    ]
    return {"kind": "bigquery#datasetList", "datasets": [datasets._dataset_to_rest(dataset) for dataset in found]}


_to_rest, _from_rest = tables._table_to_rest, tables._rest_to_table_meta


def _table_to_rest(meta):
    body = _to_rest(meta)
    if meta.expiration_time:
        body["expirationTime"] = str(int(meta.expiration_time.timestamp() * 1000))
    if meta.table_type == "SNAPSHOT" and meta.base_table:
        project, dataset, table = meta.base_table.split(".")
        body["snapshotDefinition"] = {
            "baseTableReference": {"projectId": project, "datasetId": dataset, "tableId": table},
            "snapshotTime": meta.snapshot_time.isoformat().replace("+00:00", "Z"),
        }
    return body


def _rest_to_table_meta(project, dataset, body, clock, existing=None):
    meta = _from_rest(project, dataset, body, clock, existing)
    kept = {"base_table": existing.base_table, "snapshot_time": existing.snapshot_time} if existing else {}
    expires = existing and existing.expiration_time
    if "expirationTime" in body:
        given = body["expirationTime"]
        expires = given and datetime.fromtimestamp(int(given) / 1000, timezone.utc)
    return meta.model_copy(update={**kept, "expiration_time": expires})


# --- The server ---


async def _here(function, /, *arguments, **options):
    return function(*arguments, **options)


def _on_the_loop(method):
    """Runs a method of the engine in the thread of the event loop, whichever thread asks."""

    def call(engine, *arguments):
        try:
            asyncio.get_running_loop()
        except RuntimeError:

            async def ask():
                return method(engine, *arguments)

            return asyncio.run_coroutine_threadsafe(ask(), _loop).result()
        return method(engine, *arguments)

    return call


def amend() -> None:
    """Puts all of the above into the emulator."""
    DuckDBEngine._load_spatial = lambda engine: None
    DuckDBEngine.fetch_arrow = _on_the_loop(DuckDBEngine.fetch_arrow)
    fastapi.routing.run_in_threadpool = _here
    upload._PERMITTED_MEDIA_CONTENT_TYPES += ("*/*",)
    jobs.execute_query_job = _execute
    jobs.execute_load_job = upload.execute_load_job = _load_job
    jobs._execute_query_or_failed_meta = _with_destination
    jobs._handle_query_job = _configured_query_job
    jobs._dry_run_response, jobs._build_dry_run_query_response = _sized_dry_run, _sized_dry_run_job
    tables._table_to_rest, tables._rest_to_table_meta = _table_to_rest, _rest_to_table_meta


class _Clock(SystemClock):
    slow = timedelta()

    def now(self):
        return super().now() - self.slow

    def follow(self, lines):
        """Sets itself as it is told, until there is no more."""
        for line in lines:
            self.slow = timedelta(seconds=float(line))
            print(flush=True)


async def serve(folder: str) -> None:
    """Serves until standard input ends."""
    global _loop
    _loop = asyncio.get_running_loop()
    clock = _Clock()
    settings = Settings(rest_port=0, grpc_port=0, gcs_local_root=folder, enable_format_extensions=False)
    server = EmulatorServer(settings, clock=clock)
    await server.start()
    print(json.dumps({"rest": server.rest_port, "grpc": server.grpc_port}), flush=True)
    await _loop.run_in_executor(None, clock.follow, sys.stdin)
    await server.stop()


if __name__ == "__main__":
    amend()
    asyncio.run(serve(sys.argv[1]))
