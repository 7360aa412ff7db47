"""One worker of a training, in a process of its own: `python -m models.worker FILE`, which `pipeline.workers` starts.

FILE holds the fields of TFX's FnArgs as JSON; TF_CONFIG says which worker this is. `models.started` says how it is heard and
how it ends.
"""

import sys
import types

from models import started
from models.errors import TrainingError


def _train(arguments: dict) -> None:
    # Late: loading TensorFlow takes seconds, in which the starter may end.
    from models import training

    training.run_fn(types.SimpleNamespace(**arguments))


if __name__ == "__main__":
    sys.exit(started.run(_train, known=(TrainingError,), heard=("models",)))
