"""Records the answers of this machine's driver and kernel as JSON, which tests/unit/machine replays.

Usage: python tools/record_hardware.py FOLDER [NAME]. Writes FOLDER/NAME_nvml.json (where there is a driver) and
FOLDER/NAME_tree.json. Needs pynvml and psutil for their halves, and says so where one is missing. It only reads:
nothing is allocated on a card but one empty context, to compare the driver's free memory with CUDA's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Per file; the largest recorded one, mountinfo of a busy host, has some 30 KiB.
_TEXT_BYTES = 64 * 1024
_CGROUP = (
    "cgroup.controllers",
    "memory.max",
    "memory.high",
    "memory.current",
    "memory.stat",
    "memory.limit_in_bytes",
    "memory.soft_limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.use_hierarchy",
)
_PATTERNS = (
    "proc/meminfo",
    "proc/self/cgroup",
    "proc/self/mountinfo",
    "proc/self/limits",
    "proc/device-tree/model",
    "proc/device-tree/compatible",
    "proc/driver/nvidia/version",
    "proc/driver/nvidia/gpus/*/information",
    "sys/module/nvidia/version",
    "sys/devices/platform/*gpu*/uevent",
    "sys/devices/soc0/family",
    "sys/devices/soc0/machine",
    "sys/class/drm/card*/device/uevent",
    "sys/class/drm/card*/device/vendor",
    "sys/class/drm/card*/device/device",
    "sys/class/drm/card*/device/class",
    "sys/class/drm/card*/device/resource",
    "sys/class/drm/card*/device/product_name",
    "sys/class/drm/card*/device/mem_info_*",
    "sys/class/drm/card*/device/tile*/*vram*",
    "sys/class/drm/card*/device/current_*_partition",
    "sys/class/drm/card*/lmem_*",
    "sys/class/drm/card*/prelim_lmem_*",
    "sys/class/kfd/kfd/topology/nodes/*/properties",
    "sys/class/kfd/kfd/topology/nodes/*/mem_banks/*/properties",
)


def main() -> None:
    folder, name = Path(sys.argv[1]), (sys.argv[2:] or [platform.node()])[0]
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / f"{name}_tree.json", {"about": _about(), "psutil": _psutil(), **_tree()})
    if (answers := _nvml()) is not None:
        _write(folder / f"{name}_nvml.json", answers)


def _write(path: Path, value: Any) -> None:
    path.write_text(
        json.dumps(value, indent=1, sort_keys=True, default=str) + "\n", encoding="utf-8"
    )
    print(path)


def _about() -> dict[str, str]:
    return {"system": sys.platform, "release": platform.release(), "machine": platform.machine()}


def _psutil() -> dict[str, Any]:
    try:
        import psutil
    except ImportError:
        return {"missing": "psutil is not installed"}
    return {
        "virtual_memory": psutil.virtual_memory()._asdict(),
        "swap_memory": psutil.swap_memory()._asdict(),
        "cpu_count": psutil.cpu_count(logical=False),
    }


def _tree() -> dict[str, dict[str, str]]:
    """Absolute path -> the text of a file, or the target of a link."""
    root = Path("/")
    paths = [path for pattern in _PATTERNS for path in sorted(root.glob(pattern))]
    paths += [path for folder in _cgroup_folders() for path in _present(folder)]
    files: dict[str, str] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            files[str(path)] = path.read_bytes()[:_TEXT_BYTES].decode("utf-8", "replace")
    cards = [*root.glob("sys/class/drm/card*/device"), *root.glob("sys/class/drm/card*")]
    links = {str(path): str(path.readlink()) for path in cards if path.is_symlink()}
    return {"files": _scrubbed(files), "links": links}


def _scrubbed(files: dict[str, str]) -> dict[str, str]:
    """The text without what identifies this machine."""
    return {path: _uuid_of(0, text) for path, text in files.items()}


def _cgroup_folders() -> Iterator[Path]:
    """The folders of the memory cgroups, from that of this process up to the mount point."""
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        for mount in _mounts(controllers):
            folder = mount / path.strip("/")
            while folder not in {mount.parent, folder.parent}:
                yield folder
                folder = folder.parent


def _mounts(controllers: str) -> Iterator[Path]:
    for line in _lines("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, options = after.split()[0], after.split()[-1].split(",")
        wanted = "cgroup2" if not controllers else "cgroup"
        if kind == wanted and (
            not controllers or "memory" in (set(options) & set(controllers.split(",")))
        ):
            yield Path(before.split()[4])


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []


def _present(folder: Path) -> Iterator[Path]:
    return (path for name in _CGROUP if (path := folder / name).is_file())


def _nvml() -> dict[str, Any] | None:
    """{"about": ..., "answers": {function: {arguments: answer}}}, or None without a driver."""
    try:
        import pynvml
    except ImportError:
        print("pynvml is not installed: no recording of the NVIDIA driver", file=sys.stderr)
        return None
    recorder = _Recorder(pynvml)
    if "error" in recorder.ask("nvmlInit"):
        print("nvmlInit:", recorder.answers["nvmlInit"], file=sys.stderr)
        return None
    for function in ("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion"):
        recorder.ask(function)
    count = recorder.ask("nvmlDeviceGetCount").get("value", 0)
    for index in range(count):
        recorder.record_card(index)
    cuda = [_cuda(index, recorder) for index in range(count)]
    recorder.ask("nvmlShutdown")
    environment = {
        name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    }
    about = {**_about(), "environment": environment, "cuda": cuda}
    return {"about": about, "answers": recorder.answers}


_OF_A_DEVICE = (
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMemoryBusWidth",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetAttributes",
    "nvmlDeviceGetAddressingMode",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetBAR1MemoryInfo",
)


class _Recorder:
    """Calls the driver and records its answers and error numbers."""

    def __init__(self, pynvml: Any) -> None:
        self.pynvml = pynvml
        self.answers: dict[str, dict[str, Any]] = {}
        self.handles: dict[str, Any] = {}

    def ask(self, function: str, *arguments: str | int, handle_name: str = "") -> dict[str, Any]:
        """{"value": answer} or {"error": number}; records the plain value or the error."""
        real = [self.handles.get(str(argument), argument) for argument in arguments]
        try:
            fields = {"value": getattr(self.pynvml, function)(*real)}
        except self.pynvml.NVMLError as error:
            fields = {"error": int(error.value)}
        except AttributeError:  # an older pynvml
            fields = {"error": 13}
        recorded: Any = fields if "error" in fields else _plain(fields["value"])
        if handle_name and "value" in fields:
            self.handles[handle_name], recorded = fields["value"], handle_name
        if function == "nvmlDeviceGetUUID" and "value" in fields:
            recorded = _uuid_of(len(self.handles), recorded)
        self.answers.setdefault(function, {})[",".join(map(str, arguments))] = recorded
        return fields

    def record_card(self, index: int) -> None:
        handle = f"gpu{index}"
        if "error" in self.ask("nvmlDeviceGetHandleByIndex", index, handle_name=handle):
            return
        self.record_device(handle)
        self.ask("nvmlDeviceGetMaxClockInfo", handle, self.pynvml.NVML_CLOCK_MEM)
        self.record_reserved(handle)
        slices = self.ask("nvmlDeviceGetMaxMigDeviceCount", handle).get("value", 0)
        for number in range(slices):
            part = f"{handle}/mig{number}"
            if "value" in self.ask(
                "nvmlDeviceGetMigDeviceHandleByIndex", handle, number, handle_name=part
            ):
                self.record_device(part)

    def record_device(self, handle: str) -> None:
        for function in _OF_A_DEVICE:
            text = self.ask(function, handle).get("value")
            if function.endswith("RunningProcesses"):
                for process in text or ():
                    self.ask("nvmlSystemGetProcessName", process.pid)

    def record_reserved(self, handle: str) -> None:
        """Records version 2 of the memory answer under a separate name."""
        try:
            text = self.pynvml.nvmlDeviceGetMemoryInfo(
                self.handles[handle], self.pynvml.nvmlMemory_v2
            )
            recorded = _plain(text)
        except self.pynvml.NVMLError as error:
            recorded = {"error": int(error.value)}
        self.answers.setdefault("nvmlDeviceGetMemoryInfo_v2", {})[handle] = recorded


def _uuid_of(number: int, text: str) -> str:
    """A UUID of the same form that does not identify the card."""
    return re.sub(
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        f"{number:08x}-0000-4000-8000-000000000000",
        text,
    )


def _plain(value: Any) -> Any:
    """A struct becomes an object of its fields; bytes become text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, ctypes.Structure):
        names = [field[0] for field in value._fields_]
    elif hasattr(value, "__dict__"):
        names = list(vars(value))
    else:
        return value
    return {name: _plain(getattr(value, name)) for name in names}


