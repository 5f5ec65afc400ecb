"""Recorded and synthetic machines: files and answers that probes read instead of the real ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.recorded import DATA

from edgekit.machine.surroundings import Nvml, NvmlError, Surroundings
from edgekit.machine.types import HostMemory, System
from edgekit.units import GIB

HOST = HostMemory(total_bytes=64 * GIB, free_bytes=50 * GIB)
Answers = dict[str, dict[str, Any]]


def recorded(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((DATA / "hardware" / f"{name}.json").read_text("utf-8"))
    return result


def plant(root: Path, files: Mapping[str, str]) -> Path:
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
    return root


def machine(
    root: Path,
    tree: Mapping[str, Any] | None = None,
    *,
    answers: Answers | None = None,
    environment: Mapping[str, str] | None = None,
    host: HostMemory | None = HOST,
    system: System = System.LINUX,
) -> Surroundings:
    """Surroundings that read a planted tree. Nothing falls back to the machine that runs the tests."""
    tree = tree or {}
    surroundings = Surroundings(
        system=system,
        root=plant(root, tree.get("files", {})),
        environment=environment or {},
        host=host,
        psutil=lambda: _Psutil(tree.get("psutil", {})),
        sysctl=sysctl(tree.get("sysctl", {})),
        firmware_table=lambda: None,
        processor_feature=lambda _number: False,
        processor_brand=lambda: "",
        gpu_process_memory=dict,
    )
    return surroundings if answers is None else replace(surroundings, nvml=lambda: replay(answers))


def replay(answers: Answers) -> Nvml:
    """A driver that repeats recorded answers: {function: {arguments joined by commas: answer}}."""

    def call(function: str, *arguments: Any) -> Any:
        answer = answers[function][",".join(map(str, arguments))]
        if isinstance(answer, dict) and "error" in answer:
            raise NvmlError(answer["error"])
        return _shaped(answer)

    return call


def _shaped(answer: Any) -> Any:
    """The answer with objects as structs, as in NVML."""
    if isinstance(answer, dict):
        return SimpleNamespace(**answer)
    return [_shaped(each) for each in answer] if isinstance(answer, list) else answer


def sysctl(values: Mapping[str, int | str]) -> Callable[[str], bytes | None]:
    """Numbers as eight bytes, texts ending with NUL, None for any other name."""

    def read(name: str) -> bytes | None:
        value = values.get(name)
        if isinstance(value, int):
            return value.to_bytes(8, "little")
        return None if value is None else value.encode() + b"\0"

    return read


class _Psutil:
    Error = LookupError

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers

    def Process(self, pid: int) -> Any:  # noqa: N802 - psutil's own
        """A process with the descendants in the answer "children"."""
        children = [SimpleNamespace(pid=child) for child in self.answers.get("children", ())]
        return SimpleNamespace(pid=pid, children=lambda recursive: children)

    def virtual_memory(self) -> Any:
        return SimpleNamespace(**self.answers["virtual_memory"])

    def swap_memory(self) -> Any:
        return SimpleNamespace(**self.answers["swap_memory"])

    def cpu_count(self, logical: bool = True) -> int | None:  # noqa: FBT001, FBT002 - psutil's own
        count: int | None = None if logical else self.answers["cpu_count"]
        return count
