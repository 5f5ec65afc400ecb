"""The bill: the memory that a model and its load take, line by line, and the verdict on it."""
