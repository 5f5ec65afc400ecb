"""The cost of a verdict: the import, one local header in four cases, fifty headers, can_load from Python.

    python benchmarks/check_speed.py

CPU seconds of a child process, the minimum of five; compare the ratios to a bare interpreter.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.recorded import header_bytes, models, padded

TRIES = 5
EDGEKIT = (sys.executable, "-m", "edgekit")


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "models"
        folder.mkdir()
        files = [_write(folder, index) for index in range(len(models()))]
        gemma = str(next(path for path in files if path.name == "gemma-3-27b.Q4_K_M.gguf"))
        fifty = [str(path) for path in files if path.name.endswith((".Q4_K_M.gguf", ".F16.gguf"))]
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": f"{scratch}/bytecode"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        cases: dict[str, tuple[str, ...]] = {
            "python -c pass": (sys.executable, "-c", "pass"),
            "import edgekit.models": (sys.executable, "-c", "import edgekit.models"),
            "edgekit --help": (*EDGEKIT, "--help"),
            "can_load": (
                sys.executable,
                "-c",
                f"from edgekit.models import can_load; can_load({gemma!r}, 'llama.cpp', ram='64G')",
            ),
            "check, this machine": (*EDGEKIT, "check", gemma),
            "check, fits": (*EDGEKIT, "check", gemma, "--device", "H100 80GB"),
            "check, partly in RAM": (
                *EDGEKIT,
                "check",
                gemma,
                "--vram",
                "12G",
                "--ram",
                "64G",
            ),
            "check, does not fit": (*EDGEKIT, "check", gemma, "--vram", "12G"),
            "check, 50 headers": (*EDGEKIT, "check", *fifty[:50], "--ram", "64G"),
        }
        bare = 0.0
        print("| | CPU s | times a bare interpreter |\n|---|---|---|")
        for name, command in cases.items():
            seconds = min(_cpu_s(command, environment) for _ in range(TRIES))
            bare = bare or seconds
            print(f"| {name} | {seconds:.2f} | {seconds / bare:.0f} |")


def _write(folder: Path, index: int) -> Path:
    """A sparse file of the model's size with its header."""
    model = models()[index]
    header = header_bytes(model["header_without_vocabulary"])
    path = folder / f"{model['model']}.{model['quant']}.gguf"
    with path.open("wb") as file:
        file.write(header)
        file.truncate(padded(len(header)) + model["data_section_bytes"])
    return path


def _cpu_s(command: tuple[str, ...], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
