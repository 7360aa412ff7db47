"""A Vertex AI on this machine, for tests. What it does and where each rule comes from: docs/vertex-fake.md."""
