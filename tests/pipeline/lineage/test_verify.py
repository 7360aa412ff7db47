"""What was altered or lost is named, whatever it is, and nothing else is."""

import contextlib
import datetime
import json
import pathlib
import shutil
import sqlite3

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline.errors import PipelineError
from pipeline.lineage import facts as audit_facts
from pipeline.lineage import text, timeline, verify
from pipeline.lineage.base import Execution
from pipeline.lineage.mlmd import MLMDLineage


def checks(places, run_id, skip=()):
    lineage = MLMDLineage(places.metadata)
    run = lineage.run(run_id)
    return verify.verify(run, audit_facts.of_run(run), timeline.read(lineage, places.ledger), places, skip)


def bad(places, run_id, skip=()) -> list[tuple[str, str]]:
    return [(check.part, check.status) for check in checks(places, run_id, skip) if check.status != verify.INTACT]


@pytest.mark.parametrize("name", ["first", "second", "bad"])
def test_a_whole_run_is_intact_in_every_part_that_it_reached(weeks, name):
    weeks, runs = weeks
    found = checks(weeks.places, runs[name])
    assert {check.status for check in found} == {verify.INTACT}
    reached = {"records", "snapshot", "shards", "gate", "ledger"} | ({"labels", "training", "export", "provenance"} if name != "bad" else set())
    assert {check.part for check in found} == reached
    assert text.of_checks(runs[name], found).endswith("\n\nnothing that was checked was altered or lost")


