"""mlx-lm's flags -> a load and a setup, and the command that starts it so."""

# ruff: noqa: E501 - a table: one row, one line
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgekit.engines.flags import Flag, flag_words, whole

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.engines.mlx.types import MlxSetup, Quantize
    from edgekit.model.open import Opened

TITLE = "MLX"
FLAGS: tuple[Flag, ...] = (
    Flag(("--kv-bits",), "kv_bits", "bits per number in the KV cache: 8, 4 ... (default 16, not quantised)", "N", whole(1, 16)),
    Flag(("--kv-group-size",), "kv_group_size", "numbers of the KV cache that share a scale (default 64)", "N", whole(1, 4096)),
    Flag(("--quantized-kv-start",), "quantized_kv_start", "token from which the KV cache is quantised (default 5000)", "N", whole()),
    Flag(("--max-kv-size",), "max_kv_size", "size of a rotating KV cache in tokens", "N", whole(1)),
    Flag(("--prefill-step-size",), "prefill_step_size", "prompt tokens computed at once (default 2048)", "N", whole(1)),
    Flag(("--max-tokens",), "max_tokens", "tokens to generate (the rest of -c is the prompt)", "N", whole()),
    Flag(("--quantize",), "quantize", "same as --quant, for MLX: 4bit, q8_g32, mxfp4 ...", "NAME", ours=True),
)  # fmt: skip


def ask(values: Mapping[str, Any]) -> tuple[Load, MlxSetup]:
    """What is asked of mlx-lm: its flags are the names of the options of a row."""
    from edgekit.engines.mlx.rows import read_row

    plain = {key: value for key, value in values.items() if key not in {"context", "quantize"}}
    context, quantize = values.get("context") or None, values.get("quantize")
    return read_row({**plain, "context_tokens": context, "quantization": quantize})


def settled(_setup: MlxSetup) -> dict[str, Any]:
    """A plan has nothing to choose: one memory, one device."""
    return {}


def told(load: Load, estimate: MemoryEstimate) -> str:
    """What was asked for, as mlx-lm resolved it."""
    facts: dict[str, Any] = dict(estimate.facts)
    several = f" for {load.sequences} sequences" if load.sequences and load.sequences > 1 else ""
    new = f" and {facts['new_tokens']:,} new" if facts["new_tokens"] else ""
    return f"{facts['prompt_tokens']:,} tokens of prompt{new}{several}, {facts['chunk_tokens']:,} at once"


def command(values: Mapping[str, Any], estimate: MemoryEstimate, opened: Opened) -> list[str]:
    from edgekit.engines.mlx.convert import converted_name
    from edgekit.engines.model_words import repository_word

    new = dict(estimate.facts)["new_tokens"]
    asked = {**values, "max_tokens": new} if new else values
    packed = _to_convert(values, estimate)
    stored = repository_word(opened.files, opened.repository)
    own = stored if packed is None else converted_name(opened.label, packed)
    return [
        "mlx_lm.generate",
        "--model",
        _published(packed, opened) or own,
        *flag_words(FLAGS, asked),
    ]


def conversion(values: Mapping[str, Any], estimate: MemoryEstimate, opened: Opened) -> str:
    """What has to be run first, where the weights are billed as they are not stored."""
    import shlex

    from edgekit.engines.mlx.convert import convert_words
    from edgekit.engines.model_words import repository_word

    packed = _to_convert(values, estimate)
    if packed is None or _published(packed, opened) is not None:
        return ""
    stored = repository_word(opened.files, opened.repository)
    return shlex.join(convert_words(stored, packed, opened.label))


def _to_convert(values: Mapping[str, Any], estimate: MemoryEstimate) -> Quantize | None:
    """How the weights are packed in the bill; None where that is how they are stored."""
    from edgekit.engines.mlx.estimate import NOT_QUANTISED
    from edgekit.engines.mlx.rows import read_quantize
    from edgekit.engines.mlx.types import PLAIN, Quantize

    wanted = values.get("quantize")
    if wanted is None:
        return Quantize() if NOT_QUANTISED in estimate.notes else None
    packed = read_quantize(wanted)
    return packed if isinstance(packed, Quantize) and packed != PLAIN else None


def _published(packed: Quantize | None, opened: Opened) -> str | None:
    from edgekit.engines.model_words import published_mlx

    own = opened.files is not None and not opened.files.origin.is_remote
    return None if packed is None or own else published_mlx(opened.label, packed)
