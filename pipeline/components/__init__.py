"""The components that are ours; the others are TFX's own."""
