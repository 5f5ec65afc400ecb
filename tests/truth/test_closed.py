"""The bound for models without a graph: above every recorded compute buffer, in each pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.recorded import engine_models, rows
from tests.thoroughness import sampled_rows

from edgekit.bill.types import Component, Load
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.compute import bound_bytes, pool_bounds
from edgekit.engines.llamacpp.context import resolve
from edgekit.engines.llamacpp.setups import read_row
from edgekit.engines.llamacpp.types import HeadSizes, LlamaCppSetup
from edgekit.engines.llamacpp.weights import place
from edgekit.machine.types import HOST
from edgekit.units import MIB

MAX_RATIO = 4.5  # of the engine's figure, for small encoders; the median of decoders is 1.3
HOST_BUFFERS = ("CUDA_Host", "CPU", "CPU_Mapped")


def test_bound_on_the_cpu_is_above_every_row_but_not_far() -> None:
    for row in recorded("llama_cpp_cpu.jsonl.gz", lambda row: "error" not in row["actual"]):
        model = engine_models()[row["model"], row["quant"]]
        bound = bound_bytes(model, resolve(model, *read_row(row["options"], "cpu")))
        measured = row["actual"]["compute_bytes"]
        assert measured <= bound <= MAX_RATIO * measured, row["options"]


def recorded(file: str, selects: Callable[[dict[str, Any]], bool]) -> Iterator[dict[str, Any]]:
    by_model: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows(file):
        if selects(row):
            by_model.setdefault((row["model"], row["quant"]), []).append(row)
    for chosen in sampled_rows(by_model.values(), each=8):
        yield from chosen


def cuda_rows() -> Iterator[dict[str, Any]]:
    return recorded(
        "llama_cpp_cuda.jsonl.gz",
        lambda row: row.get("breakdown") is not None and row["tag"] != "real",
    )


def test_bound_on_a_device_and_its_host_is_above_every_row() -> None:
    """With every block on the device, the host has only the inputs, and its bound is close to them.

    Except where attention has no kernel on the device and runs on the host.
    """
    for row in cuda_rows():
        model = engine_models()[row["model"], row["quant"]]
        load, setup = read_row(row["options"], "cuda")
        context, placement = resolve(model, load, setup), place(model, setup)
        on_device, on_host = pool_bounds(model, context, placement, setup)
        measured = row["breakdown"]
        assert measured["CUDA0"][2] <= on_device, (row["model"], row["options"])
        host_bytes = sum(measured.get(name, [0, 0, 0])[2] for name in HOST_BUFFERS)
        assert host_bytes <= on_host, (row["model"], row["options"])
        all_on_device = placement.output is not HOST and HOST not in placement.blocks
        host_has_inputs_only = (
            all_on_device and placement.offload_kqv and not placement.host_expert_blocks
        )
        if host_has_inputs_only and not (
            context.flash_attn and not HeadSizes.of(model.geometry).flashes
        ):
            assert on_host <= 4 * host_bytes + 4 * MIB, (row["model"], row["options"])


def test_bound_covers_an_f32_mask_and_its_copy() -> None:
    model, load = engine_models()["llama-3.2-1b", "Q4_K_M"], Load(context_tokens=131_072)
    setup = LlamaCppSetup(rules=9294)
    bill = llamacpp.estimate(model, load, setup)
    assert bill.of(Component.COMPUTE) <= bound_bytes(model, resolve(model, load, setup))
