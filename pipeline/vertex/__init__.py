"""The pipeline on Vertex AI: its settings, the jobs that train, the compiled pipeline, and what starts it. No TensorFlow here."""
