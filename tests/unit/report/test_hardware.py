"""report/hardware.py: a machine as text and JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.programs import PROGRAMS
from tests.unit.report.verdicts import card, mac, machine

from edgekit.machine.types import HostMemory, Machine, MemoryLimit, Process, Vendor
from edgekit.report.hardware import hardware_json, hardware_text
from edgekit.report.text import ASCII, Screen
from edgekit.units import GIB, MIB, Basis

HOST = HostMemory(
    total_bytes=64 * GIB,
    free_bytes=58 * GIB,
    swap_total_bytes=8 * GIB,
    swap_free_bytes=7 * GIB,
    limits=(
        MemoryLimit(name="cgroup v2 /a/memory.max", limit_bytes=16 * GIB, used_bytes=3 * GIB),
        MemoryLimit(name="RLIMIT_AS", limit_bytes=100 * GIB, used_bytes=GIB),
    ),
    bandwidth_bytes_per_s=83_200_000_000,
)
BUSY = card(
    "RTX 4090",
    24,
    free_bytes=18 * GIB,
    bandwidth_bytes_per_s=1_008_000_000_000,
    capability=(8, 9),
    users=(
        Process(pid=88, name="Xorg", used_bytes=300 * MIB),
        Process(pid=1234, name="python3", used_bytes=5 * GIB),
        Process(pid=9),
    ),
    because="NVML",
)
SLICE = card("H100", 10, index=1, partition="MIG 1g.10gb", because="NVML")
HERE = machine(
    BUSY, SLICE, host=HOST, processor="Ryzen 9 7950X", cores=16, notes=("GPU 2 does not answer",)
)  # fmt: skip
HERE_TEXT = """\
this machine: 13.00 of 16.00 GiB of RAM free, RTX 4090 with 18.00 of 24.00 GiB free, H100 with 10.00
of 10.00 GiB free
Linux  ·  Ryzen 9 7950X, 16 cores

Memory   64.00 GiB, 58.00 GiB free
         limit 16.00 GiB, 13.00 GiB left: cgroup v2 /a/memory.max (this one applies)
         limit 100.00 GiB, 99.00 GiB left: RLIMIT_AS
         swap: 7.00 of 8.00 GiB free, not counted
         83 GB/s

GPU 0    RTX 4090, 24.00 GiB, 18.00 GiB free
         1,008 GB/s, compute capability 8.9
         used by python3 (1234) 5.00 GiB, Xorg (88) 300.00 MiB, a process (9)
         exact: NVML

GPU 1    H100, MIG 1g.10gb, 10.00 GiB, 10.00 GiB free
         exact: NVML

Usable   llama.cpp  17.00 GiB of RTX 4090: 18.00 GiB free minus 1 GiB reserve
                    9.00 GiB of H100: 10.00 GiB free minus 1 GiB reserve
                    12.00 GiB of RAM: 13.00 GiB free within its limit, minus 1 GiB reserve
         vllm       6.60 GiB of H100: 10.00 GiB free minus 3.40 GiB not used at
                    --gpu-memory-utilization 0.66 of 10.00 GiB
         mlx        MLX needs a Mac with Apple silicon; this machine is not one (--device checks
                    another machine)
         stream     12.94 GiB of RAM: 13.00 GiB free within its limit, minus 64.25 MiB for Python
                    and its libraries (plus the vocabulary)

Note     GPU 2 does not answer
"""
MAC_TEXT = """\
M3 Max: 36.00 of 36.00 GiB of RAM free, M3 Max GPU shares it
macOS

Memory   36.00 GiB, 36.00 GiB free

GPU      M3 Max, shares the RAM
         may use 27.00 GiB of it: macOS lets the GPU use 75 % of the memory by default
           (iogpu.wired_limit_mb)
         sudo sysctl iogpu.wired_limit_mb=32256 lets the GPU use 31.50 GiB instead of 27.00 GiB;
           lasts until the next restart; sudo sysctl iogpu.wired_limit_mb=0 restores the default

