"""The cost of a plan and a recommendation: cold, and with cached answers.

    python benchmarks/plan_speed.py

CPU seconds of a child process with its start-up, the minimum of three; compare the ratios to `edgekit --help`.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

TRIES = 3
EDGEKIT = (sys.executable, "-m", "edgekit")
MACHINES = {
    "this machine": (),
    "RTX 3060 + 32G": ("--device", "RTX 3060", "--ram", "32G"),
    "RTX 4090 + 64G": ("--device", "RTX 4090", "--ram", "64G"),
    "RTX 4090 + RTX 3060 + 64G": ("--device", "RTX 4090, RTX 3060", "--ram", "64G"),
    "8x H100": ("--device", "8x H100"),
    "64G of RAM": ("--ram", "64G"),
    "M4 Max 64GB, mlx": ("--device", "m4-max-64", "--engine", "mlx"),
}
PLANS = ("qwen3-8b", "gemma-3-27b", "qwen3-30b-a3b")


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": f"{scratch}/bytecode"}
        environment |= {"EDGEKIT_CACHE": f"{scratch}/cache", "EDGEKIT_DATA": f"{scratch}/data"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        bare = best_cost((*EDGEKIT, "--help"), environment)
        print(f"edgekit --help: {bare:.2f} s\n")
        print(
            "| recommend on | cold CPU s | times --help | cached CPU s | times --help |\n|---|---|---|---|---|"
        )
        for name, words in MACHINES.items():
            command = (*EDGEKIT, "recommend", *words)
            cold = best_cost(command, environment, cache_to_clear=Path(scratch) / "cache")
            warm = best_cost(command, environment)
            print(f"| {name} | {cold:.2f} | {cold / bare:.0f} | {warm:.2f} | {warm / bare:.0f} |")
        print("\n| plan on RTX 3060 + 32G | CPU s | times --help |\n|---|---|---|")
        for name in PLANS:
            command = (*EDGEKIT, "plan", name, "--device", "RTX 3060", "--ram", "32G")
            cost = best_cost(command, environment)
            print(f"| {name} | {cost:.2f} | {cost / bare:.0f} |")


def best_cost(
    command: tuple[str, ...], environment: Mapping[str, str], cache_to_clear: Path | None = None
) -> float:
    return min(_cost(command, environment, cache_to_clear) for _ in range(TRIES))


def _cost(
    command: tuple[str, ...], environment: Mapping[str, str], cache_to_clear: Path | None
) -> float:
    if cache_to_clear is not None:
        shutil.rmtree(cache_to_clear, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
