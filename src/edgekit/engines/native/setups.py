"""Values of the built-in engine's flags -> a setup, and back."""

from __future__ import annotations

from typing import Any

from edgekit.bill.types import Load, MemoryEstimate
from edgekit.engines.native.flags import KEPT
from edgekit.engines.native.stream_plan import StreamSetup
from edgekit.errors import UsageError
from edgekit.units import format_bytes


def default_setup() -> StreamSetup:
    return StreamSetup()


def read_quant(name: str) -> str | None:
    raise UsageError(
        f"--quant {name[:40]}: the built-in engine runs a GGUF file as it is; name a file or a repository "
        "with that quantisation"
    )


def placement(setup: StreamSetup) -> dict[str, Any]:
    """What was chosen for the machine: how many weights stay in memory, and the number of threads."""
    given = {"keep": KEPT.value_of(setup.keep_bytes), "threads": setup.threads}
    return {key: value for key, value in given.items() if value is not None}


def describe(_load: Load, estimate: MemoryEstimate) -> str:
    """What was asked for, as the engine resolved it."""
    facts: dict[str, Any] = dict(estimate.facts)
    kinds = dict.fromkeys((facts["cache_k"], facts["cache_v"]))
    rolling = ""
    if facts["rolling"]:
        sinks = f", the first {facts['sinks']} stay" if facts["sinks"] else ""
        rolling = f" that roll{sinks}"
    return (
        f"{facts['window']:,} tokens of context{rolling}, cache {' and '.join(kinds)},"
        f" {facts['chunk_tokens']} tokens at once, {facts['threads']} threads;"
        f" {_weights(facts['kept_bytes'], facts['streamed_bytes'])}"
    )


def _weights(kept_bytes: int, streamed_bytes: int) -> str:
    if not streamed_bytes:
        return "all weights in memory"
    read = f"{format_bytes(streamed_bytes)} of weights read from the file for every token"
    return f"{format_bytes(kept_bytes)} of weights in memory, {read}" if kept_bytes else read
