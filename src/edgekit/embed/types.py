"""What a user chooses of the embedder."""

from __future__ import annotations

import enum

from edgekit.engines import default_engine

BUILT_IN = "edgekit"
ENGINES = (BUILT_IN, default_engine().name)


class Mode(enum.Enum):
    """What is done with the tokens of a text."""

    TOKENS = "tokens"  # the mean of their rows in the embedding table: no layer is run
    ENCODER = "encoder"  # the model's own forward pass
