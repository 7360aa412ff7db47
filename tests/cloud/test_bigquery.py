"""The labels warehouse on BigQuery, by Google's unmodified clients, and the emulator that stands for it here."""

import csv
import dataclasses
import datetime
import json
import pathlib
import re
import subprocess
import sys
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests
import tensorflow as tf
from google.api_core import exceptions
from google.cloud import bigquery as google_bigquery
from google.protobuf import message
from tfx.types import channel, standard_artifacts
from tfx.utils import proto_utils

from pipeline.artifacts import ImageShards, LabelSnapshot
from pipeline.components import facts
from pipeline.components.snapshot_example_gen import Executor, SnapshotExampleGen
from pipeline.errors import PipelineError
from pipeline.settings import BEAM_HERE, SplitSettings
from pipeline.warehouse import LABEL_COLUMNS, Location, open_warehouse
from tests.cloud import google_apis
from tests.pipeline.conftest import ROOT
from tests.pipeline.warehouse.conformance import EDITS, MONDAY, WarehouseConformance, index_file
from tests.pipeline.warehouse.test_duckdb import write_labels


class TestTheEmulator:
    """It answers as BigQuery documents, to Google's own client."""

    @pytest.fixture
    def labels(self, bigquery):
        """The address of a table of labels."""
        bigquery.load_labels(EDITS)
        return bigquery.address("labels")

    def run(self, bigquery, statement, **options):
        return bigquery.client.query(statement, job_config=google_bigquery.QueryJobConfig(**options)).result()

    def test_a_table_that_is_there_is_not_made_again(self, bigquery, labels):
        name = bigquery.address("made")
        self.run(bigquery, f"CREATE TABLE `{name}` OPTIONS (description = 'first') AS SELECT 1 AS n")
        with pytest.raises(exceptions.Conflict, match=f"Already Exists: Table {name.replace('.', ':', 1)}"):
            self.run(bigquery, f"CREATE TABLE `{name}` OPTIONS (description = 'second') AS SELECT 2 AS n")
        self.run(bigquery, f"CREATE TABLE IF NOT EXISTS `{name}` OPTIONS (description = 'third') AS SELECT 3 AS n")
        assert bigquery.rows(f"SELECT n FROM `{name}`") == [{"n": 1}]
        assert bigquery.client.get_table(name).description == "first"

    @pytest.mark.parametrize(
        "kind", ["TABLE {name} {options} AS SELECT * FROM {labels}", "SNAPSHOT TABLE {name} CLONE {labels} {options}"]
    )
    def test_what_options_say_is_kept(self, bigquery, labels, kind):
        options = (
            r"""OPTIONS (description = 'it\'s {"a": "\\ \n"}', labels = [('team', 'shop'), ('cost', '')], """
            "expiration_timestamp = TIMESTAMP_ADD(TIMESTAMP '2030-01-01T00:00:00+00:00', INTERVAL 1 DAY))"
        )
        name = bigquery.address("made")
        self.run(bigquery, "CREATE " + kind.format(name=f"`{name}`", labels=f"`{labels}`", options=options))
        table = bigquery.client.get_table(name)
        assert table.description == "it's {\"a\": \"\\ \n\"}" and table.labels == {"team": "shop", "cost": ""}
        assert table.expires == datetime.datetime(2030, 1, 2, tzinfo=datetime.timezone.utc)
        self.run(bigquery, f"ALTER TABLE `{name}` SET OPTIONS (description = 'another')")
        table = bigquery.client.get_table(name)
        assert (table.description, table.labels["team"], table.num_rows) == ("another", "shop", len(EDITS))
        table.expires, table.labels = None, {"team": "studio"}
        bigquery.client.update_table(table, ["expires", "labels"])
        table = bigquery.client.get_table(name)
        assert table.expires is None and table.labels == {"team": "studio"} and table.description == "another"

    def test_a_table_snapshot_is_the_table_as_it_was_and_stays_so(self, bigquery, labels):
        (then,) = bigquery.rows("SELECT CURRENT_TIMESTAMP() AS then")
        self.run(bigquery, f"DELETE FROM `{labels}` WHERE label = 'cup'")
        name, instant = bigquery.address("kept"), then["then"].isoformat()
        self.run(
            bigquery, f"CREATE SNAPSHOT TABLE `{name}` CLONE `{labels}` FOR SYSTEM_TIME AS OF TIMESTAMP '{instant}'"
        )
        table = bigquery.client.get_table(name)
        assert (table.table_type, table.num_rows) == ("SNAPSHOT", len(EDITS))
        assert table.snapshot_definition.base_table_reference.table_id == "labels"
        assert table.snapshot_definition.snapshot_time == then["then"]
        with pytest.raises(exceptions.Conflict, match="Already Exists"):
            self.run(bigquery, f"CREATE SNAPSHOT TABLE `{name}` CLONE `{labels}`")
        self.run(bigquery, f"CREATE SNAPSHOT TABLE IF NOT EXISTS `{name}` CLONE `{labels}`")
        assert bigquery.client.get_table(name).num_rows == len(EDITS)
        with pytest.raises(exceptions.BadRequest):
            self.run(bigquery, f"DELETE FROM `{name}` WHERE true")
        with pytest.raises(exceptions.NotFound):
            self.run(bigquery, f"CREATE SNAPSHOT TABLE `{name}2` CLONE `{labels}2`")

    def test_a_dry_run_tells_the_bytes_of_the_columns_that_are_read(self, bigquery, labels):
        def size(query):
            job = bigquery.client.query(query, job_config=google_bigquery.QueryJobConfig(dry_run=True))
            return job.total_bytes_processed

        times, images = 8 * len(EDITS), sum(2 + len(edit[0].encode()) for edit in EDITS)
        assert size(f"SELECT updated_at FROM `{labels}`") == times
        assert size(f"SELECT COUNT(*) AS n FROM `{labels}` WHERE image_id > '' AND updated_at IS NOT NULL") > times
        assert size(f"SELECT image_id, updated_at FROM `{labels}`") == times + images
        whole = times + sum(2 + len(text.encode()) for edit in EDITS for text in edit[:4])
        assert size(f"CREATE TABLE `{bigquery.address('no')}` AS SELECT * FROM `{labels}`") == whole
        assert size("SELECT 1") == 0 and bigquery.tables() == ["labels"]

    def test_a_query_that_is_too_dear_does_not_run(self, bigquery, labels):
        with pytest.raises(exceptions.GoogleAPICallError, match="limit for bytes billed: 10000000. 10485760 or higher"):
            self.run(bigquery, f"DELETE FROM `{labels}` WHERE true", maximum_bytes_billed=10**7)
        self.run(bigquery, f"SELECT * FROM `{labels}`", maximum_bytes_billed=10 * 2**20)
        assert bigquery.rows(f"SELECT COUNT(*) AS n FROM `{labels}`") == [{"n": len(EDITS)}]

    @pytest.mark.parametrize("place", ["file", "gs"])
    def test_a_load_makes_a_table_by_the_files_schema_and_write_empty_leaves_one_alone(self, bigquery, tmp_path, place):
        config = google_bigquery.LoadJobConfig(source_format="PARQUET", write_disposition="WRITE_EMPTY")
        paths = [tmp_path / "a.parquet"]
        if place == "gs":
            paths = [bigquery.google.bucket("shop") / f"{name}.parquet" for name in "ab"]
        for path in paths:
            pq.write_table(pa.table({"a": ["x", None], "n": [1, 2]}), path)

        def load():
            if place == "gs":
                uris = [f"gs://shop/{path.name}" for path in paths]
                return bigquery.client.load_table_from_uri(uris, bigquery.address("made"), job_config=config).result()
            with open(paths[0], "rb") as stream:
                return bigquery.client.load_table_from_file(stream, bigquery.address("made"), job_config=config).result()

        load()
        with pytest.raises(exceptions.Conflict, match="Already Exists: Table"):
            load()
        table = bigquery.client.get_table(bigquery.address("made"))
        assert [(field.name, field.field_type) for field in table.schema] == [("a", "STRING"), ("n", "INTEGER")]
        assert table.num_rows == 2 * len(paths)

    def test_a_request_whose_answer_was_lost_is_one_job(self, bigquery, labels):
        bigquery.google.drop(statement("INSERT"), times=1, late=True)
        self.run(bigquery, f"INSERT INTO `{labels}` (image_id) VALUES ('new')")
        assert sum(map(statement("INSERT"), bigquery.google.calls)) == 2
        assert bigquery.rows(f"SELECT COUNT(*) AS n FROM `{labels}` WHERE image_id = 'new'") == [{"n": 1}]

    def test_a_query_may_write_its_rows_to_a_table(self, bigquery, labels):
        name = bigquery.address("made")
        query = f"SELECT COUNT(*) AS n FROM `{labels}` WHERE image_id = @image"
        image = google_bigquery.ScalarQueryParameter("image", "STRING", "a")
        rows = self.run(bigquery, query, query_parameters=[image], destination=name, write_disposition="WRITE_EMPTY")
        assert [row["n"] for row in rows] == [2] and bigquery.rows(f"SELECT n FROM `{name}`") == [{"n": 2}]
        with pytest.raises(exceptions.Conflict):
            self.run(bigquery, query, query_parameters=[image], destination=name, write_disposition="WRITE_EMPTY")

    def test_data_sets_are_listed_by_their_labels(self, bigquery):
        dataset = bigquery.client.get_dataset(bigquery.new_dataset())
        dataset.labels = {"team": dataset.dataset_id}
        bigquery.client.update_dataset(dataset, ["labels"])

        def listed(text):
            return [found.dataset_id for found in bigquery.client.list_datasets(filter=text)]

        assert listed(f"labels.team:{dataset.dataset_id}") == [dataset.dataset_id]
        assert listed("labels.team:nobody") == [] and bigquery.dataset in listed(None)


