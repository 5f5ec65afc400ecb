"""A plan for vLLM -> vllm serve, and Ray before it where several machines share the model.

Flags: vllm/engine/arg_utils.py; the steps over several machines: docs/serving/parallelism_scaling.md @ a014e35.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from edgekit.bill.types import MemoryEstimate
from edgekit.engines.vllm import estimate as vllm
from edgekit.engines.vllm.types import VllmSetup
from edgekit.model.types import Model
from edgekit.report.commands import cards
from edgekit.report.commands.types import Command, Planned

RAY_PORT = 6379  # Ray's own
HEAD = "HEAD_IP"
# Fields of the setup that are said where they are not vLLM's own default.
_FLAGS = {
    "tensor_parallel_size": "-tp",
    "pipeline_parallel_size": "-pp",
    "dtype": "--dtype",
    "quantization": "-q",
    "kv_cache_dtype": "--kv-cache-dtype",
    "block_size": "--block-size",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
    "mamba_cache_dtype": "--mamba-cache-dtype",
    "mamba_ssm_cache_dtype": "--mamba-ssm-cache-dtype",
}
_SWITCHES = {
    ("enable_prefix_caching", True): "--enable-prefix-caching",
    ("enable_prefix_caching", False): "--no-enable-prefix-caching",
    ("async_scheduling", False): "--no-async-scheduling",
    ("disable_hybrid_kv_cache_manager", True): "--disable-hybrid-kv-cache-manager",
    ("enforce_eager", True): "--enforce-eager",
}


_FIRST_MACHINE = "on the first machine"


def ready(planned: Planned) -> Iterator[Command]:
    nodes = nodes_used(planned)
    if nodes > 1:
        yield from _ray(planned, nodes)
    words = [
        "vllm",
        "serve",
        planned.repository_word,
        "--max-model-len",
        str(planned.facts["max_model_len"]),
    ]
    words += [*_set(planned), *_sequences(planned)]
    if nodes > 1:
        words += ["--distributed-executor-backend", "ray"]
    notes = ["run this on the first machine, after all machines have joined"] if nodes > 1 else []
    serve = planned.command("vllm serve", words, cards.environment(planned), notes)
    yield replace(serve, where=_FIRST_MACHINE if nodes > 1 else "")


def nodes_used(planned: Planned) -> int:
    """As many as the planned cards are on; a plan may need fewer machines than there are."""
    wish = planned.plan.wish
    own = sum(1 for card in wish.machine.devices if card.vendor.value == "nvidia")
    needed: int = -(-planned.setup.world_size // max(own, 1))
    return min(wish.nodes, needed)


def _set(planned: Planned) -> Iterator[str]:
    plain = VllmSetup()
    for name, flag in _FLAGS.items():
        value = getattr(planned.setup, name)
        if value != getattr(plain, name):
            yield from (flag, f"{value:g}" if isinstance(value, float) else str(value))
    for (name, value), flag in _SWITCHES.items():
        if getattr(planned.setup, name) == value != getattr(plain, name):
            yield flag


def _sequences(planned: Planned) -> Iterator[str]:
    """As many as there are users, or as a model with states may have."""
    plan, setup = planned.plan, planned.setup
    most = plan.wish.users
    if most is None:
        card = replace(setup.gpu, memory_bytes=setup.gpu.total_bytes)
        pool = vllm.estimate(plan.variant.model, plan.load, replace(setup, gpu=card))
        most = most_sequences(plan.variant.model, pool)
    if most is not None:
        yield from ("--max-num-seqs", str(most))


def most_sequences(model: Model, pool: MemoryEstimate) -> int | None:
    """Models with states need a block for each sequence, or vLLM does not start (compilation.py
    adjust_cudagraph_sizes_for_mamba_cache @ a014e35). None where the engine's own number does.
    """
    facts: dict[str, Any] = dict(pool.facts)
    blocks = facts.get("num_blocks")
    has_states = any(layer.mixer.states for layer in model.geometry.layers)
    is_too_many = has_states and isinstance(blocks, int) and blocks < facts["max_num_seqs"]
    return blocks if is_too_many else None


def _ray(planned: Planned, nodes: int) -> Iterator[Command]:
    others = f"the other {nodes - 1} machines" if nodes > 2 else "the other machine"
    first = ["ray", "start", "--head", f"--port={RAY_PORT}"]
    same = "every machine needs the same Python packages, the model at the same path, and `pip install 'ray[cgraph]'`"
    closed = "use a private network: traffic between the machines is not encrypted"
    head = planned.command(f"ray, {_FIRST_MACHINE}", first, notes=[same, closed])
    yield replace(head, where=_FIRST_MACHINE)
    join = ["ray", "start", f"--address={HEAD}:{RAY_PORT}"]
    address = f"{HEAD} is the address of the first machine"
    joined = planned.command(f"ray, on {others}", join, notes=[address])
    yield replace(joined, where=f"on {others}")
