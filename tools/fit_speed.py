"""Measured speeds -> src/edgekit/engines/speed.json: the constants of the formula in engines/speed.py.

    python tools/fit_speed.py POINTS.jsonl[.gz] [--write] [--leave-one-out] [--points FILE.tsv]

Robust least squares on the logarithm of measured / expected. Every constant starts at a physical value and needs
evidence to move away from it: a factor for a rare case stays near 1. A machine with many points counts as the square
root of their number. --leave-one-out fits without each machine in turn and predicts it: the spread of these errors is
the width of the intervals. --points writes what was predicted for each point.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np
from speed_points import Point, UnknownError, points_of, read_rows

from edgekit.engines.speed import (
    Constants,
    Moment,
    Place,
    SequenceRun,
    decode_s,
    places_of,
    prompt_token_s,
    speed_kind,
)

OUT = Path(__file__).parents[1] / "src" / "edgekit" / "engines" / "speed.json"
TOLERANCE = 0.12  # of a logarithm: larger errors count less and less
STEPS = 12
INSIDE = 0.8  # of the points are to lie within the interval
FEW = 12  # points: with fewer, the spread of a kind of machine is that of a wider kind
END_TO_END_PROMPT = 50  # tokens, if unknown

GPUS = ("cuda", "hip", "metal", "mlx", "sycl", "vulkan", "vllm", "vllm_eager")


class Start(NamedTuple):
    """The value that a constant starts from, and how far evidence moves it: the standard deviation of its logarithm."""

    value: float
    freedom: float


# The physics: shares of the bandwidth and of the peak, times, operations.
STARTS: dict[str, Start] = {
    "weights": Start(0.8, 0.1),
    "cache": Start(0.6, 0.2),
    "unpack_ops": Start(9.0, 0.3),
    "layer_us": Start(15.0, 0.4),
    "token_us": Start(100.0, 0.4),
    "experts": Start(0.85, 0.1),
    "users": Start(0.03, 0.6),
    "crossing_us": Start(39.0, 0.2),
    "reducing_us": Start(20.0, 0.3),
    "link_gb_per_s": Start(14.0, 0.3),
    "attend": Start(0.2, 0.5),
    "prompt_tile": Start(16.0, 0.5),
    "prompt": Start(0.35, 0.3),
    "attention": Start(0.35, 0.3),
    "expert_tokens": Start(16.0, 0.5),
    "prompt_layer_us": Start(60.0, 0.4),
    "format": Start(1.0, 0.001),
    "prompt_format": Start(1.0, 0.001),
}  # fmt: skip
# Where a backend is known to differ before anything is fitted.
KNOWN: dict[str, Start] = {
    "weights.cpu": Start(0.9, 0.2),
    "prompt.cpu": Start(50.0, 0.3),  # GFLOP/s of a core
    "attend.cpu": Start(4.0, 0.3),
    "unpack_ops.cpu": Start(0.05, 0.3),  # per GFLOP: of cores, see below
    "token_us.vllm": Start(4.0, 0.5),
    "layer_us.vllm_eager": Start(10.0, 0.5),
    "token_us.vllm_eager": Start(4.0, 0.5),
    "link_gb_per_s": Start(14.0, 0.3),
}
# How far the factor of a narrower case may move.
BACKEND_FREEDOM = 0.3
ARCHITECTURE_FREEDOM = {"weights": 0.06, "cache": 0.15, "unpack_ops": 0.15, "layer_us": 0.25, "prompt": 0.35, "attention": 0.25}
FORMAT_FREEDOM = {"format": 0.15, "prompt_format": 0.25}
FORMAT_BACKEND_FREEDOM = {"format": 0.12, "prompt_format": 0.25}


class Row(NamedTuple):
    point: Point
    run: SequenceRun
    places: tuple[Place, ...]
    moment: Moment
    kind: str


class Used(Constants):
    """Constants that remember which names were looked for."""

    def __init__(self, values: Mapping[str, float]) -> None:
        super().__init__(values)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> float:
        self.names.add(name)
        return super().__getitem__(name)

    def product(self, name: str, *keys: str) -> float:
        parts = [name]
        for key in keys:
            parts.append(key)
            self.names.add(".".join(parts))
        self.names.add(name)
        return super().product(name, *keys)


def row_of(point: Point) -> Row | None:
    """The run of a point; None if its bandwidth or compute is unknown."""
    engine = point.task.engine.replace(".", "").replace("llamacpp", "llamacpp")
    module = import_module(f"edgekit.engines.{engine}.speed")
    run = module.run_of(point.task, point.placement, point.bill)
    places = places_of(run)
    if places is None:
        return None
    prompt = point.prompt_tokens or END_TO_END_PROMPT
    moment = Moment(point.filled, prompt_tokens=prompt, users=point.users)
    return Row(point, run, places, moment, speed_kind(places))


def predicted(row: Row, values: Constants) -> float | None:
    """Tokens per second."""
    point = row.point
    if point.is_prompt:
        seconds = prompt_token_s(row.run, row.places, row.moment, values)
        return None if seconds is None else 1 / seconds
    token_s = decode_s(row.run, row.places, row.moment, values)
    if not point.is_end_to_end:
        return 1 / token_s
    prompt_s = prompt_token_s(row.run, row.places, row.moment._replace(filled_tokens=0), values)
    before_s = (prompt_s or 0.0) * row.moment.prompt_tokens
    return point.new_tokens / (point.new_tokens * token_s + before_s)


def start_of(name: str) -> Start:
    """Where a constant starts: its physical value, or a factor of 1 for a narrower case."""
    if name in KNOWN:
        return KNOWN[name] if "." not in name else _relative(name)
    first, *keys = name.split(".")
    if not keys:
        return STARTS[first]
    if first in FORMAT_FREEDOM:
        freedom = FORMAT_FREEDOM if len(keys) == 1 else FORMAT_BACKEND_FREEDOM
        return Start(1.0, freedom[first])
    if len(keys) == 1:
        return Start(1.0, 0.8 if first == "users" else BACKEND_FREEDOM)
    return Start(1.0, ARCHITECTURE_FREEDOM.get(first, 0.1))


def _relative(name: str) -> Start:
    known, base = KNOWN[name], STARTS[name.split(".")[0]]
    is_factor = name.startswith(("token_us", "layer_us"))
    return known if is_factor else Start(known.value / base.value, known.freedom)


class Fit(NamedTuple):
    values: dict[str, float]
    names_of: dict[int, tuple[str, ...]]


def fit(rows: list[Row], start: Mapping[str, float] | None = None, steps: int = STEPS) -> dict[str, float]:
    """The constants that explain the rows best."""
    base = {name: start_of(name).value for name in STARTS}
    used: list[tuple[str, ...]] = []
    for row in rows:
        seen = Used(base)
        predicted(row, seen)
        used.append(tuple(sorted(seen.names)))
    names = sorted({name for group in used for name in group} | set(STARTS))
    column = {name: index for index, name in enumerate(names)}
    starts = [start_of(name) for name in names]
    prior = np.log([one.value for one in starts])
    stiffness = np.array([1 / one.freedom for one in starts])
    logs = np.array([math.log((start or {}).get(name, one.value)) for name, one in zip(names, starts, strict=True)])
    weights = machine_weights(rows)
    target = np.log([row.point.measured for row in rows])
    step = 1e-4
    damping = 1.0
    for _ in range(steps):
        values = dict(zip(names, np.exp(logs), strict=True))
        expected = np.array([_log_predicted(row, values) for row in rows])
        error = target - expected
        jacobian = np.zeros((len(rows), len(names)))
        for index, (row, group) in enumerate(zip(rows, used, strict=True)):
            for name in group:
                original = values[name]
                values[name] = original * math.exp(step)
                jacobian[index, column[name]] = (_log_predicted(row, values) - expected[index]) / step
                values[name] = original
        robust = weights / (1 + (error / (2 * TOLERANCE)) ** 2)
        scaled = robust / TOLERANCE**2
        normal = jacobian.T @ (jacobian * scaled[:, None]) + np.diag(stiffness**2)
        gradient = jacobian.T @ (error * scaled) - stiffness**2 * (logs - prior)
        change = np.linalg.solve(normal, gradient)
        largest = np.abs(change).max()
        logs = logs + change * min(1.0, damping / max(largest, 1e-9))
        if largest < 0.003:
            break
    return {name: float(value) for name, value in zip(names, np.exp(logs), strict=True)}


def _log_predicted(row: Row, values: Mapping[str, float]) -> float:
    return math.log(predicted(row, Constants(values)) or math.nan)


def machine_weights(rows: list[Row]) -> np.ndarray:
    """A machine's points of one kind count as the square root of their number."""
    counts: dict[tuple[str, bool, str], int] = defaultdict(int)
    keys = [(row.point.machine, row.point.is_prompt, str(row.point.row["backend"])) for row in rows]
    for key in keys:
        counts[key] += 1
    return np.array([counts[key] ** -0.5 for key in keys])


