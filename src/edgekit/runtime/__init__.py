"""A plan carried out: on real llama.cpp, or on the built-in engine."""
