"""The artifact types that standard TFX does not have.

Their names are `pipeline.Class` because the KFP v2 compiler wants exactly one dot and Vertex imports
them by it; their facts are custom properties because that compiler refuses declared ones.
"""

from tfx.types import artifact


class RunManifest(artifact.Artifact):
    """What a run was started with: `manifest.json` and the same facts as custom properties."""

    TYPE_NAME = "pipeline.RunManifest"


class ImageShards(artifact.Artifact):
    """One generation of image shards; its facts name the index, the digest and the counts."""

    TYPE_NAME = "pipeline.ImageShards"


class LabelSnapshot(artifact.Artifact):
    """One dated, immutable table of labels: `snapshot.json` and the same facts as custom properties."""

    TYPE_NAME = "pipeline.LabelSnapshot"


class GateReport(artifact.Artifact):
    """The verdict of the gate on an accepted snapshot: every rule with its value and limit."""

    TYPE_NAME = "pipeline.GateReport"


class BestKnownConfiguration(artifact.Artifact):
    """The best-known hyperparameters when a run ended: `configuration.json`, and its facts; `known` = 0 before the first."""

    TYPE_NAME = "pipeline.BestKnownConfiguration"


class ServingRelease(artifact.Artifact):
    """What the release step did: the ledger entry, or the reason why there is none."""

    TYPE_NAME = "pipeline.ServingRelease"
