"""What an auditor waits for: every question on 52, 520 and 5,200 weekly runs.

    .venv/bin/python bench/lineage.py

Writes bench/lineage.json and prints a table. One real run of the sample (local_runner.py) is copied row by row in ML
Metadata's tables, with ids, dates, versions, digests and a ledger of its own for each week, and a label snapshot each in the
warehouse, of which every second has some labels changed. `cold` is a command in a process of its own, `in process` a question
with the store opened anew, over different weeks: by the clock, and by the processor's time, which is what it takes on a
machine that does nothing else, and what is judged. The same in MariaDB of Debian's packages, where it is installed, with 52
and 520 runs. Takes about ten minutes on two cores and 1.5 GB of disk.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a file, so that the command is short

import duckdb  # noqa: E402

from bench.shards import machine  # noqa: E402
from pipeline import files  # noqa: E402
from pipeline.lineage import audit, diff, facts, forward, graph, moment, timeline, verify  # noqa: E402
from pipeline.lineage.base import LineageStore  # noqa: E402
from pipeline.lineage.mlmd import MLMDLineage  # noqa: E402
from pipeline.lineage.mysql import MySQLLineage  # noqa: E402
from pipeline.places import Places  # noqa: E402
from pipeline.release import ledger  # noqa: E402
from pipeline.warehouse import Location, open_warehouse  # noqa: E402
from tests.pipeline.lineage import mariadb  # noqa: E402

FIRST = datetime.datetime(1926, 1, 4, 12, tzinfo=datetime.timezone.utc)
"""So early that a hundred years of weeks lie in the past: nothing is told of the future."""

LIMIT_COLD_SECONDS, LIMIT_MILLISECONDS, JUDGED = 2.0, 50.0, 520
"""What a question may take, at so many runs."""

CHANGED = "UPDATE {} SET label = 'bird' WHERE label = 'tool' AND image_id LIKE '%a'"


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[52, 520, 5200], metavar="N")
    parser.add_argument("--repeat", type=int, default=40, metavar="N", help="questions in process of each kind (default: 40)")
    parser.add_argument("--cold", type=int, default=5, metavar="N", help="commands of each kind (default: 5)")
    parser.add_argument("--real", metavar="DIR", help="a store with one real run, which is copied (default: a new run)")
    parser.add_argument("--mariadb", type=int, default=520, metavar="N", help="also in MariaDB, up to so many runs (default: 520)")
    parser.add_argument("--output", default=str(ROOT / "bench" / "lineage.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        places = Places(store=str(pathlib.Path(folder, "store")))
        if options.real:
            shutil.copytree(options.real, places.store)
        else:
            print("one real run ...", flush=True)
            words = [sys.executable, str(ROOT / "local_runner.py"), "--snapshot-date", "2026-03-02", "--store", places.store]
            subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        server, missing = None, mariadb.missing()
        if missing:
            print(f"not in MariaDB: {missing}")
        elif options.mariadb:
            pathlib.Path(folder, "mariadb").mkdir()
            server = stack.enter_context(mariadb.running(pathlib.Path(folder, "mariadb")))
        stores = []
        for count in sorted(options.runs):
            copied = grow(places, count)
            print(f"{count} runs, {os.path.getsize(places.metadata) / 2**20:.0f} MiB", flush=True)
            stores.append({
                "runs": count,
                "load": [round(load, 1) for load in os.getloadavg()],
                "metadata_mib": round(os.path.getsize(places.metadata) / 2**20, 1),
                "in_process_ms": in_process(places, copied, options.repeat),
                "cold_seconds": cold(places, copied, options.cold),
            })  # fmt: skip
            if server and count <= options.mariadb:
                stores[-1]["in_process_mariadb_ms"] = in_mariadb(server, places, copied, options.repeat)
            print(table(stores[-1]), flush=True)
            result = written(options.output, stores)
    print(f"above the limits at {JUDGED} runs: {', '.join(result['above_limits']) or 'none'}")
    return 0


def written(output: str, stores: list[dict]) -> dict:
    """Writes the result so far, so that a bench that is ended early leaves what it has; returns it."""
    result = {
        "command": " ".join([".venv/bin/python bench/lineage.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "limits": {"runs": JUDGED, "cold_seconds": LIMIT_COLD_SECONDS, "in_process_cpu_ms": LIMIT_MILLISECONDS},
        "above_limits": [name for store in stores if store["runs"] == JUDGED for name in above(store)],
        "stores": stores,
    }
    files.write_atomically(output, json.dumps(result, indent=2) + "\n")
    return result


def week(number: int) -> dict[str, str]:
    """Names and times of one copied run."""
    at = FIRST + datetime.timedelta(weeks=number)
    return {
        "run_id": f"{at:%Y%m%d}-{at:%Y%m%dT%H%M%SZ}", "table": f"labels_{at:%Y%m%d}", "at": at.isoformat(timespec="milliseconds"),
        "date": f"{at:%Y-%m-%d}", "version": str(1_000_000 + number),
    }  # fmt: skip


def grow(places: Places, count: int) -> list[dict[str, str]]:
    """Brings the store to `count` runs beside the real one; returns the copied ones."""
    weeks = [week(number) for number in range(count)]
    checksums = _snapshots(places, weeks)
    entries = _entries(places, weeks)
    with contextlib.closing(sqlite3.connect(places.metadata)) as db:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -400000", "temp_store = MEMORY"):
            db.execute(f"PRAGMA {pragma}")
        runs = db.execute(
            "SELECT c.id FROM Context c JOIN Type t ON t.id = c.type_id WHERE t.name = 'pipeline_run' ORDER BY c.id"
        ).fetchall()
        have = len(runs) - 1
        new = [(number, weeks[number], checksums[number % 2], entries[number]) for number in range(have, count)]
        _copies(db, runs[0][0], new)
        db.commit()
        db.execute("PRAGMA journal_mode = DELETE")
    pathlib.Path(places.ledger).write_bytes(b"".join(entry.line() + b"\n" for entry in entries))
    return weeks


def _snapshots(places: Places, weeks: list[dict]) -> list[tuple[int, str]]:
    """Makes the snapshot tables; returns rows and checksum of the even ones and of the odd ones."""
    with contextlib.closing(duckdb.connect(places.warehouse)) as db:
        db.execute("BEGIN")
        db.execute("CREATE TABLE IF NOT EXISTS bench_0 AS FROM labels_20260302")
        db.execute("CREATE TABLE IF NOT EXISTS bench_1 AS FROM labels_20260302")
        db.execute(CHANGED.format("bench_1"))
        for number, item in enumerate(weeks):
            db.execute(f"CREATE TABLE IF NOT EXISTS {item['table']} AS FROM bench_{number % 2}")
        db.execute("COMMIT")
    with open_warehouse(Location(kind="duckdb", labels="", database=places.warehouse)) as place:
        checksums = [place._content(f"bench_{number}") for number in range(2)]
    with contextlib.closing(duckdb.connect(places.warehouse)) as db:
        source = db.execute("SELECT * FROM snapshots WHERE table_name = 'labels_20260302'").fetchone()
        known = {name for (name,) in db.execute("SELECT table_name FROM snapshots").fetchall()}
        rows = [
            (item["table"], item["date"], item["at"], source[3], *checksums[number % 2], source[6])
            for number, item in enumerate(weeks)
            if item["table"] not in known
        ]
        db.execute("BEGIN")
        db.executemany("INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?, ?)", rows or [("none", *source[1:])])
        db.execute("COMMIT")
    return checksums


def _entries(places: Places, weeks: list[dict]) -> list[ledger.Entry]:
    """A chained ledger of the weeks."""
    entries, previous, version = [], "0" * 64, ""
    for number, item in enumerate(weeks, start=1):
        entry = ledger.Entry(
            number=number, at=item["at"], endpoint="default", from_version=version, to_version=item["version"],
            path=f"{places.versions}/{item['version']}", share=1.0, run_id=item["run_id"], snapshot=item["table"],
            snapshot_date=item["date"], weights_sha256=files.sha256(item["version"].encode()), previous=previous,
        )  # fmt: skip
        entries.append(entry)
        previous, version = entry.line_sha256, item["version"]
    return entries


# What is another one in each week: name of a fact -> its value.
def _facts_of(item: dict, content: tuple[int, str], entry: ledger.Entry) -> dict:
    return {
        "run_id": item["run_id"], "table": item["table"], "snapshot": item["table"], "rows": content[0], "checksum": content[1],
        "released_at": item["at"], "to_version": item["version"], "ledger_number": entry.number, "path": entry.path,
        "weights_sha256": entry.weights_sha256, "ledger_line_sha256": entry.line_sha256, "snapshot_date": item["date"],
        "export_sha256": files.sha256(entry.path.encode()), "released": 1,
    }  # fmt: skip


def _copies(db: sqlite3.Connection, run: int, new: list[tuple[int, dict, tuple[int, str], ledger.Entry]]) -> None:
    """Writes weeks: the real run's rows, one statement a table, with ids, times and facts of their own."""
    (started,) = db.execute("SELECT create_time_since_epoch FROM Context WHERE id = ?", (run,)).fetchone()
    db.execute("CREATE TEMP TABLE week (step INT, name TEXT, moved INT, context INT)")
    db.execute("CREATE TEMP TABLE other (step INT, name TEXT, number INT, text TEXT, PRIMARY KEY (step, name)) WITHOUT ROWID")
    (newest,) = db.execute("SELECT MAX(id) FROM Context").fetchone()
    for place, (number, item, content, entry) in enumerate(new, start=1):
        step = (number + 1) * 100_000
        at = datetime.datetime.fromisoformat(item["at"]).timestamp() * 1000
        db.execute("INSERT INTO week VALUES (?, ?, ?, ?)", (step, item["run_id"], round(at) - started, newest + place))
        for name, value in _facts_of(item, content, entry).items():
            pair = (value, None) if isinstance(value, int) else (None, value)
            db.execute("INSERT INTO other VALUES (?, ?, ?, ?)", (step, name, *pair))
    executions = f"(SELECT execution_id FROM Association WHERE context_id = {run})"
    events = f"(SELECT id FROM Event WHERE execution_id IN {executions})"
    artifacts = f"(SELECT artifact_id FROM Event WHERE execution_id IN {executions})"
    times = "create_time_since_epoch + moved, last_update_time_since_epoch + moved"
    context = f"CASE context_id WHEN {run} THEN week.context ELSE context_id END"
    changed = "CASE WHEN o.step IS NULL OR (int_value IS NULL AND string_value IS NULL) THEN {} ELSE o.{} END"
    values = "double_value, {}, byte_value, proto_value, bool_value"
    # Table -> which rows are the real run's, and the columns of a copy of them.
    tables = {
        "Context": (f"id = {run}", f"week.context, type_id, week.name, external_id, {times}"),
        "Execution": (f"id IN {executions}", f"id + week.step, type_id, last_known_state, s.name || '-' || week.step, external_id, {times}"),
        "ExecutionProperty": (
            f"execution_id IN {executions}",
            f"execution_id + week.step, s.name, is_custom_property, int_value, {values.format('string_value')}",
        ),
        "Artifact": (f"id IN {artifacts}", f"id + week.step, type_id, uri, state, s.name || '-' || week.step, external_id, {times}"),
        "ArtifactProperty": (
            f"artifact_id IN {artifacts}",
            f"artifact_id + week.step, s.name, is_custom_property, {changed.format('int_value', 'number')}, "
            f"{values.format(changed.format('string_value', 'text'))}",
        ),
        "Event": (f"id IN {events}", "id + week.step, artifact_id + week.step, execution_id + week.step, type, milliseconds_since_epoch + moved"),
        "EventPath": (f"event_id IN {events}", "event_id + week.step, is_index_step, step_index, step_key"),
        "Association": (f"execution_id IN {executions}", f"id + week.step, {context}, execution_id + week.step"),
        "Attribution": (f"artifact_id IN {artifacts}", f"id + week.step, {context}, artifact_id + week.step"),
    }  # fmt: skip
    for table, (mine, _) in tables.items():
        db.execute(f"CREATE TEMP TABLE real_{table} AS SELECT * FROM {table} WHERE {mine}")
    for table, (_, columns) in tables.items():
        join = "LEFT JOIN other o ON o.step = week.step AND o.name = s.name" if table == "ArtifactProperty" else ""
        db.execute(f"INSERT INTO {table} SELECT {columns} FROM week CROSS JOIN real_{table} s {join}")
        db.execute(f"DROP TABLE real_{table}")
    db.execute("DROP TABLE week")
    db.execute("DROP TABLE other")


