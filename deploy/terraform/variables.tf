variable "project" {
  description = "Google Cloud project of the pipeline; vertex.project of the settings."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "The project must be a project's id: 6 to 30 lower-case letters, digits and hyphens."
  }
}

variable "region" {
  description = "Region of everything, with A100s and L4s; vertex.region of the settings."
  type        = string
  default     = "europe-west4"

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]{1,2}$", var.region))
    error_message = "The region must be one such as europe-west4, not a zone or a continent."
  }
}

variable "pipeline" {
  description = "Name of the pipeline; `name` of the settings."
  type        = string
  default     = "product-photographs"

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{0,62}$", var.pipeline))
    error_message = "The pipeline's name takes 63 lower-case letters, digits and hyphens at most."
  }
}

variable "team" {
  description = "Label `team` of every resource."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9_-]{1,63}$", var.team))
    error_message = "A label's value takes 63 lower-case letters, digits, _ and - at most."
  }
}

variable "store_bucket" {
  description = "Name of the bucket of the store, which is made."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9_-]{1,61}[a-z0-9]$", var.store_bucket))
    error_message = "A bucket's name takes 3 to 63 lower-case letters, digits, _ and -."
  }
}

variable "store_folder" {
  description = "Folder of the store in its bucket; with it, vertex.store of the settings."
  type        = string
  default     = "retrain"

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9_-]{0,62}$", var.store_folder))
    error_message = "The folder must be one name of lower-case letters, digits, _ and -, without slashes."
  }
}

variable "store_soft_delete_days" {
  description = "For so many days whatever was deleted or replaced in the store can be had back, whoever did it."
  type        = number
  default     = 90

  validation {
    condition     = var.store_soft_delete_days >= 7 && var.store_soft_delete_days <= 90
    error_message = "Cloud Storage keeps deleted objects for 7 to 90 days."
  }
}

variable "store_versions_days" {
  description = "Replaced and deleted files of old runs' artifacts, checkpoints and temporary files are gone after so many days."
  type        = number
  default     = 30

  validation {
    condition     = var.store_versions_days >= 7 && var.store_versions_days <= 3650
    error_message = "Give 7 to 3650 days."
  }
}

variable "images_bucket" {
  description = "Name of the bucket of the photographs, which is made; one that is there already is imported (README.md)."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9_-]{1,61}[a-z0-9]$", var.images_bucket))
    error_message = "A bucket's name takes 3 to 63 lower-case letters, digits, _ and -."
  }
}

variable "images_folder" {
  description = "Folder of the photographs in their bucket; with it, vertex.images of the settings."
  type        = string
  default     = "jpeg"

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9_-]{0,62}$", var.images_folder))
    error_message = "The folder must be one name of lower-case letters, digits, _ and -, without slashes."
  }
}

variable "images_versions_days" {
  description = "A photograph that was deleted or replaced is gone for good after so many days: an erasure request is fulfilled then."
  type        = number
  default     = 30

  validation {
    condition     = var.images_versions_days >= 1 && var.images_versions_days <= 365
    error_message = "Give 1 to 365 days."
  }
}

variable "dataset" {
  description = "BigQuery data set of labels and snapshots, which is made; warehouse.dataset of the settings."
  type        = string
  default     = "product_labels"

  validation {
    condition     = can(regex("^[A-Za-z0-9_]+$", var.dataset))
    error_message = "A data set's name takes letters, digits and _."
  }
}

variable "labels_table" {
  description = "The label table, which analysts edit; warehouse.labels of the settings. It must be there when `analysts` has somebody."
  type        = string
  default     = "labels"

  validation {
    condition     = can(regex("^[A-Za-z0-9_]+$", var.labels_table))
    error_message = "A table's name takes letters, digits and _."
  }
}

variable "analysts" {
  description = "Who edits labels, as group:NAME@DOMAIN or user:NAME@DOMAIN."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for member in var.analysts : can(regex("^(group|user|serviceAccount):[^@\\s]+@[^@\\s]+$", member))])
    error_message = "Write group:NAME@DOMAIN, user:NAME@DOMAIN or serviceAccount:NAME@DOMAIN; nobody else may be let in."
  }
}

variable "submitters" {
  description = "Who starts and schedules runs, as group:NAME@DOMAIN or serviceAccount:NAME@DOMAIN."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for member in var.submitters : can(regex("^(group|user|serviceAccount):[^@\\s]+@[^@\\s]+$", member))])
    error_message = "Write group:NAME@DOMAIN, user:NAME@DOMAIN or serviceAccount:NAME@DOMAIN; nobody else may be let in."
  }
}

variable "builders" {
  description = "Who pushes images, as group:NAME@DOMAIN or serviceAccount:NAME@DOMAIN."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for member in var.builders : can(regex("^(group|user|serviceAccount):[^@\\s]+@[^@\\s]+$", member))])
    error_message = "Write group:NAME@DOMAIN, user:NAME@DOMAIN or serviceAccount:NAME@DOMAIN; nobody else may be let in."
  }
}

variable "auditors" {
  description = "Who asks what produced the model that served, and can change nothing, as group:NAME@DOMAIN."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for member in var.auditors : can(regex("^(group|user|serviceAccount):[^@\\s]+@[^@\\s]+$", member))])
    error_message = "Write group:NAME@DOMAIN, user:NAME@DOMAIN or serviceAccount:NAME@DOMAIN; nobody else may be let in."
  }
}

variable "alert_emails" {
  description = "Who is written to when a run failed, none succeeded for eight days, or money runs out."
  type        = set(string)

  validation {
    condition     = length(var.alert_emails) > 0 && alltrue([for address in var.alert_emails : can(regex("^[^@\\s]+@[^@\\s]+$", address))])
    error_message = "Name one address at least, as NAME@DOMAIN: an alert that nobody reads is none."
  }
}

variable "billing_account" {
  description = "Billing account of the project, which the budget is of."
  type        = string

  validation {
    condition     = can(regex("^[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}$", var.billing_account))
    error_message = "A billing account's id is XXXXXX-XXXXXX-XXXXXX."
  }
}

variable "monthly_budget" {
  description = "What the project may cost a month, in the billing account's currency; `python -m pipeline plan` says what a run costs."
  type        = number

  validation {
    condition     = var.monthly_budget > 0 && floor(var.monthly_budget) == var.monthly_budget
    error_message = "Give a whole number above 0."
  }
}
