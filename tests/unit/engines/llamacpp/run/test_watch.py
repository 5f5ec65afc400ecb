"""Why a watch stops an engine (out of memory, a truncated file, a lost GPU) and what it only warns of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.control_groups import enter, own_group
from tests.patience import PATIENCE_S, wait_until
from tests.runtime_engines import (
    CALM,
    COMPLETION,
    SERVER,
    ask,
    launch_of,
    small_model,
    wait_for_end,
)
from tests.unit.machine.trees import machine, plant, recorded

from edgekit.engines.llamacpp.run.engine import EngineProcess, start
from edgekit.engines.llamacpp.types import Backend
from edgekit.engines.process import ServerLaunch
from edgekit.engines.program import Ended
from edgekit.engines.watch import ProbedDevice, Probes, Watch, probes_of
from edgekit.errors import MemoryPressureError
from edgekit.machine.host import CgroupVersion
from edgekit.machine.nvidia import nvml_message
from edgekit.machine.types import MemoryLimit
from edgekit.units import GIB, MIB

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.usefixtures("patient")


def watched(
    running: EngineProcess, probes: Probes, messages: list[str] | None = None
) -> tuple[Ended, Watch]:
    notes: list[str] = [] if messages is None else messages
    with Watch(running, warn=notes.append, probes=probes, every_s=0.02) as watch:
        return wait_for_end(running), watch


def test_watch_stops_an_engine_whose_gpu_is_gone_twice_in_a_row(running: EngineProcess) -> None:
    lost = ProbedDevice(name="GPU 0", gone="it has fallen off the bus. What to do: reboot.")
    looks = count()

    def devices() -> tuple[ProbedDevice, ...]:
        """There, gone for one look, there again, gone for two."""
        return (
            (lost,) if next(looks) in {1, 3, 4} else (ProbedDevice(name="GPU 0", free_bytes=GIB),)
        )

    result, watch = watched(running, replace(CALM, devices=devices))
    assert (watch.reason, watch.starved) == (result.why, False)
    assert (
        result.why
        == "stopped: GPU 0 is no longer available: it has fallen off the bus. What to do: reboot."
    )
    assert result.exit_code == 0
    assert next(looks) == 5


def test_watch_stops_an_engine_before_the_machine_is_out_of_memory(running: EngineProcess) -> None:
    available = iter((GIB, 300 * MIB, 200 * MIB))
    result, watch = watched(running, replace(CALM, available_bytes=lambda: next(available)))
    assert (watch.reason, watch.starved) == (result.why, True)
    assert result.why.startswith(
        "stopped before the machine runs out of memory: 200.00 MiB is available, and 244.14 MiB must stay free"
    )
    assert "of private memory and" in result.why
    assert result.signal is None


def test_watch_stops_an_engine_close_to_a_rising_memory_limit(running: EngineProcess) -> None:
    """Use above 95 % of the limit is not enough to stop: a full cache does not grow."""
    used = iter((96, 96, 95, 97))
    pids: list[int] = []

    def limits(pid: int) -> tuple[MemoryLimit, ...]:
        pids.append(pid)
        return (
            MemoryLimit(name="a container", limit_bytes=100 * MIB, used_bytes=next(used) * MIB),
        )

    result, watch = watched(running, replace(CALM, limits=limits))
    assert watch.reason == result.why
    assert (
        "97.00 MiB of 100.00 MiB (a container) is in use, more than 95 % and rising" in result.why
    )
    assert pids == [running.pid] * 4


def test_watch_goes_on_after_a_probe_has_failed(running: EngineProcess) -> None:
    available = iter((GIB, GIB, MIB))

    def limits(_: int) -> tuple[MemoryLimit, ...]:
        raise PermissionError("not yours")

    messages: list[str] = []
    probes = replace(CALM, limits=limits, available_bytes=lambda: next(available))
    result, _ = watched(running, probes, messages)
    assert messages == ["limits cannot be watched: not yours"]
    assert "runs out of memory" in result.why


def test_start_stops_loading_when_memory_runs_out(model: Path) -> None:
    with pytest.raises(
        MemoryPressureError, match=r"stopped before the machine runs out of memory: 1.00 MiB"
    ):
        start(launch_of(model), probes=replace(CALM, available_bytes=lambda: MIB))


def test_watch_warns_of_a_deleted_file_and_stops_when_it_is_truncated(
    running: EngineProcess, model: Path
) -> None:
    messages: list[str] = []
    with model.open("r+b") as file, Watch(running, warn=messages.append, every_s=0.02) as watch:
        model.unlink()
        wait_until(lambda: bool(messages))
        consequence = (
            "the engine continues with what it has loaded, but cannot be restarted from this file"
        )
        assert messages == [f"{model} was deleted while in use: {consequence}"]
        assert ask(running.address, "/completion", COMPLETION)[0] == 200
        size = os.fstat(file.fileno()).st_size
        file.truncate(4096)
        result = wait_for_end(running)
    assert watch.reason == result.why
    assert f"{model} was truncated from {size:,} to 4,096 bytes while in use" in result.why
    assert (result.exit_code, result.signal) == (0, None)


def test_watch_warns_once_of_a_file_that_is_written_to_and_then_replaced(
    running: EngineProcess, model: Path
) -> None:
    messages: list[str] = []
    looks: list[int] = []

    def available() -> int:
        looks.append(len(messages))
        return GIB

    probes = replace(CALM, available_bytes=available)
    with Watch(running, warn=messages.append, probes=probes, every_s=0.02):
        os.utime(model, (1, 1))
        wait_until(lambda: len(messages) == 1)
        small_model(model.with_name("other.gguf"), seed=1).replace(model)
        seen = len(looks)
        wait_until(lambda: len(looks) >= seen + 3)
    assert "was written to" in messages[0]
    assert (
        len(messages) == 1
    )  # the worst change of a file is reported, and its replacement is not worse
    assert ask(running.address, "/completion", COMPLETION)[0] == 200


# --- memory that a driver moves to RAM

SPILLED = (
    "the model no longer fits on the GPU: {} of it is in RAM, which is much slower; use a shorter context "
    "(-c) or a smaller quantisation (--quant)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEngine:
    """A running engine, with another bill."""

    running: EngineProcess
    server: ServerLaunch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.running, name)


def warnings_of(
    running: EngineProcess,
    looks: list[int | None],
    *,
    ram_bytes: int | None = None,
    is_ready: bool = True,
) -> list[str]:
    """The warnings of a watch that sees these bytes in RAM, one at each look, and then the last one again."""
    messages: list[str] = []
    waiting, count = [*looks], 0

    def in_ram(pid: int) -> int | None:
        nonlocal count
        assert pid == running.pid
        count += 1
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    def available() -> int:
        nonlocal count
        count += not is_ready  # a watch that does not look at GPUs still looks at the RAM
        return GIB

    engine = PlannedEngine(running=running, server=replace(running.server, ram_bytes=ram_bytes))
    probes = replace(CALM, gpu_bytes_in_ram=in_ram, available_bytes=available)
    with Watch(engine, warn=messages.append, probes=probes, every_s=0.01, is_ready=is_ready):
        wait_until(lambda: bool(messages) or count >= len(looks) + 2)
    assert running.poll() is None
    return messages


@pytest.mark.parametrize(
    ("looks", "ram_bytes", "spilled"),
    [
        ([30 * MIB, 34 * MIB, 30 * MIB], None, None),
        ([30 * MIB, 286 * MIB], None, None),  # up to 256 MiB more
        ([30 * MIB, 34 * MIB, 1054 * MIB, 2000 * MIB], None, "1.00 GiB"),
        ([None, None], None, None),
        ([None, 30 * MIB, 1054 * MIB], None, "1.00 GiB"),
        ([3 * GIB, 3 * GIB], 4 * GIB, None),  # layers that the bill puts into RAM
        ([GIB, 2 * GIB], 20 * GIB, "1.00 GiB"),  # planned for RAM, but not in the driver's buffers
        ([600 * MIB, 610 * MIB], 300 * MIB, None),  # buffers for transfers
        ([300 * MIB + 512 * MIB + GIB], 300 * MIB, "1.00 GiB"),  # too much from the beginning
    ],
)
def test_watch_warns_of_memory_that_a_driver_moved_to_ram(
    running: EngineProcess,
    looks: list[int | None],
    ram_bytes: int | None,
    spilled: str | None,
) -> None:
    expected = [] if spilled is None else [SPILLED.format(spilled)]
    assert warnings_of(running, looks, ram_bytes=ram_bytes) == expected


def test_watch_of_an_engine_that_loads_does_not_look_at_memory_in_ram(
    running: EngineProcess,
) -> None:
    assert warnings_of(running, [0, GIB], is_ready=False) == []


def test_probes_read_the_memory_in_ram_of_the_engines_process(tmp_path: Path) -> None:
    here = machine(tmp_path, recorded("synthetic_rx7900xtx"))
    info = "drm-driver:\tamdgpu\ndrm-client-id:\t1\ndrm-pdev:\t0000:03:00.0\ndrm-resident-gtt:\t22 MiB\n"
    plant(here.root, {"/proc/77/fdinfo/5": info})
    probes = probes_of(launch_of(tmp_path / "m.gguf").server, here)
    assert probes.gpu_bytes_in_ram(77) == 22 * MIB
    assert probes.gpu_bytes_in_ram(78) is None


# --- real memory limits


@pytest.fixture
def group() -> Iterator[tuple[CgroupVersion, Path]]:
    yield from own_group("watch")


_STARVED = """
import json, sys
from dataclasses import replace
from pathlib import Path
from tests.runtime_engines import launch_of
from edgekit.engines.watch import probes_of
from edgekit.engines.llamacpp.run.engine import start
from edgekit.engines.watch import Watch