def test_the_emulators_environment_is_built_once(google):
    again = subprocess.run(
        [sys.executable, ROOT / "requirements" / "bigquery_emulator.py"], capture_output=True, text=True, timeout=10
    )
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


class TestTheProxy:
    @pytest.mark.parametrize(
        "url", ["https://storage.googleapis.com", "https://www.googleapis.com", "http://bigquery.googleapis.com"]
    )
    def test_no_other_host_is_reached(self, google, url):
        try:
            assert requests.get(url, timeout=10).status_code == 403
        except requests.exceptions.ProxyError as error:
            assert "403" in str(error)
        assert len(google.refused) == 1 and url.partition("//")[2] in google.refused[0]

    def test_what_it_answers_is_trusted_for_its_own_authority_alone(self, google, monkeypatch):
        url = "https://bigquery.googleapis.com/discovery"
        assert requests.get(url, timeout=10).status_code == 404
        for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # the second is for TensorFlow's client, and requests takes it too
            monkeypatch.delenv(name)
        with pytest.raises(requests.exceptions.SSLError):
            requests.get(url, timeout=10)


def statement(start: str):
    """Whether a call runs, and not for trial, a statement that begins so."""
    text = f'"query": "{start}'.encode()
    return lambda call: call.method == "POST" and text in call.body and b'"dryRun": true' not in call.body


