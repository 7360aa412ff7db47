"""What the gate is told: the classes of the schema, the validators' verdicts, the warehouse's answers."""

import collections
import csv
import datetime

import duckdb
import pytest
from tensorflow_metadata.proto.v0 import anomalies_pb2

from pipeline.errors import SettingsError
from pipeline.validation import facts
from pipeline.validation.rules import OTHER, Confusion, Drift, Offenders
from pipeline.warehouse import LABEL_COLUMNS, Location, open_warehouse, queries
from pipeline.warehouse.base import as_of
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


def test_every_divergence_is_read_above_its_limit_or_not(tmp_path):
    found = anomalies_pb2.Anomalies()
    for feature, value in [("width", 0.25), ("label", 0.0125)]:
        info = found.drift_skew_info.add()
        info.path.step.append(feature)
        info.drift_measurements.add(type="JENSEN_SHANNON_DIVERGENCE", value=value, threshold=0.05)
    write_anomalies(tmp_path, "SplitPair-train_train", found)
    assert facts.read_drift(str(tmp_path)) == [Drift("label", 0.0125, 0.05), Drift("width", 0.25, 0.05)]
    assert facts.read_drift(str(tmp_path / "none")) == []


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
    """f(date, baseline's date or None, edits, images) -> facts and the rows of the examples."""

    def gather(date, baseline, edits=EDITS, images="abcdeg", group_by="image_id", alter=()):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        with open(folder / "labels.csv", "w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(LABEL_COLUMNS)
            writer.writerows(
                (image, product or f"p{image}", label, "ana", at) for image, label, at, product in map(whole, edits)
            )
        location = Location(kind="duckdb", labels=str(folder / "labels.csv"), database=str(folder / "w.duckdb"))
        with open_warehouse(location) as warehouse:
            table = warehouse.snapshot(date).table
            before = warehouse.snapshot(baseline).table if baseline else None
            warehouse.load_parquet([index_file(folder, list(images))], "image_index_1")
        with duckdb.connect(location.database) as connection:
            for change in alter:
                connection.execute(change)
        with open_warehouse(location) as warehouse:
            query = queries.examples(
                warehouse.address(table), warehouse.address("image_index_1"), group_by, "", train=0.3, val=0.3
            )
            rows = list(warehouse.rows(query))
            found = facts.gather(
                warehouse,
                snapshot=table,
                index="image_index_1",
                examples_query=query,
                baseline=before,
                baseline_as_of=as_of(baseline) if baseline else None,
                classes=("cup", "hat"),
                schema_anomalies=["s"],
                drift_anomalies=["d"],
                drift=[Drift("label", 0.1, 0.2)],
            )
        return found, rows

    return gather


def whole(edit):
    return edit if len(edit) == 4 else (*edit, "")


FIRST, SECOND = datetime.date(2026, 3, 2), datetime.date(2026, 3, 9)


def test_the_facts_of_a_week_with_a_baseline(gathered):
    found, _ = gathered(SECOND, FIRST)
    assert found.class_counts == {"cup": 3, "hat": 3, "<b>'vehical'": 1} and found.rows == 7
    assert found.duplicates == Offenders(1, ("g: cup, hat",))
    assert found.orphans == Offenders(1, ("f (cup)",))
    assert found.unknown == {"<b>'vehical'": 1}
    assert found.null_images == found.null_labels == found.straddling == Offenders()
    before = found.baseline
    assert (before.table, before.class_counts, before.rows) == ("labels_20260302", {"cup": 2, "hat": 2}, 4)
    assert (before.relabelled, before.common_images) == (1, 3)
    assert before.confusions == [Confusion("cup", "hat", 1, "b", "b")]
    assert (before.edits, before.as_of, before.newest_edit) == (5, "2026-03-02 00:00 UTC", "2026-03-05 08:00 UTC")
    assert (found.schema_anomalies, found.drift_anomalies, found.classes) == (["s"], ["d"], ("cup", "hat"))
    assert found.drift == [Drift("label", 0.1, 0.2)]


def test_rows_and_classes_of_the_splits_are_those_of_the_rows_that_would_train(gathered):
    found, rows = gathered(SECOND, FIRST)
    assert found.split_rows == collections.Counter(row["split"] for row in rows)
    assert found.eval_counts == collections.Counter(row["label"] for row in rows if row["split"] == "eval")
    assert 0 < found.split_rows["eval"] < len(rows)


def test_the_facts_of_a_first_week(gathered):
    found, _ = gathered(FIRST, None)
    assert found.baseline is None and found.class_counts == {"cup": 2, "hat": 2}


def test_edits_count_from_the_instant_at_which_the_baseline_was_taken(gathered):
    old = ("a", "cup", "2026-03-01T23:59:59.999999Z")
    assert gathered(SECOND, FIRST, [old])[0].baseline.edits == 0
    found, _ = gathered(SECOND, FIRST, [old, ("b", "hat", "2026-03-02T00:00:00Z")])
    assert found.baseline.edits == 1
    # A label that was confirmed is an edit; one that was withdrawn leaves no label.
    assert gathered(SECOND, FIRST, [old, ("a", "cup", "2026-03-03T00:00:00Z")])[0].baseline.edits == 1
    others = [old, ("b", "hat", "2026-02-01T00:00:00Z"), ("b", "", "2026-03-03T00:00:00Z")]
    assert gathered(SECOND, FIRST, others)[0].baseline.edits == 0


def test_null_and_blank_labels_and_ids_are_counted_once_each(gathered):
    found, _ = gathered(
        SECOND,
        FIRST,
        alter=[
            "INSERT INTO labels_20260309 VALUES ('n1', 'p', NULL, 'x', now()), ('n2', 'p', '  ', 'x', now())",
            "INSERT INTO labels_20260309 VALUES (NULL, 'q', 'cup', 'x', now()), ('', 'q', 'hat', 'x', now())",
            "INSERT INTO labels_20260309 VALUES (' ', NULL, NULL, 'x', now())",
        ],
    )
    assert found.null_images == Offenders(3, ("product none, label none", "product q, label cup", "product q, label hat"))
    assert found.null_labels == Offenders(3, ("none", "n1", "n2"))
    assert found.unknown == {"<b>'vehical'": 1} and found.duplicates.count == 1
    assert found.orphans == Offenders(3, ("f (cup)", "n1 (none)", "n2 (none)"))
    assert found.rows == 12


def test_a_product_and_an_image_in_two_splits_are_found(gathered):
    many = [(f"i{n:02d}", "cup", EDITS[0][2], f"p{n // 10}") for n in range(40)]
    images = [image for image, *_ in many]
    found, _ = gathered(FIRST, None, many, images)
    assert found.straddling.count == 4 and found.straddling.examples[0].startswith("product p0: eval")
    assert gathered(FIRST, None, many, images, group_by="product_id")[0].straddling == Offenders()
    # One photograph under many products: some of them must be of another split.
    twice = [("i00", "cup", EDITS[0][2], f"q{n}") for n in range(20)]
    found, _ = gathered(FIRST, None, twice, ["i00"], group_by="product_id")
    assert found.straddling == Offenders(1, ("image i00: eval, train, val",))


def test_of_very_many_offenders_a_few_come_back(gathered):
    many = [(f"i{n:03d}", "cup", EDITS[0][2]) for n in range(200)]
    many += [(image, "hat", at) for image, _, at in many[:50]]
    many += [(f"j{n:03d}", "cup", EDITS[0][2]) for n in range(300)]
    many += [(f"j{n:03d}", "hat" if n < 200 else f"odd{n}", EDITS[-1][2]) for n in range(250)]
    found, _ = gathered(SECOND, FIRST, many, ["j000"])
    assert found.duplicates.count == 50 and found.orphans.count == 499 and found.baseline.relabelled == 250
    assert found.duplicates.examples == tuple(f"i{n:03d}: cup, hat" for n in range(8))
    assert len(found.orphans.examples) == len(found.baseline.confusions) == 8
    assert found.baseline.confusions[:2] == [
        Confusion("cup", "hat", 200, "j000", "j199"), Confusion("cup", "odd200", 1, "j200", "j200"),
    ]  # fmt: skip


def test_a_column_mixed_up_does_not_bring_every_row_here(gathered):
    edits = [(f"i{n:04d}", f"i{n:04d}", EDITS[0][2]) for n in range(1500)]
    edits += [(f"k{n:04d}", "cup", EDITS[0][2]) for n in range(10)]
    found, _ = gathered(FIRST, None, edits)
    assert len(found.class_counts) == 1003 and found.rows == 1510
    assert found.class_counts["cup"] == 10 and found.class_counts[OTHER] == 1510 - 10 - 1001
