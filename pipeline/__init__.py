"""What runs every week: from labels and photographs to a served, traceable model.

Vertex AI Pipelines imports a custom artifact type by its schema title, `pipeline.LabelSnapshot` and
its like, so the types are reachable here; they load TFX only when somebody asks for one, because
`python -m pipeline audit` must answer without it.
"""

import importlib

_ARTIFACT_TYPES = (
    "BestKnownConfiguration",
    "GateReport",
    "ImageShards",
    "LabelSnapshot",
    "RunManifest",
    "ServingRelease",
)


def __getattr__(name):
    if name in _ARTIFACT_TYPES:
        return getattr(importlib.import_module("pipeline.artifacts"), name)
    raise AttributeError(f"module 'pipeline' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_ARTIFACT_TYPES])
