"""Curves of memory against context as JSON, or as a picture (FILE.svg, FILE.png) with a line for the usable memory."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgekit.errors import EdgekitError, UsageError, printable
from edgekit.report.json import SCHEMA, Json, fields
from edgekit.sources.local import path_of_flag
from edgekit.units import GIB, format_bytes

if TYPE_CHECKING:  # matplotlib is an extra, and slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from edgekit.plan.curve import Curve

SUFFIXES = (".svg", ".png")
INSTALL = "pip install 'edgekit-models[plot]'"
SIZE_INCHES = (8.0, 4.8)
PIXELS_PER_INCH = 150
# Okabe and Ito's colours, which colour-blind readers can tell apart; dashes for printing in grey.
Dashes = Literal["solid"] | tuple[float, tuple[float, ...]]
STYLES: tuple[tuple[str, Dashes], ...] = (
    ("#0072B2", "solid"),
    ("#D55E00", (0, (6, 2))),
    ("#009E73", (0, (6, 2, 1.5, 2))),
    ("#CC79A7", (0, (1.5, 1.5))),
    ("#56B4E9", (0, (10, 3))),
)
INK, PALE = "#222222", "#D9D9D9"  # text, and lines that stay in the background
HELD, BEYOND = "#F5F6F8", "#F7ECE9"  # areas: the model and buffers, and what does not fit
APART = 0.045  # minimum distance between two names, as a share of the height
HEAD_ROOM = 1.45  # height of the picture in budgets; curves may leave it
TICKS = 8  # at most, on the axis of the context
_SETTINGS: dict[Any, Any] = {
    "text.parse_math": False,  # a $ in a name is not a formula
    "svg.hashsalt": "edgekit",  # reproducible files
    "svg.fonttype": "path",  # independent of the viewer's fonts
    "font.family": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": 10.0,
    "path.simplify": False,
}


def write_plot(curves: Sequence[Curve], path: str | Path, *, model: str, machine: str) -> None:
    """Write the picture atomically. Raises UsageError for an unknown suffix, no curves or an unwritable file."""
    target = path_of_flag(str(path), "the plot")
    if target.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"{target}: a plot is written to a file that ends in {' or '.join(SUFFIXES)}"
        )
    if not any(curve.points for curve in curves):
        raise UsageError("nothing to draw: the engine takes none of its cache types for this model")
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise EdgekitError(f"a plot needs matplotlib: {INSTALL}") from error
    kind = target.suffix.lower().removeprefix(".")
    metadata = dict.fromkeys(("Date", "Creator") if kind == "svg" else ("Software",))
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that the font lacks are drawn as boxes
        figure = draw(curves, model=model, machine=machine)
        try:
            figure.savefig(part, format=kind, dpi=PIXELS_PER_INCH, metadata=metadata)
            part.replace(target)
        except OSError as error:
            raise UsageError(f"{target} cannot be written: {error.strerror or error}") from error
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def draw(curves: Sequence[Curve], *, model: str, machine: str) -> Figure:
    """The figure, without opening a window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    highest = max(point.required_bytes for curve in curves for point in curve.points) / GIB
    budget = curves[0].budget_bytes / GIB
    lowest = max(min(curve.points[0].required_bytes for curve in curves) / GIB, 0.001)
    top = max(min(highest * 1.06, max(budget, lowest) * HEAD_ROOM), budget * 1.12, lowest * 1.12)
    _frame(axes, curves, top)
    _areas(axes, curves, top)
    for curve, (colour, dashes) in zip(curves, cycle(STYLES), strict=False):
        _line(axes, curve, colour, dashes)
    _names(axes, curves, top)
    _legend(axes, curves)
    title = _plain(" on ".join(filter(None, (model, machine))))
    figure.suptitle(title, fontsize=12.5, fontweight="bold", color=INK)
    return figure