def _cuda(index: int, recorder: _Recorder) -> dict[str, int | str]:
    """Free memory by CUDA once a context exists, and by NVML at that moment."""
    try:
        cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError as error:
        return {"missing": str(error)}
    device, context = ctypes.c_int(), ctypes.c_void_p()
    total, free, all_bytes = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
    steps: tuple[tuple[str, Callable[[], int]], ...] = (
        ("cuInit", lambda: cuda.cuInit(0)),
        ("cuDeviceGet", lambda: cuda.cuDeviceGet(ctypes.byref(device), index)),
        ("cuDeviceTotalMem", lambda: cuda.cuDeviceTotalMem_v2(ctypes.byref(all_bytes), device)),
        (
            "cuDevicePrimaryCtxRetain",
            lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        ),
        ("cuCtxPushCurrent", lambda: cuda.cuCtxPushCurrent_v2(context)),
        ("cuMemGetInfo", lambda: cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))),
    )
    for name, step in steps:
        if status := step():
            return {"failed": name, "status": status}
    nvml_memory = recorder.pynvml.nvmlDeviceGetMemoryInfo(recorder.handles[f"gpu{index}"])
    cuda.cuDevicePrimaryCtxRelease_v2(device)
    return {
        "cuDeviceTotalMem": all_bytes.value,
        "cuMemGetInfo_total": total.value,
        "cuMemGetInfo_free": free.value,
        "nvml_free_beside_the_context": nvml_memory.free,
    }


if __name__ == "__main__":
    main()
