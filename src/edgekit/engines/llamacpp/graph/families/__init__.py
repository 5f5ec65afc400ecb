"""The graphs of the architectures, one module per family."""
