"""What is looked at while an engine runs, one callable each: the defaults are this machine, a test gives its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from edgekit.engines.llamacpp.run.types import Launch
from edgekit.engines.llamacpp.types import Backend
from edgekit.machine.cgroup import group_limits, memory_groups
from edgekit.machine.nvidia import find_nvidia
from edgekit.machine.nvml_errors import told
from edgekit.machine.process_limits import process_limits
from edgekit.machine.surroundings import Nvml, NvmlError, Surroundings
from edgekit.machine.types import MemoryLimit

_DRIVER_S = 3.0  # for a driver to answer; a healthy one needs milliseconds
_GONE = frozenset({6, 15, 16})  # nvml.h: not found, lost, reset wanted. Others only do not tell.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedDevice:
    """A GPU at this moment: what it has free, why it is gone, or why nobody knows."""

    name: str
    free_bytes: int | None = None
    gone: str = ""
    silent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    limits: Callable[
        [int], tuple[MemoryLimit, ...]
    ]  # on a process; file pages are not counted as used
    available_bytes: Callable[[], int]  # of the whole machine, without swapping
    devices: Callable[[], tuple[ProbedDevice, ...]]  # those that hold layers


def probes_of(launch: Launch, here: Surroundings | None = None) -> Probes:
    """Of this machine, for an engine that was started so."""
    here = here or Surroundings()
    groups, _ = memory_groups(here.root)  # an engine stays in those of the one who started it

    def limits(pid: int) -> tuple[MemoryLimit, ...]:
        found, _ = group_limits(here.root, groups, cache_is_used=False)
        return (*found, *process_limits(here.root, process=pid))

    return Probes(
        limits=limits,
        available_bytes=lambda: int(here.psutil().virtual_memory().available),
        devices=_Cards(_as_seen(launch, here)).look if _on_cuda(launch) else tuple,
    )


def _as_seen(launch: Launch, here: Surroundings) -> Surroundings:
    """CUDA_VISIBLE_DEVICES and the like: ours, and over it what the engine was given."""
    return replace(here, environment={**here.environment, **launch.environment})


def _on_cuda(launch: Launch) -> bool:
    return launch.setup.backend is Backend.CUDA and launch.setup.n_gpu_layers > 0


@dataclass(slots=True)
class _Cards:
    """NVIDIA's cards, asked in a thread: a driver that hangs must not keep us from looking at the rest."""

    here: Surroundings
    _nvml: Nvml | None = None
    _indexes: tuple[int, ...] = ()
    _asked: threading.Thread | None = None
    _answers: queue.SimpleQueue[tuple[ProbedDevice, ...]] = field(default_factory=queue.SimpleQueue)

    def look(self) -> tuple[ProbedDevice, ...]:
        if self._asked is None or not self._asked.is_alive():
            self._asked = threading.Thread(target=self._ask, name="edgekit-nvml", daemon=True)
            self._asked.start()
        try:
            return self._answers.get(timeout=_DRIVER_S)
        except queue.Empty:
            silent = f"no answer for {_DRIVER_S:g} s"
            return (ProbedDevice(name="the NVIDIA driver", silent=silent),)

    def _ask(self) -> None:
        self._answers.put(self._all())

    def _all(self) -> tuple[ProbedDevice, ...]:
        try:
            if self._nvml is None:
                found = find_nvidia(self.here)
                if not found.devices:
                    silent = " ".join(found.notes) or "no GPU found"
                    return (ProbedDevice(name="the NVIDIA driver", silent=silent),)
                self._indexes = tuple(one.index for one in found.devices)
                nvml = self.here.nvml()
                nvml("nvmlInit")
                self._nvml = nvml
            return tuple(_card(self._nvml, index) for index in self._indexes)
        except NvmlError as error:
            return (ProbedDevice(name="the NVIDIA driver", silent=told(error.code)),)


def _card(nvml: Nvml, index: int) -> ProbedDevice:
    name = f"GPU {index}"
    try:
        memory: Any = nvml("nvmlDeviceGetMemoryInfo", nvml("nvmlDeviceGetHandleByIndex", index))
    except NvmlError as error:
        why = told(error.code)
        return (
            ProbedDevice(name=name, gone=why)
            if error.code in _GONE
            else ProbedDevice(name=name, silent=why)
        )
    return ProbedDevice(name=name, free_bytes=int(memory.free))
