"""A study on this machine, as the Tuner step runs it.

    supervisor.py   starts Vizier's service and the workers, and again what dies
    worker.py       one worker: runs trials of a study, in a process of its own
    machine.py      how many workers this machine bears
    results.py      a study's trials as JSON, written and read
    status.py       how studies stand: `python -m pipeline tune status`
    page.py         a study as an HTML page

No TensorFlow but in a worker. What a trial is lies in `models.study` and `models.tuning`, Vizier in `pipeline.vizier`.
"""
