"""A run as OpenLineage tells it, for catalogs of other makers: when each step began and ended, what it read and wrote.

The events come from the lineage, after the fact, with the instants that it recorded; ids are made of the run's own, so the
same run gives the same events however often it is told.

    https://openlineage.io/docs/spec/object-model
"""

import datetime
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence

from pipeline import storage
from pipeline.lineage.base import DONE, Artifact, Execution, Run
from pipeline.lineage.facts import FAILURE, RunFacts
from pipeline.provenance.statement import NAMESPACE

_ENDS = {"COMPLETE": "COMPLETE", "CACHED": "COMPLETE", "FAILED": "FAIL", "CANCELED": "ABORT"}
"""State of a step -> type of the event that tells its end; one that still runs has none."""

_KINDS = {"pipeline.LabelSnapshot": "TABLE", "Model": "MODEL", "PushedModel": "MODEL"}


def of_run(run: Run, facts: RunFacts) -> list:
    """The events of a run and of every step of it, `openlineage.client.event_v2.RunEvent`, in the order of their instants."""
    # Here: no other question needs it.
    from openlineage.client import event_v2, facet_v2

    facet_v2.set_producer(NAMESPACE)
    if not run.executions:
        return []
    pipeline = str((facts.settings or {}).get("name") or "pipeline")
    whole = _Told(pipeline, _id(run.run_id), _of_pipeline(facts))
    began = min(step.started for step in run.executions)
    events = [whole.event("START", began)]
    for step in run.executions:
        parent = facet_v2.parent_run.ParentRunFacet(
            run=facet_v2.parent_run.Run(runId=whole.run_id), job=facet_v2.parent_run.Job(NAMESPACE, pipeline)
        )
        told = _Told(f"{pipeline}.{step.step}", _id(run.run_id, step.step, str(step.id)), {"parent": parent})
        inputs = [_dataset(event_v2.InputDataset, item) for item in _flat(step.inputs)]
        events.append(told.event("START", step.started, inputs=inputs))
        if step.state in _ENDS:
            outputs = [_dataset(event_v2.OutputDataset, item) for item in _flat(step.outputs)] if step.state in DONE else []
            events.append(told.event(_ENDS[step.state], step.updated, _failure(step), inputs=inputs, outputs=outputs))
    end = _end(facts)
    if end:
        events.append(whole.event(end, max(step.updated for step in run.executions)))
    # A step's start comes before what another ends in the same instant; the whole run begins first and ends last.
    return sorted(events, key=lambda event: event.eventTime)


def write(events: Iterable, path: str) -> None:
    """Writes events to a file that is not there yet, one a line, by OpenLineage's own file transport. Raises OSError."""
    from openlineage.client.transport.file import FileConfig, FileTransport

    with open(path, "x", encoding="utf-8"):
        pass
    transport = FileTransport(FileConfig(log_file_path=path, append=True))
    for event in events:
        transport.emit(event)


def emit(run: Run, facts: RunFacts, path: str) -> None:
    """Writes a run's events to a file that appears whole, in place of one that may be there. Raises OSError."""
    with storage.scratch(os.path.dirname(path)) as folder:
        write(of_run(run, facts), os.path.join(folder, "events"))
        storage.publish(os.path.join(folder, "events"), path)


class _Told:
    """A job and the run of it that events are about."""

    def __init__(self, job: str, run_id: str, facets: Mapping):
        self.job, self.run_id, self._facets = job, run_id, facets

    def event(
        self, kind: str, when: datetime.datetime, more: Mapping | None = None, inputs: Sequence = (), outputs: Sequence = ()
    ):
        from openlineage.client import event_v2
        from openlineage.client.facet_v2 import job_type_job

        level = "STEP" if "parent" in self._facets else "PIPELINE"
        about = job_type_job.JobTypeJobFacet(processingType="BATCH", integration="TFX", jobType=level)
        return event_v2.RunEvent(
            eventType=event_v2.RunState(kind),
            eventTime=when.astimezone(datetime.timezone.utc).isoformat(timespec="milliseconds"),
            run=event_v2.Run(runId=self.run_id, facets={**self._facets, **(more or {})}),
            job=event_v2.Job(namespace=NAMESPACE, name=self.job, facets={"jobType": about}),
            inputs=list(inputs),
            outputs=list(outputs),
            producer=NAMESPACE,
        )


def _id(*names: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, ":".join([NAMESPACE, *names])))


def _end(facts: RunFacts) -> str | None:
    return _ENDS.get(facts.state.partition(" ")[0])


def _of_pipeline(facts: RunFacts) -> dict:
    from openlineage.client.facet_v2 import nominal_time_run, tags_run

    known = {
        "run_id": facts.run_id, "snapshot_date": facts.snapshot_date, "git.commit": facts.commit, "git.tree": facts.tree,
        "image": facts.image, "lock": facts.lock, "lock.sha256": facts.lock_sha256, "launched_by": facts.launched_by,
    }  # fmt: skip
    fields = [tags_run.TagsRunFacetFields(key=key, value=str(value), source="RUN") for key, value in known.items() if value]
    facets = {"tags": tags_run.TagsRunFacet(tags=fields)}
    if facts.as_of:
        facets["nominalTime"] = nominal_time_run.NominalTimeRunFacet(nominalStartTime=facts.as_of)
    return facets


def _failure(step: Execution) -> dict:
    from openlineage.client.facet_v2 import error_message_run

    reason = step.parameters.get(FAILURE)
    if not reason:
        return {}
    return {"errorMessage": error_message_run.ErrorMessageRunFacet(message=str(reason), programmingLanguage="python")}


def _flat(puts: Mapping[str, Sequence[Artifact]]) -> list[Artifact]:
    return [item for artifacts in puts.values() for item in artifacts]


def _dataset(cls, item: Artifact):
    from openlineage.client.facet_v2 import dataset_type_dataset, dataset_version_dataset, output_statistics_output_dataset

    namespace, name = _named(item)
    kind = dataset_type_dataset.DatasetTypeDatasetFacet(datasetType=_KINDS.get(item.type, "FILE"), subType=item.type)
    facets = {"datasetType": kind}
    digests = (item.facts.get(name) for name in ("checksum", "digest", "sha256", "export_sha256"))
    version = next(filter(None, digests), None)
    if version:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(version))
    if "outputFacets" in {field.name for field in cls.__attrs_attrs__} and "rows" in item.facts:
        rows = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=int(item.facts["rows"]))
        return cls(namespace=namespace, name=name, facets=facets, outputFacets={"outputStatistics": rows})
    return cls(namespace=namespace, name=name, facets=facets)


def _named(item: Artifact) -> tuple[str, str]:
    """Namespace and name of an artifact's content, by OpenLineage's rules of naming (spec/Naming.md)."""
    uri = str(item.facts.get("table_uri") or item.facts.get("folder") or item.facts.get("pushed_destination") or item.uri)
    if uri.startswith("gs://"):
        bucket, _, name = uri.removeprefix("gs://").partition("/")
        return f"gs://{bucket}", name or "/"
    scheme, colon, name = uri.partition(":")
    if colon and scheme in ("bigquery", "duckdb"):
        return scheme, name
    # Without a place of its own it is known to the lineage alone.
    return ("file", os.path.abspath(uri)) if uri else (NAMESPACE, f"{item.type}/{item.id}")
