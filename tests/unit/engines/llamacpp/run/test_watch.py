"""Every way for an engine to end: killed, starved, its file cut, its GPU gone, its parent dead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from tests.control_groups import enter, own_group
from tests.patience import PATIENCE_S, wait_until
from tests.runtime_engines import SERVER, ask, launch_of, small_model
from tests.unit.machine.trees import machine, recorded

from edgekit.engines.llamacpp.run.engine import EngineProcess, start
from edgekit.engines.llamacpp.run.watch import ProbedDevice, Probes, Watch, probes_of
from edgekit.engines.llamacpp.types import Backend
from edgekit.engines.program import Ended
from edgekit.errors import MemoryPressureError
from edgekit.machine.host import CgroupVersion
from edgekit.machine.nvidia import nvml_message
from edgekit.machine.types import MemoryLimit
from edgekit.units import GIB, MIB

pytest.importorskip("xllamacpp")

FINE = Probes(limits=lambda _: (), available_bytes=lambda: GIB, devices=tuple)
COMPLETION = {"prompt": "the quick brown fox", "n_predict": 8, "ignore_eos": True}


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that ends in order is not killed for taking long on a busy machine."""
    monkeypatch.setattr(EngineProcess.stop, "__kwdefaults__", {"grace_s": PATIENCE_S})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_model(tmp_path / "small.gguf")


@pytest.fixture
def running(model: Path) -> Iterator[EngineProcess]:
    with start(launch_of(model)) as running:
        yield running


def ended(running: EngineProcess) -> Ended:
    result = running.wait(PATIENCE_S)
    assert result is not None, "it is still there"
    return result


# --- by a signal


# --- by what the watch sees


def watched(
    running: EngineProcess, probes: Probes, messages: list[str] | None = None
) -> tuple[Ended, Watch]:
    notes: list[str] = [] if messages is None else messages
    with Watch(running, warn=notes.append, probes=probes, every_s=0.02) as watch:
        return ended(running), watch


def test_a_gpu_that_is_gone(running: EngineProcess) -> None:
    lost = ProbedDevice(name="GPU 0", gone="it has fallen off the bus. What to do: reboot.")
    looks = count()

    def devices() -> tuple[ProbedDevice, ...]:
        """There, away for one look, there again, and gone."""
        return (
            (lost,) if next(looks) in {1, 3, 4} else (ProbedDevice(name="GPU 0", free_bytes=GIB),)
        )

    result, watch = watched(running, replace(FINE, devices=devices))
    assert (watch.reason, watch.starved) == (result.why, False)
    assert (
        result.why
        == "stopped: GPU 0 is no longer available: it has fallen off the bus. What to do: reboot."
    )
    assert result.exit_code == 0
    assert next(looks) == 5


def test_a_machine_that_runs_out_of_memory(running: EngineProcess) -> None:
    left = iter((GIB, 300 * MIB, 200 * MIB))
    result, watch = watched(running, replace(FINE, available_bytes=lambda: next(left)))
    assert (watch.reason, watch.starved) == (result.why, True)
    assert result.why.startswith(
        "stopped before the machine runs out of memory: 200.00 MiB is available, and 244.14 MiB must stay free"
    )
    assert "of private memory and" in result.why
    assert result.signal is None


def test_a_limit_that_is_nearly_reached(running: EngineProcess) -> None:
    """Above 95 % it goes on as long as nothing rises: a full cache is full, and no more."""
    used = iter((96, 96, 95, 97))
    requests: list[int] = []

    def limits(pid: int) -> tuple[MemoryLimit, ...]:
        requests.append(pid)
        return (MemoryLimit(name="a box", limit_bytes=100 * MIB, used_bytes=next(used) * MIB),)

    result, watch = watched(running, replace(FINE, limits=limits))
    assert watch.reason == result.why
    assert "97.00 MiB of 100.00 MiB (a box) is in use, more than 95 % and rising" in result.why
    assert requests == [running.pid] * 4


def test_a_probe_that_fails_does_not_end_the_watch(running: EngineProcess) -> None:
    left = iter((GIB, GIB, MIB))

    def limits(_: int) -> tuple[MemoryLimit, ...]:
        raise PermissionError("not yours")

    messages: list[str] = []
    probes = replace(FINE, limits=limits, available_bytes=lambda: next(left))
    result, _ = watched(running, probes, messages)
    assert messages == ["limits cannot be watched: not yours"]
    assert "runs out of memory" in result.why


def test_memory_that_ends_while_it_loads(model: Path) -> None:
    with pytest.raises(
        MemoryPressureError, match=r"stopped before the machine runs out of memory: 1.00 MiB"
    ):
        start(launch_of(model), probes=replace(FINE, available_bytes=lambda: MIB))


def test_a_file_that_is_deleted_and_then_cut(running: EngineProcess, model: Path) -> None:
    messages: list[str] = []
    with model.open("r+b") as held, Watch(running, warn=messages.append, every_s=0.02) as watch:
        model.unlink()
        wait_until(lambda: bool(messages))
        goes_on = (
            "the engine continues with what it has loaded, but cannot be restarted from this file"
        )
        assert messages == [f"{model} was deleted while in use: {goes_on}"]
        assert ask(running.address, "/completion", COMPLETION)[0] == 200
        size = os.fstat(held.fileno()).st_size
        held.truncate(4096)
        result = ended(running)
    assert watch.reason == result.why
    assert f"{model} was truncated from {size:,} to 4,096 bytes while in use" in result.why
    assert (result.exit_code, result.signal) == (0, None)


