"""The commands of a verdict: vllm serve, after Ray if several machines share the model.

Flags: vllm/engine/arg_utils.py; the steps over several machines: docs/serving/parallelism_scaling.md @ a014e35.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgekit.bill.types import MemoryEstimate, Placement, Verdict
from edgekit.engines.commands import Command, Startup, repository_word
from edgekit.engines.flags import flag_words, read_flags
from edgekit.engines.vllm.estimate import estimate as bill
from edgekit.engines.vllm.flags import FLAGS
from edgekit.engines.vllm.setups import placement
from edgekit.engines.vllm.types import VllmSetup
from edgekit.errors import UsageError
from edgekit.machine.devices import find_device
from edgekit.machine.types import Device, Vendor

if TYPE_CHECKING:
    from edgekit.model import OpenModel

PROGRAM = "vllm"
RAY_PORT = 6379  # Ray's default
HEAD = "HEAD_IP"
SHARES_TRIED = 4
_FIRST_MACHINE = "on the first machine"
# Fields of the setup that are printed if they differ from vLLM's default, in this order.
_PRINTED = (
    "tensor_parallel_size", "pipeline_parallel_size", "dtype", "quantization", "kv_cache_dtype", "block_size",
    "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_memory_bytes",
    "mamba_ssm_cache_dtype", "enable_prefix_caching", "async_scheduling", "disable_hybrid_kv_cache_manager",
    "enforce_eager",
)  # fmt: skip


def commands(startup: Startup) -> Iterator[Command]:
    """`vllm serve`, after the commands that start Ray if the placement needs several machines."""
    gpu_count = sum(1 for card in startup.machine.devices if card.vendor is Vendor.NVIDIA)
    setup = VllmSetup.of(startup.setup)
    nodes = min(startup.nodes, -(-setup.world_size // max(gpu_count, 1)))
    if nodes > 1:
        yield from _ray(startup, nodes)
    words = ["vllm", *server_words(startup.verdict, startup.repository_word, startup.users)]
    if nodes > 1:
        words += ["--distributed-executor-backend", "ray"]
    notes = ["run this on the first machine, after all machines have joined"] if nodes > 1 else []
    serve = startup.command(PROGRAM, "vllm serve", words, startup.environment, notes)
    serve = replace(serve, served_name=startup.repository_word)
    yield replace(serve, where=_FIRST_MACHINE if nodes > 1 else "")


def server_words(verdict: Verdict, model: str, users: int | None = None) -> list[str]:
    """The words after `vllm` that serve a model on one machine."""
    setup, defaults = VllmSetup.of(verdict.way.setup), VllmSetup()
    length = dict(verdict.estimate.facts)["max_model_len"]
    words = ["serve", model, "--max-model-len", str(length)]
    for name in _PRINTED:
        value = getattr(setup, name)
        if value != getattr(defaults, name):
            words += flag_words(FLAGS, {name: value})
    if setup.mamba_cache_dtype != defaults.mamba_cache_dtype:  # only Python can set it
        words += ["--mamba-cache-dtype", setup.mamba_cache_dtype]
    max_sequences = most_sequences(verdict) if users is None else users
    if max_sequences is not None:
        words += ["--max-num-seqs", str(max_sequences)]
    return words


def taken(verdict: Verdict) -> MemoryEstimate:
    """The estimate with the whole share that vLLM takes at startup; a verdict only has what the requests need."""
    if verdict.variant is None:
        return verdict.estimate
    setup = VllmSetup.of(verdict.way.setup)
    card = replace(setup.gpu, memory_bytes=verdict.way.budgets[0].total_bytes)
    return bill(verdict.variant.model, verdict.load, replace(setup, gpu=card))


def least_shares(verdict: Verdict) -> tuple[Mapping[str, Any], ...]:
    """The smallest --gpu-memory-utilization for the load, and slightly larger ones, because blocks are rounded."""
    total = verdict.way.budgets[0].total_bytes
    least = math.ceil(100 * verdict.required_bytes / total)
    most = round(100 * VllmSetup.of(verdict.way.setup).gpu_memory_utilization)
    shares = range(least, min(least + SHARES_TRIED, most + 1))
    return tuple({"gpu_memory_utilization": share / 100} for share in shares)


def most_sequences(verdict: Verdict) -> int | None:
    """--max-num-seqs for models with recurrent states; None if vLLM's default works.

    Each sequence needs a block, or vLLM does not start (compilation.py
    adjust_cudagraph_sizes_for_mamba_cache @ a014e35).
    """
    variant = verdict.variant
    if variant is None or not any(layer.mixer.states for layer in variant.model.geometry.layers):
        return None
    facts: dict[str, Any] = dict(taken(verdict).facts)
    blocks = facts["num_blocks"]
    return blocks if isinstance(blocks, int) and blocks < facts["max_num_seqs"] else None


def settle(verdict: Verdict, given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of a verdict: `given` by the user, and those that the verdict adds."""
    setup = VllmSetup.of(verdict.way.setup)
    settled = {**given, "context": verdict.context_tokens}
    if setup.kv_cache_dtype != "auto":
        settled["kv_cache_dtype"] = setup.kv_cache_dtype
    settled |= placement(setup)
    if "max_num_seqs" not in given:
        max_sequences = most_sequences(verdict)
        if max_sequences is not None:
            settled["max_num_seqs"] = max_sequences
    return settled


