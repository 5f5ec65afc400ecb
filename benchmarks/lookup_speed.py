"""CPU of a look-up of a name: in a new process, and warm in one that has looked up others.

    python benchmarks/lookup_speed.py --before ../before --after . [--tries 9]

Checkouts take turns. Cold: the median of user and system time of child processes, less that of `python -c pass` of the
same round. Warm: the median of names of each kind, and the slowest.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from checkout_speed import Checkout, _python

NAMES = {
    "exact": ("qwen3-8b", "gemma3:27b", "google/gemma-3-27b-it", "Gemma 3 27B", "qwen3-8b:Q8_0"),
    "misspelt": ("qwn3 8b", "lama 3.1 8b", "deepsek r1", "gema 3 27b", "mistrl small 3.2 24b"),
    "unknown": ("qwen coder 77b fancy", "qwen 28b instruct thinking", "gemma 5", "llama 9 scout", "foo bar baz"),
}  # fmt: skip
COLD = """
from edgekit.index.names import find_model
try:
    find_model({name!r})
except Exception:
    pass
"""
WARM = """
import time
from edgekit.index.names import find_model

def cost_ms(name):
    began = time.process_time()
    try:
        find_model(name)
    except Exception:
        pass
    return (time.process_time() - began) * 1000

for name in ("qwen3-4b", "qwn3 4b", "qwen 99b"):
    cost_ms(name)
print(*[cost_ms(name) for name in {names!r}])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU of a look-up of a name.")
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--after", type=Path, required=True)
    parser.add_argument("--tries", type=int, default=9)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkouts = [
            Checkout(_python(root), Path(folder, name), Path(folder))
            for name, root in (("before", arguments.before), ("after", arguments.after))
        ]
        print("| | before, ms | after, ms |\n|---|---|---|")
        for kind, names in NAMES.items():
            cells: list[list[float]] = [[], []]
            for turn in range(arguments.tries + 1):
                for cell, checkout in zip(cells, checkouts, strict=True):
                    least = checkout.cpu_s("-c", "pass")
                    cold = checkout.cpu_s("-c", COLD.format(name=names[0])) - least
                    if turn:  # the first one compiles
                        cell.append(cold * 1000)
            print(
                f"| {kind}, cold |", " | ".join(f"{statistics.median(c):.0f}" for c in cells), "|"
            )
            warm = [
                [float(word) for word in checkout.output("-c", WARM.format(names=names)).split()]
                for checkout in checkouts
            ]
            shown = (f"{statistics.median(costs):.1f}, most {max(costs):.1f}" for costs in warm)
            print(f"| {kind}, warm |", " | ".join(shown), "|", flush=True)


if __name__ == "__main__":
    main()