def test_a_file_that_is_replaced_or_written_to(running: EngineProcess, model: Path) -> None:
    messages: list[str] = []
    looks: list[int] = []

    def available() -> int:
        looks.append(len(messages))
        return GIB

    probes = replace(FINE, available_bytes=available)
    with Watch(running, warn=messages.append, probes=probes, every_s=0.02):
        os.utime(model, (1, 1))
        wait_until(lambda: len(messages) == 1)
        small_model(model.with_name("other.gguf"), seed=1).replace(model)
        seen = len(looks)
        wait_until(lambda: len(looks) >= seen + 3)
    assert "was written to" in messages[0]
    assert len(messages) == 1  # what has its name now is not what is mapped, and not asked about
    assert ask(running.address, "/completion", COMPLETION)[0] == 200


# --- with its parent


# --- with real limits


@pytest.fixture
def group() -> Iterator[tuple[CgroupVersion, Path]]:
    yield from own_group("watch")


_STARVED = """
import json, sys
from dataclasses import replace
from pathlib import Path
from tests.runtime_engines import launch_of
from edgekit.engines.llamacpp.run.watch import probes_of
from edgekit.engines.llamacpp.run.engine import start
from edgekit.engines.llamacpp.run.watch import Watch

launch, looks, taken = launch_of(Path(sys.argv[1])), [], []
real = probes_of(launch)

def limits(pid):
    looks.append(pid)
    return real.limits(pid)

with (
    start(launch) as running,
    Watch(running, probes=replace(real, limits=limits), every_s=0.02) as watch,
):
    while running.poll() is None:
        if len(taken) > 200:
            sys.exit("it was never stopped")
        taken.append(bytearray(b"x" * 4_000_000))
        seen = len(looks)  # the next but one is a look that began after this was taken
        while len(looks) < seen + 2 and running.wait(0.01) is None:
            pass
    ended = running.poll()
print(json.dumps({"reason": watch.reason, "exit_code": ended.exit_code, "taken": len(taken)}))
"""


def test_it_is_stopped_before_the_kernel_does(
    model: Path, group: tuple[CgroupVersion, Path]
) -> None:
    """A neighbour in the same control group takes what is left of it, 4 MB at a time."""
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
    assert output["taken"] > 5


# --- what the probes read


def test_the_cards_that_a_program_sees(tmp_path: Path) -> None:
    text = recorded("h200_nvml")["answers"]
    here = machine(
        tmp_path, {"files": {"/proc/driver/nvidia/version": "NVRM version: 580\n"}}, answers=text
    )
    launch = launch_of(tmp_path / "m.gguf", setup=replace(SERVER, backend=Backend.CUDA))
    look = probes_of(launch, here).devices
    assert look() == (ProbedDevice(name="GPU 0", free_bytes=150_109_880_320),)
    memory = text["nvmlDeviceGetMemoryInfo"]
    for code, words in ((15, "the GPU has fallen off the bus"), (16, "the GPU needs a reset")):
        memory[next(iter(memory))] = {"error": code}
        (result,) = look()
        assert result.gone.startswith(words)
    for code in (3, 999):  # does not tell, and is there
        memory[next(iter(memory))] = {"error": code}
        assert look() == (ProbedDevice(name="GPU 0", silent=nvml_message(code)),)
    assert probes_of(launch_of(tmp_path / "m.gguf"), here).devices() == ()


@pytest.mark.parametrize(
    ("ours", "its", "cards"),
    [
        ({}, {}, "01"),
        ({}, {"CUDA_VISIBLE_DEVICES": "1"}, "1"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, {}, "0"),
    ],
)
def test_only_the_cards_that_the_engine_sees(
    tmp_path: Path, ours: dict[str, str], its: dict[str, str], cards: str
) -> None:
    loaded = {"files": {"/proc/driver/nvidia/version": "NVRM version: 580\n"}}
    text = recorded("synthetic_two_cards_nvml")["answers"]
    here = machine(tmp_path, loaded, answers=text, environment=ours)
    launch = launch_of(
        tmp_path / "m.gguf",
        setup=replace(SERVER, backend=Backend.CUDA),
        environment={"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **its},
    )
    seen = probes_of(launch, here).devices()
    assert [item.name for item in seen] == [f"GPU {index}" for index in cards]


def test_no_card_is_not_silence(tmp_path: Path) -> None:
    launch = launch_of(tmp_path / "m.gguf", setup=replace(SERVER, backend=Backend.CUDA))
    (result,) = probes_of(launch, machine(tmp_path)).devices()
    assert (result.name, result.silent) == ("the NVIDIA driver", "no GPU found")


def test_the_limits_are_those_of_the_engine(running: EngineProcess) -> None:
    """ulimit -v of the engine's process, not ours: nobody set one, so there is none to hit."""
    names = {limit.name for limit in probes_of(running.launch).limits(running.pid)}
    assert not {name for name in names if name.startswith("RLIMIT")}
    assert probes_of(running.launch).available_bytes() > MIB
