"""`local_runner.py`: mistakes on the command line and in files answer at once, before TensorFlow is loaded."""

import shutil

import pytest
import yaml

import local_runner
from pipeline import settings
from pipeline.release import configurations
from pipeline.vizier import local
from tests.pipeline.conftest import ROOT, answers, command

DATE = ["--snapshot-date", "2026-03-02"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Settings and data folders with one mistake each."""
    folder = tmp_path_factory.mktemp("mistakes")
    sample = yaml.safe_load((settings.CONFIGS / "local.yaml").read_text())
    files = {
        "unknown-key.yaml": yaml.safe_dump(sample | {"shards": {"shortside": 112}}),
        "wrong-type.yaml": yaml.safe_dump(sample | {"splits": {"train": "most"}}),
        "no-yaml.yaml": "name: [",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    for data, file, text in [
        ("broken-schema", "schema.pbtxt", 'feature { name: "label" type: BYTES strin_domain {} }'),
        ("no-classes", "schema.pbtxt", 'feature { name: "label" type: BYTES }'),
        ("wrong-limit", "gate.yaml", "min_rows: -1"),
        ("no-limits", "gate.yaml", None),
        ("wrong-thresholds", "release.yaml", (ROOT / "schema" / "release.yaml").read_text().replace("0.45", "3")),
    ]:
        shutil.copytree(ROOT / "schema", folder / data / "schema")
        path = folder / data / "schema" / file
        path.unlink() if text is None else path.write_text(text)
    (folder / "no-labels" / "images").mkdir(parents=True)
    return folder


# Name -> words of the command line (a file of `folder` after @), exit status, words of the answer.
MISTAKES = {
    "a month that is none": (["--snapshot-date", "2026-13-01"], 1, ["'2026-13-01'", "YYYY-MM-DD"]),
    "a day that is none": (["--snapshot-date", "2026-02-29"], 1, ["'2026-02-29'", "YYYY-MM-DD"]),
    "words for a date": (["--snapshot-date", "next week"], 1, ["'next week'", "such as 2026-03-02"]),
    "an empty date": (["--snapshot-date", ""], 1, ["''", "YYYY-MM-DD"]),
    "more workers than the budget": ([*DATE, "--workers", "5"], 2, ["--workers 5", "training.workers 5 must be 1 to 4", "budget"]),
    "no worker": ([*DATE, "--workers", "0"], 2, ["training.workers 0 must be 1 to 4"]),
    "a batch that does not divide": (
        [*DATE, "--workers", "3"],
        2,
        ["training.batch_size 16 does not divide over training.workers 3", "such as 18"],
    ),
    "a ranking without a search": (
        [*DATE, "--verify-ranking", "3"], 1,
        ["--verify-ranking 3 checks a search", "nothing was tuned", "add --tune", "tune verify-ranking RUN_ID 3"],
    ),
    "a ranking of two": ([*DATE, "--verify-ranking", "2"], 1, ["a ranking of 2 trials says nothing"]),
    "a ranking of more than there are": (
        [*DATE, "--verify-ranking", "6"], 1, ["a ranking of 6 asks for more trials than the search has, 5 (tuning.trials)"],
    ),
    "settings: unknown key": (
        [*DATE, "--settings", "@unknown-key.yaml"],
        2,
        ["unknown-key.yaml", "shards.shortside: there is no such setting; did you mean 'short_side'?", "112"],
    ),
    "settings: wrong type": ([*DATE, "--settings", "@wrong-type.yaml"], 2, ["wrong-type.yaml", "splits.train", "'most'"]),
    "settings: no YAML": ([*DATE, "--settings", "@no-yaml.yaml"], 2, ["no-yaml.yaml is not valid YAML"]),
    "settings: no file": ([*DATE, "--settings", "@none.yaml"], 2, ["cannot read the settings file", "none.yaml"]),
    "settings: a folder": ([*DATE, "--settings", "@broken-schema"], 2, ["cannot read the settings file", "broken-schema"]),
    "schema: broken": ([*DATE, "--data", "@broken-schema"], 2, ["schema.pbtxt is no schema", "strin_domain"]),
    "schema: no classes": ([*DATE, "--data", "@no-classes"], 2, ["schema.pbtxt", "two or more different classes"]),
    "limits: wrong": (
        [*DATE, "--data", "@wrong-limit"],
        2,
        ["gate.yaml", "min_rows", "-1", "max_rows: this setting is required"],
    ),
    "thresholds: wrong": ([*DATE, "--data", "@wrong-thresholds"], 2, ["release.yaml", "absolute.min_balanced_accuracy", "3"]),
    "thresholds: no file": ([*DATE, "--thresholds", "@none.yaml"], 2, ["cannot read the settings file", "none.yaml"]),
    "thresholds: other limits": (
        [*DATE, "--thresholds", "@wrong-limit/schema/gate.yaml"],
        2,
        ["gate.yaml", "absolute: this setting is required", "min_rows: there is no such setting"],
    ),
    "data: no folder": ([*DATE, "--data", "@nowhere"], 1, ["no folder of photographs", "nowhere/images", "--data"]),
    "data: no labels": ([*DATE, "--data", "@no-labels"], 1, ["no label table", "no-labels/labels.csv", "--data"]),
    "store: a file": ([*DATE, "--store", "@no-yaml.yaml"], 1, ["cannot use the store", "no-yaml.yaml", "--store"]),
    "limits: no file": ([*DATE, "--data", "@no-limits"], 2, ["cannot read the settings file", "gate.yaml"]),
}


@pytest.fixture(scope="module")
def told(folder):
    lines = [
        [str(folder / word[1:]) if word.startswith("@") else word for word in ["--store", "@store", *words]]
        for words, _, _ in MISTAKES.values()
    ]
    return dict(zip([*MISTAKES, "usage"], answers("local_runner", [*lines, []]), strict=True))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_its_value_and_without_a_traceback(told, name):
    _, status, words = MISTAKES[name]
    answer = told[name]
    assert (answer.status, answer.out) == (status, "")
    assert answer.err.startswith("\nerror: ") and "Traceback" not in answer.err
    for word in words:
        assert word in answer.err


def test_mistakes_are_found_before_tensorflow_is_loaded_and_leave_no_store(told, folder):
    assert [answer.loaded for answer in told.values()] == [[]] * len(told)
    assert not (folder / "store").exists()


def test_without_a_date_there_is_no_run(told):
    assert told["usage"].status == 2 and "--snapshot-date" in told["usage"].err


@pytest.mark.parametrize("asked", [True, False])
def test_a_week_that_searches_needs_viziers_environment_and_is_told_before_it_starts(tmp_path, monkeypatch, capsys, asked):
    monkeypatch.setattr(local, "PYTHON", tmp_path / "none" / "python")
    words = [*DATE, "--store", str(tmp_path / "store")]
    if asked:
        words, reason = [*words, "--tune"], "asked for by --tune"
    else:
        content = yaml.safe_load((settings.CONFIGS / "local.yaml").read_text())
        content["retune"]["every_weeks"] = 4
        (tmp_path / "monthly.yaml").write_text(yaml.safe_dump(content))
        words, reason = [*words, "--settings", str(tmp_path / "monthly.yaml")], "due: the last search was 4 weeks ago"
        known = configurations.Configuration("2026-02-02", "run-1", {"space": [], "values": {}})
        configurations.record(str(tmp_path / "store" / "configurations"), known)
    assert local_runner.main(words) == 1
    told = capsys.readouterr()
    assert told.out == "" and "Traceback" not in told.err
    for word in [f"this week searches for hyperparameters ({reason}", "none/python", "requirements/vizier.py"]:
        assert word in told.err
    assert not (tmp_path / "store" / "lock").exists()


def test_as_a_person_calls_it():
    done = command("local_runner.py", "--snapshot-date", "2026-13-01")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("\nerror: there is no snapshot date '2026-13-01'")


def test_a_ranking_has_no_place_in_a_window(capsys):
    with pytest.raises(SystemExit) as ended:
        local_runner.parse([*DATE, "--tune", "--verify-ranking", "3", "--window-end", "2099-01-01T06:00+00:00"])
    assert ended.value.code == 2
    assert "--verify-ranking trains on after the run, past --window-end" in capsys.readouterr().err


def test_help_tells_the_exit_statuses_and_what_the_data_folder_holds():
    done = command("local_runner.py", "--help")
    assert done.returncode == 0
    for words in ["images/", "labels.csv", "schema.pbtxt", "Exit status: 0 done", "--tune"]:
        assert words in done.stdout


@pytest.mark.parametrize(
    "text, words",
    [
        ("tonight", "'tonight' is no instant"),
        ("2126-03-03T06:00", "lacks its offset from UTC: write it as 2126-03-03T06:00+00:00"),
        ("2026-03-03T06:00+01:00", "is over"),
    ],
)
def test_a_windows_end_is_an_instant_to_come(capsys, text, words):
    with pytest.raises(SystemExit) as raised:
        local_runner.parse([*DATE, "--window-end", text])
    assert raised.value.code == 2 and words in capsys.readouterr().err


def test_a_search_without_its_environment_is_refused_at_once(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(local, "PYTHON", tmp_path / "none")
    assert local_runner.main([*DATE, "--tune", "--store", str(tmp_path / "store")]) == 1
    assert "run .venv/bin/python requirements/vizier.py" in capsys.readouterr().err and not (tmp_path / "store").exists()


def test_a_windows_end_is_optional():
    assert local_runner.parse(DATE).window_end is None
    end = local_runner.parse([*DATE, "--window-end", "2126-03-03T06:00+01:00"]).window_end
    assert end.isoformat() == "2126-03-03T06:00:00+01:00"
