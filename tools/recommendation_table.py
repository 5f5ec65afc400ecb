"""What `edgekit recommend` answers for twelve machines and five tasks, compared with benchmarks/recommendations.tsv.

    python tools/recommendation_table.py                  # the lists, one line each
    python tools/recommendation_table.py --check          # only those that differ; exit code 1 if any does
    python tools/recommendation_table.py --write after    # rewrite that column
    python tools/recommendation_table.py --task code --machine 3060 --why

The column `before` is from commit 571259ed, whose order was parameters and age; `judgement` is written by hand.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import itertools
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "benchmarks" / "recommendations.tsv"
COLUMNS = ("machine", "task", "before", "after", "judgement")
TASKS = ("chat", "code", "reasoning", "vision", "embed")
MACHINES = {
    "RTX 3060 + 32G": ("--device", "RTX 3060", "--ram", "32G"),
    "RTX 4060 + 16G": ("--device", "RTX 4060", "--ram", "16G"),
    "RTX 4090 + 64G": ("--device", "RTX 4090", "--ram", "64G"),
    "2x RTX 3090 + 64G": ("--device", "2x RTX 3090", "--ram", "64G"),
    "RTX 5090 + 128G": ("--device", "RTX 5090", "--ram", "128G"),
    "H100 + 256G": ("--device", "H100 80GB", "--ram", "256G"),
    "M2 8GB": ("--device", "M2 8GB"),
    "M4 Pro 24GB": ("--device", "M4 Pro 24GB"),
    "M4 Max 64GB": ("--device", "M4 Max 64GB"),
    "Strix Halo 128GB": ("--device", "Strix Halo 128GB"),
    "CPU, 32G": ("--ram", "32G"),
    "Raspberry Pi 5 8GB": ("--device", "Raspberry Pi 5 8GB"),
    "iPhone 16": ("--device", "iPhone 16"),
}


def suggestions(machine: str, task: str, *more: str) -> list[dict[str, Any]]:
    """The suggestions of `edgekit recommend --json`."""
    from edgekit.cli import main as run_command

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        run_command(["recommend", "--task", task, "--json", *MACHINES[machine], *more])
    result: list[dict[str, Any]] = json.loads(printed.getvalue())["suggestions"]
    return result


def details(suggestion: dict[str, Any]) -> str:
    """Quality, weights, context and speed of one suggestion."""
    plan, quality = suggestion["plan"], suggestion.get("quality", {})
    speed = plan["speed"] or {}
    shares = "/".join(f"{100 * budget['utilization']:.0f}%" for budget in plan["budgets"])
    return (
        f"    {suggestion['id']:36} {suggestion['worth']:6.1f}"
        f"  {quality.get('low', 0):.0f}-{quality.get('high', 0):.0f}"
        f" {quality.get('basis', ''):12} {plan['variant']['name']:8} {plan['context_tokens'] // 1024}K"
        f" {plan['cache']['name']:5} {shares:10} decode {speed.get('typical') or 0:.1f}"
        f" prefill {[round(rate) for rate in speed.get('prefill') or ()]}"
    )


def read_table() -> dict[tuple[str, str], dict[str, str]]:
    if not TABLE.exists():
        return {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {(row["machine"], row["task"]): row for row in csv.DictReader(file, delimiter="\t")}


def main() -> int:
    """Return 1 if --check finds a difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", metavar="COLUMN", choices=("before", "after"))
    parser.add_argument("--why", action="store_true", help="quality, weights, context and speed")
    parser.add_argument("--limit", default="5")
    parser.add_argument("--task", default="")
    parser.add_argument("--machine", default="")
    options = parser.parse_args()
    rows = read_table()
    differ = 0
    for machine, task in itertools.product(MACHINES, TASKS):
        if options.machine not in machine or options.task not in task:
            continue
        found = suggestions(machine, task, "--limit", options.limit)
        names = ", ".join(suggestion["id"] for suggestion in found)
        row = rows.setdefault((machine, task), {"machine": machine, "task": task})
        is_new = names != row.get("after")
        differ += is_new
        if is_new or not options.check:
            print(f"{machine:19} {task:10} {names}", flush=True)
        if options.why:
            print("\n".join(map(details, found)))
        row[options.write or ""] = names
    if options.write:
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(
                file,
                COLUMNS,
                restval="",
                extrasaction="ignore",
                delimiter="\t",
                lineterminator="\n",
            )
            table.writeheader()
            table.writerows(rows.values())
    return int(options.check and differ > 0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"HOME": home, "XDG_CACHE_HOME": home, "EDGEKIT_CACHE": home, "HF_HOME": home}
        os.environ["EDGEKIT_LLAMA_VERSION"] = "0.6"  # whatever is installed
        platform.machine = lambda: "x86_64"
        sys.exit(main())
