"""What the built-in engine allocates: it reads weights tile by tile, and needs little beside its cache."""
