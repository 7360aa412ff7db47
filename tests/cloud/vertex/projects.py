"""The project, as Resource Manager knows it: Vertex's client asks whose a bucket is before it submits a pipeline."""

from google.cloud import resourcemanager_v3

from tests.cloud import google_apis
from tests.cloud.vertex import names
from tests.cloud.vertex.refusals import Code, Refused


class Projects:
    """The call of Projects that is needed."""

    def get_project(self, request: resourcemanager_v3.GetProjectRequest) -> resourcemanager_v3.Project:
        if names.last(request.name) not in (google_apis.PROJECT, names.NUMBER):
            raise Refused(Code.PERMISSION_DENIED, f"The caller does not have permission on {request.name}.")
        return resourcemanager_v3.Project(name=f"projects/{names.NUMBER}", project_id=google_apis.PROJECT)
