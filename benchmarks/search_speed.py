"""The cost of questions over the index: cold, and with stored answers.

    python benchmarks/search_speed.py

CPU seconds of a child process with its start-up, the minimum of three, and the number of models that were planned.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from plan_speed import EDGEKIT, best_cost

from edgekit.app.candidates import OFFLINE
from edgekit.app.search import Question, Sort, search
from edgekit.request import Request, Session

CARD = ("--device", "RTX 4090", "--ram", "64G")
QUESTIONS = (
    ("qwen", "coder", "--fits", *CARD),
    ("--task", "code", "--fits", "--min-context", "64k", *CARD),
    *(("--fits", "--sort", sort.value, *CARD) for sort in Sort),
    ("--fits", "--ram", "16G"),
    ("--fits", "--engine", "mlx", "--device", "m4-max-64"),
)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": f"{scratch}/bytecode"}
        environment |= {"EDGEKIT_CACHE": f"{scratch}/cache", "EDGEKIT_DATA": f"{scratch}/data"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        best_cost((*EDGEKIT, "--help"), environment)
        print("| search | cold CPU s | stored CPU s |\n|---|---|---|")
        for words in QUESTIONS:
            command = (*EDGEKIT, "search", *words)
            cold = best_cost(command, environment, cache_to_clear=Path(scratch) / "cache")
            print(f"| {' '.join(words)} | {cold:.2f} | {best_cost(command, environment):.2f} |")
    os.environ["EDGEKIT_CACHE"] = ""
    counts = (f"{sort.value} {_planned(sort)}" for sort in Sort)
    print(f"\nmodels planned on RTX 4090 + 64G: {', '.join(counts)}")


def _planned(sort: Sort) -> int:
    """How many models were planned to find the first ten that fit."""
    lines: list[str] = []
    session = Session(reach=replace(OFFLINE.reach, progress=lines.append))
    search(Question(fits=True, sort=sort), Request(devices=("RTX 4090",), ram="64G"), session)
    return len(lines)


if __name__ == "__main__":
    main()
