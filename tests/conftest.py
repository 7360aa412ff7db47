"""What all tests share: the order in which their files run."""

LONGEST_FIRST = (
    "cloud/test_vertex_weeks.py",
    "end_to_end/test_weeks.py",
    "pipeline/test_workers.py",
    "models/test_checkpoints.py",
    "pipeline/components/test_tuner.py",
    "models/test_training.py",
    "pipeline/components/test_trainer.py",
    "pipeline/vizier/test_service.py",
    "cloud/test_bigquery.py",
    "pipeline/test_replay.py",
    "cloud/test_vertex_tuning.py",
)
"""Files that take more than a minute. Started last, one of them would keep a single process busy while the others have ended."""


def pytest_collection_modifyitems(items):
    """Puts the files that take longest before all others, which keep their order."""
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.nodeid.split("::")[0].removeprefix("tests/"), len(places)))
