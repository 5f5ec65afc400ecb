"""How well EdgeKit predicts measured speeds, as a table.

    python tools/score_speed.py POINTS [--left-out] [--worst N] [--json FILE] [--plot FILE.svg]

POINTS: JSON lines or a .tsv, see speed_rows.py. An error is the size of ln(measured / typical); "inside" is the
share of points in the stated interval, which is meant for four of five; its width is fast end / slow end. A point of a
model or a device that EdgeKit does not know is counted as such. With --left-out each machine is predicted by constants
that are fitted to the other machines (this takes minutes). Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.speed_points import END_TO_END_PROMPT, Point, UnknownError, machine_of, points_of
from tools.speed_rows import read_rows

from edgekit.bill.types import Moment, Speed
from edgekit.engines import engine_named
from edgekit.engines.speed_formula import constants
from edgekit.errors import EdgekitError
from edgekit.machine.types import PoolKind, Vendor

LONG_TOKENS = 8192


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A point and what was predicted for it."""

    point: Point
    typical: float
    slow: float
    fast: float
    group: str  # "card", "processor", "split": layers or experts in RAM

    @property
    def error(self) -> float:
        return math.log(self.point.measured / self.typical)

    @property
    def is_inside(self) -> bool:
        return self.slow <= self.point.measured <= self.fast


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("points", type=Path)
    parser.add_argument("--left-out", action="store_true", help="predict machines from the others")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="list the worst N points")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every point")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="predicted against measured")
    arguments = parser.parse_args()
    try:
        rows = read_rows(arguments.points)
    except (OSError, ValueError) as error:
        print(f"score_speed: {error}", file=sys.stderr)
        return 2
    scored, unknown = score(rows)
    if arguments.left_out:
        scored = left_out(scored)
    print(table(scored, unknown))
    for one in sorted(scored, key=lambda one: -abs(one.error))[: arguments.worst]:
        print(_line(one))
    if arguments.json is not None:
        arguments.json.write_text("".join(json.dumps(_record(one)) + "\n" for one in scored))
    if arguments.plot is not None:
        arguments.plot.write_text(picture(scored))
    return 0


def picture(scored: list[Scored]) -> str:
    from tools.speed_plot import plot

    return plot((one.point.measured, one.typical, one.group, one.point.is_prompt) for one in scored)


def score(rows: Iterable[dict[str, object]]) -> tuple[list[Scored], Counter[str]]:
    """The predictions, and how many points have none, by the reason."""
    scored: list[Scored] = []
    unknown: Counter[str] = Counter()
    for row in rows:
        count = bool(row.get("tg_tok_s")) + bool(row.get("pp_tok_s"))
        try:
            found = [scored_point(point) for point in points_of(row)]
        except UnknownError as error:
            unknown[error.part] += count
            continue
        except (
            EdgekitError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            ArithmeticError,
        ) as error:
            unknown[f"row cannot be read ({type(error).__name__})"] += count
            continue
        if None in found:
            unknown["speed"] += found.count(None)
        scored += filter(None, found)
    return scored, unknown


def scored_point(point: Point) -> Scored | None:
    """The prediction for a point; None if EdgeKit gives no speed."""

    def speed_at(moment: Moment) -> Speed | None:
        return engine_named(point.task.engine).speed(
            point.task, point.placement, point.bill, moment
        )

    prompt_tokens = point.prompt_tokens or END_TO_END_PROMPT
    speed = speed_at(Moment(point.filled, prompt_tokens=prompt_tokens, users=point.users))
    if speed is None or (point.is_prompt and speed.prefill is None):
        return None
    slow, fast = speed.prefill if point.is_prompt and speed.prefill else speed.decode
    typical = math.sqrt(slow * fast)
    if point.is_end_to_end and speed.prefill is not None and not point.is_prompt:
        before = speed_at(Moment(0, prompt_tokens=prompt_tokens))
        prefill = speed.prefill if before is None or before.prefill is None else before.prefill
        read_s = prompt_tokens / math.sqrt(math.prod(prefill))
        share = 1 / (1 + read_s * typical / point.new_tokens)
        slow, typical, fast = slow * share, typical * share, fast * share
    kinds = {line.pool.kind for line in point.bill.lines if line.component.value == "weights"}
    group = "card"
    if kinds == {PoolKind.HOST} or not point.placement.cards:
        group = "processor"
    elif point.row.get("ngl") is not None or point.row.get("ncmoe"):
        group = "split"
    return Scored(point=point, typical=typical, slow=slow, fast=fast, group=group)


def left_out(scored: list[Scored]) -> list[Scored]:
    """Each machine's points predicted by constants fitted to the other machines, with the interval for such a card."""
    from tools.fit_speed import fit, kinds_left_out, left_out_errors, row_of

    pairs = [(one, row) for one in scored if (row := row_of(one.point)) is not None]
    rows = [row for _, row in pairs]
    errors = left_out_errors(rows, fit(rows))
    results = []
    for (one, row), kind, error in zip(pairs, kinds_left_out(rows), errors, strict=True):
        spread = constants()[f"spread.{'prompt' if row.point.is_prompt else 'decode'}.{kind}"]
        typical = one.point.measured / math.exp(error)
        results.append(replace(one, typical=typical, slow=typical / spread, fast=typical * spread))
    return results


# -- the table -------------------------------------------------------------------------------

Choose = Callable[[Scored], bool]


