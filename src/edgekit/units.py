"""Sizes, counts and tokens as text, and back; and how a number is known."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Sequence

from edgekit.errors import UsageError


class Basis(enum.Enum):
    """How a number is known. Every figure in an answer has one of these."""

    EXACT = "exact"  # read from the file, or computed by a rule that is tested to the byte
    ASKED = "asked"  # the engine's own figure, from a dry run on this machine
    MODELLED = "modelled"  # a rule with a stated error
    ASSUMED = "assumed"  # a documented guess


KIB = 1024
MB = 10**6
MIB = 1024**2
GIB = 1024**3

# The units of sizes, of downloads and of counts, the largest first.
_SIZES = ((1024**4, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
_DOWNLOADS = ((10**9, "GB"), (MB, "MB"), (10**3, "kB"))
_COUNTS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


def format_bytes(size_bytes: int) -> str:
    """4703649792 -> '4.38 GiB'. Binary units with their names."""
    return _in_units(size_bytes, _SIZES, decimals=2) or f"{size_bytes} B"


def format_download(size_bytes: int) -> str:
    """5027783488 -> '5.0 GB'. Decimal units, as hub pages and browsers show them."""
    return _in_units(size_bytes, _DOWNLOADS, decimals=1) or f"{size_bytes} B"


def format_count(count: int) -> str:
    """8030261312 -> '8.03 B'. Decimal units, for parameters."""
    return _in_units(count, _COUNTS, decimals=2) or str(count)


def _in_units(number: int, units: Sequence[tuple[int, str]], *, decimals: int) -> str:
    """The number in the largest unit that it reaches; '' if it is smaller than all of them."""
    for unit, name in units:
        if number >= unit:
            return f"{number / unit:.{decimals}f} {name}"
    return ""


_COUNT = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?\s*([kmbt])", re.IGNORECASE)


def parse_count(text: str) -> int:
    """'7B', '1.5b', '500M' -> a number of parameters. Decimal units. Raises UsageError."""
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text[:40]!r} is not a number of parameters such as 7B or 500M")
    zeros = 3 * ("kmbt".index(match[3].lower()) + 1)
    return int(match[1] + (match[2] or "").ljust(zeros, "0")[:zeros])


def short_count(count: int) -> str:
    """8030261312 -> '8.0B', 30532122624 -> '31B': as people name models."""
    steps = ((step, name) for step, name in _COUNTS[:3] if count >= step * 0.995)
    step, unit = next(steps, (1, ""))
    number = count / step
    return f"{number:.1f}{unit}" if unit and number < 9.95 else f"{number:.0f}{unit}"


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b?)", re.IGNORECASE)
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d|,)")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
LARGEST = 2**62  # larger than any file, memory or context


def parse_size(text: str) -> int:
    """'24G', '24 GiB', '1.5g' -> bytes. Every unit is binary, as in the reports."""
    return _parsed(text, "a size (write for example 24G or 512M)")[0]


def parse_tokens(text: str, *, example: str = "8 or 32k") -> int:
    """'32k' -> 32768, '1.5k' -> 1536, '4096' -> 4096. k is 1024, because context lengths are powers of two."""
    expected = f"a whole number (write for example {example})"
    number, is_whole = _parsed(text, expected)
    if not is_whole:
        raise UsageError(f"{text[:40]!r} is not {expected}")
    return number


def _parsed(text: str, expected: str) -> tuple[int, bool]:
    """The number rounded down, and whether it was whole."""
    plain = text.strip().replace("_", "")
    if _GROUPED.match(plain):  # 131,072, but not 1,5G, where the comma is ambiguous
        plain = plain.replace(",", "")
    match = _SIZE.fullmatch(plain)
    if match is None and _SIZE.fullmatch(plain.removeprefix("-")):
        raise UsageError(f"must not be negative (got {text[:40]})")
    if match is None or len(text) > 40:
        raise UsageError(f"{text[:40]!r} is not {expected}")
    before, _, after = match[1].partition(".")
    scaled = int(before + after) * KIB ** _POWERS[match[2].lower()]
    number, rest = divmod(scaled, 10 ** len(after))
    if number > LARGEST:
        raise UsageError(f"{text[:40]!r} is too large")
    return number, rest == 0


MIN_TOKENS_PER_S = 0.05  # a lower speed is shown as "less than 0.1"


def about_rate(tokens_per_s: float) -> str:
    """'about 38 tokens/s'."""
    figure = rate_figure(tokens_per_s)
    return f"{figure if figure.startswith('less') else f'about {figure}'} tokens/s"


def rate_figure(tokens_per_s: float | None) -> str:
    """'38', '1,200', 'less than 0.1', '?': without a unit, for a column of a table."""
    if tokens_per_s is None:
        return "?"
    return "less than 0.1" if tokens_per_s < MIN_TOKENS_PER_S else two_digits(tokens_per_s)


def two_digits(figure: float) -> str:
    """Two significant digits, one below 1: '1,200', '35', '3.5', '0.4'."""
    if figure < 0.95:  # 0.95 rounds to 1.0, which has two significant digits
        return f"{figure:.1f}"
    rounded = round(figure, 1 - math.floor(math.log10(figure)))
    return f"{rounded:,.1f}" if rounded < 10 else f"{rounded:,.0f}"


def min_speed_words(tokens_per_s: float) -> str:
    """'20', '7.5', '1,000', as it was requested."""
    return f"{tokens_per_s:,.10g}"
