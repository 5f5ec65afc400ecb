"""ggml's scheduler: where the nodes of a graph run."""
