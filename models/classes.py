"""The classes, as the schema names them. No TensorFlow: light commands read them too."""

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from models.errors import TrainingError


def parse_classes(text: str, source: str) -> tuple[str, ...]:
    """Reads the classes from a schema: the string domain of its feature `label`.

    Args:
        text: The schema (`tensorflow.metadata.v0.Schema`) in protobuf's text format.
        source: Where it is from, for errors.

    Returns:
        The names, in the order of the logits.

    Raises:
        TrainingError: The text is no schema, or its `label` has no domain of two or more different names.
    """
    try:
        schema = text_format.Parse(text, schema_pb2.Schema())
    except text_format.ParseError as error:
        raise TrainingError(f"{source} is no schema, line and column {error}") from error
    domains = {domain.name: domain for domain in schema.string_domain}
    for feature in schema.feature:
        if feature.name == "label":
            # A oneof: the domain is written out here, or named and written out beside the features.
            domain = domains.get(feature.domain) if feature.domain else feature.string_domain
            classes = tuple(domain.value) if domain else ()
            if len(classes) < 2 or len(set(classes)) != len(classes):
                raise TrainingError(
                    f"{source}: the string_domain of the feature label needs two or more different classes, not {list(classes)}"
                )
            return classes
    raise TrainingError(f"{source} has no feature label: the classes are the string_domain of that feature")