def load_points(path: Path) -> tuple[list[Row], dict[str, int]]:
    """The rows of a file, and how many points were left out, by the reason."""
    rows, left_out = [], defaultdict(int)
    for raw in read_rows(path):
        try:
            points = list(points_of(raw))
        except UnknownError as error:
            left_out[str(error).split(":")[0]] += bool(raw.get("tg_tok_s")) + bool(raw.get("pp_tok_s"))
            continue
        for point in points:
            row = row_of(point)
            if row is None:
                left_out["unknown bandwidth"] += 1
            elif point.is_prompt and predicted(row, Constants({name: one.value for name, one in STARTS.items()})) is None:
                left_out["unknown compute"] += 1
            else:
                rows.append(row)
    return rows, dict(left_out)


def left_out_errors(rows: list[Row], whole: Mapping[str, float]) -> list[float]:
    """The error of each row, predicted by a fit without its machine."""
    errors = [0.0] * len(rows)
    machines = sorted({row.point.machine for row in rows})
    for number, machine in enumerate(machines, 1):
        print(f"\r{number} of {len(machines)} machines", end="", file=sys.stderr, flush=True)
        others = [row for row in rows if row.point.machine != machine]
        values = dict(whole) if not others else fit(others, {n: v for n, v in whole.items() if n in names_in(others)}, steps=4)
        for name in STARTS:
            values.setdefault(name, start_of(name).value)
        for index, row in enumerate(rows):
            if row.point.machine == machine:
                errors[index] = math.log(row.point.measured) - _log_predicted(row, values)
    print(file=sys.stderr)
    return errors


