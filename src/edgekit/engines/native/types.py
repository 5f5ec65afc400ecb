"""What the embedder and the engine agree on: limits, poolings, and the interface of an encoder."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from edgekit.units import MB

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
else:  # without importing numpy
    Floats = Any


class Pooling(enum.Enum):
    """How the tokens' vectors become one; the number is GGUF's pooling_type."""

    MEAN = 1
    CLS = 2
    LAST = 3

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Larger files, tensors and texts are refused. A caller can raise each limit."""

    file_bytes: int = 5_000 * MB  # a 7B model at four bits has 4.2 GB
    held_tensor_bytes: int = 100 * MB  # a tensor that is held whole; streamed ones may be larger
    tokens: int = 2048  # of one text, with its special tokens
    text_bytes: int = 4 * MB  # of one text before it is tokenized: 2,048 tokens are about 10 KB


class Closeable:
    """Closed at the end of a `with` statement."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


Checkpoint = Callable[[float], None]
"""Called between tiles with the share of the pass that is done; what it raises ends the pass."""


class Encoder(Protocol):
    """Tokens -> vectors, some texts at a time, within the planned memory."""

    @property
    def width(self) -> int:
        """Floats in a vector."""
        ...

    def encode(self, texts: Sequence[Sequence[int]], into: Floats, checkpoint: Checkpoint) -> None:
        """One pooled vector for each text into the rows of `into`, not scaled yet."""
        ...

    def close(self) -> None: ...
