"""The built-in engine at work: weights tile by tile, a cache as large as its bill, one token after another."""
