"""The built-in engine, which reads weights from the file as it needs them."""
