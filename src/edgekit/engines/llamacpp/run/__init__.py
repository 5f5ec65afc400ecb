"""Running llama.cpp: starts it from a plan, watches it, and stops it before memory runs out."""
