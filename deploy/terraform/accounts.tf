# Who may do what. The table in README.md says why; tests/deploy/test_terraform.py holds it against `grants`.

locals {
  accounts = {
    runner   = { id = "retrain", name = "Runs of the retrain: steps, training, tuning" }
    dataflow = { id = "retrain-dataflow", name = "Dataflow's workers of the retrain" }
    serving  = { id = "retrain-serving", name = "The models that serve" }
  }

  emails = { for who, account in local.accounts : who => "${account.id}@${var.project}.iam.gserviceaccount.com" }

  # Who -> on what -> as what. Least privilege: nothing that no command of the project needs.
  grants = {
    runner = {
      project  = ["roles/aiplatform.user", "roles/bigquery.user", "roles/dataflow.developer"]
      store    = ["roles/storage.objectUser", "roles/storage.legacyBucketReader"]
      images   = ["roles/storage.objectViewer"]
      dataset  = ["roles/bigquery.dataEditor"]
      topic    = ["roles/pubsub.publisher"]
      runner   = ["roles/iam.serviceAccountUser"]
      dataflow = ["roles/iam.serviceAccountUser"]
      serving  = ["roles/iam.serviceAccountUser"]
    }
    dataflow = {
      project    = ["roles/bigquery.user", "roles/dataflow.worker"]
      store      = ["roles/storage.objectUser", "roles/storage.legacyBucketReader"]
      images     = ["roles/storage.objectViewer"]
      dataset    = ["roles/bigquery.dataViewer"]
      repository = ["roles/artifactregistry.reader"]
    }
    serving = {
      models = ["roles/storage.objectViewer"]
    }
    submitters = {
      project = ["roles/aiplatform.user"]
      store   = ["roles/storage.objectViewer"]
      runner  = ["roles/iam.serviceAccountUser"]
    }
    builders = {
      repository = ["roles/artifactregistry.writer"]
    }
    analysts = {
      project = ["roles/bigquery.jobUser"]
      labels  = ["roles/bigquery.dataEditor"]
    }
    auditors = {
      project = ["retrainAuditor", "roles/bigquery.jobUser"]
      store   = ["roles/storage.objectViewer"]
      dataset = ["roles/bigquery.dataViewer"]
    }
  }

  members = {
    runner     = ["serviceAccount:${local.emails["runner"]}"]
    dataflow   = ["serviceAccount:${local.emails["dataflow"]}"]
    serving    = ["serviceAccount:${local.emails["serving"]}"]
    submitters = var.submitters
    builders   = var.builders
    analysts   = var.analysts
    auditors   = var.auditors
  }

  # On what -> one entry for each member and role.
  given = {
    for scope in ["project", "store", "models", "images", "dataset", "labels", "topic", "repository", "runner", "dataflow", "serving"] :
    scope => merge([
      for who, scopes in local.grants : {
        for pair in setproduct(local.members[who], lookup(scopes, scope, [])) : "${pair[0]} ${pair[1]}" => { member = pair[0], role = pair[1] }
      }
    ]...)
  }
}

resource "google_service_account" "accounts" {
  for_each = local.accounts

  account_id   = each.value.id
  display_name = each.value.name
  project      = var.project

  depends_on = [google_project_service.apis]
}

# What an auditor reads in ML Metadata: everything, and nothing else of Vertex but the runs.
resource "google_project_iam_custom_role" "auditor" {
  role_id     = "retrainAuditor"
  project     = var.project
  title       = "Auditor of the retrain"
  description = "Reads the lineage and the runs. Can change nothing."

  permissions = [
    "aiplatform.artifacts.get",
    "aiplatform.artifacts.list",
    "aiplatform.contexts.get",
    "aiplatform.contexts.list",
    "aiplatform.contexts.queryContextLineageSubgraph",
    "aiplatform.executions.get",
    "aiplatform.executions.list",
    "aiplatform.executions.queryExecutionInputsAndOutputs",
    "aiplatform.metadataSchemas.get",
    "aiplatform.metadataSchemas.list",
    "aiplatform.metadataStores.get",
    "aiplatform.metadataStores.list",
    "aiplatform.pipelineJobs.get",
    "aiplatform.pipelineJobs.list",
  ]
}

resource "google_project_iam_member" "given" {
  for_each = local.given["project"]

  project = var.project
  member  = each.value.member
  role    = startswith(each.value.role, "roles/") ? each.value.role : "projects/${var.project}/roles/${each.value.role}"

  depends_on = [google_service_account.accounts, google_project_iam_custom_role.auditor]
}

resource "google_storage_bucket_iam_member" "store" {
  for_each = local.given["store"]

  bucket = google_storage_bucket.store.name
  member = each.value.member
  role   = each.value.role

  depends_on = [google_service_account.accounts]
}

# Released models alone, not the rest of the store.
resource "google_storage_bucket_iam_member" "models" {
  for_each = local.given["models"]

  bucket = google_storage_bucket.store.name
  member = each.value.member
  role   = each.value.role

  condition {
    title      = "released models"
    expression = "resource.name.startsWith(\"projects/_/buckets/${var.store_bucket}/objects/${var.store_folder}/serving/versions/\")"
  }

  depends_on = [google_service_account.accounts]
}

resource "google_storage_bucket_iam_member" "images" {
  for_each = local.given["images"]

  bucket = google_storage_bucket.images.name
  member = each.value.member
  role   = each.value.role

  depends_on = [google_service_account.accounts]
}

resource "google_bigquery_dataset_iam_member" "dataset" {
  for_each = local.given["dataset"]

  project    = var.project
  dataset_id = google_bigquery_dataset.labels.dataset_id
  member     = each.value.member
  role       = each.value.role

  depends_on = [google_service_account.accounts]
}

# The label table alone: snapshots lie in the same data set, and nobody edits those.
resource "google_bigquery_table_iam_member" "labels" {
  for_each = local.given["labels"]

  project    = var.project
  dataset_id = google_bigquery_dataset.labels.dataset_id
  table_id   = var.labels_table
  member     = each.value.member
  role       = each.value.role
}

resource "google_pubsub_topic_iam_member" "topic" {
  for_each = local.given["topic"]

  project = var.project
  topic   = google_pubsub_topic.alerts.name
  member  = each.value.member
  role    = each.value.role

  depends_on = [google_service_account.accounts]
}

resource "google_artifact_registry_repository_iam_member" "repository" {
  for_each = local.given["repository"]

  project    = var.project
  location   = var.region
  repository = google_artifact_registry_repository.images.name
  member     = each.value.member
  role       = each.value.role

  depends_on = [google_service_account.accounts]
}

# Who may start something that then runs as the account.
resource "google_service_account_iam_member" "runner" {
  for_each = local.given["runner"]

  service_account_id = google_service_account.accounts["runner"].name
  member             = each.value.member
  role               = each.value.role
}

resource "google_service_account_iam_member" "dataflow" {
  for_each = local.given["dataflow"]

  service_account_id = google_service_account.accounts["dataflow"].name
  member             = each.value.member
  role               = each.value.role
}

resource "google_service_account_iam_member" "serving" {
  for_each = local.given["serving"]

  service_account_id = google_service_account.accounts["serving"].name
  member             = each.value.member
  role               = each.value.role
}
