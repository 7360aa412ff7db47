"""Writes what people decided about an endpoint into Vertex ML Metadata, as ServingLedger writes there what a run did."""

import contextlib
import dataclasses
from collections.abc import Sequence

from google.api_core import exceptions
from google.auth import exceptions as auth
from google.cloud import aiplatform_v1 as v1

from pipeline.lineage.base import RELEASE_TYPE
from pipeline.release.ledger import Entry
from pipeline.vertex.service import endpoint_of, refusal
from pipeline.vertex.settings import VertexSettings

_TIMEOUT = 60.0


def decisions(entries: Sequence[Entry]) -> list[Entry]:
    """The entries that no run records: those of people, and the canaries that people ended while no run was there.

    Args:
        entries: Of one endpoint, oldest first.
    """
    following = [*entries[1:], None]
    return [
        entry
        for entry, after in zip(entries, following, strict=True)
        if not entry.by_run or entry.action == "canary" and after and not after.by_run
    ]


def record(settings: VertexSettings, pipeline: str, entries: Sequence[Entry]) -> int:
    """Records entries that are not recorded yet, each as an artifact of the pipeline's context.

    Args:
        settings: Vertex's settings.
        pipeline: Name of the pipeline.
        entries: Entries of the serving ledger.

    Returns:
        How many were new.

    Raises:
        PipelineError: Vertex refuses or does not answer, or the pipeline never ran there.
    """
    store = f"projects/{settings.project}/locations/{settings.region}/metadataStores/default"
    context = f"{store}/contexts/{pipeline}"
    try:
        client = v1.MetadataServiceClient(client_options={"api_endpoint": endpoint_of(settings.region)})
        listed = v1.ListArtifactsRequest(parent=store, filter=f'schema_title="{RELEASE_TYPE}" AND in_context("{context}")')
        known = {artifact.name.rpartition("/")[2] for artifact in client.list_artifacts(listed, timeout=_TIMEOUT)}
        new = [entry for entry in entries if _id(entry) not in known]
        for entry in new:
            # One that was made and not put into the context, because the command was killed, is there already.
            with contextlib.suppress(exceptions.AlreadyExists):
                client.create_artifact(parent=store, artifact=_artifact(entry), artifact_id=_id(entry), timeout=_TIMEOUT)
        if new:
            request = v1.AddContextArtifactsAndExecutionsRequest(
                context=context, artifacts=[f"{store}/artifacts/{_id(entry)}" for entry in new]
            )
            client.add_context_artifacts_and_executions(request, timeout=_TIMEOUT)
    except (exceptions.GoogleAPIError, auth.GoogleAuthError) as error:
        raise refusal(error, settings) from error
    return len(new)


def _id(entry: Entry) -> str:
    return f"release-{entry.endpoint}-{entry.number}"


def _artifact(entry: Entry) -> v1.Artifact:
    facts = dataclasses.asdict(entry)
    facts |= {"released": 1, "released_at": facts.pop("at"), "ledger_number": facts.pop("number")}
    return v1.Artifact(
        display_name=f"{entry.action} of version {entry.to_version}"[:128],
        schema_title=RELEASE_TYPE,
        state=v1.Artifact.State.LIVE,
        metadata={**facts, "ledger_line_sha256": entry.line_sha256},
    )
