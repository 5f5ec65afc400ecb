"""llama.cpp's compute graphs, and the sizes of the buffers that hold them."""
