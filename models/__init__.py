"""What is trained: the network, its input pipeline, training, tuning and serving. No Vertex, no BigQuery here."""
