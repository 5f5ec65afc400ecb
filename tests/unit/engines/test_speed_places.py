"""The devices that the formula of the speed takes: assumed RAM, generations, matrix units, GPUs in the processor."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.unit.engines.test_speed import CUDA, llama_cpp_speed, recorded, with_host
from tests.unit.plan.machines import cpu

from edgekit.bill.types import Load, Moment
from edgekit.engines.llamacpp.estimate import estimate
from edgekit.engines.llamacpp.speed import sequence_run
from edgekit.engines.llamacpp.types import Backend, LlamaCppSetup
from edgekit.engines.speed import speed_bound
from edgekit.engines.speed_formula import Constants, constants, decode_s
from edgekit.engines.speed_places import CORE_BYTES_PER_S, GB, Place, host_speed, places_of
from edgekit.machine.types import Machine
from edgekit.machine.what_if import requested_machine, what_if_machine
from edgekit.units import Basis

LLAMA = recorded("llama-3.1-8b")


def place_on(machine: Machine, backend: Backend = Backend.CUDA) -> Place:
    """The only device that a token is read from."""
    setup, load = LlamaCppSetup(backend=backend), Load(context_tokens=1024)
    run = sequence_run(LLAMA, load, setup, estimate(LLAMA, load, setup), machine)
    (place,) = [place for place in places_of(run) or () if place.reads.is_read]
    return place


def machine_with(device: str) -> Machine:
    return what_if_machine(devices=(device,))


# -- RAM -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ram_gib", "cores", "gb_per_s"), [(8, 4, 30), (16, 8, 45), (64, 8, 70), (512, 16, 250), (64, 64, 250)])  # fmt: skip
def test_unknown_bandwidth_is_assumed_by_size_and_cores(
    ram_gib: int, cores: int, gb_per_s: int
) -> None:
    assert host_speed(replace(cpu(ram_gib), cores=cores)).bandwidth == gb_per_s * GB


def test_few_cores_cannot_use_all_of_the_bandwidth() -> None:
    two, eight = (host_speed(with_host(cpu(64), 400, cores=count)) for count in (2, 8))
    assert two.bandwidth == 2 * CORE_BYTES_PER_S
    assert two.text == "52 GB/s (what 2 cores can read)"
    assert eight.bandwidth == 8 * CORE_BYTES_PER_S
    assert host_speed(with_host(cpu(64), 400, cores=64)).bandwidth == 400 * GB


def test_unknown_cores_do_not_limit_a_known_bandwidth() -> None:
    machine = replace(with_host(cpu(512), 460, cores=1), cores=None)
    assert host_speed(machine).bandwidth == 460 * GB
    assert host_speed(machine).cores == 18  # as many as it takes to read it


def test_newer_instructions_compute_faster() -> None:
    names = ("avx", "avx2", "avx512", "avx512_vnni", "amx")
    rates = [constants().product("prompt", "cpu", name) for name in names]
    assert all(slower < faster for slower, faster in pairwise(rates))


# -- cards -----------------------------------------------------------------------------------


def test_described_and_detected_pascal_cards_are_one_generation() -> None:
    described = machine_with("GTX 1080 Ti")
    (card,) = described.devices
    detected = replace(described, devices=(replace(card, capability=(6, 1)),))
    assert place_on(described) == place_on(detected)
    assert place_on(described).architecture == "pascal"


def test_card_without_matrix_units_has_those_of_no_other() -> None:
    without, others = place_on(machine_with("GTX 1660")), place_on(machine_with("T4"))
    assert without.architecture == others.architecture == "sm_75"
    assert without.vector_flops is not None
    assert without.matrix_flops == pytest.approx(2 * without.vector_flops, rel=0.02)  # FP16
    assert others.matrix_flops == pytest.approx(65e12, rel=0.01)


@pytest.mark.parametrize(
    ("device", "market"),
    [("A10", "workstation"), ("L40S", "workstation"), ("RTX 6000 Ada", "workstation"), ("Radeon PRO W7900", "workstation"), ("Arc A380", ""), ("RTX 4090", ""), ("RX 7900 XTX", "")],
)  # fmt: skip
def test_workstation_cards_are_known_by_their_makers_names(device: str, market: str) -> None:
    assert place_on(machine_with(device), Backend.VULKAN).market == market


def test_weights_are_never_read_faster_than_the_bandwidth() -> None:
    values = Constants({**constants(), "weights": 1.5, "unpack_ops": 1e-9, "layer_us": 1e-9, "token_us": 1e-9})  # fmt: skip
    machine = machine_with("RTX 4090")
    setup, load = CUDA, Load(context_tokens=1024)
    run = sequence_run(LLAMA, load, setup, estimate(LLAMA, load, setup), machine)
    places = places_of(run)
    assert places is not None
    read_bytes = sum(place.reads.weights_bytes for place in places)
    least_s = read_bytes / (machine.devices[0].bandwidth_bytes_per_s or 0)
    assert decode_s(run, places, Moment(), values) == pytest.approx(least_s, rel=0.01)


def test_bound_of_a_gpu_in_the_processor_is_that_of_the_ram() -> None:
    (card,) = machine_with("Radeon 780M 32GB").devices
    inside = replace(card, bandwidth_bytes_per_s=None)
    machine = replace(with_host(cpu(32), 90, cores=8), devices=(inside,))
    speed = llama_cpp_speed(LLAMA, machine, LlamaCppSetup(backend=Backend.VULKAN))
    read_bytes = sum(tensor.size_bytes for tensor in LLAMA.header.tensors or ())
    bound = speed_bound(
        read_bytes, read_bytes, machine, "llama.cpp", ((inside, Backend.VULKAN.value),)
    )
    assert bound is not None
    assert speed.typical <= bound * 1.1


def test_speed_of_a_gpu_in_the_processor_is_as_well_known_as_its_ram() -> None:
    setup = LlamaCppSetup(backend=Backend.VULKAN)
    official, described = (
        llama_cpp_speed(LLAMA, requested_machine(devices=("780M 64GB",), ram=ram), setup)
        for ram in (None, "64G DDR5-4800")
    )
    assert official.basis is Basis.MODELLED
    assert described.basis is Basis.ASSUMED  # two channels are
    assert official.typical > described.typical
