"""Our placement compared with that of llama.cpp's --fit: 13 models on cards of 8 to 48 GB, 56 pairs.

Recorded on an H200 with a margin (-fitt) that leaves the usable memory of the smaller card: its free memory less 1 GiB
and the CUDA context. --fit leaves the experts of the last layers in RAM and divides those of one layer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.recorded import engine_models, rows
from tests.thoroughness import LONG

from edgekit.bill.types import CACHES, Component, Load, MemoryEstimate, Start, Task, cache_type
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.types import (
    ALL_LAYERS,
    LlamaCppSetup,
    LlamaMode,
    Override,
    read_version,
)
from edgekit.machine.types import DEVICE, Device, HostMemory, Machine, System, Vendor
from edgekit.plan.choice import Candidate, choose
from edgekit.units import GIB, MIB

ROWS = list(rows("fit_h200.jsonl.gz"))
EXPERTS = "ffn_(up|down|gate_up|gate)_(ch|)exps"


def chosen(row: dict[str, Any]) -> Candidate:
    free = row["free_mib"] * MIB
    card = Device(name="card", vendor=Vendor.NVIDIA, total_bytes=free, free_bytes=free)
    kind = cache_type(row["cache_type"])
    task = Task(
        model=engine_models()[row["model"], row["quant"]],
        engine="llama.cpp",
        machine=Machine(
            name="a machine",
            system=System.LINUX,
            host=HostMemory(total_bytes=256 * GIB, free_bytes=256 * GIB),
            devices=(card,),
        ),
        load=Load(context_tokens=row["n_ctx"], cache_k=kind, cache_v=kind),
        start=Start(setup=LlamaCppSetup(mode=LlamaMode.SERVER, **read_version("0.6")._asdict())),
    )
    return choose(task).candidate


def fitted(row: dict[str, Any], setup: LlamaCppSetup, layers: int) -> LlamaCppSetup:
    """The setup that --fit chose. Its patterns count the output as the layer after the last."""
    bare = replace(setup, n_cpu_moe=0, cpu_moe=False, overrides=(), n_gpu_layers=ALL_LAYERS)
    if row["n_gpu_layers"] < 0:  # everything on the card
        return bare
    first = layers + 1 - row["experts_on_host"]
    moved = dict.fromkeys(range(first, layers), EXPERTS)
    if row["partial"]:
        moved[first - 1] = f"ffn_({row['partial']}).*"
    return replace(
        bare,
        n_gpu_layers=row["n_gpu_layers"],
        overrides=tuple(
            Override(pattern=rf"blk\.{block}\.{tensors}", buffer="CPU")
            for block, tensors in moved.items()
        ),
    )


def on_the_card(estimate: MemoryEstimate) -> int:
    components = {Component.WEIGHTS, *CACHES}
    return estimate.total(lambda line: line.pool == DEVICE and line.component in components)


def test_choice_puts_at_least_as_much_on_the_card_as_fit() -> None:
    """Compares bytes of weights and caches, or layers: --fit may give up a layer for experts, which few tokens use.

    Every fourth pair; with LONG all 56.
    """
    for row in ROWS if LONG else ROWS[::4]:
        result, model = chosen(row), engine_models()[row["model"], row["quant"]]
        setup = LlamaCppSetup.of(result.fitting.placement.setup)
        layers = len(model.geometry.layers)
        fit_setup = fitted(row, setup, layers)
        bill = llamacpp.estimate(model, result.fitting.task.load_of(row["n_ctx"]), fit_setup)
        has_more = on_the_card(result.priced.estimate) >= on_the_card(bill)
        assert has_more or setup.n_gpu_layers > fit_setup.n_gpu_layers, row
