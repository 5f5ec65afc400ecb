"""The arithmetic of the built-in engine: a small C extension, or numpy behind the same calls."""
