"""How much memory choosing the next token takes: the arrays of choosing.py, to the byte."""

from __future__ import annotations

from edgekit.engines.chat import RECENT_TOKENS

CHUNK_TOKENS = 16_384  # of the vocabulary, looked at together
BEST_TOKENS = 1_024  # that are put in order; more are kept by a bound and never listed
COLUMNS = 4_096  # the highest of each column is a bound for the highest of all
BINS = 2_048  # 11 bits of a logit

# Of one token in a chunk: its weight, its rank, and whether it is kept.
_CHUNK_BYTES = CHUNK_TOKENS * (8 + 8 + 1)
# The best with as many again that are on trial, and their logits; columns; bins; recent tokens.
_FIXED_BYTES = 2 * BEST_TOKENS * 8 + BEST_TOKENS * 4 + COLUMNS * 4 + BINS * 8 + RECENT_TOKENS * 4


def sampler_bytes(vocabulary: int) -> int:
    """What a Sampler allocates when it is made. A larger vocabulary adds one sum for each chunk."""
    return _CHUNK_BYTES + _FIXED_BYTES + 8 * chunks_of(vocabulary)


def chunks_of(vocabulary: int) -> int:
    return -(-vocabulary // CHUNK_TOKENS)
