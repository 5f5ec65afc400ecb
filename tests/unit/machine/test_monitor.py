"""The memory monitor: it refuses before the kernel does, and its message has the numbers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from tests.control_groups import enter, own_group
from tests.patience import PATIENCE_S
from tests.thoroughness import costly
from tests.unit.machine.trees import plant

from edgekit.errors import MemoryPressureError
from edgekit.machine import monitor as monitor_module
from edgekit.machine.host import CgroupVersion
from edgekit.machine.monitor import Monitor, usable_bytes
from edgekit.units import GIB, MIB

NOWHERE = Path("/nonexistent")  # a machine without control groups and resource limits


def monitor(budget_bytes: int | None = None, **options: int | bool) -> Monitor:
    """A monitor that does not depend on this machine."""
    settings: dict[str, int | bool] = {"critical_bytes": 0, **options}
    return Monitor(budget_bytes=budget_bytes, root=NOWHERE, **settings)  # type: ignore[arg-type] # each has its own type


def allows(watch: Monitor, size_bytes: int) -> bool:
    assert watch.limits is not None  # measures again
    try:
        watch.try_allocate(size_bytes, "a buffer").release()
    except MemoryPressureError:
        return False
    return True


def test_monitor_allows_85_percent_of_its_budget_and_not_a_byte_more() -> None:
    watch = monitor(1_000)
    assert usable_bytes(1_000) == 850 == watch.usable_bytes
    assert allows(watch, 850)
    assert not allows(watch, 851)
    first = watch.try_allocate(800, "weights")
    assert (watch.reserved_bytes, watch.usable_bytes) == (800, 50)
    with watch.try_allocate(50, "a tile"):
        assert watch.usable_bytes == 0
        with pytest.raises(MemoryPressureError):
            watch.try_allocate(1, "one byte")
        watch.check()  # exactly at the limit
    first.release()
    assert (watch.reserved_bytes, watch.peak_reserved_bytes) == (0, 850)


def test_monitor_without_limits_allows_everything() -> None:
    watch = monitor()
    assert (watch.limits, watch.usable_bytes) == ((), None)
    assert allows(watch, 1)
    watch.check()


def test_memory_pressure_error_has_all_numbers() -> None:
    watch = monitor(100 * MIB)
    watch.try_allocate(60 * MIB, "the table")
    with pytest.raises(MemoryPressureError) as caught:
        watch.try_allocate(30 * MIB, "the tile of a worker")
    assert str(caught.value) == (
        "the tile of a worker needs 30.00 MiB, but 60.00 MiB of 100.00 MiB (memory budget) is"
        " in use, 60.00 MiB of it reserved here, and the safety limit is 85 % (85.00 MiB);"
        " raise the budget, or embed fewer or shorter texts at a time"
    )
    assert watch.reserved_bytes == 60 * MIB


def test_reservation_is_released_once() -> None:
    watch = monitor(1_000)
    reservation = watch.try_allocate(100, "a")
    with reservation:
        pass
    reservation.release()
    reservation.release()
    assert watch.reserved_bytes == 0
    with pytest.raises(RuntimeError), watch.try_allocate(100, "b"):
        raise RuntimeError
    assert watch.reserved_bytes == 0
    with pytest.raises(ValueError, match="-1"):
        watch.try_allocate(-1, "less than nothing")


def test_threads_never_reserve_more_than_allowed() -> None:
    watch = monitor(1_000)
    reserved: list[int] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for _ in range(50):
            with contextlib.suppress(MemoryPressureError), watch.try_allocate(170, "a part"):
                reserved.append(watch.reserved_bytes)
                time.sleep(0)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert watch.reserved_bytes == 0
    assert 170 <= max(reserved) <= watch.peak_reserved_bytes <= 850 == 5 * 170


def test_monitor_refuses_when_the_machine_is_nearly_out_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The available memory is set by the test, because that of this machine changes."""
    available = 100 * MIB
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
    watch = monitor(critical_bytes=available + 1)
    assert not allows(watch, 0)
    with pytest.raises(
        MemoryPressureError, match=r"stopped: the machine has 100\.00 MiB .*availab"
    ):
        watch.check()
    with pytest.raises(MemoryPressureError, match=r"a tile needs 10\.00 MiB, but the machine has"):
        watch.try_allocate(10 * MIB, "a tile")
    roomy = monitor(critical_bytes=available)
    roomy.check()
    assert not allows(roomy, 1)  # would leave less than critical_bytes