def machine_flags(placement: Placement) -> dict[str, Any]:
    """The smallest GPU by name if it is in the table of devices, and its memory if that differs."""
    card = min(placement.cards, key=lambda card: card.total_bytes)
    try:
        device = find_device(card.name)
    except UsageError:
        return {"gpu_memory": card.total_bytes}
    if device.capability is None or device.capability != card.capability:
        return {"gpu_memory": card.total_bytes}
    flags: dict[str, Any] = {"gpu": device.name}
    if device.usable_bytes != card.total_bytes:
        flags["gpu_memory"] = card.total_bytes
    return flags


def _ray(startup: Startup, nodes: int) -> Iterator[Command]:
    """The commands that join several machines into a Ray cluster."""
    other_machines = f"the other {nodes - 1} machines" if nodes > 2 else "the other machine"
    head_words = ["ray", "start", "--head", f"--port={RAY_PORT}"]
    notes = [
        "every machine needs the same Python packages, the model at the same path, and `pip install 'ray[cgraph]'`",
        "use a private network: traffic between the machines is not encrypted",
    ]
    head = startup.command(PROGRAM, f"ray, {_FIRST_MACHINE}", head_words, notes=notes)
    yield replace(head, where=_FIRST_MACHINE)
    join_words = ["ray", "start", f"--address={HEAD}:{RAY_PORT}"]
    address_note = f"{HEAD} is the address of the first machine"
    worker = startup.command(PROGRAM, f"ray, on {other_machines}", join_words, notes=[address_note])
    yield replace(worker, where=f"on {other_machines}")


def estimate_command(
    values: Mapping[str, Any], _setup: VllmSetup, estimate: MemoryEstimate, opened: OpenModel
) -> tuple[list[str], list[str]]:
    """The command of an estimate. It always has a length: vLLM would use the model's own."""
    length = dict(estimate.facts)["max_model_len"]
    words = ["vllm", "serve", repository_word(opened.files, opened.repository)]
    return [*words, "--max-model-len", str(length), *flag_words(FLAGS, values)], []


def values_on_cards(cards: Sequence[Device], named: Sequence[str]) -> dict[str, Any]:
    """The flags for the smallest GPU, which limits every rank. `named`: names of the GPUs in the table of devices."""
    smallest = min(cards, key=lambda card: card.total_bytes)
    flags: dict[str, Any] = {"gpu_memory": smallest.total_bytes}
    if named:
        flags |= read_flags(FLAGS, {"gpu": smallest.name})
    if len(cards) > 1:
        flags["tensor_parallel_size"] = len(cards)
    return flags
