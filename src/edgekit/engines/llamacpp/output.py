"""A resolved context -> the buffer in which logits and embeddings are handed over."""

from __future__ import annotations

from edgekit.basis import Basis
from edgekit.bill.types import Component, MemoryLine
from edgekit.engines.llamacpp.types import Context
from edgekit.machine.types import HOST
from edgekit.model.types import Model

FLOAT_BYTES = 4
ALWAYS_EMBEDS = frozenset({"t5"})  # llama-context.cpp: output_reserve
MOST_STREAMS = 64  # DeepSeek-V4 has 4
ASSUMED_VOCABULARY = 262_144  # Gemma's, about the largest there is


def output_line(model: Model, context: Context) -> MemoryLine:
    known = model.geometry.vocabulary
    vocabulary = ASSUMED_VOCABULARY if known is None else known
    embeds = context.embeddings or model.geometry.architecture in ALWAYS_EMBEDS
    hidden = model.geometry.hidden * _streams(model) if embeds else 0
    wide = f"{vocabulary} logits" + (f" + {hidden} embedding" if hidden else "")
    return MemoryLine(
        component=Component.OUTPUT,
        size_bytes=FLOAT_BYTES * context.n_seq_max * (vocabulary + hidden),
        pool=HOST,
        basis=Basis.EXACT if known is not None else Basis.ASSUMED,
        because=f"{context.n_seq_max} sequences x ({wide}) x {FLOAT_BYTES} bytes",
    )


def _streams(model: Model) -> int:
    """Hyper-connections (DeepSeek-V4) hand over every stream of the hidden state."""
    count = model.header.keys.get(f"{model.geometry.architecture}.hyper_connection.count")
    return count if isinstance(count, int) and 0 < count <= MOST_STREAMS else 1