def test_critical_bytes_default_to_256_mb() -> None:
    assert monitor_module.CRITICAL_BYTES == 256_000_000


def run_in_child(code: str, *, shell: str = "") -> str:
    """The output of a child process, whose memory no other test changes."""
    command = [sys.executable, "-c", code]
    if shell:
        command = ["/bin/sh", "-c", f'{shell} && exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-1_000:])
    return done.stdout.strip()


OWN = """
from pathlib import Path
import psutil
from edgekit.machine.monitor import RESIDENT, Monitor
from edgekit.errors import MemoryPressureError

def monitor(budget_bytes, own_process=True):
    return Monitor(
        budget_bytes=budget_bytes, own_process=own_process, critical_bytes=0, root=Path("/nonexistent")
    )

def allows(watch, size_bytes):
    assert watch.limits is not None  # measures again
    try:
        watch.try_allocate(size_bytes, "a buffer").release()
    except MemoryPressureError:
        return False
    return True

monitor(2**30)  # imports everything it needs
resident = psutil.Process().memory_info().rss
"""


def test_own_process_counts_against_the_budget() -> None:
    message = run_in_child(
        OWN
        + """
assert allows(monitor(resident, own_process=False), resident // 2)
roomy = monitor(4 * resident)
assert roomy.limits[0].name == RESIDENT
assert allows(roomy, resident)
assert not allows(roomy, 3 * resident)
owner = monitor(resident)
assert not allows(owner, 0)
try:
    owner.check()
except MemoryPressureError as error:
    print(error)
"""
    )
    assert "memory budget (all of this process)" in message


def test_reservation_counts_before_its_pages_are_touched() -> None:
    """85 % of twice the resident memory leaves 70 % of it for reservations."""
    output = run_in_child(
        OWN
        + """
watch = monitor(2 * resident)
with watch.try_allocate(resident // 2, "a buffer not written to yet"):
    print(allows(watch, resident // 2), allows(watch, 0))
"""
    )
    assert output == "False True"


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the monitor, which only the test advances."""
    now = [100.0]
    monkeypatch.setattr(monitor_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_check_measures_now_and_then_and_large_reservations_always(
    monkeypatch: pytest.MonkeyPatch, now_s: list[float]
) -> None:
    watch = monitor(10**9)
    measured = []
    real = psutil.virtual_memory

    def counted() -> object:
        measured.append(now_s[0])
        return real()

    monkeypatch.setattr(psutil, "virtual_memory", counted)
    watch.try_allocate(10**7, "a")
    assert len(measured) == 1
    watch.try_allocate(1, "the vector of a text")
    for _ in range(100):
        watch.check()
    assert len(measured) == 1
    now_s[0] += monitor_module._FRESH_S
    watch.check()
    watch.check()
    assert len(measured) == 2
    watch.try_allocate(10**7, "b")
    assert len(measured) == 3


def test_slow_measurement_is_reused_for_longer(
    monkeypatch: pytest.MonkeyPatch, now_s: list[float]
) -> None:
    """One that takes 0.1 s is reused for 5 s, so that measuring takes at most 2 % of the time."""
    measured = []
    real = psutil.virtual_memory

    def slow() -> object:
        now_s[0] += 0.1
        measured.append(now_s[0])
        return real()

    monkeypatch.setattr(psutil, "virtual_memory", slow)
    watch = monitor(10**9)
    now_s[0] += 4.9
    watch.check()
    assert len(measured) == 1
    now_s[0] += 0.2
    watch.check()
    assert len(measured) == 2


def test_check_detects_that_the_control_group_fills_up(tmp_path: Path, now_s: list[float]) -> None:
    """The group's usage grows meanwhile, because of another process."""
    files = {
        "/proc/self/cgroup": "0::/\n",
        "/proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "/sys/fs/cgroup/memory.max": "1000000\n",
        "/sys/fs/cgroup/memory.current": "900000\n",
        "/sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 200000\nactive_file 300000\n",
    }
    watch = Monitor(root=plant(tmp_path, files), critical_bytes=0)
    assert [(limit.limit_bytes, limit.used_bytes) for limit in watch.limits] == [
        (1_000_000, 900_000 - 200_000 - 300_000)
    ]
    watch.check()
    plant(tmp_path, {"/sys/fs/cgroup/memory.current": "1400000\n"})
    now_s[0] += monitor_module._FRESH_S
    with pytest.raises(MemoryPressureError, match=r"cgroup v2 .*memory\.max\) .* container"):
        watch.check()


# Real limits, in child processes

linux = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")

GROW = """
import sys
from edgekit.machine.monitor import Monitor
from edgekit.errors import MemoryPressureError
watch = Monitor(critical_bytes=0)
tiles = []
try:
    for _ in range(1000):
        tiles.append((watch.try_allocate(8 * 2**20, "a tile"), bytearray(8 * 2**20)))
        watch.check()
except MemoryPressureError as error:
    print(len(tiles), error)
except MemoryError:
    print("too late")
"""


def number_and_text(code: str, *, shell: str = "") -> tuple[int, str]:
    count, _, message = run_in_child(code, shell=shell).partition(" ")
    return int(count), message


@linux
@costly
@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_resource_limit_stops_allocation_before_memory_ends(kind: str) -> None:
    limit = 400 * MIB
    set_it = f"import resource; resource.setrlimit(resource.{kind}, ({limit}, {limit}))"
    count, message = number_and_text(f"{set_it}\n{GROW}")
    assert 0 < count < 340 // 8
    assert f"of 400.00 MiB ({kind} " in message
    assert "85 % (340.00 MiB)" in message


@linux
def test_ulimit_stops_allocation_before_memory_ends() -> None:
    count, message = number_and_text(GROW, shell=f"ulimit -v {400 * 1024}")
    assert 0 < count < 340 // 8
    assert "RLIMIT_AS (ulimit -v)" in message


@pytest.fixture
def group() -> Iterator[tuple[CgroupVersion, Path]]:
    """A new control group inside the current one."""
    yield from own_group("monitor")


@linux
def test_control_group_stops_allocation_before_the_oom_killer(
    group: tuple[CgroupVersion, Path],
) -> None:
    version, folder = group
    (folder / version.limits[0]).write_text(str(128 * MIB))
    count, message = number_and_text(enter(folder) + GROW)
    assert 0 < count <= 108 // 8
    assert f"of 128.00 MiB ({version.name} {folder / version.limits[0]})" in message
    assert "85 % (108.80 MiB)" in message


STREAM = """
import os, sys
from pathlib import Path
from edgekit.engines.native.file import WeightFile
from edgekit.machine.monitor import Monitor
from edgekit.engines.native.file import Limits
watch = Monitor(critical_bytes=0)
buffer = memoryview(bytearray(2**20))
with WeightFile(Path(sys.argv[1]), Limits()) as file:
    for _ in range(3):
        for offset in range(0, file.size_bytes, 2**20):
            file.read_into(offset, buffer, what="weights")
        watch.check()
limit = watch.limits[0]
print(limit.used_bytes // 2**20, limit.name)
"""


@linux
def test_pages_of_a_file_read_repeatedly_do_not_count_as_used(
    group: tuple[CgroupVersion, Path], tmp_path: Path
) -> None:
    """Pages of a file read several times are active, but the kernel still drops them if it must."""
    version, folder = group
    (folder / version.limits[0]).write_text(str(192 * MIB))
    weights = tmp_path / "weights"
    with weights.open("wb") as out:
        out.write(os.urandom(MIB) * 128)
        out.flush()
        os.fsync(out.fileno())
        # The pages are charged to our group; once dropped, the group of the next reader is charged.
        os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    code = f"{enter(folder)}import sys; sys.argv[1:] = [{str(weights)!r}]\n{STREAM}"
    used_mib, name = number_and_text(code)
    assert used_mib < 64  # with the pages of the file it would be 128 more
    assert name.startswith(version.name)


def test_limits_are_sorted_and_include_the_budget() -> None:
    watch = Monitor(budget_bytes=GIB)
    remaining = [watch._remaining_bytes(limit) for limit in watch.limits]
    assert remaining == sorted(remaining)
    assert any(limit.name == monitor_module.BUDGET for limit in watch.limits)
