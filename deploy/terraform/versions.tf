# Which Terraform and which provider: exactly the provider whose arguments the tests know (tests/deploy/provider.json).

terraform {
  required_version = ">= 1.9, < 2.0"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "8.7.0"
    }
  }

  # Where the state lies is told by `terraform init -backend-config=bucket=BUCKET`: a bucket of its own, with versioning, that
  # only those who apply may read.
  backend "gcs" {
    prefix = "retrain"
  }
}

provider "google" {
  project = var.project
  region  = var.region

  # Budgets are asked of the project whose quota pays for the question.
  billing_project       = var.project
  user_project_override = true

  default_labels = local.labels
}
