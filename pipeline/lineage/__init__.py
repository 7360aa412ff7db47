"""Where the answers for auditors come from. Nothing here imports TensorFlow or TFX."""
