"""A real control group for tests, made inside that of this process and removed afterwards."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgekit.machine.host import CgroupVersion, memory_groups


def own_group(name: str) -> Iterator[tuple[CgroupVersion, Path]]:
    """Yields a new group, for a fixture; skips the test if no group with a memory limit can be made."""
    for group in memory_groups(Path("/"))[0]:
        version, folder = group.version, Path(group.folder) / f"edgekit-{name}-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            try:
                if (folder / version.limits[0]).exists():
                    yield version, folder
                    return
            finally:
                folder.rmdir()
    pytest.skip("no control group with a memory limit can be made here")


def enter(folder: Path) -> str:
    """Python code that moves its process into the group."""
    return f"import os; open({str(folder / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