Usable   llama.cpp  27.00 GiB of unified memory: 36.00 GiB free; macOS lets the GPU use 75 % of the
                    memory by default (iogpu.wired_limit_mb)
         vllm       vLLM needs an NVIDIA GPU; this machine has none (--device checks another
                    machine)
         mlx        27.00 GiB of unified memory: 36.00 GiB free; macOS lets the GPU use 75 % of the
                    memory by default (iogpu.wired_limit_mb)
         stream     35.94 GiB of RAM: 36.00 GiB free minus 64.25 MiB for Python and its libraries
                    (plus the vocabulary)
"""
FOUR_TEXT = """\
4x T4: RAM unknown, 4x T4 with 16.00 of 16.00 GiB free
Linux

Memory   unknown (add --ram 32G)

GPU 0-3  T4, 16.00 GiB, 16.00 GiB free
         modelled: a table

Usable   llama.cpp  15.00 GiB of T4: 16.00 GiB free minus 1 GiB reserve, on each of 4 GPUs
         vllm       13.76 GiB of T4: 16.00 GiB free minus 2.24 GiB not used at
                    --gpu-memory-utilization 0.86 of 16.00 GiB
         mlx        MLX needs a Mac with Apple silicon; this machine is not one (--device checks
                    another machine)
         stream     RAM unknown: add --ram 32G
"""
CARDS = tuple(card("T4", 16, index=i, basis=Basis.MODELLED, because="a table") for i in range(4))
FOUR_CARDS = machine(*CARDS, ram_gib=None, name="4x T4")
UNKNOWN = machine(ram_gib=None, name="a box")


@pytest.mark.parametrize(
    ("hardware", "text"), [(HERE, HERE_TEXT), (mac(36), MAC_TEXT), (FOUR_CARDS, FOUR_TEXT)]
)
def test_hardware_text_of_three_machines(hardware: Machine, text: str) -> None:
    assert hardware_text(hardware) == text
    assert hardware_text(hardware, screen=Screen(glyphs=ASCII)) == text.replace("·", "-")


def test_hardware_text_groups_equal_cards() -> None:
    cards = [replace(item, name="L4") if item.index == 1 else item for item in CARDS]
    text = hardware_text(machine(*cards))
    assert "\nGPU 0, 2-3\n         T4, 16.00 GiB" in text
    assert "\nGPU 1    L4, 16.00 GiB" in text


def test_hardware_text_with_colour_marks_the_headline_only() -> None:
    first, *rest = hardware_text(FOUR_CARDS, screen=Screen(colour=True)).splitlines()
    assert first == f"\x1b[1m{FOUR_TEXT.splitlines()[0]}\x1b[0m"
    assert rest == FOUR_TEXT.splitlines()[1:]


def test_hardware_text_of_an_unknown_machine() -> None:
    text = hardware_text(UNKNOWN)
    assert text.startswith("a box: RAM unknown\n")
    assert "llama.cpp  RAM unknown: add --ram 32G" in text
    assert set(hardware_json(UNKNOWN)["engines"]["llama.cpp"]) == {"error"}


@pytest.mark.parametrize("width", [1, 20, 40, 60, 80, 100, 200])
def test_hardware_text_fits_the_width(width: int) -> None:
    for hardware in (HERE, mac(36), FOUR_CARDS, UNKNOWN):
        lines = hardware_text(hardware, screen=Screen(width=width)).splitlines()
        assert max(map(len, lines)) <= min(max(width, 20), 100)


def test_hardware_text_has_no_control_characters() -> None:
    evil = "RTX\x1b[2J\n4090\x07"
    user = Process(pid=1, name=evil, used_bytes=GIB)
    hardware = machine(
        card(evil, 24, partition=evil, users=(user,), because=evil),
        name=evil,
        processor=evil,
        notes=(evil,),
    )
    text = hardware_text(hardware)
    assert all(c == "\n" or c.isprintable() for c in text)
    json.dumps(hardware_json(hardware), allow_nan=False)


def test_hardware_text_names_only_the_five_largest_processes() -> None:
    users = tuple(Process(pid=i, name=f"p{i}", used_bytes=i * GIB) for i in range(1, 9))
    text = " ".join(hardware_text(machine(card("T4", 64, users=users))).split())
    assert "used by p8 (8) 8.00 GiB, p7 (7) 7.00 GiB, p6 (6) 6.00 GiB, p5 (5) 5.00 GiB, p4 (4) 4.00 GiB and 3 more" in text  # fmt: skip


PROGRAM_LINES = """\
Programs llama-server 0.6.0-dev (b11549), CUDA, Vulkan and CPU, finds CUDA0: RTX 4090, billed as
           0.6.0-dev (b11549); PATH: /usr/bin/llama-server
         llama-fit-params b9294; PATH; used by `verify` and --ask-engine
         ollama 0.12.3; running server: http://127.0.0.1:11434; not used: already running; EdgeKit
           starts its own server
         vllm; PATH; not used: it does not answer within 2.5 s
