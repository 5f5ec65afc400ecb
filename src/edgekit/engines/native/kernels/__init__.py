"""The arithmetic of the embedder: a small C extension, or numpy behind the same calls."""
