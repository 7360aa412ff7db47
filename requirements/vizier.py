"""Builds .venv-vizier/, where the service that tunes on this machine runs, from the hashed vizier.txt.

    .venv/bin/python requirements/vizier.py      build it, or return at once when it is up to date

An environment of its own, because open-source Vizier brings JAX, whose NumPy and SciPy TFX 1.16 does not admit. About
270 MB are downloaded and 1.1 GB of disk used. It has the Python of the environment that runs this.
"""

import sys

import bootstrap
from environments import Environment

VIZIER = Environment(
    name=".venv-vizier",
    requirements="vizier.txt",
    purpose="Vizier's service for tuning on this machine: about 270 MB to download, once",
)

if __name__ == "__main__":
    sys.exit(bootstrap.exit_code(VIZIER.set_up, "the same command"))
