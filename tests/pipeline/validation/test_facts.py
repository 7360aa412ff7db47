"""What the gate is told: the classes of the schema, the validators' verdicts, the warehouse's answers."""

import csv
import datetime

import pytest
from tensorflow_metadata.proto.v0 import anomalies_pb2

from pipeline.errors import SettingsError
from pipeline.validation import facts
from pipeline.warehouse import LABEL_COLUMNS, Location, open_warehouse, queries
from tests.pipeline.warehouse.conformance import index_file

FEATURE = 'feature { name: "label" type: BYTES %s }'


def domain(*values) -> str:
    return 'string_domain { name: "classes" ' + " ".join(f'value: "{value}"' for value in values) + " }"


@pytest.fixture
def schema(tmp_path):
    def write(text):
        path = tmp_path / "schema.pbtxt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize(
    "text",
    [
        FEATURE % domain("hat", "cup", "tie"),
        'feature { name: "width" type: INT }\n# people write comments\n' + FEATURE % domain("hat", "cup", "tie"),
        FEATURE % 'domain: "classes"' + "\n" + domain("hat", "cup", "tie"),  # named here, written out beside the features
    ],
)
def test_classes_come_in_the_order_of_the_schema(schema, text):
    assert facts.read_classes(schema(text)) == ("hat", "cup", "tie")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("feature { nam: 'label' }", ["is no schema", "1:"]),
        ("{", ["is no schema"]),
        ("", ["has no feature label"]),
        ('feature { name: "width" type: INT }', ["has no feature label"]),
        (FEATURE % "", ["two or more different classes", "[]"]),
        (FEATURE % domain("cup"), ["two or more different classes", "['cup']"]),
        (FEATURE % domain("cup", "hat", "cup"), ["different classes", "['cup', 'hat', 'cup']"]),
        (FEATURE % 'domain: "elsewhere"' + domain("cup", "hat"), ["two or more different classes", "[]"]),
        (b"\xff\xfe", ["cannot read the schema", "utf-8"]),
    ],
)
def test_a_schema_that_names_no_classes_is_refused(schema, text, words):
    path = schema(text)
    with pytest.raises(SettingsError) as raised:
        facts.read_classes(path)
    for word in [str(path), *words]:
        assert word in str(raised.value)


def test_a_missing_schema(tmp_path):
    with pytest.raises(SettingsError, match="cannot read the schema .*none.pbtxt: .*No such file"):
        facts.read_classes(tmp_path / "none.pbtxt")


def anomaly(description="", *reasons) -> anomalies_pb2.AnomalyInfo:
    info = anomalies_pb2.AnomalyInfo(description=description)
    for short, long in reasons:
        info.reason.add(short_description=short, description=long)
    return info


def write_anomalies(folder, name, anomalies):
    (folder / name).mkdir()
    (folder / name / "SchemaDiff.pb").write_bytes(anomalies.SerializeToString())


def test_no_anomalies(tmp_path):
    write_anomalies(tmp_path, "Split-train", anomalies_pb2.Anomalies())
    assert facts.read_anomalies(str(tmp_path)) == []


def test_a_validator_that_wrote_nothing_is_an_anomaly_when_it_had_something_to_judge(tmp_path):
    assert facts.read_anomalies(str(tmp_path)) == [f"the validator wrote no verdict into {tmp_path}"]
    assert facts.read_anomalies(str(tmp_path), judged=False) == []


def test_each_anomaly_is_a_text_that_names_split_and_feature(tmp_path):
    found = anomalies_pb2.Anomalies()
    found.anomaly_info["label"].CopyFrom(anomaly("x", ("Unexpected", "Examples contain vehical"), ("Missing", "Too few")))
    found.anomaly_info["height"].CopyFrom(anomaly("without reasons"))
    write_anomalies(tmp_path, "Split-val", found)
    write_anomalies(tmp_path, "Split-eval", anomalies_pb2.Anomalies(data_missing=True))
    assert facts.read_anomalies(str(tmp_path)) == [
        "eval: there is no data",
        "val: height: without reasons",
        "val: label: Examples contain vehical",
        "val: label: Too few",
    ]


