"""The rules that a snapshot must pass before anything trains on it."""
