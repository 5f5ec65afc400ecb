"""Where a model's files are: paths, stores of other programs, the hub, Ollama, downloads. Cheap to import."""