def questions(places: Places, weeks: list[dict], url: str = "") -> dict[str, Callable[[int], object]]:
    """Name -> the question about the week of a number, with everything opened anew; the lineage at `url`, or in the store."""

    def lineage() -> LineageStore:
        return MySQLLineage(url, mariadb.AUDITOR[1]) if url else MLMDLineage(places.metadata)

    def times(store: LineageStore) -> timeline.Timeline:
        return timeline.read(store, places.ledger)

    def serving(number):
        store = lineage()
        return audit.serving(store, times(store), moment.span(weeks[number]["date"]))

    def run(number):
        store = lineage()
        found = store.run(weeks[number]["run_id"])
        return facts.of_run(found), times(store).of_run(found.run_id)

    def compare(number):
        store = lineage()
        runs = [store.run(weeks[one]["run_id"]) for one in (number, (number + 1) % len(weeks))]
        known = [facts.of_run(found) for found in runs]
        return diff.of_facts(*known), diff.of_labels(*runs, *known, places)

    def snapshot(number):
        store = lineage()
        return forward.of_snapshot(store, times(store), weeks[number]["table"])

    def image(_):
        store = lineage()
        return forward.of_image(store, times(store), places, "p0001-a")

    def verified(number):
        store = lineage()
        found = store.run(weeks[number]["run_id"])
        return verify.verify(found, facts.of_run(found), times(store), places)

    def drawn(number):
        return graph.svg(lineage().run(weeks[number]["run_id"]))

    return {"serving": serving, "run": run, "diff": compare, "snapshot": snapshot, "image": image, "verify": verified, "graph": drawn}


