"""The name of a model -> what it says: parameters, experts, bits. For when there is nothing else to read."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgekit.errors import UsageError
from edgekit.formats.mixes import mix_by_name
from edgekit.formats.quantization import effective_bits
from edgekit.sources.naming import base_of, quant_tag

MAX_NAME_CHARS = 400  # hub names end at 96, file names at 255
MAX_PARAMETERS = 10**14  # a hundred times the largest public model

_UNITS = {"M": 10**6, "B": 10**9, "T": 10**12}
# "7B", "1.5b", "270M", "1T", "8x7B", "7b1" for 7.1; an A before it counts the active ones, an E the effective.
_SIZE = re.compile(
    r"(?:^|(?<=[^A-Za-z0-9.]))(?P<mark>[AE]?)(?:(?P<experts>\d{1,3})x)?"
    r"(?P<whole>\d{1,4})(?:[.](?P<part>\d{1,3}))?(?P<unit>[MBT])(?P<tail>\d?)(?=$|[^A-Za-z0-9])",
    re.IGNORECASE | re.ASCII,
)
# "17B-16E": so many for a token, of sixteen experts whose size is not said.
_EXPERT_COUNT = re.compile(r"\dB[-_ ]\d{1,4}E(?=$|[-_. ])", re.IGNORECASE | re.ASCII)
_MOE = re.compile(r"moe|mixtral", re.IGNORECASE)
_MLX_BITS = re.compile(r"(?:^|(?<=[-_. ]))([2-8])[-_ ]?bit(?=$|[-_. ])", re.IGNORECASE | re.ASCII)
# Packed weights beside embeddings at full width: a name does not say how many of each.
_OPAQUE = re.compile(
    r"(?:^|(?<=[-_. ]))(AWQ|GPTQ|FP8|INT[48]|W[48]A\d+|EXL[23]|BNB|HQQ|AQLM|QAT)(?=$|[-_. ])",
    re.IGNORECASE,
)
_SMALLEST = 10**7  # "-1M" at the end of a name is a window of a million tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    name: str
    parameters: int
    size: str  # as the name writes it: "30B"
    has_experts: bool
    mix: str | None  # "Q4_K_M", "4bit"; None: the name does not say
    bits_per_weight: float | None


def read_name(reference: str) -> NamedModel:
    """UsageError, saying what to do, when the name does not state a size."""
    name, _, tag = base_of(reference[:MAX_NAME_CHARS]).partition(":")
    sizes = [found for found in _SIZE.finditer(name) if _count(found) >= _SMALLEST]
    whole = [found for found in sizes if not found["mark"]]
    if not whole:
        raise UsageError(_no_size(reference, [found[0] for found in sizes]))
    if _EXPERT_COUNT.search(name):
        raise UsageError(_no_size(reference, [found[0] for found in whole]))
    largest = max(whole, key=_count)
    routed = len(sizes) > len(whole) or largest["experts"] is not None or bool(_MOE.search(name))
    mix, bits = _bits(name, tag)
    return NamedModel(
        name=name,
        parameters=_count(largest),
        size=largest[0],
        has_experts=routed,
        mix=mix,
        bits_per_weight=bits,
    )


def bits_of(mix: str) -> float:
    """Of a named mix ("Q4_K_M") or of MLX's "4bit". UsageError for anything else."""
    found = mix_by_name(mix)
    if found is not None:
        return found.bits_per_weight
    if (plain := _MLX_BITS.fullmatch(mix)) is not None:
        return effective_bits(int(plain[1]), 64)
    raise UsageError(
        f"unknown quantisation {mix[:40]!r}: its bits per weight are not in formats/mixes.py"
    )


def _count(found: re.Match[str]) -> int:
    """8x7B is taken as 56B: what experts share is counted for each, so it is never too low."""
    part = found["part"] or found["tail"]
    number: int = (
        int(found["whole"] + part) * _UNITS[found["unit"].upper()] // 10 ** len(part or "")
    )
    return number * int(found["experts"] or 1)


def _bits(name: str, tag: str) -> tuple[str | None, float | None]:
    for part in (tag, name):
        if (mix := quant_tag(part)) is not None:
            return mix, bits_of(mix)
        if (found := _MLX_BITS.search(part)) is not None:
            return f"{found[1]}bit", effective_bits(int(found[1]), 64)
        if (opaque := _OPAQUE.search(part)) is not None:
            raise UsageError(
                f"{opaque[1]} quantises only some of the weights, and a name does not say "
                "how many. Give the model's files or its config.json"
            )
    return None, None


def _no_size(reference: str, partial: list[str]) -> str:
    told = f" ({', '.join(partial)} counts only some of them)" if partial else ""
    return (
        f"{reference[:80]!r} does not state the number of parameters{told}: give the "
        "model's files, its config.json, or a name with its size, such as Qwen3-8B-Q4_K_M"
    )
