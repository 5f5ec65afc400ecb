"""Which pool each tensor is placed in, and how many bytes it takes there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.recorded import engine_models

from edgekit.bill.types import (
    Component,
    Load,
)
from edgekit.engines.entries import open_entry
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.conversion import convert
from edgekit.engines.llamacpp.types import Backend, DeviceSlot, LlamaCppSetup, Rules
from edgekit.engines.llamacpp.weights import device_bytes, place, placed_sums, placed_tensors
from edgekit.errors import UsageError
from edgekit.index.names import find_entry
from edgekit.machine.types import DEVICE, HOST, Pool, PoolKind
from edgekit.model.types import Model
from edgekit.units import MIB

LIBRARY = LlamaCppSetup(rules=Rules.V0_5)
CUDA = LlamaCppSetup(backend=Backend.CUDA, rules=Rules.V0_5)


def llama() -> Model:
    return engine_models()["llama-3.1-8b", "Q4_K_M"]  # 32 layers of 8 x 128 keys and values


def test_offloaded_layers_are_the_output_and_then_the_last_blocks() -> None:
    blocks = place(llama(), replace(CUDA, n_gpu_layers=10)).blocks
    assert blocks.count(DEVICE) == 9
    assert blocks[:23] == (HOST,) * 23
    assert place(llama(), replace(CUDA, n_gpu_layers=1)).output == DEVICE
    assert place(llama(), replace(CUDA, n_gpu_layers=0)).output == HOST


def test_layers_are_split_by_free_memory_or_by_tensor_split() -> None:
    devices = (DeviceSlot(free_bytes=24 * MIB), DeviceSlot(free_bytes=8 * MIB))
    by_memory = place(llama(), replace(CUDA, devices=devices))
    # three quarters of 32 blocks and the output, rounded up
    assert by_memory.blocks.count(Pool(PoolKind.DEVICE, 0)) == 25
    by_shares = place(llama(), replace(CUDA, devices=devices, tensor_split=(1, 1)))
    assert by_shares.blocks.count(DEVICE) == 17
    assert by_shares.output == Pool(PoolKind.DEVICE, 1)
    with pytest.raises(UsageError, match="positive shares"):
        place(llama(), replace(CUDA, tensor_split=(0, 0)))


@pytest.mark.parametrize(
    "name",  # a tied head; experts; states that stay in RAM; unused blocks of multi-token prediction
    ["gemma-3-1b", "qwen3-30b-a3b", "jamba-1.5-mini", "glm-5.1"],
)
def test_placed_sums_equal_the_sums_of_placed_tensors(name: str) -> None:
    model = convert(open_entry(find_entry(name), "llama.cpp").model, "Q4_K_M").model
    devices = (DeviceSlot(free_bytes=24 * MIB), DeviceSlot(free_bytes=8 * MIB))
    for changes in (
        {"n_gpu_layers": 0},
        {"devices": devices},
        {"devices": devices, "n_gpu_layers": 9, "load_mtp": True},
        {"n_cpu_moe": 3},
    ):
        setup = replace(CUDA, **changes)
        placement = place(model, setup)
        sums: dict[tuple[int | None, Pool], tuple[int, int]] = {}
        for tensor in placed_tensors(model, placement, setup):
            size, count = sums.get((tensor.block, tensor.pool), (0, 0))
            sums[tensor.block, tensor.pool] = size + tensor.size_bytes, count + 1
        assert placed_sums(model, placement, setup) == sums


def test_more_experts_on_the_cpu_need_more_ram() -> None:
    model = engine_models()["qwen3-30b-a3b", "Q4_K_M"]
    load = Load(context_tokens=4096)

    def host_weights(setup: LlamaCppSetup) -> int:
        bill = llamacpp.estimate(model, load, setup)
        return bill.total(lambda line: line.component is Component.WEIGHTS and line.pool == HOST)

    none, ten, every = (
        host_weights(replace(CUDA, n_cpu_moe=0)),
        host_weights(replace(CUDA, n_cpu_moe=10)),
        host_weights(replace(CUDA, cpu_moe=True)),
    )
    assert none < ten < every
    assert every == host_weights(replace(CUDA, n_cpu_moe=48))


def test_device_bytes_pad_a_quantised_row_to_512_elements() -> None:
    assert device_bytes(2880 * 34 // 32, 2880, 32, 34) == -(-(3060 + 192 * 34 // 32) // 128) * 128
    assert device_bytes(4096, 1024, 1, 4) == 4096
