"""The forward pass of embedding models, streamed through a planned amount of memory."""
