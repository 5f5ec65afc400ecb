"""Measured speeds -> src/edgekit/engines/speed.json: the constants of the formula in engines/speed_formula.py.

    python tools/fit_speed.py POINTS [--write]

Robust least squares on the logarithm of measured / expected. Every constant starts at a physical value and needs
evidence to move away from it: a factor for a rare case stays near 1. A machine with many points counts as the square
root of their number. Each machine is also left out in turn and predicted from the others: how far four of five of these
errors reach is the width of the intervals. --write stores both.
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

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from tools.speed_points import END_TO_END_PROMPT, Point, UnknownError, points_of
from tools.speed_rows import read_rows

from edgekit.bill.types import Moment
from edgekit.engines.speed import speed_kind
from edgekit.engines.speed_formula import Constants, decode_s, prompt_token_s
from edgekit.engines.speed_places import Place, SequenceRun, places_of

OUT = Path(__file__).parents[1] / "src" / "edgekit" / "engines" / "speed.json"
TOLERANCE = 0.08  # of a logarithm: larger errors count less and less
STEPS = 12
FIXED = 1e-3  # of a logarithm: does not move
SMALL_STEP = 0.003
NUDGE = 1e-4
NEGLIGIBLE = 0.02  # of a logarithm: such a factor is left out
INSIDE = 0.8  # of the points are to lie within the interval
# With fewer, the spread is at least halfway to that of cards of a generation that was not measured.
FEW_MACHINES = 3
FEW = 5  # points of a machine: with fewer, its own spread is not known
# If the RAM's speed is assumed: see _ASSUMED_BYTES_PER_S in engines/speed_places.py.
ASSUMED_SPREAD = {"decode": 2.2, "prompt": 3.5}

INSTRUCTIONS = frozenset({
    "neon", "dotprod", "i8mm", "sve", "avx", "avx2", "avx_vnni", "avx512", "avx512_vnni", "amx",
})  # fmt: skip
BACKENDS = ("cpu", "cuda", "hip", "metal", "mlx", "sycl", "vulkan", "vllm")


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
    "launches_us": Start(150.0, 0.3),
    "experts": Start(0.85, 0.1),
    "users": Start(0.03, 0.6),
    "crossing_us": Start(39.0, 0.2),
    "reducing_us": Start(20.0, 0.3),
    "link_gb_per_s": Start(14.0, 0.3),
    "attend": Start(0.2, 0.5),
    "prompt_tile": Start(16.0, 0.5),
    "prompt": Start(0.35, 0.3),
    "prompt_width": Start(400.0, 0.5),
    "attention": Start(0.15, 0.4),
    "expert_tokens": Start(16.0, 0.5),
    "prompt_layer_us": Start(60.0, 0.4),
    "market_prompt.workstation": Start(1.0, 0.3),
    "market_prompt.ultra": Start(1.0, 0.1),
    "market_weights.workstation": Start(1.0, 0.05),
    "market_weights.ultra": Start(1.0, 0.1),
    "format": Start(1.0, 0.001),
    "prompt_format": Start(1.0, 0.001),
}  # fmt: skip
# Where a backend is known to differ before anything is fitted.
KNOWN: dict[str, Start] = {
    "weights.cpu": Start(0.9, 0.2),
    "prompt.cpu": Start(50.0, 0.3),  # GFLOP/s of a core
    "attend.cpu": Start(4.0, 0.3),
    # Integers that a core multiplies per second, with each set of instructions / with AVX2. Most Arm cores have lower
    # clocks and units of 128 bits.
    "prompt.neon": Start(0.2, 0.3),
    "prompt.dotprod": Start(0.3, 0.3),
    "prompt.i8mm": Start(0.5, 0.3),
    "prompt.sve": Start(0.5, 0.3),
    "prompt.avx": Start(0.5, 0.2),
    "prompt.avx2": Start(1.0, FIXED),
    "prompt.avx_vnni": Start(1.2, 0.2),
    "prompt.avx512": Start(1.3, 0.2),
    "prompt.avx512_vnni": Start(1.8, 0.2),
    "prompt.amx": Start(4.0, 0.3),
    "attention.metal": Start(0.3, 0.3),
    "attention.mlx": Start(0.3, 0.3),
    "attention.cpu": Start(50.0, 0.3),
    "prompt.metal": Start(0.65, 0.2),
    "prompt.mlx": Start(0.65, 0.2),
    "prompt.cuda.sm_90": Start(0.16, 0.2),  # llama.cpp has no kernels for Hopper's units
    # Integers, four at once: about as many operations as the peak of FP32 (P40 in llama.cpp, pull 4766).
    "prompt.pascal": Start(1.0, 0.15),
    "format.bf16.vulkan": Start(0.6, 0.3),  # no kernels of its own on many drivers
    "unpack_ops.cpu": Start(0.05, 0.3),  # per GFLOP: of cores, see below
    "token_us.vllm": Start(4.0, 0.5),
    "users.vllm": Start(0.006, 0.8),  # of a card whose matrix units are fast
}
# How far the factor of a narrower case may move.
BACKEND_FREEDOM = 0.3
ARCHITECTURE_FREEDOM = {
    "weights": 0.06,
    "cache": 0.15,
    "unpack_ops": 0.15,
    "layer_us": 0.12,
    "prompt": 0.35,
    "attention": 0.35,
}
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
        if not name.endswith("."):  # a part without a name, such as an unknown generation
            self.names.add(name)
        return super().__getitem__(name)


def row_of(point: Point) -> Row | None:
    """The run of a point; None if its bandwidth or compute is unknown."""
    engine = point.task.engine.replace(".", "")
    module = import_module(f"edgekit.engines.{engine}.speed")
    run: SequenceRun = module.run_of(point.task, point.placement, point.bill)
    places = places_of(run)
    if places is None:
        return None
    prompt = point.prompt_tokens or END_TO_END_PROMPT
    moment = Moment(point.filled, prompt_tokens=prompt, users=point.users)
    kind = speed_kind(places, moment, is_prompt=point.is_prompt)
    return Row(point, run, places, moment, kind)


def predicted(row: Row, values: Constants) -> float | None:
    """Tokens per second."""
    point = row.point
    if point.is_prompt:
        seconds = prompt_token_s(row.run, row.places, row.moment, values)
        return None if seconds is None else 1.0 / seconds
    token_s = decode_s(row.run, row.places, row.moment, values)
    if not point.is_end_to_end:
        return 1 / token_s
    prompt_s = prompt_token_s(row.run, row.places, row.moment._replace(filled_tokens=0), values)
    before_s = (prompt_s or 0.0) * row.moment.prompt_tokens
    return point.new_tokens / (point.new_tokens * token_s + before_s)


def start_of(name: str) -> Start:
    """Where a constant starts: its physical value, or a factor of 1 for a narrower case."""
    if name in STARTS:
        return STARTS[name]
    if name in KNOWN:
        return _relative(name)
    first, *keys = name.split(".")
    if first in FORMAT_FREEDOM:
        if len(keys) == 1 and keys[0] in BACKENDS:
            return Start(1.0, FIXED)  # "weights" and "prompt" have it
        freedom = FORMAT_FREEDOM if len(keys) == 1 else FORMAT_BACKEND_FREEDOM
        return Start(1.0, freedom[first])
    if first == "prompt" and keys[-1] in INSTRUCTIONS and len(keys) > 1:
        return Start(1.0, FIXED)  # KNOWN has the factor without "cpu"
    if keys[0] in BACKENDS and len(keys) == 1:
        return Start(1.0, 0.8 if first == "users" else BACKEND_FREEDOM)
    return Start(1.0, ARCHITECTURE_FREEDOM.get(first, 0.1))


def _relative(name: str) -> Start:
    known, base = KNOWN[name], STARTS[name.split(".", maxsplit=1)[0]]
    is_factor = name.startswith("token_us") or name.partition(".")[2] in INSTRUCTIONS
    return known if is_factor else Start(known.value / base.value, known.freedom)


class Fitted(NamedTuple):
    names: tuple[str, ...]
    logs: np.ndarray  # of the constants
    starts: np.ndarray  # the logarithms that they started from
    stiffness: np.ndarray  # how strongly each is held there
    jacobian: np.ndarray  # change of each row's logarithm with each constant's
    errors: np.ndarray
    weights: np.ndarray

    @property
    def values(self) -> dict[str, float]:
        return _values(self.names, self.logs)

    def step(self, rows: np.ndarray) -> np.ndarray:
        """The step of Gauss and Newton that these rows ask for."""
        jacobian, errors = self.jacobian[rows], self.errors[rows]
        scaled = self.weights[rows] / (1 + (errors / (2 * TOLERANCE)) ** 2) / TOLERANCE**2
        normal = jacobian.T @ (jacobian * scaled[:, None]) + np.diag(self.stiffness**2)
        gradient = jacobian.T @ (errors * scaled) - self.stiffness**2 * (self.logs - self.starts)
        return np.linalg.solve(normal, gradient)


def _values(names: Iterable[str], logs: np.ndarray) -> dict[str, float]:
    return {name: float(value) for name, value in zip(names, np.exp(logs), strict=True)}


def fit(rows: list[Row], steps: int = STEPS) -> Fitted:
    """The constants that explain the rows best."""
    base = {name: start_of(name).value for name in STARTS}
    used: list[tuple[str, ...]] = []
    for row in rows:
        seen = Used(base)
        predicted(row, seen)
        used.append(tuple(sorted(seen.names)))
    names = tuple(sorted({name for group in used for name in group} | set(STARTS) | set(KNOWN)))
    starts = [start_of(name) for name in names]
    prior = np.log([one.value for one in starts])
    fitted = Fitted(
        names=names,
        logs=prior,
        starts=prior,
        stiffness=np.array([1 / one.freedom for one in starts]),
        jacobian=np.zeros((0, len(names))),
        errors=np.zeros(0),
        weights=machine_weights(rows),
    )
    everything = np.arange(len(rows))
    for _ in range(steps):
        fitted = _linearised(fitted, rows, used)
        change = fitted.step(everything)
        largest = float(np.abs(change).max())
        fitted = fitted._replace(logs=fitted.logs + change * min(1.0, 1.0 / max(largest, 1e-9)))
        if largest < SMALL_STEP:
            break
    return _linearised(fitted, rows, used)


def _linearised(fitted: Fitted, rows: list[Row], used: list[tuple[str, ...]]) -> Fitted:
    """The errors, and how they change with every constant."""
    column = {name: index for index, name in enumerate(fitted.names)}
    values = fitted.values
    jacobian = np.zeros((len(rows), len(fitted.names)))
    errors = np.zeros(len(rows))
    for index, (row, group) in enumerate(zip(rows, used, strict=True)):
        expected = _log_predicted(row, values)
        errors[index] = math.log(row.point.measured) - expected
        for name in group:
            original = values[name]
            values[name] = original * math.exp(NUDGE)
            jacobian[index, column[name]] = (_log_predicted(row, values) - expected) / NUDGE
            values[name] = original
    return fitted._replace(jacobian=jacobian, errors=errors)


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
    rows: list[Row] = []
    left_out: dict[str, int] = defaultdict(int)
    for raw in read_rows(path):
        try:
            points = list(points_of(raw))
        except UnknownError as error:
            left_out[error.part] += bool(raw.get("tg_tok_s")) + bool(raw.get("pp_tok_s"))
            continue
        for point in points:
            row = row_of(point)
            if row is None:
                left_out["unknown bandwidth"] += 1
            elif (
                point.is_prompt
                and predicted(row, Constants({name: one.value for name, one in STARTS.items()}))
                is None
            ):
                left_out["unknown compute"] += 1
            else:
                rows.append(row)
    return rows, dict(left_out)


def left_out_errors(rows: list[Row], fitted: Fitted) -> list[float]:
    """The error of each row, predicted by constants that its machine had no part in.

    The constants move by one linear step from those of all machines, which is accurate: they multiply each other.
    """
    machines = np.array([row.point.machine for row in rows])
    errors = [0.0] * len(rows)
    for machine in sorted(set(machines)):
        logs = fitted.logs + fitted.step(np.flatnonzero(machines != machine))
        values = _values(fitted.names, logs)
        for index in np.flatnonzero(machines == machine):
            row = rows[index]
            errors[index] = math.log(row.point.measured) - _log_predicted(row, values)
    return errors


def summary(title: str, errors: Iterable[float]) -> str:
    errors = list(errors)
    sizes = sorted(abs(error) for error in errors)
    if not sizes:
        return f"{title:24} no points"
    middle, tail = sizes[len(sizes) // 2], sizes[int(len(sizes) * 0.9)]
    width = math.exp(2 * sizes[int(len(sizes) * INSIDE)])
    bias = sorted(errors)[len(sizes) // 2]
    return f"{title:24} n {len(sizes):4}  median {middle:.3f}  p90 {tail:.3f}  80 % width {width:.2f}  bias {bias:+.3f}"


def report(rows: list[Row], errors: list[float]) -> None:
    """The errors of decoding and of prompts, by the kind of machine and by backend."""
    for is_prompt, word in ((False, "decode"), (True, "prompt")):
        groups: dict[str, list[float]] = defaultdict(list)
        for row, error in zip(rows, errors, strict=True):
            if row.point.is_prompt is is_prompt:
                for name in ("", row.kind, str(row.point.row["backend"])):
                    groups[name].append(error)
        for name in sorted(groups):
            print(summary(f"{word} {name}", groups[name]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("points", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rows: list[Row] = []
    left_out = 0
    for path in arguments.points:
        more, why = load_points(path)
        rows += more
        left_out += sum(why.values())
    print(f"{len(rows)} points; left out: {left_out}")
    fitted = fit(rows)
    report(rows, list(fitted.errors))
    errors = left_out_errors(rows, fitted)
    print("one machine left out at a time:")
    report(rows, errors)
    if arguments.write:
        write(rows, fitted, errors)


def write(rows: list[Row], fitted: Fitted, errors: list[float]) -> None:
    """The constants, and the widths of the intervals, from the errors of left-out machines."""
    values = {name: float(f"{value:.4g}") for name, value in needed(fitted.values).items()}
    values |= spreads(rows, errors)
    measured: dict[bool, set[str]] = {False: set(), True: set()}
    for row in rows:
        read = {place.generation for place in row.places if place.reads.is_read}
        measured[row.point.is_prompt] |= read
    facts = {
        "about": "fitted by tools/fit_speed.py; docs/speed.md explains the formula",
        "points": len(rows),
        "machines": len({row.point.machine for row in rows}),
        "measured": {"decode": sorted(measured[False]), "prompt": sorted(measured[True])},
        "constants": dict(sorted(values.items())),
    }
    OUT.write_text(json.dumps(facts, indent=1) + "\n")


def needed(values: Mapping[str, float]) -> dict[str, float]:
    """The constants without factors that are nearly 1, and one factor for a generation that one backend ran on."""
    result = dict(values)
    backends: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in values:
        first, *keys = name.split(".", maxsplit=2)
        if len(keys) == 2 and keys[0] in BACKENDS:
            backends[first, keys[1]].append(keys[0])
    for (first, generation), (backend, *others) in backends.items():
        if not others and f"{first}.{backend}.{generation}" not in KNOWN:
            result[f"{first}.{generation}"] *= result.pop(f"{first}.{backend}.{generation}")
    return {
        name: value
        for name, value in result.items()
        if "." not in name or abs(math.log(value)) > NEGLIGIBLE
    }


def kinds_left_out(rows: list[Row]) -> list[str]:
    """The kind of each row if its machine had not been measured: of a generation only if another machine is like it."""
    like: dict[tuple[bool, str], set[str]] = defaultdict(set)
    for row in rows:
        like[_generation(row)].add(row.point.machine)
    cards = {"card", "new_card"}
    return [
        row.kind
        if row.kind not in cards
        else ("card" if len(like[_generation(row)]) > 1 else "new_card")
        for row in rows
    ]


def spreads(rows: list[Row], errors: list[float]) -> dict[str, float]:
    """How far four of five errors reach, as a factor, for each kind of machine. Every machine has the same weight."""
    sizes: dict[tuple[bool, str], list[tuple[float, str]]] = defaultdict(list)
    own: dict[tuple[bool, str], list[float]] = defaultdict(list)
    for row, kind, error in zip(rows, kinds_left_out(rows), errors, strict=True):
        sizes[row.point.is_prompt, kind].append((abs(error), row.point.machine))
        own[row.point.is_prompt, row.point.machine + row.places[0].backend].append(error)
    for (is_prompt, machine), own_errors in own.items():
        if len(own_errors) >= FEW:  # what remains after one measurement of this machine
            middle = sorted(own_errors)[len(own_errors) // 2]
            sizes[is_prompt, "calibrated"] += [(abs(one - middle), machine) for one in own_errors]
    result = {}
    for (is_prompt, kind), found in sorted(sizes.items()):
        word = "prompt" if is_prompt else "decode"
        reach = _reach(found)
        if len({machine for _, machine in found}) < FEW_MACHINES:
            reach = max(reach, (reach + _reach(sizes[is_prompt, "new_card"])) / 2)
        result[f"spread.{word}.{kind}"] = round(math.exp(reach), 3)
        print(f"{word} {kind}: {len(found)} points, width {math.exp(2 * reach):.2f}")
    for word, width in ASSUMED_SPREAD.items():
        result[f"spread.{word}.assumed"] = width
    return result


def _generation(row: Row) -> tuple[bool, str]:
    return row.point.is_prompt, row.places[0].generation


def _reach(sizes: list[tuple[float, str]]) -> float:
    """The size that four of five are below. A machine's points count as the square root of their number."""
    count: dict[str, int] = defaultdict(int)
    for _, machine in sizes:
        count[machine] += 1
    total = sum(number**0.5 for number in count.values())
    passed = 0.0
    for size, machine in sorted(sizes):
        passed += count[machine] ** -0.5
        if passed >= INSIDE * total:
            return size
    return sizes[-1][0]


if __name__ == "__main__":
    main()