class TestBigQuery(WarehouseConformance):
    @pytest.fixture
    def open_with(self, bigquery):
        def make(edits):
            location = bigquery.load_labels(edits, bigquery.new_dataset())
            return lambda: open_warehouse(location)

        return make


_SNAPSHOT = """
import datetime, json, sys
from pipeline.warehouse import Location, open_warehouse
with open_warehouse(Location(**json.loads(sys.argv[1]))) as warehouse:
    print(json.dumps(warehouse.snapshot(datetime.date(2026, 3, 2)).__dict__))
"""


class TestSnapshots:
    @pytest.fixture
    def location(self, bigquery):
        return bigquery.load_labels(EDITS)

    def snapshot(self, location):
        with open_warehouse(location) as warehouse:
            return warehouse.snapshot(MONDAY)

    def test_two_launches_at_once_make_one_snapshot(self, bigquery, location):
        """Both are about to publish when the first does."""
        both = threading.Barrier(2)

        def publishes(call):
            made = re.search(rb"CREATE (SNAPSHOT )?TABLE (IF NOT EXISTS )?`[^`]*labels_20260302`", call.body)
            return made is not None and b'"dryRun": true' not in call.body

        bigquery.google.before(publishes, lambda: both.wait(60), times=2)
        command = [sys.executable, "-W", "ignore", "-c", _SNAPSHOT, json.dumps(dataclasses.asdict(location))]
        launches = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        try:
            found = [json.loads(launch.communicate(timeout=100)[0]) for launch in launches]
        finally:
            for launch in launches:
                launch.kill()
        assert found[0] == found[1] == self.snapshot(location).__dict__
        assert sum(map(publishes, bigquery.google.calls)) == 2
        assert bigquery.tables() == ["labels", "labels_20260302"]

    def test_an_edit_that_is_dated_back_is_not_in_it(self, bigquery):
        """The label table is read as it was, where its history reaches back so far."""
        today = datetime.datetime.now(datetime.timezone.utc).date()
        bigquery.google.set_back_the_clock(2)
        location = bigquery.load_labels(EDITS)
        bigquery.google.set_back_the_clock(0)
        labels = bigquery.address("labels")
        bigquery.client.query(
            f"INSERT INTO `{labels}` VALUES ('late', 'p9', 'cup', 'eve', TIMESTAMP '2026-03-05T00:00:00+00:00')"
        ).result()
        with open_warehouse(location) as warehouse:
            snapshot = warehouse.snapshot(today)
            images = {row["image_id"] for row in warehouse.rows(f"SELECT image_id FROM {warehouse.address(snapshot.table)}")}
        assert images == {"b", "c", "d", "e"} and snapshot.method == "clone"
        kept = bigquery.client.get_table(bigquery.address(f"{snapshot.table}_edits"))
        assert (kept.table_type, kept.num_rows) == ("SNAPSHOT", len(EDITS))

    def test_a_view_stands_for_the_label_table_and_the_checksum_is_duckdbs(self, bigquery, location, tmp_path):
        labels = bigquery.address("labels")
        bigquery.client.query(f"CREATE VIEW `{bigquery.address('current')}` AS SELECT * FROM `{labels}`").result()
        snapshot = self.snapshot(dataclasses.replace(location, labels="current"))
        assert snapshot.method == "by the edits' own times: the source is a view"
        edits = write_labels(tmp_path / "labels.csv", EDITS)
        here = Location(kind="duckdb", labels=str(edits), database=str(tmp_path / "w.duckdb"))
        on_duckdb = self.snapshot(here)
        for name in ("checksum", "rows", "schema_fingerprint", "as_of"):
            assert getattr(snapshot, name) == getattr(on_duckdb, name), name

    @pytest.mark.parametrize(
        "select, words",
        [
            ("* EXCEPT (source)", ["lacks the column(s) source", "Columns of other names: none"]),
            ("* EXCEPT (label), label AS class", ["lacks the column(s) label", "'class'", "Rename them"]),
            ("* REPLACE (DATE(updated_at) AS updated_at)", ["updated_at of", "is of type DATE and must be TIMESTAMP"]),
            ("* REPLACE (CAST(1.5 AS NUMERIC) AS label)", ["label of", "is of type NUMERIC and must be STRING", "casts it"]),
            ("* REPLACE ([label] AS label)", ["is of type ARRAY<STRING> and must be STRING"]),
        ],
    )
    def test_a_label_table_of_other_columns(self, bigquery, location, select, words):
        other, labels = bigquery.address("other"), bigquery.address("labels")
        bigquery.client.query(f"CREATE TABLE `{other}` AS SELECT {select} FROM `{labels}`").result()
        with pytest.raises(PipelineError) as raised:
            self.snapshot(dataclasses.replace(location, labels="other"))
        assert "other" in str(raised.value) and all(word in str(raised.value) for word in words)
        assert bigquery.tables() == ["labels", "other"]

    def test_no_label_table(self, location):
        with pytest.raises(PipelineError, match="there is no label table .*nowhere: correct warehouse.project"):
            self.snapshot(dataclasses.replace(location, labels="nowhere"))

    def test_a_table_that_is_no_snapshot_has_its_name(self, bigquery, location):
        name = bigquery.address("labels_20260302")
        bigquery.client.query(f"CREATE TABLE `{name}` AS SELECT * FROM `{bigquery.address('labels')}`").result()
        with pytest.raises(PipelineError, match="labels_20260302 was not made by this pipeline"):
            self.snapshot(location)

    def test_it_has_the_expiry_and_the_labels_of_the_settings(self, bigquery, location):
        location = dataclasses.replace(location, expiry_days=30, table_labels={"team": "shop"})
        table = bigquery.client.get_table(bigquery.address(self.snapshot(location).table))
        left = table.expires - datetime.datetime.now(datetime.timezone.utc)
        assert datetime.timedelta(29) < left <= datetime.timedelta(30) and table.labels == {"team": "shop"}

    def test_a_query_that_reads_too_much_does_not_run(self, bigquery, location):
        with pytest.raises(PipelineError, match="max_query_bytes"):
            self.snapshot(dataclasses.replace(location, max_query_bytes=10))
        assert bigquery.tables() == ["labels"]

    @pytest.mark.parametrize(
        "change",
        [
            "UPDATE {} SET label = 'hat' WHERE image_id = 'a'",
            "DELETE FROM {} WHERE image_id = 'a'",
            "INSERT INTO {} SELECT * FROM {} WHERE image_id = 'a'",
            "ALTER TABLE {} DROP COLUMN source",
            "CREATE OR REPLACE TABLE {} AS SELECT * REPLACE ('x' AS source) FROM {}",
        ],
    )
    def test_an_altered_snapshot_is_refused_by_name(self, bigquery, location, change):
        first = self.snapshot(location)
        name = bigquery.address(first.table)
        before = bigquery.client.get_table(name)
        if before.table_type == "SNAPSHOT":  # which only a table of the same name and facts can stand for
            bigquery.client.query(f"CREATE TABLE `{name}_copy` AS SELECT * FROM `{name}`").result()
            bigquery.client.query(f"DROP SNAPSHOT TABLE `{name}`").result()
            bigquery.client.query(f"CREATE TABLE `{name}` AS SELECT * FROM `{name}_copy`").result()
        bigquery.client.query(change.replace("{}", f"`{name}`")).result()
        after = bigquery.client.get_table(name)
        after.description, after.labels = before.description, before.labels
        bigquery.client.update_table(after, ["description", "labels"])
        with pytest.raises(PipelineError, match="labels_20260302 was altered"):
            self.snapshot(location)

    # A request of each kind that a snapshot needs.
    REQUESTS = {
        "tables.get": lambda call: call.method == "GET" and "/tables/" in call.path,
        "jobs.insert": lambda call: call.method == "POST" and "/jobs" in call.path,
        "jobs.getQueryResults": lambda call: call.method == "GET" and "/queries/" in call.path,
        "token": lambda call: call.host == google_apis.TOKENS,
    }

    @pytest.mark.parametrize("request_kind", REQUESTS)
    def test_a_refusal_is_an_error_that_says_so(self, bigquery, location, request_kind):
        bigquery.google.answer(403, self.REQUESTS[request_kind])
        with pytest.raises(PipelineError, match="Forbidden"):
            self.snapshot(location)
        bigquery.google.heal()
        assert self.snapshot(location).rows == 3

    @pytest.mark.parametrize("status", [429, 503])
    def test_a_busy_service_is_asked_again(self, bigquery, location, status):
        for request_kind in ("tables.get", "jobs.insert", "jobs.getQueryResults"):
            bigquery.google.answer(status, self.REQUESTS[request_kind], times=1)
        assert self.snapshot(location).rows == 3

    @pytest.mark.parametrize("late", [False, True], ids=["before the work", "in the middle of the answer"])
    def test_a_connection_that_ends_is_made_again(self, bigquery, location, late):
        """The job that publishes is asked for twice and done once."""
        for request_kind in ("tables.get", "jobs.getQueryResults"):
            bigquery.google.drop(self.REQUESTS[request_kind], times=1, late=late)
        bigquery.google.drop(statement("CREATE TABLE"), times=2, late=late)
        assert self.snapshot(location).rows == 3
        assert bigquery.tables() == ["labels", "labels_20260302"]

    @pytest.mark.parametrize("late", [False, True])
    def test_a_load_whose_connection_ends_is_done_once(self, bigquery, location, tmp_path, late):
        bigquery.google.drop(lambda call: call.method == "PUT", times=1, late=late)
        with open_warehouse(location) as warehouse:
            warehouse.load_parquet([index_file(tmp_path, ["a", "b"])], "image_index")
            assert len(list(warehouse.rows(f"SELECT * FROM {warehouse.address('image_index')}"))) == 2

    def test_a_table_that_a_load_makes_has_the_labels_of_the_settings(self, bigquery, location, tmp_path):
        with open_warehouse(dataclasses.replace(location, table_labels={"team": "shop"})) as warehouse:
            warehouse.load_parquet([index_file(tmp_path, ["a", "b"])], "image_index")
        assert bigquery.client.get_table(bigquery.address("image_index")).labels == {"team": "shop"}

    def test_a_load_that_is_refused_is_an_error_and_leaves_no_table(self, bigquery, location, tmp_path):
        bigquery.google.answer(403, lambda call: "/upload/" in call.path)
        with open_warehouse(location) as warehouse:
            with pytest.raises(PipelineError, match="(?s)cannot load .*index.parquet into .*image_index.*Forbidden"):
                warehouse.load_parquet([index_file(tmp_path, ["a", "b"])], "image_index")
        assert bigquery.tables() == ["labels"]


