"""Text of an SVG picture that fits: its width is known without the font, and names that are too long are shortened.

An SVG does not break or shorten text, and its reader may have another font. The widths are those of DejaVu Sans, the
widest of the fonts that browsers use for "sans-serif", so that text measured here fits with Arial, Segoe UI, Roboto
and San Francisco too.
"""

from __future__ import annotations

import re
import unicodedata
from html import escape

from edgekit.errors import printable

FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
MOST_CHARS = 400  # of a text in one line; more do not fit at any font size
_QUANTITY = re.compile(r"[0-9.,]+ of [0-9.,]+ [GM]iB|[0-9.,]+ (?:[GM]iB|tokens/s)")  # is not split
_GLUE = "\x00"
MOST_SENTENCE = 1000
MIN_SHORTENED = 6  # characters of a shortened name
# Advance widths of the ASCII characters from the space on, in thousandths of the font size.
_REGULAR = (
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636,
    636, 636, 636, 636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698,
    770, 632, 575, 775, 752, 295, 295, 656, 557, 863, 748, 787, 603, 787, 695, 635, 611, 732,
    684, 989, 685, 611, 685, 390, 337, 390, 838, 500, 500, 613, 635, 550, 635, 615, 352, 635,
    634, 278, 278, 579, 278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818, 592, 592,
    525, 636, 337, 636, 838,
)  # fmt: skip
_BOLD = (
    348, 456, 521, 838, 696, 1002, 872, 306, 457, 457, 523, 838, 380, 415, 380, 365, 696, 696,
    696, 696, 696, 696, 696, 696, 696, 696, 400, 400, 838, 838, 838, 580, 1000, 774, 762, 734,
    830, 683, 683, 821, 837, 372, 372, 775, 637, 995, 837, 850, 733, 850, 770, 720, 682, 812,
    774, 1103, 771, 724, 725, 457, 365, 457, 838, 500, 500, 675, 716, 593, 716, 678, 435, 716,
    712, 343, 343, 665, 343, 1042, 712, 687, 716, 716, 493, 595, 478, 712, 652, 924, 645, 652,
    582, 712, 365, 712, 838,
)  # fmt: skip
# (regular, bold) of other characters that our texts have.
_OTHERS = {
    "\N{MIDDLE DOT}": (318, 380),
    "\N{ALMOST EQUAL TO}": (838, 838),
    "\N{EN DASH}": (500, 500),
    "\N{MULTIPLICATION SIGN}": (838, 838),
    "\N{REPLACEMENT CHARACTER}": (1025, 1113),
    ELLIPSIS: (1000, 1000),
}
_WIDE = 1000  # Chinese, Japanese and Korean characters
_UNKNOWN = (780, 880)  # Greek, Cyrillic, Arabic ...: most letters are narrower


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """The width in pixels at this font size, at most."""
    return sum(_advance(char, bold=bold) for char in text) * size / 1000


def _advance(char: str, *, bold: bool) -> int:
    if not char.isprintable():  # is replaced
        char = "\N{REPLACEMENT CHARACTER}"
    if char in _OTHERS:
        return _OTHERS[char][bold]
    if unicodedata.combining(char):
        return 0
    if unicodedata.east_asian_width(char) in "WF":
        return _WIDE
    letter = unicodedata.normalize("NFD", char)[0]  # an accent does not change the width
    return (
        (_BOLD if bold else _REGULAR)[ord(letter) - 32] if " " <= letter <= "~" else _UNKNOWN[bold]
    )


def is_measured(text: str) -> bool:
    """Whether the widths of all characters are known, not only assumed."""
    letters = (
        char for char in unicodedata.normalize("NFD", text) if not unicodedata.combining(char)
    )
    return all(
        " " <= char <= "~" or char in _OTHERS or unicodedata.east_asian_width(char) in "WF"
        for char in letters
    )


def escaped(text: str) -> str:
    """For an element or an attribute, without what XML does not allow."""
    return escape(printable(text))


def shortened(text: str, size: float, most: float, *, bold: bool = False) -> str:
    """The text, without its middle if it is wider than `most` pixels: names differ at both ends."""
    if len(text) > MOST_CHARS:
        text = f"{text[: MOST_CHARS // 2]}{text[-MOST_CHARS // 2 :]}"
    elif text_width(text, size, bold=bold) <= most:
        return text
    for length in range(len(text) - 1, MIN_SHORTENED, -1):
        head = -(-length // 2)
        short = text[:head].rstrip() + ELLIPSIS + text[len(text) - (length - head) :].lstrip()
        if text_width(short, size, bold=bold) <= most:
            return short
    return ELLIPSIS


def fitted_size(text: str, most: float, sizes: range, *, bold: bool = False) -> int:
    """The largest of the font sizes at which the text fits; the smallest if it fits at none."""
    fitting = (size for size in sizes if text_width(text, size, bold=bold) <= most)
    return next(fitting, sizes[-1])


def wrapped(text: str, size: float, most: float, *, lines: int) -> list[str]:
    """The text in at most `lines` lines of similar widths; the last ends with an ellipsis if there is more."""
    rows = _rows(text, size, most)
    if len(rows) > lines:
        last = rows[lines - 1]
        while last and text_width(last + ELLIPSIS, size) > most:
            last = last.rpartition(" ")[0]
        return [*rows[: lines - 1], last + ELLIPSIS]
    narrowest = most
    while len(rows) > 1 and narrowest > most / len(rows):
        narrowest -= size
        balanced = _rows(text, size, narrowest)
        if len(balanced) > len(rows):
            break
        rows = balanced
    return rows


def _rows(text: str, size: float, most: float) -> list[str]:
    """Rows with as many words as fit."""
    rows: list[str] = []
    whole = _QUANTITY.sub(lambda match: match[0].replace(" ", _GLUE), text[:MOST_SENTENCE])
    for glued in whole.split():
        word = glued.replace(_GLUE, " ")
        longer = f"{rows[-1]} {word}" if rows else word
        if rows and text_width(longer, size) <= most:
            rows[-1] = longer
        else:
            rows.append(shortened(word, size, most))
    return rows or [""]


def text_element(
    text: str,
    x: float,
    y: float,
    size: float,
    *,
    fill: str,
    most: float,
    bold: bool = False,
    anchor: str = "start",
) -> str:
    """A <text> of at most `most` pixels, escaped; '' for an empty text.

    Where the width of a character is only assumed, the browser is told the width (textLength), so that the text fits
    with any font.
    """
    text = shortened(printable(text), size, most, bold=bold)
    if not text:
        return ""
    attributes = f'x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill}"'
    if bold:
        attributes += ' font-weight="700"'
    if anchor != "start":
        attributes += f' text-anchor="{anchor}"'
    if not is_measured(text):
        width = text_width(text, size, bold=bold)
        attributes += f' textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f"<text {attributes}>{escaped(text)}</text>"