def _frame(axes: Axes, curves: Sequence[Curve], top: float) -> None:
    """Ticks, grid and labels of both axes; `top` is the highest GiB shown."""
    native = max(curve.native for curve in curves)
    step = 1
    while step * TICKS < native:
        step *= 2
    ticks = list(range(0, native + 1, step))
    names = [f"{tick // 1024}k" if tick and tick % 1024 == 0 else str(tick) for tick in ticks]
    axes.set_xlim(0, native)
    axes.set_ylim(0, top)
    axes.set_xticks(ticks, names)
    axes.set_xlabel("context, tokens (1k = 1,024)", color=INK)
    axes.set_ylabel(_plain(f"{curves[0].memory}, GiB"), color=INK)
    axes.grid(visible=True, color="#ECECEC", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(color=PALE, labelcolor=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(PALE)


def _areas(axes: Axes, curves: Sequence[Curve], top: float) -> None:
    """The memory of the smallest context (model and buffers), and what does not fit above the usable memory."""
    floor = min(curve.points[0].required_bytes for curve in curves)
    axes.axhspan(0, floor / GIB, color=HELD, zorder=0, linewidth=0)
    axes.annotate(
        f"model and buffers, {format_bytes(floor)}", (0, floor / GIB), xytext=(6, -6),
        textcoords="offset points", va="top", color=INK, fontsize=8.5,
        bbox={"facecolor": HELD, "edgecolor": "none", "pad": 1.5},
    )  # fmt: skip
    usable = curves[0].budget_bytes
    axes.axhspan(usable / GIB, top, color=BEYOND, zorder=0, linewidth=0)
    axes.axhline(usable / GIB, color=INK, linewidth=1.1, zorder=2)
    axes.annotate(
        f"{format_bytes(usable)} usable", (0, usable / GIB), xytext=(6, 3),
        textcoords="offset points", color=INK, fontsize=8.5,
    )  # fmt: skip


def _line(axes: Axes, curve: Curve, colour: str, dashes: Dashes) -> None:
    """The curve, with a dot at the longest context that fits."""
    sizes = {point.tokens: point.required_bytes / GIB for point in curve.points}
    axes.plot(
        list(sizes), list(sizes.values()), color=colour, linestyle=dashes, linewidth=2.2, zorder=3
    )
    height = sizes.get(curve.longest)
    if height is None:
        return
    axes.plot(
        [curve.longest], [height], marker="o", markersize=7, color=colour, markeredgecolor="white",
        markeredgewidth=1.2, zorder=4, clip_on=False,
    )  # fmt: skip
    axes.vlines(curve.longest, 0, height, color=colour, linewidth=0.9, linestyle=(0, (1, 2)))


def _names(axes: Axes, curves: Sequence[Curve], top: float) -> None:
    """Names at the right end of the lines, spaced out, or at the point where a line leaves the picture."""
    ends = []
    for curve, (colour, _) in zip(curves, cycle(STYLES), strict=False):
        end = curve.points[-1].required_bytes / GIB
        below_top = {
            point.tokens: point.required_bytes / GIB
            for point in curve.points
            if point.required_bytes / GIB <= top * (1 - APART)
        }
        if end <= top:
            ends.append((end, curve, colour))
        elif below_top:
            _name(axes, curve, max(below_top.items()), colour, "right")
    lowest = 0.0
    for height, curve, colour in sorted(ends, key=lambda end: end[0]):
        lowest = max(height, lowest)
        _name(axes, curve, (curve.native, lowest), colour, "left")
        lowest += top * APART


def _name(
    axes: Axes,
    curve: Curve,
    point: tuple[float, float],
    colour: str,
    side: Literal["left", "right"],
) -> None:
    """Write the type of the cache next to the point; `side` is the end of the text at the point."""
    axes.annotate(
        _plain(curve.cache), point, color=colour, fontweight="bold", fontsize=9.5, ha=side,
        va="center" if side == "left" else "bottom",
        xytext=(8, 0) if side == "left" else (-8, 3), textcoords="offset points", annotation_clip=False,
    )  # fmt: skip


def _legend(axes: Axes, curves: Sequence[Curve]) -> None:
    """Above the picture: each type of cache with the longest context that fits."""
    from matplotlib.lines import Line2D

    handles, labels = [], []
    for curve, (colour, dashes) in zip(curves, cycle(STYLES), strict=False):
        handles.append(Line2D([], [], color=colour, linestyle=dashes, linewidth=2.2))
        longest = f"{curve.longest:,}" if curve.longest else "does not fit"
        longest += " (all)" if 0 < curve.native <= curve.longest else ""
        labels.append(f"{_plain(curve.cache)}: {longest}")
    axes.legend(
        handles, labels, title="cache, and the longest context", loc="lower center",
        bbox_to_anchor=(0.5, 1.0), ncols=len(curves), frameon=False, fontsize=9, title_fontsize=8.5,
        handlelength=3.6, columnspacing=1.6, borderaxespad=0.3,
    )  # fmt: skip


def _plain(text: str, max_chars: int = 84) -> str:
    """Shortened to one line of the picture."""
    text = printable(text)
    return text if len(text) <= max_chars else f"{text[: max_chars - 3]}..."


def curves_json(curves: Sequence[Curve]) -> Json:
    rows = [
        {
            **fields(curve, "cache memory budget_bytes longest native"),
            "points": [[point.tokens, point.required_bytes] for point in curve.points],
        }
        for curve in curves
    ]
    return {"schema": SCHEMA, "curves": rows}
