"""Catalog entries as lines of JSON. Every value is checked on reading, because the file may have been edited."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from edgekit.catalog.types import Entry, MeasuredSpeed, ModelPurpose, Size, Source
from edgekit.errors import HeaderError
from edgekit.units import Basis

T = TypeVar("T")

MAX_RECORD_CHARS = 1_048_576  # the longest packaged line has about 9,000
MAX_TEXT_CHARS = 4_096  # a path or an address; sources are sentences
MAX_ID_CHARS = 200
MAX_ITEMS = 4_096  # keys, runs of tensors, sizes: about 100 in a packaged entry
MAX_NUMBER = 2**63 - 1
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+@-]*")
# A line of tensor_runs.py. Numbers of up to 12 digits: the largest tensor has 10^10 elements.
RUN = re.compile(
    r"[!-~]{1,256} [0-9]{1,12}(?:x[0-9]{1,12}){0,3} [A-Z][A-Z0-9_]{0,15}"
    r"(?: [0-9]{1,4}(?:-[0-9]{1,4})?(?:,[0-9]{1,4}(?:-[0-9]{1,4})?)*)?"
)
_BASES = {basis.value: basis for basis in Basis}


def is_id(text: str) -> bool:
    """Letters, digits and . _ : + @ -, so that it can be typed without quotes."""
    return len(text) <= MAX_ID_CHARS and _ID.fullmatch(text) is not None


def record_of(entry: Entry) -> str:
    """One line, without values that are None or empty."""
    facts_of: dict[Source, list[str]] = {}  # a source may have several facts
    for fact, source in entry.sources.items():
        facts_of.setdefault(source, []).append(fact)
    raw: dict[str, Any] = {
        "id": entry.id,
        "repository": entry.repository,
        "family": entry.family,
        "architecture": entry.architecture,
        "parameters": entry.parameters,
        "active_parameters": entry.active_parameters,
        "native_context": entry.native_context,
        "vocabulary": entry.vocabulary,
        "kinds": [kind.value for kind in entry.kinds],
        "licence": entry.licence,
        "released": entry.released,
        "not_before": entry.not_before,
        "reference": entry.reference,
        "sizes": {size.mix: [size.tensor_bytes, size.basis.value] for size in entry.sizes},
        "speeds": [
            [speed.device, speed.tokens_per_s, speed.setting, speed.source]
            for speed in entry.speeds
        ],
        "keys": dict(entry.keys),
        "tensors": list(entry.tensors),
        "config": dict(entry.config),
        "sources": [[source.text, source.basis.value, facts] for source, facts in facts_of.items()],
    }
    filled = {name: value for name, value in raw.items() if value not in (None, "", [], {})}
    try:
        return json.dumps(filled, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError as error:  # infinity, or not a number
        raise HeaderError(f"a header value is not a number: {error}", file=entry.id) from error


def read_record(line: object, *, where: str) -> Entry:
    """The entry of a line. Raises HeaderError with what is wrong with it."""
    try:
        return _entry(_object(_json_value(line)))
    except (ValueError, TypeError) as error:
        raise HeaderError(str(error), file=where) from error


def _json_value(line: object) -> object:
    if not isinstance(line, str):
        raise TypeError(f"expected a line of JSON, found a {type(line).__name__}")
    if len(line) > MAX_RECORD_CHARS:
        raise ValueError(f"{len(line):,} characters; the limit is {MAX_RECORD_CHARS:,}")
    try:
        return json.loads(line, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos:,}") from error


def _no_number(word: str) -> object:
    raise ValueError(f"{word} is not a number")


def _entry(raw: Mapping[str, Any]) -> Entry:
    name = _at(raw, "id", _id)
    keys = _at(raw, "keys", _keys, MappingProxyType({}))
    config = _at(raw, "config", _config, MappingProxyType({}))
    if not keys and not config:
        raise ValueError("neither keys nor config: the model cannot be rebuilt from this")
    return Entry(
        id=name,
        repository=_at(raw, "repository", _text, None),
        family=_at(raw, "family", _text),
        architecture=_at(raw, "architecture", _text),
        parameters=_at(raw, "parameters", _whole, None),
        active_parameters=_at(raw, "active_parameters", _whole, None),
        native_context=_at(raw, "native_context", _whole, None),
        vocabulary=_at(raw, "vocabulary", _whole, None),
        kinds=_at(raw, "kinds", _kinds, ()),
        licence=_at(raw, "licence", _text, None),
        released=_at(raw, "released", _text, None),
        not_before=_at(raw, "not_before", _text, None),
        reference=_at(raw, "reference", _text, ""),
        sizes=_at(raw, "sizes", _sizes, ()),
        speeds=_at(raw, "speeds", _speeds, ()),
        keys=keys,
        tensors=_at(raw, "tensors", _tensor_runs, ()),
        config=config,
        sources=_at(raw, "sources", _sources, MappingProxyType({})),
    )


_MUST: Any = object()


def _at(raw: Mapping[str, Any], name: str, read: Callable[[Any], T], default: Any = _MUST) -> T:
    value = raw.get(name)
    if value is None and default is not _MUST:
        missing: T = default
        return missing
    try:
        return read(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}: {error}") from error


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found a {type(value).__name__}")
    if len(value) > MAX_ITEMS:
        raise ValueError(f"{len(value):,} items; the limit is {MAX_ITEMS:,}")
    return value


def _list(value: Any, lengths: tuple[int, ...] = ()) -> list[Any]:
    if not isinstance(value, list) or (lengths and len(value) not in lengths):
        raise ValueError(f"{value!r:.60} is not a list")
    if len(value) > MAX_ITEMS:
        raise ValueError(f"{len(value):,} items; the limit is {MAX_ITEMS:,}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > MAX_TEXT_CHARS:
        raise ValueError(f"{value!r:.60} is not a string of up to {MAX_TEXT_CHARS:,} characters")
    return value


def _id(value: Any) -> str:
    if not isinstance(value, str) or not is_id(value):
        raise ValueError(f"{value!r:.60} is not a name of letters, digits and . _ : + @ -")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise ValueError(f"{value!r:.40} is not a whole number from 0 to 2^63 - 1")
    return value


def _basis(value: Any) -> Basis:
    found = _BASES.get(value)
    if found is None:
        raise ValueError(f"{value!r:.40} is not one of {', '.join(_BASES)}")
    return found


def _kinds(value: Any) -> tuple[ModelPurpose, ...]:
    return tuple(ModelPurpose(_text(one)) for one in _list(value))


def _sizes(value: Any) -> tuple[Size, ...]:
    return tuple(
        Size(mix=_text(mix), tensor_bytes=_whole(size), basis=_basis(basis))
        for mix, (size, basis) in _object(value).items()
    )


def _speeds(value: Any) -> tuple[MeasuredSpeed, ...]:
    found = []
    for one in _list(value):
        device, rate, setting, source = _list(one, (4,))
        if type(rate) not in (int, float) or not 0 < rate < 1e9:
            raise ValueError(f"{rate!r:.40} is not a number of tokens per second")
        speed = MeasuredSpeed(
            device=_text(device),
            tokens_per_s=float(rate),
            setting=_text(setting),
            source=_text(source),
        )
        found.append(speed)
    return tuple(found)


def _sources(value: Any) -> Mapping[str, Source]:
    found: dict[str, Source] = {}
    for one in _list(value):
        text, basis, facts = _list(one, (3,))
        source = Source(text=_text(text), basis=_basis(basis))
        found |= {_text(fact): source for fact in _list(facts)}
    return MappingProxyType(found)


def _keys(value: Any) -> Mapping[str, Any]:
    return MappingProxyType({_text(name): _value(one) for name, one in _object(value).items()})


def _value(value: Any) -> Any:
    """A GGUF value as formats/gguf.py returns it: a scalar, or a tuple of scalars."""
    if isinstance(value, list):
        return tuple(_scalar(one) for one in _list(value))
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, str):
        return value[:MAX_TEXT_CHARS]
    if isinstance(value, (bool, float)) or (type(value) is int and abs(value) <= MAX_NUMBER):
        return value
    raise ValueError(f"{value!r:.40} is not a valid GGUF value")


def _config(value: Any) -> Mapping[str, Any]:
    """A config.json; its values are checked by model/."""
    return MappingProxyType(_object(value))


def _tensor_runs(value: Any) -> tuple[str, ...]:
    for one in _list(value):
        if not isinstance(one, str) or not RUN.fullmatch(one):
            raise ValueError(f"{one!r:.80} is not a line like blk.*.attn_q.weight 64x64 F16 0-1")
    return tuple(value)
