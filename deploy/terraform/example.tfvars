# Copy to retrain.auto.tfvars and fill in. Every variable is described in variables.tf.
project         = "your-project"
region          = "europe-west4"
team            = "your-team"
store_bucket    = "your-bucket"
images_bucket   = "your-photographs"
billing_account = "000000-000000-000000"
monthly_budget  = 3000
alert_emails    = ["your-team@example.com"]
submitters      = ["group:your-team@example.com"]
builders        = ["group:your-team@example.com"]
analysts        = ["group:your-analysts@example.com"]
auditors        = ["group:your-auditors@example.com"]
