"""Tuning as a part of a week: whether it searches, a study on this machine as the Tuner step runs it, what came of it.

    supervisor.py   starts Vizier's service and the workers, and again what dies
    worker.py       one worker: runs trials of a study, in a process of its own
    machine.py      how many workers this machine bears
    results.py      a study's trials as JSON, written and read
    status.py       how studies stand: `python -m pipeline tune status`
    page.py         a study as an HTML page
    end.py          when a search must end so that its run trains within its window
    decision.py     whether a week searches, and why
    ranking.py      how well the tuning sample ranked trials: arithmetic
    verify.py       trains trials in full to see that: `python -m pipeline tune verify-ranking`

No TensorFlow but in a worker and in `verify.py`. What a trial is lies in `models.study` and `models.tuning`, Vizier in `pipeline.vizier`.
"""
