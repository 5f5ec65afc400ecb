"""The modules that `edgekit check` of a local GGUF imports."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import edgekit

PROGRAM = "import sys; from edgekit.cli import main; main(sys.argv[1:]); print(*sys.modules)"
NOT_NEEDED = {
    "edgekit.index.types",  # the name is a path
    "edgekit.cli.plan",
    "edgekit.engines.llamacpp.conversion",  # nothing is converted
    "edgekit.engines.mlx.estimate",
    "edgekit.engines.vllm.estimate",
    "edgekit.formats.safetensors",
    "edgekit.machine.calibration",  # the machine is described
    "edgekit.model.tensors",
    "edgekit.plan.assumed",
    "edgekit.plan.plan",
    "edgekit.report.plan",
    "edgekit.sources.hub",
    "httpx2",
    "numpy",
}


def test_check_of_a_local_gguf_imports_only_what_it_needs(tmp_path: Path) -> None:
    header = next(Path(edgekit.__file__).parent.rglob("gemma-3-27b*.gguf.head.gz"))
    model = tmp_path / "model.gguf"
    with model.open("wb") as file:
        file.write(gzip.decompress(header.read_bytes()))
        file.truncate(16_539_892_544)  # sparse, without the weights
    argv = ("check", str(model), "-c", "8192", "--device", "RTX 4090", "--ram", "64G")
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM, *argv], capture_output=True, text=True, check=True
    )
    output, _, loaded = completed.stdout.rstrip("\n").rpartition("\n")
    assert "RTX 4090" in output
    assert NOT_NEEDED.isdisjoint(loaded.split())
    assert len([name for name in loaded.split() if name.startswith("edgekit")]) < 190
