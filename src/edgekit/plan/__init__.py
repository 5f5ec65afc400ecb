"""The decisions about what to run: weights, context, cache, placement, changes that would help, ranking."""
