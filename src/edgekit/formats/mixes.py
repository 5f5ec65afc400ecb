"""Named quantisation mixes: the average bits per weight of "Q4_K_M" or general.file_type 15.

Use it only if nothing but a name is known: a mix gives some tensors more bits than others, so the average depends on
the model. With a tensor directory, add up the tensors instead. To add a mix, add a record to mixes.json: its number in
a GGUF, its average or the tensor type whose layout it has, and how the quantising engine chooses the types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from edgekit.formats.dtype import by_name
from edgekit.formats.records import Record, damaged, load_records
from edgekit.formats.types import Value
from edgekit.sources.quants import SHORT_MIXES, canonical

_GUESSED = 1024  # LLAMA_FTYPE_GUESSED: set by tools that inferred the type


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    name: str
    file_type: int
    bits_per_weight: float


# Size over that of the mix like it, of all dynamic quantisations measured: for those of which no file was.
_UNMEASURED = (0.91, 1.1, 1.46)
_OF_RELEASED = (0.98, 1.0, 1.09)  # of gpt-oss-safeguard-20b, over the MXFP4 it was released in


class DynamicMix(NamedTuple):
    """A quantisation chosen tensor by tensor, as Unsloth publishes them: its size follows from a mix like it."""

    name: str  # "UD-Q4_K_XL"
    like: str  # "Q4_K_M"
    least: float  # its size over that of `like`
    usual: float
    most: float

    @property
    def because(self) -> str:
        usual = "" if self.usual == 1 else f"{self.usual:.2f} times "
        is_measured = (self.least, self.usual, self.most) != _UNMEASURED
        files = "the files measured are" if is_measured else "other dynamic quantisations are"
        return (
            f"{self.name} is assumed to be {usual}as large as {self.like}; {files} {self.least:.2f} to "
            f"{self.most:.2f} times as large"
        )


@cache
def mix_records() -> tuple[Record, ...]:
    return load_records("edgekit.formats", "mixes.json")


@cache
def _dynamic_mixes() -> Mapping[str, DynamicMix]:
    records = load_records("edgekit.formats", "mixes.json", "dynamic")
    return {
        record["name"]: DynamicMix(record["name"], record["like"], *record["ratio"])
        for record in records
    }


def dynamic_mix(name: str, released_mix: str = "") -> DynamicMix | None:
    """The dynamic quantisation of this name: UD-Q4_K_XL, also Q4_K_XL; None if its size is not known.

    `released_mix`: the mix that the publisher released the model in, as gpt-oss in MXFP4: dynamic quantisations change
    little of it.
    """
    name = canonical(name)
    if name.endswith("_XL") and not name.startswith("UD-"):
        name = f"UD-{name}"
    dynamic = _dynamic_mixes().get(name)
    if dynamic is None and name.startswith("UD-") and mix_by_name(name[3:]) is not None:
        dynamic = DynamicMix(name, name[3:], *_UNMEASURED)
    if dynamic is None or not released_mix:
        return dynamic
    return DynamicMix(name, released_mix, *_OF_RELEASED)


def plain_mix(name: str) -> str:
    """The mix whose tensors stand in for those of a dynamic quantisation; any other name as it is."""
    dynamic = dynamic_mix(name)
    return name if dynamic is None else dynamic.like


@cache
def all_mixes() -> tuple[Mix, ...]:
    """Every mix in mixes.json. The average of a mix without a stated one is that of its tensor type."""
    try:
        return tuple(
            Mix(
                name=record["name"],
                file_type=record["file_type"],
                bits_per_weight=record.get("bits_per_weight")
                or by_name(record.get("layout_of", record["name"])).bits_per_weight,
            )
            for record in mix_records()
        )
    except KeyError as error:
        raise damaged(f"mixes.json: no {error}") from error


def mix_by_name(name: str) -> Mix | None:
    """The mix of this name; None if there is none: the name may still be a tensor type."""
    name = name.upper()
    full_name = SHORT_MIXES.get(name, name)
    return next((mix for mix in all_mixes() if mix.name == full_name), None)


def stated_mix(keys: Mapping[str, Value]) -> str | None:
    """The name of the mix in `general.file_type`; None if the number is missing or unknown."""
    number = keys.get("general.file_type")
    file_type = number & ~_GUESSED if isinstance(number, int) else None
    return next((mix.name for mix in all_mixes() if mix.file_type == file_type), None)
