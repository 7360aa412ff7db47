# Dataflow's workers have no public addresses (vertex.dataflow.public_ips), so they reach Google by a subnetwork that lets them.

resource "google_compute_network" "retrain" {
  name                    = "retrain"
  project                 = var.project
  auto_create_subnetworks = false

  depends_on = [google_project_service.apis]
}

resource "google_compute_subnetwork" "dataflow" {
  name                     = "retrain-dataflow"
  project                  = var.project
  region                   = var.region
  network                  = google_compute_network.retrain.id
  ip_cidr_range            = "10.10.0.0/20"
  private_ip_google_access = true
}

# Workers shuffle data among themselves; nobody else reaches them.
# https://cloud.google.com/dataflow/docs/guides/routes-firewall: the tag that Dataflow sets, and its ports.
resource "google_compute_firewall" "dataflow" {
  name        = "retrain-dataflow"
  project     = var.project
  network     = google_compute_network.retrain.id
  direction   = "INGRESS"
  source_tags = ["dataflow"]
  target_tags = ["dataflow"]

  allow {
    protocol = "tcp"
    ports    = ["12345-12346"]
  }
}
