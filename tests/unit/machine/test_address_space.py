"""ulimit -v holds CUDA too: 13 GiB for a context (measured on an H200), then every byte of the card."""

from __future__ import annotations

import pytest

from edgekit.basis import Basis
from edgekit.machine.host import ADDRESS_SPACE
from edgekit.machine.nvidia import within_address_space
from edgekit.machine.surroundings import Findings
from edgekit.machine.types import Device, HostMemory, MemoryLimit, Vendor
from edgekit.units import GIB


def card(*, unified: bool = False) -> Device:
    return Device(
        name="RTX 3090",
        vendor=Vendor.NVIDIA,
        total_bytes=24 * GIB,
        free_bytes=22 * GIB,
        because="NVML",
        unified=unified,
    )


def host(left: int, name: str = ADDRESS_SPACE) -> HostMemory:
    limit = MemoryLimit(name=name, limit_bytes=(left + 1) * GIB, used_bytes=GIB)
    return HostMemory(total_bytes=64 * GIB, free_bytes=60 * GIB, limits=(limit,))


@pytest.mark.parametrize(
    ("left", "cards", "free"),
    [
        (40, 1, [22]),  # 27 are left for one
        (35, 1, [22]),
        (33, 1, [20]),
        (14, 1, [1]),
        (13, 1, []),  # cuInit fails
        (5, 1, []),
        (43, 2, [15, 15]),
        (57, 2, [22, 22]),
    ],
)
def test_what_is_left_for_cards(left: int, cards: int, free: list[int]) -> None:
    seen = within_address_space((card(),) * cards, host(left))
    assert [device.free_bytes for device in seen.devices] == [size * GIB for size in free]
    assert len(seen.notes) == (free != [22] * cards)
    assert all("ulimit -v unlimited" in note for note in seen.notes)


def test_a_held_card_says_so() -> None:
    (device,) = within_address_space((card(),), host(33)).devices
    assert (device.basis, device.because) == (
        Basis.MODELLED,
        "NVML, within RLIMIT_AS (ulimit -v)",
    )


def test_a_shared_memory_is_held_by_its_share() -> None:
    """Of a unified memory the host's is judged: the limit is on the GPU's half."""
    (device,) = within_address_space((card(unified=True),), host(33)).devices
    assert (device.limit_bytes, device.limit_because) == (20 * GIB, ADDRESS_SPACE)


@pytest.mark.parametrize(
    "beside",
    [
        None,
        HostMemory(total_bytes=GIB, free_bytes=GIB),
        host(1, "RLIMIT_DATA (ulimit -d; mapped files do not count)"),
        host(1, "cgroup v2 /sys/fs/cgroup/box/memory.max"),
    ],
)
def test_nothing_else_holds_cuda(beside: HostMemory | None) -> None:
    assert within_address_space((card(),), beside) == Findings(devices=(card(),))


def test_a_machine_without_cards() -> None:
    assert within_address_space((), host(1)) == Findings()
