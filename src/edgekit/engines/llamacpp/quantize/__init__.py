"""llama.cpp's quantiser: which type every tensor of a GGUF has at a given mix."""
