"""Builds .venv-bigquery/, where BigQuery's emulator runs for tests/cloud, from the hashed bigquery-emulator.txt.

    .venv/bin/python requirements/bigquery_emulator.py      build it, or return at once when it is up to date

An environment of its own, because the emulator needs a newer pyarrow than TFX 1.16 admits. About 150 MB are downloaded
and 500 MB of disk used. It has the Python of the environment that runs this: `make test` runs it before the tests.
"""

import sys

import bootstrap
from environments import Environment

BIGQUERY_EMULATOR = Environment(
    name=".venv-bigquery",
    requirements="bigquery-emulator.txt",
    purpose="BigQuery's emulator for the tests: about 150 MB to download, once",
)

if __name__ == "__main__":
    sys.exit(bootstrap.exit_code(BIGQUERY_EMULATOR.set_up, "make test"))
