"""detect in a child process with a real limit reports the limit, not the memory of the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.control_groups import enter, own_group
from tests.patience import PATIENCE_S

from edgekit.machine.host import CgroupVersion
from edgekit.units import GIB, MIB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")

DETECT = """
import json
from edgekit.machine.probes import detect
host = detect().host
print(json.dumps({"usable": host.usable_bytes, "free": host.free_bytes,
                  "tightest": host.tightest.name if host.tightest else ""}))
"""


def output_of(code: str) -> dict[str, Any]:
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_detect_with_a_resource_limit(kind: str) -> None:
    limit = 2 * GIB
    set_it = f"import resource; resource.setrlimit(resource.{kind}, ({limit}, {limit}))"
    host = output_of(f"{set_it}\n{DETECT}")
    assert 0 < host["usable"] < limit < host["free"]
    assert host["tightest"].startswith(kind)


@pytest.fixture
def group() -> Iterator[tuple[CgroupVersion, Path]]:
    """A new control group inside the current one."""
    yield from own_group("limits")


def test_detect_in_a_control_group(group: tuple[CgroupVersion, Path]) -> None:
    version, folder = group
    (folder / version.limits[0]).write_text(str(256 * MIB))
    host = output_of(enter(folder) + DETECT)
    assert 0 < host["usable"] < 256 * MIB < host["free"]
    assert host["tightest"] == f"{version.name} {folder / version.limits[0]}"
