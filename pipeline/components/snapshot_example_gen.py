"""BigQueryExampleGen over the snapshot that this very run took: labels joined to the shard index."""

import functools
import json
import re

import apache_beam as beam
import tensorflow as tf
from tfx.components.example_gen import base_example_gen_executor
from tfx.components.example_gen import component as example_gen
from tfx.components.example_gen import utils
from tfx.dsl.components.base import base_beam_component, executor_spec
from tfx.extensions.google_cloud_big_query import utils as bigquery_utils
from tfx.extensions.google_cloud_big_query.example_gen import executor as bigquery_executor
from tfx.proto import example_gen_pb2
from tfx.types import artifact_utils, channel, component_spec, standard_artifacts, standard_component_specs
from tfx.utils import proto_utils

from pipeline.artifacts import ImageShards, LabelSnapshot
from pipeline.components import facts
from pipeline.errors import PipelineError, causes
from pipeline.warehouse import Location, open_warehouse, queries

SPLITS = ("train", "val", "eval")

# Arguments of Beam's ReadFromBigQuery: the Storage Read API needs no bucket for temporary files.
_READ = {"method": "DIRECT_READ"}

_COLUMNS = {
    "image_id": "STRING",
    "product_id": "STRING",
    "label": "STRING",
    "source": "STRING",
    "split": "STRING",
    "shard": "STRING",
    "ordinal": "INTEGER",
    "bytes": "INTEGER",
    "width": "INTEGER",
    "height": "INTEGER",
}


def query_of(pattern: str, warehouse, snapshot, shards) -> str:
    """Puts the addresses of this run's snapshot and shard index into the recorded query."""
    return pattern.format(
        snapshot=warehouse.address(facts.text(snapshot, "table")),
        index=warehouse.address(facts.text(shards, "index_table")),
    )


def pattern_of(splits) -> str:
    """The query of the Examples, with `{snapshot}` and `{index}` for the tables of the run.

    Args:
        splits: `SplitSettings`.
    """
    return queries.examples("{snapshot}", "{index}", splits.group_by, splits.salt, splits.train, splits.val)


@beam.ptransform_fn
@beam.typehints.with_input_types(beam.Pipeline)
@beam.typehints.with_output_types(tf.train.Example)
def _duckdb_to_example(pipeline, exec_properties, split_pattern):
    """Reads the rows in one process; the converter is TFX's own, so that both warehouses agree."""
    location = Location(**json.loads(exec_properties["warehouse"]))

    def read(query):
        with open_warehouse(location) as warehouse:
            yield from warehouse.rows(query)

    return (
        pipeline
        | "Query" >> beam.Create([split_pattern])
        | "Read" >> beam.FlatMap(read)
        | "ToTFExample" >> beam.Map(functools.partial(bigquery_utils.row_to_example, _COLUMNS))
    )


def _split_of(example: tf.train.Example, count: int) -> int:
    assert count == len(SPLITS)
    return SPLITS.index(example.features.feature["split"].bytes_list.value[0].decode())


# What Google's clients raise, as Beam quotes it: a worker's error reaches the runner as text.
_REFUSAL = re.compile(r"(apitools\.base\.py|google\.api_core|google\.auth)\.exceptions\.\w+: .*", re.DOTALL)


def _refusal(error: BaseException) -> str | None:
    """What BigQuery said, in one line, when it is what stopped Beam."""
    for cause in causes(error):
        said = _REFUSAL.search(f"{type(cause).__module__}.{type(cause).__name__}: {cause}")
        if said:
            message = re.search(r'"message": ?"([^"]+)"', said[0])
            return message[1] if message else " ".join(said[0].split())[:300]
    return None