SPLITS = SplitSettings(train=0.6, val=0.2, group_by="product_id", salt="week")


def labels_of_the_sample() -> list[tuple]:
    with open(ROOT / "data/sample/labels.csv", newline="", encoding="utf-8") as stream:
        return [tuple(row[name] for name in LABEL_COLUMNS) for row in csv.DictReader(stream)]


def index_of(edits, path) -> str:
    """A shard index of every image but one in ten."""
    images = sorted({edit[0] for edit in edits})
    rows = [
        {"image_id": image, "shard": f"{n % 3}.tfrecord", "ordinal": n // 3, "bytes": 999 + n, "width": 300, "height": 256}
        for n, image in enumerate(images)
        if n % 10
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def generate(location: Location, snapshot, folder: pathlib.Path) -> dict[str, list[bytes]]:
    """Runs SnapshotExampleGen's executor; returns each split's records, sorted."""
    artifacts = {"snapshot": LabelSnapshot(), "shards": ImageShards(), "examples": standard_artifacts.Examples()}
    facts.record(artifacts["snapshot"], {"table": snapshot.table})
    facts.record(artifacts["shards"], {"index_table": "image_index"})
    artifacts["examples"].uri = str(folder / "examples")
    channels = [channel.Channel(type=type(artifacts[name])) for name in ("snapshot", "shards")]
    component = SnapshotExampleGen(*channels, json.dumps(dataclasses.asdict(location)), SPLITS)
    properties = {
        name: proto_utils.proto_to_json(value) if isinstance(value, message.Message) else value
        for name, value in component.spec.exec_properties.items()
    }
    context = Executor.Context(beam_pipeline_args=list(BEAM_HERE), tmp_dir=str(folder / "tmp"), unique_id="1")
    Executor(context).Do(
        {name: [artifacts[name]] for name in ("snapshot", "shards")}, {"examples": [artifacts["examples"]]}, properties
    )
    found = {}
    for split in ("train", "val", "eval"):
        files = sorted(map(str, (folder / "examples" / f"Split-{split}").iterdir()))
        found[split] = sorted(tf.data.TFRecordDataset(files, compression_type="GZIP").as_numpy_iterator())
    return found


class TestSnapshotExampleGen:
    """TFX's BigQuery executor, Beam and the Storage Read API, none of them changed."""

    @pytest.fixture
    def week(self, bigquery, tmp_path):
        """The sample's first week on BigQuery: its location and snapshot."""
        location = bigquery.load_labels(labels_of_the_sample())
        with open_warehouse(location) as warehouse:
            warehouse.load_parquet([index_of(labels_of_the_sample(), tmp_path / "index.parquet")], "image_index")
            return location, warehouse.snapshot(MONDAY)

    @pytest.fixture(scope="class")
    def on_duckdb(self, tmp_path_factory):
        """The same week on DuckDB: its snapshot and Examples."""
        folder = tmp_path_factory.mktemp("duckdb")
        location = Location(
            kind="duckdb", labels=str(ROOT / "data/sample/labels.csv"), database=str(folder / "warehouse.duckdb")
        )
        with open_warehouse(location) as warehouse:
            warehouse.load_parquet([index_of(labels_of_the_sample(), folder / "index.parquet")], "image_index")
            snapshot = warehouse.snapshot(MONDAY)
        return snapshot, generate(location, snapshot, folder)

    def test_the_same_examples_as_on_duckdb(self, week, on_duckdb, tmp_path):
        _, snapshot = week
        there, examples = on_duckdb
        assert (snapshot.rows, snapshot.checksum) == (there.rows, there.checksum)
        assert generate(*week, tmp_path) == examples
        assert all(examples.values()) and sum(map(len, examples.values())) > 100

    def test_nothing_is_left_and_nobody_else_was_asked(self, bigquery, week, tmp_path):
        before = {dataset.dataset_id for dataset in bigquery.client.list_datasets()}
        generate(*week, tmp_path)
        assert {dataset.dataset_id for dataset in bigquery.client.list_datasets()} == before
        assert bigquery.tables() == ["image_index", "labels", week[1].table]
        # Beam asks whether it runs on Google's own machines.
        assert all(asked.startswith("http://metadata") for asked in bigquery.google.refused)

    def test_a_connection_that_ends_between_rows_is_made_again(self, bigquery, week, on_duckdb, tmp_path):
        bigquery.google.cuts += [2000, 6000]
        assert generate(*week, tmp_path) == on_duckdb[1]
        assert not bigquery.google.cuts

    def test_a_busy_service_is_asked_again(self, bigquery, week, on_duckdb, tmp_path):
        for status in (429, 503):
            bigquery.google.answer(status, lambda call: call.method == "POST" and "/jobs" in call.path, times=1)
        assert generate(*week, tmp_path) == on_duckdb[1]

    @pytest.mark.parametrize(
        ("method", "part"), [("POST", "/jobs"), ("POST", "/datasets"), ("GET", "/tables/")], ids=["query", "data set", "table"]
    )
    def test_a_refusal_is_an_error_that_says_so(self, bigquery, week, tmp_path, method, part):
        bigquery.google.answer(403, lambda call: call.method == method and part in call.path)
        with pytest.raises(PipelineError, match="(?s)Forbidden.* needs roles/bigquery"):
            generate(*week, tmp_path)
