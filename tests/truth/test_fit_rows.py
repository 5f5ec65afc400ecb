"""Our placement beside that of llama.cpp's own --fit: 13 models on cards of 8 to 48 GB, 56 pairs.

Recorded on an H200 whose free memory was stated as that of the smaller card. --fit leaves 1 GiB free and does not count
what the first decode takes (81 to 187 MiB, which our bill counts), and it divides the experts of one layer: so it may
have up to one layer more on the card.
"""

from __future__ import annotations

from typing import Any

from tests.recorded import engine_models, rows
from tests.thoroughness import LONG

from edgekit.engine.llamacpp.types import ALL_LAYERS
from edgekit.hardware.types import Accelerator, HostMemory, Machine, System, Vendor
from edgekit.memory.cache_types import cache_type
from edgekit.memory.types import Load
from edgekit.plan.choice import Candidate, choose
from edgekit.plan.types import Question
from edgekit.units import GIB, MIB

ROWS = list(rows("fit_h200.jsonl.gz"))


def chosen(row: dict[str, Any]) -> Candidate:
    free = row["free_mib"] * MIB
    card = Accelerator(name="card", vendor=Vendor.NVIDIA, total_bytes=free, free_bytes=free)
    kind = cache_type(row["cache_type"])
    question = Question(
        model=engine_models()[row["model"], row["quant"]],
        engine="llama.cpp",
        machine=Machine(
            name="a machine",
            system=System.LINUX,
            host=HostMemory(total_bytes=256 * GIB, free_bytes=256 * GIB),
            devices=(card,),
        ),
        load=Load(context_tokens=row["n_ctx"], cache_k=kind, cache_v=kind),
    )
    return choose(question).candidate


def test_choice_has_at_most_one_layer_less_on_the_card_than_fit() -> None:
    """All 56 with LONG, every fourth otherwise."""
    for row in ROWS if LONG else ROWS[::4]:
        setup, layers = (
            chosen(row).held.way.setup,
            len(engine_models()[row["model"], row["quant"]].geometry.layers),
        )
        ours, theirs = setup.n_gpu_layers, row["n_gpu_layers"]
        if theirs < 0:  # everything on the card
            assert (ours, setup.n_cpu_moe, setup.cpu_moe) == (ALL_LAYERS, 0, False), row
            continue
        if not row["experts_on_host"]:
            assert ours >= theirs - 1, row
            continue
        # experts on the card: those of whole layers; a layer that is divided counts for --fit
        experts = 0 if setup.cpu_moe else layers - setup.n_cpu_moe
        with_experts = theirs - 1 - row["experts_on_host"]
        assert experts >= with_experts - 1 or ours > theirs, row
