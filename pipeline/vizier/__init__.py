"""Tuning by Vizier: a service that answers Vertex's API on one machine, and the pipeline's side of a study.

    study.py        the pipeline's side; talks to Vertex or to the service, with Google's own client
    local.py        starts and ends the service for as long as a block lasts
    service.py      the service's process: command line, gRPC server
    methods.py      what each call of the API does
    checks.py       what a request must be
    refusals.py     why a request is refused
    resources.py    the names of studies, trials and operations
    database.py     where studies live: a file of SQLite
    algorithms.py   where suggestions come from: open-source Vizier
    stopping.py     which trial is not worth going on with

The first two run in the pipeline's environment; the others in `.venv-vizier`, which has open-source Vizier and JAX.
"""
