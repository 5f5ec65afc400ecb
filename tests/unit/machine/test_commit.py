"""What a system still promises. Synthetic: nothing here runs in that mode."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.machine.trees import machine

from edgekit.machine.host import commit_limits
from edgekit.machine.surroundings import Surroundings
from edgekit.machine.types import System
from edgekit.units import GIB, KIB


def meminfo(limit: str, used: str) -> str:
    return f"MemTotal: 9 kB\nCommitLimit:  {limit} kB\nCommitted_AS:  {used} kB\n"


@pytest.mark.parametrize(
    ("mode", "limit", "used", "left"),
    [
        ("2\n", "8388608", "3145728", [5 * GIB]),  # 8 GiB less 3
        ("2\n", "100", "200", [0]),
        ("2\n", "100", "?", [100 * KIB]),
        ("2\n", "?", "1", []),
        ("0\n", "100", "50", []),
        ("1\n", "100", "50", []),
        ("", "100", "50", []),
    ],
)
def test_linux(tmp_path: Path, mode: str, limit: str, used: str, left: list[int]) -> None:
    files = {"/proc/sys/vm/overcommit_memory": mode, "/proc/meminfo": meminfo(limit, used)}
    found = commit_limits(machine(tmp_path, {"files": files}))
    assert [limit.left_bytes for limit in found] == left
    assert all("vm.overcommit_memory=2" in limit.name for limit in found)


@pytest.mark.parametrize(
    ("said", "left"), [((40 * GIB, 12 * GIB), [12 * GIB]), ((GIB, 2 * GIB), [GIB]), (None, [])]
)
def test_windows(tmp_path: Path, said: tuple[int, int] | None, left: list[int]) -> None:
    here = replace(machine(tmp_path, system=System.WINDOWS), page_file=lambda: said)
    assert [limit.left_bytes for limit in commit_limits(here)] == left


def test_macos_promises_what_it_likes(tmp_path: Path) -> None:
    assert commit_limits(machine(tmp_path, system=System.MACOS)) == ()


def test_the_real_question() -> None:
    """Two sizes on Windows, the free one no larger; nothing elsewhere."""
    found = Surroundings().page_file()
    assert (found is not None) == (sys.platform == "win32")
    assert found is None or 0 < found[1] <= found[0]
