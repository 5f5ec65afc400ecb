"""--device, --ram and --vram -> the machine to judge; the one at hand where none is given."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.machine.types import Machine

DEVICE_FORMS = """\
--device takes the name of a GPU, Mac, board or phone: "RTX 4090", h100, m3-max-64, phone-8; 2x "RTX 3090" for two
(edgekit hardware --devices lists them). SIZES are binary: 24G, 24 GB and 24GiB are the same.
"""
_FLAGS = ("--device", "--gpu")
_COUNT = re.compile("[0-9]+[xX*\N{MULTIPLICATION SIGN}]")


def add_device_options(parser: argparse.ArgumentParser, *, ram: bool = True) -> None:
    """`ram`: whether the answer depends on it."""
    group = parser.add_argument_group("another machine instead of this one")
    group.add_argument(
        "--device",
        "--gpu",
        metavar="NAME",
        action="append",
        default=[],
        help='GPU, Mac, board or phone by name: "RTX 4090", "2x RTX 3090", m3-max-64; repeat it for several',
    )
    if ram:
        group.add_argument("--ram", metavar="SIZE", help="system RAM of that machine: 32G")
    group.add_argument(
        "--vram", metavar="SIZES", help="memory of each NVIDIA GPU, instead of a name: 24G,24G"
    )


def machine_of_arguments(arguments: argparse.Namespace) -> Machine:
    """Raises UsageError for a name or a size that means nothing."""
    from edgekit.machine import this_or_wished

    return this_or_wished(devices=tuple(arguments.device), ram=arguments.ram, vram=arguments.vram)


def join_counts(argv: Sequence[str]) -> list[str]:
    """`--device 2x "RTX 3090"` -> `--device "2x RTX 3090"`: people quote the name, not the count."""
    words: list[str] = []
    ended = False  # by --: what follows is not an option
    for word in argv:
        ended = ended or word == "--"
        if not ended and _is_open_count(words) and not word.startswith("-"):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


def _is_open_count(words: list[str]) -> bool:
    """Whether they end with a --device that has only a count so far."""
    flag, equals, count = words[-1].partition("=") if words else ("", "", "")
    if flag in _FLAGS and equals:
        return bool(_COUNT.fullmatch(count))
    return len(words) > 1 and words[-2] in _FLAGS and bool(_COUNT.fullmatch(words[-1]))
