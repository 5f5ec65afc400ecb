"""Reads architectures.json, with one record per architecture: the arrangement of its layers and everything else.

To add an architecture, add a record. It has its names in files ("gguf": general.architecture, "config": model_type of
config.json), and only what differs from a plain transformer with full attention:

  like            the name of another record, whose layers, constants and tensors apply if this one has none
  layers          fields of `Architecture`; a rule is the name of a function in layers.py or mixers.py.
                  null: no rules yet, read like an unknown architecture
  gguf_layers     changes of `layers` in a GGUF, where llama.cpp's loader has its own rule
  constants       hyper-parameters that no config.json states; gguf_constants: that no GGUF states
  tensors         fields of `TensorRecipe`; gguf_tensors: used instead for the GGUF name
  library         transformers' defaults for keys missing in config.json, written by tools/architectures.py
  tied_by_default the output head is the embedding, unless config.json says otherwise
  not_a_language_model  a message that says what it is instead

Every other section belongs to an engine and is read in that engine's folder. "sources" in the file gives the source of
each section.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from inspect import signature

from edgekit.formats.records import Made, Reader, Record, damaged, load_records, read_fields
from edgekit.model import layers, mixers
from edgekit.model.layers import Arrangement, PairRule, RoundsRule, WidthRule
from edgekit.model.mixers import AttentionBuilder, RecurrentBuilder

FILE = "architectures.json"
INHERITED = (
    "layers", "gguf_layers", "constants", "gguf_constants", "tensors", "gguf_tensors",
)  # fmt: skip
# Every config.json states these: a default applies only if the config is a section of a larger one.
STATED = frozenset({"layers", "hidden", "heads", "feed_forward", "vocabulary", "context"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The rules for the layers of an architecture, and the defaults of its hyper-parameters."""

    arrange: Arrangement = layers.uniform
    attend: AttentionBuilder = mixers.standard
    recur: RecurrentBuilder | None = None
    gated: bool = True  # a feed-forward has three matrices, not two
    dense_and_experts: bool = False  # a layer has experts and a dense feed-forward
    alternating: bool = False  # a layer is either a mixer or a feed-forward
    feeds_with_attention: bool = False  # only layers with attention have a feed-forward
    rounds: RoundsRule = layers.stated_rounds
    width: WidthRule = layers.stated_width  # for a feed-forward width missing in the file
    adjust: PairRule = layers.as_stated  # for a stated width that means something else
    sublayers: int = 1  # attention blocks per layer as the file counts layers
    cache_owners: int = 0  # only the first N layers own a cache; 0: as stated
    context_is_scaled: bool = False  # the stated context already includes rope scaling
    unused_positions: int = 0  # RoBERTa counts positions from the padding id + 1
    constants: Mapping[str, object] = field(default_factory=dict)
    library: Mapping[str, object] = field(default_factory=dict)
    tied_by_default: bool = False

    def defaults(self, *, nested: bool) -> Mapping[str, object]:
        """Default hyper-parameters, by our names, for keys missing in the file.

        `nested`: the config is a section of a larger one, which may omit even the keys in STATED.
        """
        library = self.library
        if not nested:
            library = {name: value for name, value in library.items() if name not in STATED}
        return {**library, **self.constants}


@lru_cache(maxsize=256)
def architecture_of(name: str, *, gguf: bool) -> Architecture | None:
    """The architecture with this name in a GGUF or in a config.json; None if there are no rules for its layers."""
    if name not in names(gguf=gguf):
        return None
    record = whole_record(name, gguf=gguf)
    section: dict[str, object] = {**record.get("layers", {})}
    if gguf:
        section |= record.get("gguf_layers", {})
        section["constants"] = record.get("gguf_constants", {})
    else:
        section |= {part: record[part] for part in ("constants", "library") if part in record}
        section["tied_by_default"] = record.get("tied_by_default", False)
    return read_section(Architecture, section, RULES, where=name)


@cache
def names(*, gguf: bool) -> frozenset[str]:
    """The names of all architectures with rules for their layers."""
    return frozenset(
        name
        for record in records()
        if record.get("layers", ()) is not None and "not_a_language_model" not in record
        for name in record.get("gguf" if gguf else "config", ())
    )


# An unknown name with standard keys: windows and latents as the file states them, no recurrence.
STANDARD = Architecture(arrange=layers.stated_windows, attend=mixers.latent)


# -- the rules that records name --------------------------------------------------------------


def _arrangement(stated: Record) -> Arrangement:
    """The rule with its arguments: {"rule": "windows", "period": 4}."""
    arguments = {**stated}
    rule = vars(layers)[arguments.pop("rule")]
    by_kv_heads = arguments.pop("by_kv_heads", False)
    signature(rule).bind(None, 0, **arguments)  # raises TypeError for a wrong argument
    arrange = partial(rule, **arguments)
    return partial(layers.by_kv_heads, fallback=arrange) if by_kv_heads else arrange


RULES: Mapping[str, Reader] = {
    "Arrangement": _arrangement,
    "AttentionBuilder": vars(mixers).__getitem__,
    "RecurrentBuilder | None": vars(mixers).__getitem__,
    "WidthRule": vars(layers).__getitem__,
    "PairRule": vars(layers).__getitem__,
    "RoundsRule": vars(layers).__getitem__,
}


# -- the file ---------------------------------------------------------------------------------


@cache
def records() -> tuple[Record, ...]:
    """All records of architectures.json."""
    return load_records("edgekit.model", FILE)


@cache
def section_by_name(part: str, formats: tuple[str, ...] = ("config", "gguf")) -> Record:
    """Name -> this section, for every record that has it."""
    sections: dict[str, object] = {}
    for record in records():
        if record.get(part) is not None:
            for file_format in formats:
                for name in record.get(file_format, ()):
                    sections.setdefault(name, record[part])
    return sections


@cache
def _records_by_name(*, gguf: bool) -> Mapping[str, Record]:
    """Architecture name in a GGUF or in a config.json -> its record."""
    return {
        name: record
        for record in records()
        for name in record.get("gguf" if gguf else "config", ())
    }


def whole_record(name: str, *, gguf: bool) -> Record:
    """The record of that name, with sections inherited from the record that its `like` names."""
    record = _records_by_name(gguf=gguf)[name]
    if (like := record.get("like")) is None:
        return record
    other = _records_by_name(gguf=False).get(like) or _records_by_name(gguf=True).get(like)
    if other is None:
        raise damaged(f"{FILE}, {name}: no record is called {like!r}")
    return {**{part: other[part] for part in INHERITED if part in other}, **record}


def read_section(
    made: type[Made], section: Mapping[str, object], readers: Mapping[str, Reader], *, where: str
) -> Made:
    """Reads a section of a record as a dataclass. `where`: the record's name, for messages."""
    return read_fields(made, section, readers, where=f"{FILE}, {where}")
