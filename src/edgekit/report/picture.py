"""An answer as a picture of 1200 x 630 pixels, the size that sites show for a link, and as a badge. Both are SVG.

They use no script, no font file, no link and no HTML inside, so that a browser may draw them into a canvas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgekit.errors import UsageError, one_line
from edgekit.report.shared_answer import (
    PART_NAMES,
    Figure,
    SharedAnswer,
    SharedMemory,
    Tone,
)
from edgekit.report.svg_text import (
    FONTS,
    escaped,
    fitted_size,
    shortened,
    text_element,
    text_width,
    wrapped,
)

WIDTH, HEIGHT = 1200, 630
MARGIN = 64
INNER = WIDTH - 2 * MARGIN
THEMES = ("light", "dark")
TOO_MUCH = "too much"  # legend of the part beyond the mark
# The contents of web/pages/icon.svg, of 32 x 32.
ICON = (
    '<rect width="32" height="32" rx="7" fill="#1f3a5f"/>'
    '<rect x="6" y="8" width="20" height="4.5" rx="1.5" fill="#ffffff"/>'
    '<rect x="6" y="14" width="13" height="4.5" rx="1.5" fill="#7fb2ff"/>'
    '<rect x="6" y="20" width="17" height="4.5" rx="1.5" fill="#f0b95a"/>'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours: text has a contrast of at least 4.5:1 with its ground (WCAG AA), parts of bars 3:1 with the track."""

    ground: str
    ink: str
    muted: str
    line: str
    track: str
    reserve: str  # of the track, beyond the usable part
    parts: tuple[str, ...]  # one for each of PART_NAMES
    tones: dict[Tone, tuple[str, str]]  # text, and the ground of it


LIGHT = Theme(
    ground="#ffffff",
    ink="#0e1b2c",
    muted="#55606e",
    line="#dbe1e8",
    track="#e9edf2",
    reserve="#f5f7fa",
    parts=("#1d5eb0", "#c96f00", "#8a4fbf", "#66727f"),
    tones={
        Tone.GOOD: ("#14602f", "#e2f4e8"),
        Tone.TIGHT: ("#7a4f00", "#fdf0d0"),
        Tone.BAD: ("#a1271f", "#fce7e5"),
    },
)
DARK = Theme(
    ground="#0e151e",
    ink="#edf2f8",
    muted="#a3b0bf",
    line="#283442",
    track="#24303d",
    reserve="#17202a",
    parts=("#69a6f5", "#e8a33d", "#bb93ea", "#97a4b2"),
    tones={
        Tone.GOOD: ("#7fdba0", "#12301e"),
        Tone.TIGHT: ("#f3c55f", "#362a0b"),
        Tone.BAD: ("#ff9f95", "#3d1815"),
    },
)
_THEMES = dict(zip(THEMES, (LIGHT, DARK), strict=True))


def read_theme(name: str) -> str:
    """Raises UsageError for an unknown name."""
    word = name.strip().lower()
    if word not in THEMES:
        raise UsageError(f"unknown theme {name[:40]!r}; choose one of {', '.join(THEMES)}")
    return word


# -- the picture ----------------------------------------------------------------------------------

_TITLE_SIZES = range(72, 29, -2)
_VALUE_SIZES = range(58, 23, -2)


def picture_svg(answer: SharedAnswer, theme: str = "light") -> str:
    """The picture. `theme`: one of THEMES."""
    colours = _THEMES[theme]
    description = escaped(answer.description)
    label = escaped(f"{answer.title}: {answer.verdict}")
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{FONTS}">',
        f"<title>{label}</title><desc>{description}</desc>",
        _box(0, 0, WIDTH, HEIGHT, fill=colours.ground),
        *_head(answer, colours),
        *_title(answer, colours),
        *_verdict(answer, colours),
        *_figures(answer.figures, colours),
        *_memories(answer.memories, colours),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _box(x: float, y: float, width: float, height: float, *, fill: str, radius: float = 0) -> str:
    rounded = f' rx="{radius:g}"' if radius else ""
    size = f'width="{width:.6g}" height="{height:g}"'
    return f'<rect x="{x:.6g}" y="{y:g}" {size}{rounded} fill="{fill}"/>'


def _head(answer: SharedAnswer, colours: Theme) -> Iterator[str]:
    """EdgeKit's icon and name at the left; engine and date at the right."""
    yield f'<g transform="translate({MARGIN} 36) scale(1.25)">{ICON}</g>'
    yield text_element("EdgeKit", MARGIN + 54, 65, 26, fill=colours.ink, most=200, bold=True)
    right = f"{shortened(answer.engine, 20, 520)} · {answer.date_words}"
    yield text_element(
        right, WIDTH - MARGIN, 64, 20, fill=colours.muted, most=INNER - 260, anchor="end"
    )


def _title(answer: SharedAnswer, colours: Theme) -> Iterator[str]:
    size = fitted_size(answer.title, INNER, _TITLE_SIZES, bold=True)
    title_y = 163 if size > 48 else 156
    yield text_element(answer.title, MARGIN, title_y, size, fill=colours.ink, most=INNER, bold=True)
    if answer.details:
        yield text_element(answer.details, MARGIN, 206, 25, fill=colours.muted, most=INNER)


