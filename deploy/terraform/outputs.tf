# What the settings need of all this: `terraform output -raw settings` prints it as pipeline/configs/vertex.yaml takes it.

locals {
  settings = {
    warehouse = {
      kind    = "bigquery"
      project = var.project
      dataset = google_bigquery_dataset.labels.dataset_id
      labels  = var.labels_table
    }
    vertex = {
      project         = var.project
      region          = var.region
      store           = "gs://${google_storage_bucket.store.name}/${var.store_folder}"
      images          = "gs://${google_storage_bucket.images.name}/${var.images_folder}"
      service_account = google_service_account.accounts["runner"].email
      labels          = { team = var.team }
      alert_topic     = google_pubsub_topic.alerts.id
      dataflow = {
        service_account = google_service_account.accounts["dataflow"].email
        subnetwork      = "regions/${var.region}/subnetworks/${google_compute_subnetwork.dataflow.name}"
      }
      release = {
        service_account = google_service_account.accounts["serving"].email
      }
    }
  }
}

output "settings" {
  description = "The part of the settings that is about this project, as YAML."
  value       = yamlencode(local.settings)
}

output "repository" {
  description = "Where images are pushed: IMAGE of `make image` is this, a slash, a name and a tag."
  value       = "${var.region}-docker.pkg.dev/${var.project}/${google_artifact_registry_repository.images.repository_id}"
}
