"""Photographs, packed once: JPEG files become immutable TFRecord shards with an index."""
