# What a project needs before kubeflow_runner.py can run in it: its APIs, and names that are used everywhere.

locals {
  labels = { team = var.team, pipeline = var.pipeline }

  # What speaks to each is in README.md; tests/deploy/test_terraform.py holds the list against the code.
  apis = [
    "aiplatform.googleapis.com",
    "artifactregistry.googleapis.com",
    "bigquery.googleapis.com",
    "bigquerystorage.googleapis.com",
    "billingbudgets.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "compute.googleapis.com",
    "dataflow.googleapis.com",
    "iam.googleapis.com",
    "logging.googleapis.com",
    "monitoring.googleapis.com",
    "pubsub.googleapis.com",
    "storage.googleapis.com",
  ]
}

resource "google_project_service" "apis" {
  for_each = toset(local.apis)

  project = var.project
  service = each.value

  # Another application of the project may use it.
  disable_on_destroy = false
}

# Who wrote to the ledger and to ML Metadata, beside what these say themselves. BigQuery logs it without being asked.
resource "google_project_iam_audit_config" "writes" {
  for_each = toset(["aiplatform.googleapis.com", "storage.googleapis.com"])

  project = var.project
  service = each.value

  audit_log_config {
    log_type = "DATA_WRITE"
  }

  depends_on = [google_project_service.apis]
}
