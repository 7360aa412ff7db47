# What people hear of: a run that failed, none that succeeded for eight days, and money.

# Vertex AI's alert (pipeline/components/run_alert.py): one message a failed run, with rule or step, run and last good model.
resource "google_pubsub_topic" "alerts" {
  name    = "retrain-alerts"
  project = var.project

  message_retention_duration = "2678400s"

  depends_on = [google_project_service.apis]
}

# Keeps each message until somebody, or a chat's own connector, has taken it.
resource "google_pubsub_subscription" "alerts" {
  name    = "retrain-alerts"
  project = var.project
  topic   = google_pubsub_topic.alerts.id

  message_retention_duration = "2678400s"
  ack_deadline_seconds       = 60

  # Not even after a year without an alert.
  expiration_policy {
    ttl = ""
  }
}

resource "google_monitoring_notification_channel" "email" {
  for_each = var.alert_emails

  project      = var.project
  display_name = "Retrain: ${each.value}"
  type         = "email"
  labels       = { email_address = each.value }

  depends_on = [google_project_service.apis]
}

# Vertex's own log, so that it is written too when the step that alerts could not.
# https://cloud.google.com/vertex-ai/docs/pipelines/logging: resource and state. The e-mail names the run.
resource "google_monitoring_alert_policy" "failed" {
  project      = var.project
  display_name = "Retrain: a run failed"
  combiner     = "OR"
  severity     = "ERROR"

  conditions {
    display_name = "A run of ${var.pipeline} failed"

    condition_matched_log {
      filter = <<-EOT
        resource.type="aiplatform.googleapis.com/PipelineJob"
        jsonPayload.pipelineName="${var.pipeline}"
        jsonPayload.state="PIPELINE_STATE_FAILED"
      EOT

      label_extractors = {
        run = "EXTRACT(resource.labels.pipeline_job_id)"
      }
    }
  }

  alert_strategy {
    auto_close = "604800s"

    notification_rate_limit {
      period = "300s"
    }
  }

  documentation {
    subject   = "The weekly retrain failed: what served goes on serving"
    mime_type = "text/markdown"
    content   = <<-EOT
      Run `$${log.extracted_label.run}` failed. Nothing was released; the model that served goes on serving.

      What broke, which rules, and the model that serves, are in the alert's message:

          gcloud pubsub subscriptions pull ${google_pubsub_subscription.alerts.name} --project=${var.project} --limit=10 --auto-ack

      `python kubeflow_runner.py status --settings FILE` names the step. A bad week: docs/bad-week.md.
    EOT
  }

  notification_channels = [for channel in google_monitoring_notification_channel.email : channel.name]
}

resource "google_logging_metric" "succeeded" {
  name        = "retrain/succeeded"
  project     = var.project
  description = "Runs that reached their end."

  filter = <<-EOT
    resource.type="aiplatform.googleapis.com/PipelineJob"
    jsonPayload.pipelineName="${var.pipeline}"
    jsonPayload.state="PIPELINE_STATE_SUCCEEDED"
  EOT

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "INT64"
  }

  depends_on = [google_project_service.apis]
}

# A schedule that was paused, a quota, an account that lost a role: nothing fails then, because nothing runs.
# PromQL, because a condition of absence waits for a day at most. Until the first run has succeeded, this one is true.
resource "google_monitoring_alert_policy" "silent" {
  project      = var.project
  display_name = "Retrain: no run succeeded for eight days"
  combiner     = "OR"
  severity     = "CRITICAL"

  conditions {
    display_name = "No run of ${var.pipeline} succeeded for eight days"

    condition_prometheus_query_language {
      query = <<-EOT
        (sum(increase(logging_googleapis_com:user_retrain_succeeded{monitored_resource="aiplatform.googleapis.com/PipelineJob"}[8d])) or vector(0)) < 1
      EOT

      duration                  = "0s"
      evaluation_interval       = "3600s"
      disable_metric_validation = true
    }
  }

  alert_strategy {
    auto_close = "604800s"
  }

  documentation {
    subject   = "No weekly retrain succeeded for eight days"
    mime_type = "text/markdown"
    content   = <<-EOT
      A week passed without a run that reached its end. `python kubeflow_runner.py status --settings FILE` shows the schedules and
      the newest runs: is the schedule active, when is it next, did a run wait for a quota, did one fail?
    EOT
  }

  notification_channels = [for channel in google_monitoring_notification_channel.email : channel.name]

  depends_on = [google_logging_metric.succeeded]
}

resource "google_billing_budget" "monthly" {
  billing_account = var.billing_account
  display_name    = "Retrain: ${var.project}"

  budget_filter {
    projects        = ["projects/${data.google_project.this.number}"]
    calendar_period = "MONTH"
  }

  amount {
    specified_amount {
      units = var.monthly_budget
    }
  }

  # Half is a month as planned; the rest is a search too many, or machines that nobody ended.
  threshold_rules {
    threshold_percent = 0.5
  }

  threshold_rules {
    threshold_percent = 0.9
  }

  threshold_rules {
    threshold_percent = 1.0
  }

  threshold_rules {
    threshold_percent = 1.0
    spend_basis       = "FORECASTED_SPEND"
  }

  all_updates_rule {
    monitoring_notification_channels = [for channel in google_monitoring_notification_channel.email : channel.id]
    disable_default_iam_recipients   = false
  }

  depends_on = [google_project_service.apis]
}

data "google_project" "this" {
  project_id = var.project
}