def in_mariadb(server: mariadb.MariaDB, places: Places, weeks: list[dict], repeat: int) -> dict[str, dict[str, float]]:
    """As `in_process`, with the lineage in MariaDB; the processor's time is this process's, without the server's."""
    server.copy(places.metadata, "lineage")
    return in_process(places, weeks, repeat, server.url("lineage"))


def in_process(places: Places, weeks: list[dict], repeat: int, url: str = "") -> dict[str, dict[str, float]]:
    """Median and 95th percentile of each question, in milliseconds, by the clock and by the processor."""
    found = {}
    for name, ask in questions(places, weeks, url).items():
        ask(0)
        clock, processor = [], []
        # An answer that names every run is asked for less often.
        for count in range(repeat if name != "image" else max(3, repeat // 8)):
            started, busy = time.perf_counter(), time.process_time()
            ask(count * 7919 % len(weeks))
            processor.append(1000 * (time.process_time() - busy))
            clock.append(1000 * (time.perf_counter() - started))
        found[name] = {
            f"{word}{percent}": round(sorted(took)[int(percent / 100 * (len(took) - 1))], 2)
            for word, took in (("p", clock), ("cpu_p", processor))
            for percent in (50, 95)
        }
    return found


def cold(places: Places, weeks: list[dict], repeat: int) -> dict[str, float]:
    """Median seconds of each command in a process of its own."""
    middle, after = weeks[len(weeks) // 2], weeks[len(weeks) // 2 + 1]
    commands = {
        "serving": ["serving", "--on", middle["date"]],
        "run": ["run", middle["run_id"]],
        "diff": ["diff", middle["run_id"], after["run_id"]],
        "snapshot": ["snapshot", middle["table"]],
        "image": ["image", "p0001-a"],
        "report": ["report", middle["run_id"], "--html", str(pathlib.Path(places.store, "report.html"))],
    }
    found = {}
    for name, words in commands.items():
        took = []
        for _ in range(repeat):
            started = time.perf_counter()
            words = [*words, "--store", places.store] if "--store" not in words else words
            subprocess.run([sys.executable, "-m", "pipeline", "audit", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            took.append(time.perf_counter() - started)
        found[name] = round(statistics.median(took), 2)
    return found


def above(store: dict) -> list[str]:
    """Questions that take longer than they may; verify and the picture are no questions of the lineage alone."""
    slow = [f"{name} in process" for name, took in store["in_process_ms"].items() if took["cpu_p95"] > LIMIT_MILLISECONDS and name != "verify"]
    return slow + [f"{name} cold" for name, took in store["cold_seconds"].items() if took > LIMIT_COLD_SECONDS]


def table(store: dict) -> str:
    """The figures of one store for a terminal."""
    lines = [f"{'':10}{'p50 ms':>10}{'p95 ms':>10}{'cpu p95':>10}{'cold s':>10}"]
    for name in dict.fromkeys([*store["in_process_ms"], *store["cold_seconds"]]):
        took, seconds = store["in_process_ms"].get(name, {}), store["cold_seconds"].get(name)
        lines.append(f"{name:10}{took.get('p50', ''):>10}{took.get('p95', ''):>10}{took.get('cpu_p95', ''):>10}{'' if seconds is None else seconds:>10}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
