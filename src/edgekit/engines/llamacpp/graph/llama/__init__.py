"""The building blocks of llama-graph.cpp, on tensors without data."""