def _verdict(answer: SharedAnswer, colours: Theme) -> Iterator[str]:
    """A strip with the icon, the verdict, the machine and the sentence."""
    ink, ground = colours.tones[answer.tone]
    top, left, right = 228, MARGIN + 98, MARGIN + INNER - 28
    yield _box(MARGIN, top, INNER, 112, fill=ground, radius=14)
    yield verdict_icon(answer.tone, MARGIN + 50, top + 56, ink, ground)
    size = fitted_size(answer.verdict, 400, range(30, 21, -1), bold=True)
    yield text_element(answer.verdict, left, top + 41, size, fill=ink, most=400, bold=True)
    most = right - left - min(text_width(answer.verdict, size, bold=True), 400) - 30
    size = fitted_size(answer.machine, most, range(22, 17, -1), bold=True)
    yield text_element(
        answer.machine, right, top + 41, size, fill=colours.ink, most=most, bold=True, anchor="end"
    )
    for row, line in enumerate(wrapped(answer.sentence, 22, right - left, lines=2)):
        y = top + 73 + 27 * row
        yield text_element(line, left, y, 22, fill=colours.ink, most=right - left)


def verdict_icon(tone: Tone, x: float, y: float, ink: str, ground: str) -> str:
    """A disc with a tick, an exclamation mark or a cross."""
    lines = {
        Tone.GOOD: "M-10 1 L-3 8 L10 -7",
        Tone.TIGHT: "M0 -11 L0 3 M0 10.5 L0 10.6",
        Tone.BAD: "M-8 -8 L8 8 M8 -8 L-8 8",
    }
    return (
        f'<g transform="translate({x:g} {y:g})"><circle r="24" fill="{ink}"/>'
        f'<path d="{lines[tone]}" fill="none" stroke="{ground}" stroke-width="5" stroke-linecap="round" '
        'stroke-linejoin="round"/></g>'
    )


def _figures(figures: Sequence[Figure], colours: Theme) -> Iterator[str]:
    """Columns: the label, the value in large with its unit, and a note."""
    gap = 24
    width = (INNER - gap * (len(figures) - 1)) / len(figures)
    # One size for all values, so that they look alike.
    widest = max(
        (f"{figure.value}" for figure in figures),
        key=lambda value: text_width(value, 10, bold=True),
    )
    units = max(text_width(figure.unit, 20) for figure in figures)
    size = fitted_size(widest, width - units - 10, _VALUE_SIZES, bold=True)
    for number, figure in enumerate(figures):
        x = MARGIN + number * (width + gap)
        yield text_element(figure.label, x, 380, 20, fill=colours.muted, most=width)
        yield _value(figure, x, size, width - units - 10, colours)
        if figure.note:
            yield text_element(figure.note, x, 464, 19, fill=colours.muted, most=width)


def _value(figure: Figure, x: float, size: int, most: float, colours: Theme) -> str:
    """The value in large, its unit and an "about" sign in small."""
    sign, _, number = figure.value.rpartition(" ")
    small = f'font-size="20" font-weight="400" fill="{colours.muted}"'
    lead = ""
    if sign:
        lead = f'<tspan font-size="{size * 0.62:.0f}" font-weight="400" fill="{colours.muted}">'
        lead += f"{escaped(sign)}</tspan>"
    unit = f'<tspan dx="8" {small}>{escaped(figure.unit)}</tspan>' if figure.unit else ""
    value = text_element(number, x, 434, size, fill=colours.ink, most=most, bold=True)
    if sign:
        value = value.replace(">", f'>{lead}<tspan dx="{size * 0.14:.0f}">', 1)
        return value.replace("</text>", f"</tspan>{unit}</text>")
    return value.replace("</text>", f"{unit}</text>")


def _memories(shown: Sequence[SharedMemory], colours: Theme) -> Iterator[str]:
    """One bar per memory, and below them what the colours mean."""
    if not shown:
        return
    top, pitch, height = {1: (508, 0, 30), 2: (497, 38, 22)}.get(len(shown), (491, 28, 16))
    name_width = min(max(text_width(memory.name, 19) for memory in shown), 300)
    sizes_width = max(text_width(memory.sizes, 19, bold=True) for memory in shown)
    left = MARGIN + name_width + 22
    width = WIDTH - MARGIN - sizes_width - 22 - left
    for row, memory in enumerate(shown):
        y = top + pitch * row
        text_y = y + height / 2 + 7
        yield text_element(memory.name, MARGIN, text_y, 19, fill=colours.ink, most=300)
        fill = colours.tones[Tone.BAD][0] if memory.is_too_small else colours.ink
        yield text_element(
            memory.sizes, WIDTH - MARGIN, text_y, 19, fill=fill, most=sizes_width + 1, bold=True,
            anchor="end",
        )  # fmt: skip
        yield from _bar(memory, colours, x=left, y=y, width=width, height=height)
    yield from _legend(shown, colours)


