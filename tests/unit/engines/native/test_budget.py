"""`edgekit run --engine stream --budget`: the process stays below its budget and uses it for weights."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.embed_models import write_model
from tests.patience import PATIENCE_S

from edgekit.engines.native.rules import PROCESS_BYTES
from edgekit.units import MIB

# The peak of this process alone: that of getrusage begins with the parent's.
RUN = """
import atexit, runpy, sys
from pathlib import Path
from typing import Any
def show_peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    print("peak", next(line for line in lines if line.startswith("VmHWM")), file=sys.stderr)
atexit.register(show_peak)
runpy.run_module("edgekit", run_name="__main__")
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """103 MB of weights in 28 matrices, more than any of the budgets."""
    path = tmp_path_factory.mktemp("models") / "model.gguf"
    shape: dict[str, Any] = {"layers": 4, "width": 1024, "inner": 2816, "heads": 16, "kv_heads": 16}
    return write_model(path, "llama", kind="F16", spread=0.1, **shape)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("mebibytes", [128, 160])
def test_run_stays_below_its_budget_and_fills_it_with_weights(model: Path, mebibytes: int) -> None:
    words = ["run", str(model), "--engine", "stream", "--raw", "-p", "a", "--max-tokens", "2"]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words, "--budget", f"{mebibytes}M", "--threads", "2"],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    peak = re.search(r"peak VmHWM:\s+(\d+) kB", done.stderr)
    assert peak is not None, done.stderr
    peak_bytes = int(peak[1]) * 1024
    kept = re.search(r"up to ([\d.]+) MiB of weights in memory", done.stderr)
    assert kept is not None, done.stderr
    kept_bytes = float(kept[1]) * MIB
    budget_bytes = mebibytes * MIB
    assert kept_bytes > (budget_bytes - PROCESS_BYTES) / 4
    assert kept_bytes < peak_bytes < budget_bytes