class Executor(base_example_gen_executor.BaseExampleGenExecutor):
    """Runs the query of the run's own snapshot and writes one split for each value of `split`.

    TFX would divide rows by a hash of its own; the query has decided already, by the group key.
    """

    def GetInputSourceToExamplePTransform(self):
        """TFX's BigQuery transform, or its DuckDB counterpart."""
        if self._location.kind == "bigquery":
            return bigquery_executor.Executor(self._context).GetInputSourceToExamplePTransform()
        return _duckdb_to_example

    def GenerateExamplesByBeam(self, pipeline, exec_properties):
        """Returns the PCollection of each split."""
        exec_properties["_beam_pipeline_args"] = self._beam_pipeline_args or []
        # TFX reads JSON here, though its own component's parameter is a message that cannot say this.
        exec_properties[standard_component_specs.CUSTOM_CONFIG_KEY] = json.dumps(_READ)
        examples = pipeline | "InputToRecord" >> self.GetInputSourceToExamplePTransform()(exec_properties, self._query)
        parts = examples | "SplitData" >> beam.Partition(_split_of, len(SPLITS))
        return dict(zip(SPLITS, parts, strict=True))

    def Do(self, input_dict, output_dict, exec_properties):
        """Resolves the query against the input artifacts, then runs as any ExampleGen."""
        self._location = Location(**json.loads(exec_properties["warehouse"]))
        snapshot = artifact_utils.get_single_instance(input_dict["snapshot"])
        shards = artifact_utils.get_single_instance(input_dict["shards"])
        config = example_gen_pb2.Input()
        proto_utils.json_to_proto(exec_properties[standard_component_specs.INPUT_CONFIG_KEY], config)
        with open_warehouse(self._location) as warehouse:
            self._query = query_of(config.splits[0].pattern, warehouse, snapshot, shards)
            warehouse.require_affordable(self._query)
        if self._location.kind == "bigquery":
            # Whose query it is; the runner's own project, where one is given, stands behind it and wins.
            self._beam_pipeline_args = [f"--project={self._location.project}", *(self._beam_pipeline_args or [])]
        try:
            super().Do(input_dict, output_dict, exec_properties)
        except Exception as error:
            said = _refusal(error) if self._location.kind == "bigquery" else None
            if said is None:
                raise
            raise PipelineError(
                f"cannot read the examples of {facts.text(snapshot, 'table')} from BigQuery: {said}. Beam reads a query by "
                "way of a data set that it makes and removes again: whoever runs this needs roles/bigquery.user on the "
                "project"
            ) from error
        examples = artifact_utils.get_single_instance(output_dict[standard_component_specs.EXAMPLES_KEY])
        facts.record(examples, {"query": self._query})


class SnapshotExampleGenSpec(component_spec.ComponentSpec):
    """QueryBasedExampleGen's, with the snapshot and the shards as inputs, so that lineage has the edges."""

    PARAMETERS = {
        **standard_component_specs.QueryBasedExampleGenSpec.PARAMETERS,
        "warehouse": component_spec.ExecutionParameter(type=str),
    }
    INPUTS = {
        "snapshot": component_spec.ChannelParameter(type=LabelSnapshot),
        "shards": component_spec.ChannelParameter(type=ImageShards),
    }
    OUTPUTS = standard_component_specs.QueryBasedExampleGenSpec.OUTPUTS


class SnapshotExampleGen(example_gen.QueryBasedExampleGen):
    """Examples (rows without pixels) from the label snapshot and the shard index.

    Args:
        snapshot: Channel of `LabelSnapshot`.
        shards: Channel of `ImageShards`.
        warehouse: JSON of the warehouse's `Location`.
        splits: `SplitSettings`.
    """

    SPEC_CLASS = SnapshotExampleGenSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)

    def __init__(self, snapshot, shards, warehouse, splits):
        output = example_gen_pb2.Output(
            split_config=example_gen_pb2.SplitConfig(
                # Only the names count: the query decides who goes where.
                splits=[example_gen_pb2.SplitConfig.Split(name=name, hash_buckets=1) for name in SPLITS]
            )
        )
        spec = SnapshotExampleGenSpec(
            input_config=utils.make_default_input_config(pattern_of(splits)),
            output_config=output,
            output_data_format=example_gen_pb2.FORMAT_TF_EXAMPLE,
            output_file_format=example_gen_pb2.FORMAT_TFRECORDS_GZIP,
            warehouse=warehouse,
            snapshot=snapshot,
            shards=shards,
            examples=channel.Channel(type=standard_artifacts.Examples),
        )
        # QueryBasedExampleGen's own constructor knows no inputs.
        base_beam_component.BaseBeamComponent.__init__(self, spec=spec)
