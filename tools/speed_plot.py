"""Predicted against measured speeds as an SVG: decoding and prompts side by side, on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

FACTOR = 1.6  # of the band around the diagonal
SIDE = 380  # of a panel, in pixels
LEFT, TOP, GAP, RIGHT, BOTTOM = 66, 50, 84, 34, 96
WIDTH, HEIGHT = LEFT + 2 * SIDE + GAP + RIGHT, TOP + SIDE + BOTTOM
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
INK, GREY, LINES, BAND = "#24292f", "#57606a", "#e3e6ea", "#eef3e2"


class Mark(NamedTuple):
    """How the points of a group are drawn."""

    label: str
    path: str  # from the point, relative
    style: str


# Drawn in this order: the rare ones above the common ones. Shapes and lightness differ, so that grey is readable.
MARKS = {
    "card": Mark(
        "all on GPUs",
        "m-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0-5.2 0",
        'fill="#5b9bd5" fill-opacity=".55" stroke="#2f6ea8" stroke-width=".4"',
    ),
    "processor": Mark(
        "processor", "m0-4.6l4.3 7.6h-8.6z", 'fill="#ffc233" stroke="#3d2c00" stroke-width="1"'
    ),
    "split": Mark(
        "layers or experts in RAM", "m-3.4-3.4h6.8v6.8h-6.8z", 'fill="#8c1d5b" stroke="#fff"'
    ),
}

Drawn = tuple[float, float, str]  # measured, typical, group


def plot(points: Iterable[tuple[float, float, str, bool]]) -> str:
    """The picture of (measured, typical, group, is_prompt)."""
    panels: tuple[list[Drawn], list[Drawn]] = ([], [])
    for measured, typical, group, is_prompt in points:
        panels[is_prompt].append((measured, typical, group))
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    style = f'font-family="{FONT}" font-size="13" fill="{INK}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc" {style}>',
        '<title id="title">Predicted against measured tokens per second</title>',
        f'<desc id="desc">{_description(*panels)}</desc>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#fff"/>',
        *_panel("Decoding", panels[0], LEFT, "decode"),
        *_panel("Prompts", panels[1], LEFT + SIDE + GAP, "prompts"),
        *_legend(),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _description(decoding: list[Drawn], prompts: list[Drawn]) -> str:
    return (
        f"Two scatter plots with logarithmic axes: {len(decoding):,} speeds of decoding and {len(prompts):,} of "
        "prompts. Points on the diagonal are predicted exactly. In the band the measured speed is between "
        f"1/{FACTOR} and {FACTOR} times the predicted one: {_share_in_band(decoding)} of decoding, "
        f"{_share_in_band(prompts)} of prompts."
    )


def _share_in_band(points: list[Drawn]) -> str:
    inside = [1 / FACTOR <= measured / typical <= FACTOR for measured, typical, _ in points]
    return f"{sum(inside) / len(inside):.0%}" if inside else "none"


def _panel(title: str, points: list[Drawn], left: int, name: str) -> list[str]:
    logs = [math.log10(value) for measured, typical, _ in points for value in (measured, typical)]
    low = math.floor(min(logs, default=0))
    high = max(math.ceil(max(logs, default=1)), low + 1)

    def at(value: float) -> float:
        return (math.log10(value) - low) / (high - low) * SIDE

    lines = [
        f'<g transform="translate({left} {TOP})">',
        (
            f'<text x="{SIDE / 2:g}" y="-18" text-anchor="middle" font-size="16" font-weight="600">{title}, tokens/s '
            f'<tspan font-weight="400" fill="{GREY}">({len(points):,} points)</tspan></text>'
        ),
        f'<clipPath id="{name}"><rect width="{SIDE}" height="{SIDE}"/></clipPath>',
        f'<g clip-path="url(#{name})">',
    ]
    shift = math.log10(FACTOR) / (high - low) * SIDE
    lines += [
        f'<path fill="{BAND}" d="M0 {SIDE - shift:.1f}L{SIDE} {-shift:.1f}V{shift:.1f}L0 {SIDE + shift:.1f}z"/>'
    ]
    lines += [_grid(at, low, high)]
    lines += [f'<path d="M0 {SIDE}L{SIDE} 0" stroke="{GREY}" stroke-width="1.2"/>']
    for group, mark in MARKS.items():
        drawn = sorted(
            {(round(at(x), 1), round(SIDE - at(y), 1)) for y, x, one in points if one == group}
        )
        if drawn:
            places = "".join(f"M{x:g} {y:g}{mark.path}" for x, y in drawn)
            lines += [f'<path {mark.style} d="{places}"/>']
    lines += ["</g>", f'<rect width="{SIDE}" height="{SIDE}" fill="none" stroke="{GREY}"/>']
    for power in range(low, high + 1):
        place, label = at(10.0**power), f"{10.0**power:,.10g}"
        lines += [
            f'<text x="{place:.1f}" y="{SIDE + 18}" text-anchor="middle">{label}</text>',
            f'<text x="-8" y="{SIDE - place + 4.5:.1f}" text-anchor="end">{label}</text>',
        ]
    return [
        *lines,
        f'<text x="{SIDE / 2:g}" y="{SIDE + 40}" text-anchor="middle" fill="{GREY}">predicted</text>',
        f'<text transform="translate(-50 {SIDE / 2:g})rotate(-90)" text-anchor="middle" fill="{GREY}">measured</text>',
        "</g>",
    ]


def _grid(at: Callable[[float], float], low: int, high: int) -> str:
    places = [at(step * 10.0**power) for power in range(low, high) for step in (1, 2, 5)]
    lines = "".join(f"M{place:.1f} 0v{SIDE}M0 {SIDE - place:.1f}h{SIDE}" for place in places)
    return f'<path d="{lines}" stroke="{LINES}" fill="none"/>'


def _legend() -> list[str]:
    y, x, lines = TOP + SIDE + 70, LEFT, []
    for mark in MARKS.values():
        lines += [
            f'<path {mark.style} d="M{x + 5} {y}{mark.path}"/><text x="{x + 16}" y="{y + 4.5}">{mark.label}</text>'
        ]
        x += 44 + 7 * len(mark.label)
    lines += [
        (
            f'<path d="M{x} {y}h22" stroke="{GREY}" stroke-width="1.2"/>'
            f'<text x="{x + 29}" y="{y + 4.5}">equal</text>'
        ),
        (
            f'<rect x="{x + 86}" y="{y - 7}" width="22" height="14" fill="{BAND}" stroke="#c9d3b0"/>'
            f'<text x="{x + 115}" y="{y + 4.5}">within a factor of {FACTOR}</text>'
        ),
    ]
    return lines