def test_drift_is_told_by_its_short_description_and_by_the_data_set(tmp_path):
    found = anomalies_pb2.Anomalies()
    found.anomaly_info["label"].CopyFrom(anomaly("", ("High Jensen-Shannon divergence", "")))
    found.dataset_anomaly_info.reason.add(description="the number of examples fell")
    write_anomalies(tmp_path, "SplitPair-train_train", found)
    assert facts.read_anomalies(str(tmp_path)) == [
        "train_train: label: High Jensen-Shannon divergence",
        "train_train: the number of examples fell",
    ]


EDITS = [
    ("a", "cup", "2026-03-01T08:00:00Z"),
    ("b", "cup", "2026-03-01T08:00:00Z"),
    ("c", "hat", "2026-03-01T08:00:00Z"),
    ("d", "hat", "2026-03-01T08:00:00Z"),
    ("b", "hat", "2026-03-05T08:00:00Z"),  # relabelled
    ("c", "", "2026-03-05T08:00:00Z"),  # withdrawn
    ("e", "<b>'vehical'", "2026-03-05T08:00:00Z"),  # a label that the schema does not have
    ("f", "cup", "2026-03-05T08:00:00Z"),  # no photograph
    ("g", "cup", "2026-03-05T08:00:00Z"),  # two edits at once
    ("g", "hat", "2026-03-05T08:00:00Z"),
]


@pytest.fixture
def gathered(tmp_path):
    with open(tmp_path / "labels.csv", "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(LABEL_COLUMNS)
        writer.writerows((image, f"p{image}", label, "ana", at) for image, label, at in EDITS)
    location = Location(kind="duckdb", labels=str(tmp_path / "labels.csv"), database=str(tmp_path / "w.duckdb"))

    def gather(date, baseline):
        with open_warehouse(location) as warehouse:
            table = warehouse.snapshot(date).table
            before = warehouse.snapshot(baseline).table if baseline else None
            warehouse.load_parquet([index_file(tmp_path, list("abcdeg"))], "image_index_1")
            query = queries.examples(
                warehouse.address(table), warehouse.address("image_index_1"), "image_id", "", train=0.3, val=0.3
            )
            rows = list(warehouse.rows(query))
            found = facts.gather(
                warehouse,
                snapshot=table,
                index="image_index_1",
                examples_query=query,
                baseline=before,
                classes=("cup", "hat"),
                schema_anomalies=["s"],
                drift_anomalies=["d"],
            )
        return found, rows

    return gather


FIRST, SECOND = datetime.date(2026, 3, 2), datetime.date(2026, 3, 9)


def test_the_facts_of_a_week_with_a_baseline(gathered):
    found, _ = gathered(SECOND, FIRST)
    assert found.class_counts == {"cup": 3, "hat": 3, "<b>'vehical'": 1} and found.rows == 7
    assert found.baseline_counts == {"cup": 2, "hat": 2} and found.baseline_table == "labels_20260302"
    assert found.duplicates == [("g", "cup, hat")]
    assert found.orphans == [("f", "cup")]
    assert found.unknown == [("<b>'vehical'", 1)]
    assert found.relabelled == [("b", "cup", "hat")]
    assert found.common_images == 3
    assert (found.schema_anomalies, found.drift_anomalies, found.classes) == (["s"], ["d"], ("cup", "hat"))


def test_eval_counts_are_those_of_the_rows_that_would_be_judged(gathered):
    found, rows = gathered(SECOND, FIRST)
    wanted = {}
    for row in rows:
        if row["split"] == "eval":
            wanted[row["label"]] = wanted.get(row["label"], 0) + 1
    assert found.eval_counts == wanted and 0 < sum(wanted.values()) < len(rows)


def test_the_facts_of_a_first_week(gathered):
    found, _ = gathered(FIRST, None)
    assert (found.baseline_counts, found.baseline_table, found.relabelled, found.common_images) == (None, None, [], 0)
    assert found.class_counts == {"cup": 2, "hat": 2}