def _bar(
    memory: SharedMemory, colours: Theme, *, x: float, y: float, width: float, height: float
) -> Iterator[str]:
    """The free memory as a track, the parts of the load, and a mark at the end of the usable part."""
    whole = max(memory.required_bytes, memory.whole_bytes, memory.usable_bytes, 1)
    scale = width / whole
    usable = memory.usable_bytes * scale
    yield _box(x, y, width, height, fill=colours.reserve, radius=4)
    yield _box(x, y, usable, height, fill=colours.track, radius=4)
    colour_of = dict(zip(PART_NAMES.values(), colours.parts, strict=True))
    total = sum(size for _, size in memory.parts) or 1
    drawn = memory.required_bytes * scale
    start = x
    for number, (name, size) in enumerate(memory.parts):
        end = min(start + drawn * size / total, x + usable)  # what is too much follows in red
        part = end - start
        gap = 1.5 if number + 1 < len(memory.parts) and part > 4 else 0
        if part > 0:
            yield _box(
                start,
                y,
                max(part - gap, 0.5),
                height,
                fill=colour_of[name],
                radius=3 if part > 8 else 0,
            )
        start = end
    if memory.is_too_small:
        yield _box(x + usable, y, drawn - usable, height, fill=colours.tones[Tone.BAD][0], radius=3)
    mark = min(max(x + usable, x + 1.5), x + width - 1.5)
    yield _box(mark - 3.5, y - 6, 7, height + 12, fill=colours.ground)
    yield _box(mark - 1.5, y - 6, 3, height + 12, fill=colours.ink, radius=1.5)


def _legend(shown: Sequence[SharedMemory], colours: Theme) -> Iterator[str]:
    present = {name for memory in shown for name, _ in memory.parts}
    x: float = MARGIN
    y = 594
    for name, colour in zip(PART_NAMES.values(), colours.parts, strict=True):
        if name in present:
            yield _box(x, y - 13, 14, 14, fill=colour, radius=3)
            yield text_element(name, x + 22, y, 18, fill=colours.muted, most=160)
            x += 22 + text_width(name, 18) + 26
    if any(memory.is_too_small for memory in shown):
        yield _box(x, y - 13, 14, 14, fill=colours.tones[Tone.BAD][0], radius=3)
        yield text_element(TOO_MUCH, x + 22, y, 18, fill=colours.muted, most=160)
        x += 22 + text_width(TOO_MUCH, 18) + 26
    yield _box(x + 5, y - 16, 3, 20, fill=colours.ink, radius=1.5)
    yield text_element("usable", x + 20, y, 18, fill=colours.muted, most=160)


# -- the badge ------------------------------------------------------------------------------------

_BADGE_HEIGHT, _BADGE_SIZE, _BADGE_PADDING = 20, 11, 7
_MOST_BADGE_WIDTH = 420  # pixels of the right half
_BADGE_NAME = "EdgeKit"
_BADGE_GROUNDS = {Tone.GOOD: "#1b7a3d", Tone.TIGHT: "#8f5b00", Tone.BAD: "#b3332a"}
_BADGE_ERROR = "#5f6872"


def badge_svg(answer: SharedAnswer) -> str:
    """'EdgeKit | RTX 4090: fits, 42 tokens/s', like the badges of shields.io."""
    speed = next((figure for figure in answer.figures if figure.label == "Speed"), None)
    words = answer.short_verdict
    if speed is not None and speed.note != "not known":
        words += f" · {speed.value.removeprefix('≈ ')} {speed.unit}"
    machine = shortened(
        answer.hardware, _BADGE_SIZE, _MOST_BADGE_WIDTH - text_width(f": {words}", _BADGE_SIZE)
    )
    title = f"{_BADGE_NAME}: {answer.title} on {answer.machine}: {words}"
    return _badge(f"{machine}: {words}", _BADGE_GROUNDS[answer.tone], title)


def error_badge_svg(message: str) -> str:
    """A grey badge with the message."""
    message = one_line(message, 500)
    text = shortened(message, _BADGE_SIZE, _MOST_BADGE_WIDTH)
    return _badge(text, _BADGE_ERROR, f"{_BADGE_NAME}: {message}")


def _badge(text: str, ground: str, title: str) -> str:
    widths = [
        round(text_width(words, _BADGE_SIZE) + 2 * _BADGE_PADDING) for words in (_BADGE_NAME, text)
    ]
    left, whole = widths[0], sum(widths)
    description = escaped(title)
    texts = [
        f'<text x="{x + _BADGE_PADDING}" y="14" textLength="{width - 2 * _BADGE_PADDING}">{escaped(words)}</text>'
        for x, width, words in ((0, left, _BADGE_NAME), (left, widths[1], text))
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="{_BADGE_HEIGHT}" role="img" '
        f'aria-label="{description}"><title>{description}</title>'
        f'<rect width="{whole}" height="{_BADGE_HEIGHT}" rx="3" fill="{ground}"/>'
        f'<path d="M3 0H{left}V{_BADGE_HEIGHT}H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#1f3a5f"/>'
        '<g fill="#ffffff" font-family="Verdana, \'DejaVu Sans\', Geneva, sans-serif" '
        f'font-size="{_BADGE_SIZE}">{"".join(texts)}</g></svg>\n'
    )