launch, looks, blocks = launch_of(Path(sys.argv[1])), [], []
real = probes_of(launch.server)

def limits(pid):
    looks.append(pid)
    return real.limits(pid)

with (
    start(launch) as running,
    Watch(running, probes=replace(real, limits=limits), every_s=0.02) as watch,
):
    while running.poll() is None:
        if len(blocks) > 200:
            sys.exit("the engine was never stopped")
        blocks.append(bytearray(b"x" * 4_000_000))
        seen = len(looks)  # the second look from now begins after this allocation
        while len(looks) < seen + 2 and running.wait(0.01) is None:
            pass
    ended = running.poll()
print(json.dumps({"reason": watch.reason, "exit_code": ended.exit_code, "blocks": len(blocks)}))
"""


def test_watch_stops_an_engine_before_the_kernel_kills_it(
    model: Path, group: tuple[CgroupVersion, Path]
) -> None:
    """Another process in the same control group allocates what is left of it, 4 MB at a time."""
    version, folder = group
    (folder / version.limits[0]).write_text(str(192 * MIB))
    done = subprocess.run(
        [sys.executable, "-c", enter(folder) + _STARVED, str(model)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=Path(__file__).parents[5],
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])
    output = json.loads(done.stdout)
    assert "of 192.00 MiB (cgroup" in output["reason"]
    assert "more than 95 % and rising" in output["reason"]
    assert output["exit_code"] == 0
    assert output["blocks"] > 5


# --- probes


def test_nvidia_probe_reports_free_memory_and_errors_of_a_gpu(tmp_path: Path) -> None:
    answers = recorded("h200_nvml")["answers"]
    here = machine(
        tmp_path, {"files": {"/proc/driver/nvidia/version": "NVRM version: 580\n"}}, answers=answers
    )
    launch = launch_of(tmp_path / "m.gguf", setup=replace(SERVER, backend=Backend.CUDA))
    look = probes_of(launch.server, here).devices
    assert look() == (ProbedDevice(name="GPU 0", free_bytes=150_109_880_320),)
    memory = answers["nvmlDeviceGetMemoryInfo"]
    for code, message in ((15, "the GPU has fallen off the bus"), (16, "the GPU needs a reset")):
        memory[next(iter(memory))] = {"error": code}
        (result,) = look()
        assert result.gone.startswith(message)
    for code in (3, 999):  # errors that do not mean that it is gone
        memory[next(iter(memory))] = {"error": code}
        assert look() == (ProbedDevice(name="GPU 0", silent=nvml_message(code)),)
    assert probes_of(launch_of(tmp_path / "m.gguf").server, here).devices() == ()


@pytest.mark.parametrize(
    ("environment", "launch_environment", "indexes"),
    [
        ({}, {}, "01"),
        ({}, {"CUDA_VISIBLE_DEVICES": "1"}, "1"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, {}, "0"),
    ],
)
def test_nvidia_probe_watches_only_gpus_visible_to_the_engine(
    tmp_path: Path, environment: dict[str, str], launch_environment: dict[str, str], indexes: str
) -> None:
    driver = {"files": {"/proc/driver/nvidia/version": "NVRM version: 580\n"}}
    answers = recorded("synthetic_two_cards_nvml")["answers"]
    here = machine(tmp_path, driver, answers=answers, environment=environment)
    launch = launch_of(
        tmp_path / "m.gguf",
        setup=replace(SERVER, backend=Backend.CUDA),
        environment={"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **launch_environment},
    )
    devices = probes_of(launch.server, here).devices()
    assert [item.name for item in devices] == [f"GPU {index}" for index in indexes]


def test_nvidia_probe_without_a_gpu_says_so(tmp_path: Path) -> None:
    launch = launch_of(tmp_path / "m.gguf", setup=replace(SERVER, backend=Backend.CUDA))
    (result,) = probes_of(launch.server, machine(tmp_path)).devices()
    assert (result.name, result.silent) == ("the NVIDIA driver", "no GPU found")


def test_probes_read_limits_of_the_engines_process(running: EngineProcess) -> None:
    """Nobody has set `ulimit -v` for the engine, so no RLIMIT is reported."""
    names = {limit.name for limit in probes_of(running.server).limits(running.pid)}
    assert not {name for name in names if name.startswith("RLIMIT")}
    assert probes_of(running.server).available_bytes() > MIB