"""


def test_hardware_text_with_programs() -> None:
    assert PROGRAM_LINES in hardware_text(HERE, programs=PROGRAMS)


def test_hardware_text_without_programs_says_what_to_install() -> None:
    text = " ".join(hardware_text(HERE, programs=()).split())
    assert (
        "Programs no program that runs models was found; install one, for example: "
        "pip install 'edgekit-models[llama]'"
    ) in text


def test_hardware_json_with_programs() -> None:
    programs = hardware_json(HERE, PROGRAMS)["programs"]
    assert [item["commands"] for item in programs] == [["run", "serve"], [], [], []]
    assert programs[3]["problem"] == "it does not answer within 2.5 s"
    assert programs[1]["path"] is None
    assert "programs" not in hardware_json(HERE)


def test_hardware_json_of_two_gpus() -> None:
    document = hardware_json(HERE)
    assert list(document) == ["schema", "machine", "engines"]
    described = document["machine"]
    assert (described["name"], described["system"], described["cores"]) == (
        "this machine",
        "linux",
        16,
    )
    assert described["host"]["usable_bytes"] == 13 * GIB
    assert described["host"]["limits"][0]["left_bytes"] == 13 * GIB
    assert described["host"]["swap_free_bytes"] == 7 * GIB
    assert described["devices"][0]["users"][2] == {"pid": 9, "name": None, "used_bytes": None}
    assert described["devices"][0]["capability"] == [8, 9]
    assert described["devices"][1]["partition"] == "MIG 1g.10gb"
    assert described["notes"] == ["GPU 2 does not answer"]
    engines = document["engines"]
    assert list(engines) == ["llama.cpp", "vllm", "mlx", "stream"]
    assert engines["llama.cpp"]["devices"] == ["RTX 4090", "H100"]
    assert [budget["available_bytes"] for budget in engines["llama.cpp"]["budgets"]] == [
        17 * GIB,
        9 * GIB,
        12 * GIB,
    ]
    assert "--gpu-memory-utilization 0.66" in engines["vllm"]["budgets"][0]["because"]
    assert engines["mlx"]["error"]["type"] == "HardwareError"
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_hardware_json_of_unified_memory_is_one_budget_of_two_pools() -> None:
    budgets = hardware_json(mac(36))["engines"]["mlx"]["budgets"]
    assert [(budget["name"], budget["pools"]) for budget in budgets] == [
        ("unified memory", ["device", "host"]),
    ]
    assert (budgets[0]["limit_bytes"], budgets[0]["available_bytes"]) == (27 * GIB, 27 * GIB)
    assert hardware_json(UNKNOWN)["machine"]["host"] is None


def test_hardware_json_leaves_out_cards_of_another_vendor() -> None:
    """Only cards of one vendor are used together, preferably NVIDIA."""
    other = replace(card("Arc", 16), vendor=Vendor.INTEL)
    engines = hardware_json(machine(other, card("T4", 16)))["engines"]
    assert engines["llama.cpp"]["devices"] == ["T4"]
