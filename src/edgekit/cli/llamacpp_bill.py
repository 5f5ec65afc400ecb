"""llama.cpp's --mix, --mmproj, --lora and --model-draft -> one bill for all that is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgekit.cli.llamacpp_options import this_cpu
from edgekit.engine import llamacpp
from edgekit.engine.llamacpp.companions import adapter_lines, projector_lines, with_drafter
from edgekit.engine.llamacpp.placement import place
from edgekit.engine.llamacpp.types import ALL_LAYERS, LlamaCppSetup
from edgekit.errors import UsageError
from edgekit.estimation import Opened, open_model
from edgekit.header import read_header
from edgekit.header.types import ModelHeader
from edgekit.memory.cache_types import cache_type
from edgekit.memory.types import Load, MemoryEstimate
from edgekit.source import locate
from edgekit.source.types import Container, ModelFiles, Reach
from edgekit.units import format_bytes

BESIDE_THE_MODEL = "auto"


def estimate_with_companions(
    opened: Opened, asked: tuple[Load, LlamaCppSetup], values: Mapping[str, Any], reach: Reach
) -> MemoryEstimate:
    """Raises EdgekitError for a file that is something else, and for what llama.cpp refuses."""
    load, setup = asked
    bill = llamacpp.estimate(opened.model, load, replace(setup, mix=values.get("mix")))
    if "mmproj" in values:
        header = _projector(values["mmproj"], opened, reach)
        bill = replace(bill, lines=(*bill.lines, *projector_lines(header, setup)))
    if "lora" in values:
        headers = [read_header(locate(name, reach=reach)) for name in values["lora"]]
        facts: dict[str, Any] = dict(bill.facts)
        lines = adapter_lines(headers, place(opened.model, setup), facts["n_ubatch"])
        bill = replace(bill, lines=(*bill.lines, *lines))
    bill = _with_repack_note(bill, opened, (load, setup), values)
    if "draft_model" in values:
        bill = with_drafter(bill, _drafter(bill, values, asked, reach))
    return bill


def _with_repack_note(
    bill: MemoryEstimate,
    opened: Opened,
    asked: tuple[Load, LlamaCppSetup],
    values: Mapping[str, Any],
) -> MemoryEstimate:
    """Many released builds rearrange weights on the host unless told not to: said where it was not settled."""
    if "repack" in values:
        return bill
    load, setup = asked
    arranged = replace(setup, repack=this_cpu(), mix=values.get("mix"))
    more = llamacpp.estimate(opened.model, load, arranged).weights_bytes - bill.weights_bytes
    if more <= 0:
        return bill
    note = (
        f"a build that rearranges weights for its CPU (many do) holds {format_bytes(more)} more on the host: "
        "--repack counts it, -nr (--no-repack) avoids it"
    )
    return replace(bill, notes=(*bill.notes, note))


def _projector(name: str, opened: Opened, reach: Reach) -> ModelHeader:
    if name != BESIDE_THE_MODEL:
        return read_header(locate(name, reach=reach))
    found = opened.files.projectors if opened.files is not None else ()
    if not found or opened.files is None:
        raise UsageError("--mmproj auto: no mmproj file lies beside the model; name one")
    files = ModelFiles(
        reference=found[0].name,
        label=found[0].name,
        origin=opened.files.origin,
        container=Container.GGUF,
        weights=found[:1],
    )
    return read_header(files)


def _drafter(
    bill: MemoryEstimate,
    values: Mapping[str, Any],
    asked: tuple[Load, LlamaCppSetup],
    reach: Reach,
) -> MemoryEstimate:
    """As speculative.cpp @ 0c1e570 starts it: the main model's options, one row of logits per sequence."""
    load, setup = asked
    facts: dict[str, Any] = dict(bill.facts)
    key, value = values.get("draft_type_k"), values.get("draft_type_v")
    own_load = replace(
        load,
        context_tokens=facts["n_ctx"],
        sequences=facts["n_seq_max"],
        unified=facts["kv_streams"] == 1,
        output_rows=facts["n_seq_max"],
        cache_k=None if key is None else cache_type(key),
        cache_v=None if value is None else cache_type(value),
    )
    own_setup = replace(
        setup, n_gpu_layers=ALL_LAYERS, cpu_moe=False, n_cpu_moe=0, embeddings=False, load_mtp=False
    )
    drafter = open_model(values["draft_model"], reach=reach).model
    return llamacpp.estimate(drafter, own_load, own_setup)