def flip(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def one(folder, pattern) -> pathlib.Path:
    return sorted(pathlib.Path(folder).rglob(pattern))[0]


FILES = {
    "model": ("export", lambda weeks, run: one(weeks.folder(run, "Trainer.model"), "variables.data")),
    "served model": ("export", lambda weeks, run: one(pathlib.Path(weeks.places.versions, "2"), "saved_model.pb")),
    "label records": ("labels", lambda weeks, run: one(weeks.folder(run, "LabelJoin.labels"), "labels-*")),
    "gate report": ("gate", lambda weeks, run: pathlib.Path(weeks.places.reports(run), "gate.json")),
    "gate artifact": ("gate", lambda weeks, run: weeks.folder(run, "SnapshotGate.verdict") / "gate.json"),
    "image shard": ("shards", lambda weeks, run: one(weeks.places.shards, "shard-*")),
    "provenance": ("provenance", lambda weeks, run: pathlib.Path(weeks.places.versions, "2.intoto.json")),
    "training record": ("training", lambda weeks, run: weeks.folder(run, "Trainer.model_run") / "training.json"),
    "manifest": ("records", lambda weeks, run: weeks.folder(run, "RunManifest.manifest") / "manifest.json"),
    "release": ("records", lambda weeks, run: weeks.folder(run, "ServingLedger.release") / "release.json"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_altered_or_lost_is_named(store, name):
    weeks, runs = store
    part, find = FILES[name]
    path = find(weeks, runs["second"])
    if path.suffix == ".json" and part in ("training", "records"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"seed" if part == "training" else "run_id": "another"}))
    else:
        flip(path)
    (check,) = [check for check in checks(weeks.places, runs["second"]) if check.status != verify.INTACT]
    assert (check.part, check.status) == (part, verify.ALTERED)
    assert str(path) in check.what or str(path.parent) in check.what or str(path.parent.parent) in check.what
    path.unlink()
    # Of a folder that holds more files, one that is gone makes it another.
    lost = verify.LOST if name not in ("model", "served model") else verify.ALTERED
    found = checks(weeks.places, runs["second"])
    assert [(check.part, check.status) for check in found if check.status != verify.INTACT] == [(part, lost)]
    shown = text.of_checks(runs["second"], found)
    assert f"\n  {lost}" in shown and "1 of 15 things are not as recorded" in shown


def test_an_index_that_was_altered_with_its_manifest_is_noticed(store):
    """Somebody who can write the folder can write the manifest too; the lineage has the digest of what it said."""
    weeks, runs = store
    folder = pathlib.Path(weeks.places.shards, "generation-000001")
    table = pq.read_table(folder / "index-00000-of-00001.parquet").to_pylist()
    table[3]["sha256"], table[4]["sha256"] = table[4]["sha256"], table[3]["sha256"]
    pq.write_table(pq.read_table(folder / "index-00000-of-00001.parquet").from_pylist(table), folder / "index-00000-of-00001.parquet")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["index"] = {"index-00000-of-00001.parquet": verify.digests.of_file(str(folder / "index-00000-of-00001.parquet"))}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert bad(weeks.places, runs["first"]) == [("shards", verify.ALTERED)]


def test_a_shard_that_was_altered_with_its_manifest_is_noticed_by_its_name(store):
    weeks, runs = store
    folder = pathlib.Path(weeks.places.shards, "generation-000001")
    shard = one(weeks.places.shards, "shard-*")
    flip(shard)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["shards"][shard.name]["sha256"] = verify.digests.of_file(str(shard))
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (check,) = [check for check in checks(weeks.places, runs["first"]) if check.status != verify.INTACT]
    assert (check.part, check.status) == ("shards", verify.ALTERED) and "its name carries another digest" in check.detail


@pytest.mark.parametrize(("content", "status"), [(None, verify.LOST), ("{", verify.ALTERED), ('{"format": 2}', verify.ALTERED)])
def test_a_manifest_of_shards_that_cannot_be_used(store, content, status):
    weeks, runs = store
    path = pathlib.Path(weeks.places.shards, "generation-000001", "manifest.json")
    path.unlink() if content is None else path.write_text(content)
    assert bad(weeks.places, runs["first"]) == [("shards", status)]


def test_an_index_that_is_damaged(store):
    weeks, runs = store
    path = pathlib.Path(weeks.places.shards, "generation-000001", "index-00000-of-00001.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    assert bad(weeks.places, runs["first"]) == [("shards", verify.ALTERED)] * 2


@pytest.mark.parametrize(
    ("sql", "status"),
    [
        ("UPDATE labels_20260302 SET label = 'cup' WHERE image_id = 'p2-a'", verify.ALTERED),
        ("DROP TABLE labels_20260302", verify.ALTERED),
        ("DELETE FROM snapshots", verify.LOST),
        ("DROP TABLE snapshots", verify.ALTERED),
        # With a registry that was altered to fit, only the lineage knows better.
        ("UPDATE labels_20260302 SET label = 'cup' WHERE image_id = 'p2-a'; UPDATE snapshots SET checksum = '{checksum}' WHERE table_name = 'labels_20260302'", verify.ALTERED),
    ],
)
def test_a_snapshot_that_was_altered(store, sql, status):
    weeks, runs = store
    with contextlib.closing(duckdb.connect(weeks.places.warehouse)) as connection:
        first, *rest = sql.split("; ")
        connection.execute(first)
    if rest:
        with weeks._warehouse() as place:
            checksum = place._content("labels_20260302")[1]
        with contextlib.closing(duckdb.connect(weeks.places.warehouse)) as connection:
            connection.execute(rest[0].format(checksum=checksum))
    assert bad(weeks.places, runs["first"]) == [("snapshot", status)]
    if "labels_20260302" in sql:
        assert bad(weeks.places, runs["second"]) == []


def test_a_warehouse_that_is_gone_or_no_database(store):
    weeks, runs = store
    path = pathlib.Path(weeks.places.warehouse)
    path.write_text("no database" * 1000)
    assert bad(weeks.places, runs["first"]) == [("snapshot", verify.UNKNOWN)]
    path.unlink()
    assert bad(weeks.places, runs["first"]) == [("snapshot", verify.LOST)] and not path.exists()


@pytest.mark.parametrize("number", [1, 2])
def test_every_line_of_the_ledger_is_vouched_for_the_newest_too(store, number):
    weeks, runs = store
    path = pathlib.Path(weeks.places.ledger)
    lines = path.read_text().splitlines()
    lines[number - 1] = lines[number - 1].replace('"weights_sha256": "', '"weights_sha256": "0')
    path.write_text("\n".join(lines) + "\n")
    assert bad(weeks.places, runs["bad"]) == [("ledger", verify.ALTERED)]
    path.unlink()
    assert set(bad(weeks.places, runs["bad"])) == {("ledger", verify.LOST)}


def test_runs_of_older_code_are_told_to_lack_digests_and_do_not_fail(store):
    weeks, runs = store
    names = ("export_sha256", "ledger_line_sha256", "sha256", "report_sha256")
    with contextlib.closing(sqlite3.connect(weeks.places.metadata)) as writer, writer:
        writer.execute(f"DELETE FROM ArtifactProperty WHERE name IN {names}")
    found = bad(weeks.places, runs["first"], skip=("records",))
    assert found == [
        ("records", verify.SKIPPED), ("labels", verify.UNRECORDED), ("gate", verify.UNRECORDED), ("gate", verify.UNRECORDED),
        ("export", verify.UNRECORDED), ("export", verify.UNRECORDED), ("ledger", verify.UNRECORDED),
    ]  # fmt: skip
    shown = text.of_checks(runs["first"], checks(weeks.places, runs["first"], ("records",)))
    assert shown.endswith("nothing that was checked was altered or lost; 6 not recorded; 1 skipped")


def test_a_model_is_led_back_to_its_run_wherever_it_lies(store, tmp_path):
    weeks, runs = store
    lineage = MLMDLineage(weeks.places.metadata)
    served = pathlib.Path(weeks.places.versions, "1")
    carried = shutil.copytree(served, tmp_path / "carried")
    for folder in (served, carried, weeks.folder(runs["first"], "Trainer.model")):
        run_id, found = verify.run_of_model(lineage, str(folder))
        assert run_id == runs["first"]
        assert verify.model(audit_facts.of_run(lineage.run(run_id)), found).status == verify.INTACT
    for folder in (served, carried):
        flip(folder / "saved_model.pb")
    run_id, found = verify.run_of_model(lineage, str(served))
    assert verify.model(audit_facts.of_run(lineage.run(run_id)), found).status == verify.ALTERED
    with pytest.raises(PipelineError, match="no run of this store recorded a model with the digest .*carried"):
        verify.run_of_model(lineage, str(carried))
    shutil.rmtree(served)
    run_id, found = verify.run_of_model(lineage, str(served))
    assert verify.model(audit_facts.of_run(lineage.run(run_id)), found).status == verify.LOST
    with pytest.raises(PipelineError, match="is no model, it holds no saved_model.pb"):
        verify.run_of_model(lineage, str(tmp_path))


@pytest.mark.parametrize("recorded", ["/store/reports", "/store/reports/run-1"], ids=["all runs'", "its own, as older runs have it"])
def test_a_gate_s_report_lies_in_the_folder_of_its_run(recorded):
    when = datetime.datetime(2026, 3, 2, tzinfo=datetime.timezone.utc)
    step = Execution(1, "SnapshotGate", "COMPLETE", when, when, {"reports": recorded}, {}, {})
    assert verify._reports(step, "run-1") == "/store/reports/run-1"
    assert verify._reports(None, "run-1") == ""
