"""The built-in engine's flags -> a load and a setup, and the command that starts it so."""

# ruff: noqa: E501 - a table: one row, one line
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgekit.engines.flags import Flag, flag_words, one_of, whole
from edgekit.units import MIB, format_bytes, parse_size

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.engines.native.setup import StreamSetup
    from edgekit.model.open import Opened

TITLE = "stream, the built-in engine"
ALL, NONE = "all", "none"
_TYPES = ("f32", "f16", "q8_0")  # engine.stream.planning.CACHE_TYPES: --help must be instant


def _keep(text: str) -> str | int:
    return text.lower() if text.lower() in {ALL, NONE} else parse_size(text)


FLAGS: tuple[Flag, ...] = (
    Flag(("--keep",), "keep", "weights to keep in memory: 2G, all or none (default: as many as fit; none in estimate)", "SIZE", _keep),
    Flag(("--rolling",), "rolling", "drop the oldest tokens of a full context and continue"),
    Flag(("--sinks",), "sinks", "first tokens that a rolling context never drops", "N", whole()),
    Flag(("--chunk",), "chunk", "prompt tokens computed together (default 64)", "N", whole(1)),
    Flag(("--resident",), "resident_tokens", "tokens of a context past 64k to keep in memory; the rest goes to disk", "N", whole(512)),
    Flag(("--threads",), "threads", "CPU threads (default: one per core, up to 8)", "N", whole(1, 1024)),
    Flag(("-ctk", "--cache-type-k"), "type_k", "KV cache type of the keys: f32, f16 (default) or q8_0", "TYPE", one_of(*_TYPES), lender="llama.cpp"),
    Flag(("-ctv", "--cache-type-v"), "type_v", "KV cache type of the values: f32, f16 (default) or q8_0", "TYPE", one_of(*_TYPES), lender="llama.cpp"),
)  # fmt: skip


def ask(values: Mapping[str, Any]) -> tuple[Load, StreamSetup]:
    """What is asked of the built-in engine: as the options of a row."""
    from edgekit.engines.native.rows import read_row

    named = {"context": "context_tokens", "chunk": "chunk_tokens"}
    plain = {named.get(key, key): value for key, value in values.items() if key != "context"}
    return read_row({**plain, "context_tokens": values.get("context") or None})


def settled(setup: StreamSetup) -> dict[str, Any]:
    """What was chosen for the machine: how many weights stay, and who computes."""
    kept = ALL if setup.keep_bytes is None else setup.keep_bytes or NONE
    return {"keep": kept, **({} if setup.threads is None else {"threads": setup.threads})}


def told(_load: Load, estimate: MemoryEstimate) -> str:
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


def command(values: Mapping[str, Any], estimate: MemoryEstimate, opened: Opened) -> list[str]:
    from edgekit.engines.model_words import own_word

    context = values.get("context") or dict(estimate.facts)["window"]
    kept = values.get("keep")
    if isinstance(kept, int):
        values = {**values, "keep": f"{kept // MIB}M" if kept % MIB == 0 else kept}
    return [
        *(
            "edgekit",
            "run",
            own_word(opened.files, opened.label, opened.mix),
            "--engine",
            "stream",
            "-c",
            str(context),
        ),
        *flag_words(FLAGS, values),
    ]
