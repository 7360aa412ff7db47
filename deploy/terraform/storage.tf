# The store, which runs write, and the photographs, which they only read; labels and snapshots in BigQuery; images.
#
# No bucket has a retention policy: the ledger and the pointers of the store are replaced and checkpoints are deleted, which a
# policy forbids, and a photograph must be erasable. Soft delete keeps what anybody deletes, and versions keep what is replaced.

resource "google_storage_bucket" "store" {
  name     = var.store_bucket
  project  = var.project
  location = var.region

  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = false

  versioning {
    enabled = true
  }

  soft_delete_policy {
    retention_duration_seconds = var.store_soft_delete_days * 24 * 60 * 60
  }

  # Old versions of what a run leaves behind. Of the ledger, the accepted snapshots, the reports and the released models every
  # version stays: nothing matches them.
  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      with_state                 = "ARCHIVED"
      days_since_noncurrent_time = var.store_versions_days
      matches_prefix             = [for folder in ["artifacts", "checkpoints", "dataflow"] : "${var.store_folder}/${folder}/"]
    }
  }

  # Dataflow leaves its temporary files behind when a job dies.
  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      age            = 14
      with_state     = "LIVE"
      matches_prefix = ["${var.store_folder}/dataflow/"]
    }
  }

  lifecycle {
    prevent_destroy = true
  }

  depends_on = [google_project_service.apis]
}

resource "google_storage_bucket" "images" {
  name     = var.images_bucket
  project  = var.project
  location = var.region

  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = false

  versioning {
    enabled = true
  }

  # The least that there is beside none: what was erased is to be gone.
  soft_delete_policy {
    retention_duration_seconds = 7 * 24 * 60 * 60
  }

  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      with_state                 = "ARCHIVED"
      days_since_noncurrent_time = var.images_versions_days
    }
  }

  lifecycle {
    prevent_destroy = true
  }

  depends_on = [google_project_service.apis]
}

resource "google_bigquery_dataset" "labels" {
  dataset_id  = var.dataset
  project     = var.project
  location    = var.region
  description = "Labels, their dated snapshots labels_YYYYMMDD, and the index of the image shards."

  # The snapshot of a week is taken from the table as it was: seven days are the most that BigQuery keeps.
  max_time_travel_hours      = "168"
  delete_contents_on_destroy = false

  lifecycle {
    prevent_destroy = true
  }

  depends_on = [google_project_service.apis]
}

resource "google_artifact_registry_repository" "images" {
  repository_id = "retrain"
  project       = var.project
  location      = var.region
  format        = "DOCKER"
  description   = "Images of the pipeline. Runs name them by digest."

  # What a tag meant when a run was compiled, it means for good.
  docker_config {
    immutable_tags = true
  }

  # No clean-up: an image by which a model was made is part of the answer to the auditors.
  depends_on = [google_project_service.apis]
}
