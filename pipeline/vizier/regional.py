"""Google's client for Vertex's own Vizier, by the endpoint of a region."""

from google.auth import exceptions as auth
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import PipelineError


def client_of(endpoint: str) -> v1.VizierServiceClient:
    """Google's client for the studies of a region.

    Args:
        endpoint: Host, such as europe-west4-aiplatform.googleapis.com.

    Raises:
        PipelineError: There are no credentials.
    """
    try:
        return v1.VizierServiceClient(client_options={"api_endpoint": endpoint})
    except auth.GoogleAuthError as error:
        raise PipelineError(
            f"no credentials for Vertex Vizier ({error}): `gcloud auth application-default login` makes some, or "
            "GOOGLE_APPLICATION_CREDENTIALS names a key file"
        ) from error
