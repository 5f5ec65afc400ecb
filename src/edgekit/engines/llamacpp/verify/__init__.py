"""A prediction -> the same question put to the real llama.cpp on this machine, and where the two differ."""