def table(scored: list[Scored], unknown: Counter[str]) -> str:
    """One row per kind of point."""
    lines = [
        counted(scored, unknown),
        "",
        "| | points | error, median | error, p90 | measured / typical | width, median | inside |",
        "|---|---|---|---|---|---|---|",
    ]
    decoding = [one for one in scored if not one.point.is_prompt]
    prompts = [one for one in scored if one.point.is_prompt]
    lines += [_row("decode", decoding), _row("prompts", prompts)]
    for word, group in (("decode", decoding), ("prompts", prompts)):
        for title, choose in kinds(group):
            chosen = [one for one in group if choose(one)]
            lines += [_row(f"{word}, {title}", chosen)] if chosen else []
    return "\n".join([*lines, _row("a processor by --ram alone", by_ram_alone(scored))])


def counted(scored: list[Scored], unknown: Counter[str]) -> str:
    machines = len({one.point.machine for one in scored})
    return (
        f"{len(scored):,} points of {machines} machines; "
        f"{unknown.total()} without a prediction{_reasons(unknown)}"
    )


def kinds(group: list[Scored]) -> list[tuple[str, Choose]]:
    rows: list[tuple[str, Choose]] = [
        ("all on cards", lambda one: one.group == "card"),
        ("processor", lambda one: one.group == "processor"),
        (
            "processor, bandwidth known",
            lambda one: one.group == "processor" and _has_bandwidth(one),
        ),
        ("layers or experts in RAM", lambda one: one.group == "split"),
        ("depth 0 to 512", lambda one: depth_of(one) <= 512),
        ("depth up to 8K", lambda one: 512 < depth_of(one) <= LONG_TOKENS),
        ("deeper", lambda one: depth_of(one) > LONG_TOKENS),
        ("several users", lambda one: one.point.users > 1),
        ("several cards", lambda one: len(one.point.placement.cards) > 1),
        (
            "experts",
            lambda one: any(layer.experts for layer in one.point.task.model.geometry.layers),
        ),
    ]
    vendors = sorted({_vendor(one) for one in group})
    rows += [(name, partial(_is_of, _vendor, name)) for name in vendors]
    for key in ("engine", "backend"):
        read = partial(_field, key)
        rows += [
            (f"{key} {value}", partial(_is_of, read, value))
            for value in sorted(set(map(read, group)))
        ]
    return rows


def _is_of(read: Callable[[Scored], str], value: str, one: Scored) -> bool:
    return read(one) == value


def _field(key: str, one: Scored) -> str:
    return str(one.point.row.get(key))


def _row(title: str, group: list[Scored]) -> str:
    if not group:
        return f"| {title} | 0 | | | | | |"
    errors = sorted(abs(one.error) for one in group)
    widths = sorted(one.fast / one.slow for one in group)
    bias = sorted(one.error for one in group)[len(group) // 2]
    inside = sum(one.is_inside for one in group) / len(group)
    return (
        f"| {title} | {len(group)} | {quantile(errors, 0.5):.3f} | {quantile(errors, 0.9):.3f} "
        f"| {math.exp(bias):.2f} | {quantile(widths, 0.5):.2f} | {inside:.0%} |"
    )


def quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def by_ram_alone(scored: list[Scored]) -> list[Scored]:
    """Points of processors, predicted as if only the amount of RAM were known."""
    results = []
    for one in scored:
        if one.group != "processor" or one.point.is_prompt:
            continue
        row = {"hardware": "", "backend": "cpu", "ram_gb": one.point.row.get("ram_gb") or 64}
        task = replace(one.point.task, machine=machine_of(row))
        again = scored_point(replace(one.point, task=task))
        results += [again] if again is not None else []
    return results


def depth_of(one: Scored) -> int:
    return int(one.point.row.get("context_depth") or 0)


def _has_bandwidth(one: Scored) -> bool:
    host = one.point.task.machine.host
    return host is not None and host.bandwidth_bytes_per_s is not None


def _vendor(one: Scored) -> str:
    cards = one.point.placement.cards if one.group != "processor" else ()
    vendor = cards[0].vendor if cards else Vendor.OTHER
    names = {
        Vendor.NVIDIA: "NVIDIA",
        Vendor.AMD: "AMD",
        Vendor.APPLE: "Apple",
        Vendor.INTEL: "Intel",
    }
    return names.get(vendor, "processors")


def _reasons(unknown: Counter[str]) -> str:
    if not unknown:
        return ""
    return (
        " ("
        + ", ".join(f"{count} {reason} unknown" for reason, count in unknown.most_common())
        + ")"
    )


def _name(one: Scored) -> str:
    row = one.point.row
    return f"{row.get('hardware')} {row.get('backend')}, {row.get('model') or row.get('file')} {row.get('quant')}"


def _line(one: Scored) -> str:
    kind = "prompt" if one.point.is_prompt else "decode"
    return (
        f"{math.exp(one.error):6.2f}x  {kind}  {_name(one)}, depth {depth_of(one)}, users {one.point.users}: "
        f"measured {one.point.measured:.5g}, expected {one.slow:.4g} to {one.fast:.4g}  {one.point.row.get('source')}"
    )


def _record(one: Scored) -> dict[str, object]:
    row = one.point.row
    return {
        "hardware": row.get("hardware"), "backend": row.get("backend"), "model": row.get("model") or row.get("file"),
        "quant": row.get("quant"), "depth": depth_of(one), "users": one.point.users, "group": one.group,
        "prompt": one.point.is_prompt, "measured": one.point.measured, "typical": round(one.typical, 3),
        "interval": [round(one.slow, 3), round(one.fast, 3)],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