_NAMES: dict[int, frozenset[str]] = {}


def names_in(rows: Iterable[Row]) -> set[str]:
    base = {name: start_of(name).value for name in STARTS}
    found: set[str] = set(STARTS)
    for row in rows:
        if id(row) not in _NAMES:
            seen = Used(base)
            predicted(row, seen)
            _NAMES[id(row)] = frozenset(seen.names)
        found |= _NAMES[id(row)]
    return found


def summary(title: str, errors: Iterable[float]) -> str:
    sizes = sorted(abs(error) for error in errors)
    if not sizes:
        return f"{title:24} no points"
    middle, tail = sizes[len(sizes) // 2], sizes[int(len(sizes) * 0.9)]
    width = math.exp(2 * sizes[int(len(sizes) * INSIDE)])
    bias = sorted(errors)[len(sizes) // 2]
    return f"{title:24} n {len(sizes):4}  median {middle:.3f}  p90 {tail:.3f}  80 % width {width:.2f}  bias {bias:+.3f}"


def report(rows: list[Row], errors: list[float]) -> None:
    def select(title: str, choose) -> None:
        print(summary(title, [error for row, error in zip(rows, errors, strict=True) if choose(row)]))

    for is_prompt, word in ((False, "decode"), (True, "prompt")):
        select(word, lambda row, p=is_prompt: row.point.is_prompt is p)
        for kind in ("card", "cpu", "split"):
            select(f"  {kind}", lambda row, p=is_prompt, k=kind: row.point.is_prompt is p and row.kind == k)
        for name in sorted({str(row.point.row["backend"]) for row in rows}):
            select(f"  {name}", lambda row, p=is_prompt, b=name: row.point.is_prompt is p and row.point.row["backend"] == b)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--leave-one-out", action="store_true")
    arguments = parser.parse_args()
    rows, left_out = [], {}
    for path in arguments.points:
        more, why = load_points(path)
        rows += more
        left_out |= why
    print(f"{len(rows)} points; left out: {sum(left_out.values())}")
    values = fit(rows)
    errors = [math.log(row.point.measured) - _log_predicted(row, values) for row in rows]
    report(rows, errors)
    if arguments.leave_one_out:
        errors = left_out_errors(rows, values)
        print("one machine left out:")
        report(rows, errors)
    if arguments.write:
        OUT.write_text(json.dumps({"constants": {n: round(v, 4) for n, v in values.items()}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
