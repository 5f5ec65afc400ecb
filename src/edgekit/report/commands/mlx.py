"""A plan for MLX -> mlx_lm.convert where weights are to be packed, then mlx_lm.server. Flags as in mlx-lm @ d78bf58."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.engines.mlx.convert import convert_words, converted_name
from edgekit.engines.mlx.estimate import NOT_QUANTISED
from edgekit.engines.mlx.types import (
    DEFAULT_PREFILL_STEP,
    FOUR_BIT,
    PLAIN,
    MlxSetup,
    Quantize,
)
from edgekit.engines.model_words import published_mlx
from edgekit.report.commands.types import Command, Planned
from edgekit.sources.types import Origin


def ready(planned: Planned) -> Iterator[Command]:
    """The server keeps its caches in 16 bits: where the plan packs them, mlx_lm.generate runs it."""
    packed = None if published(planned) else to_convert(planned)
    if packed is not None:
        words = convert_words(planned.repository_word, packed, planned.plan.wish.label)
        notes = ["run this once, before the next command"]
        yield planned.command("mlx_lm.convert", words, notes=notes)
    if planned.setup.kv_bits is None and planned.setup.max_kv_size is None:
        yield planned.command("mlx_lm.server", _server(planned), notes=_server_notes(planned))
    else:
        yield planned.command("mlx_lm.generate", _generate(planned), notes=_generate_notes(planned))


def model_word(planned: Planned) -> str:
    """A repository with the weights as they are planned, or the folder that mlx_lm.convert writes."""
    packed = to_convert(planned)
    own = (
        planned.repository_word
        if packed is None
        else converted_name(planned.plan.wish.label, packed)
    )
    return published(planned) or own


def published(planned: Planned) -> str | None:
    """A repository with the weights packed as they are planned; None where none is known, or needed."""
    packed, files = to_convert(planned), planned.files
    if packed is None or (files is not None and files.origin is Origin.LOCAL):
        return None
    return published_mlx(planned.plan.wish.label, packed)


def to_convert(planned: Planned) -> Quantize | None:
    """How the weights are to be packed before they are as they were billed; None where they are."""
    wanted = planned.setup.quantize
    if wanted is None and NOT_QUANTISED in planned.plan.result.estimate.notes:
        return Quantize(packing=FOUR_BIT)
    is_packed = isinstance(wanted, Quantize) and wanted != PLAIN and wanted.rest
    return wanted if is_packed else None


def _server(planned: Planned) -> list[str]:
    """As many requests at once as are planned for, and no more kept of old ones than there is room."""
    count = str(planned.plan.load.sequences or 1)
    words = ["mlx_lm.server", "--model", model_word(planned)]
    words += ["--decode-concurrency", count, "--prompt-concurrency", count]
    words += ["--prompt-cache-bytes", str(_room_for_caches(planned))]
    return [*words, *_prefill(planned.setup)]


def _room_for_caches(planned: Planned) -> int:
    """What the bill has for them and what is left; server.py:731 trims old ones to it, those in use counted."""
    result = planned.plan.result
    left = [use.budget.available_bytes - use.required_bytes for use in result.uses]
    return result.estimate.kv_cache_bytes + max(0, min(left, default=0))


def _server_notes(planned: Planned) -> list[str]:
    length = f"{planned.plan.context_tokens:,}"
    return [
        f"accepts requests of any length; planned for up to {length} tokens each, prompt and answer"
    ]


def _generate(planned: Planned) -> list[str]:
    setup = planned.setup
    words = ["mlx_lm.generate", "--model", model_word(planned), "--prompt", "-"]
    if setup.kv_bits is not None:
        words += ["--kv-bits", str(setup.kv_bits), "--kv-group-size", str(setup.kv_group_size)]
        words += ["--quantized-kv-start", str(setup.quantized_kv_start)]
    if setup.max_kv_size is not None:
        words += ["--max-kv-size", str(setup.max_kv_size)]
    if setup.max_tokens:
        words += ["--max-tokens", str(setup.max_tokens)]
    return words


def _generate_notes(planned: Planned) -> list[str]:
    named = "--kv-bits" if planned.setup.kv_bits is not None else "--max-kv-size"
    return [
        "reads the prompt from standard input",
        f"mlx_lm.server has no {named}: its caches would use more memory than planned",
    ]


def _prefill(setup: MlxSetup) -> list[str]:
    step = setup.prefill_step_size
    return [] if step == DEFAULT_PREFILL_STEP else ["--prefill-step-size", str(step)]
