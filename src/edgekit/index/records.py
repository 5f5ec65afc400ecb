"""Index entries as lines of JSON, as the user's own are stored.

Every value is checked on reading, because the file may have been edited.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from edgekit.errors import HeaderError
from edgekit.index.types import (
    NO_HEADER,
    Entry,
    MeasuredSpeed,
    ModelPurpose,
    Size,
    Source,
    StoredHeader,
)
from edgekit.units import Basis

E = TypeVar("E", bound=enum.Enum)

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


def is_id(text: str) -> bool:
    """Whether it has only letters, digits and . _ : + @ -, so that it can be typed without quotes."""
    return len(text) <= MAX_ID_CHARS and _ID.fullmatch(text) is not None


def record_of(entry: Entry) -> str:
    """The entry as one line of JSON, without values that are None or empty."""
    facts_of: dict[Source, list[str]] = {}  # a source may have several facts
    for fact, source in entry.sources.items():
        facts_of.setdefault(source, []).append(fact)
    header = entry.header or NO_HEADER
    as_json: dict[str, Any] = {
        "kinds": [kind.value for kind in entry.kinds],
        "sizes": {size.mix: [size.tensor_bytes, size.basis.value] for size in entry.sizes},
        "speeds": [
            [speed.device, speed.tokens_per_s, speed.setting, speed.source]
            for speed in entry.speeds
        ],
        **header_json(header),
        "sources": [[source.text, source.basis.value, facts] for source, facts in facts_of.items()],
    }
    raw = {
        name: as_json[name] if name in as_json else getattr(entry, name)
        for name in (*_READERS, *_HEADER)
    }
    filled = {name: value for name, value in raw.items() if value not in (None, "", [], {})}
    try:
        return json.dumps(filled, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError as error:  # infinity, or not a number
        raise HeaderError(f"a header value is not a number: {error}", file=entry.id) from error


def read_record(line: object, *, where: str) -> Entry:
    """Reads an entry from a line of JSON. Raises HeaderError that says what is wrong."""
    if not isinstance(line, str):
        raise HeaderError("not a line of text", file=where)
    if len(line) > MAX_RECORD_CHARS:
        text = f"{len(line):,} characters; the limit is {MAX_RECORD_CHARS:,}"
        raise HeaderError(text, file=where)
    values = {}
    name = ""  # of the field being read
    try:
        raw = _object(json.loads(line, parse_constant=_no_number))
        for name, read in _READERS.items():
            if raw.get(name) is not None or name in _REQUIRED:
                values[name] = read(raw.get(name))
        name = ""
        header = read_header(raw)
    except RecursionError as error:
        raise HeaderError("nested too deeply", file=where) from error
    except json.JSONDecodeError as error:
        text = f"not JSON: {error.msg} at character {error.pos:,}"
        raise HeaderError(text, file=where) from error
    except (ValueError, TypeError) as error:
        raise HeaderError(f"{name}: {error}" if name else str(error), file=where) from error
    forms = forms_of(header)
    if not forms:
        text = "neither keys nor config: the model cannot be rebuilt from this"
        raise HeaderError(text, file=where)
    return Entry(**values, header=header, forms=forms)


def header_json(header: StoredHeader) -> dict[str, Any]:
    return {
        "keys": dict(header.keys),
        "tensors": list(header.tensors),
        "config": dict(header.config),
    }


def read_header(raw: Any) -> StoredHeader:
    """The keys, tensors and config of a JSON object. Raises ValueError or TypeError that says what is wrong."""
    values = {}
    for name, read in _HEADER.items():
        if _object(raw).get(name) is None:
            continue
        try:
            values[name] = read(raw[name])
        except (ValueError, TypeError) as error:
            raise type(error)(f"{name}: {error}") from error
    return StoredHeader(**values)


def forms_of(header: StoredHeader) -> tuple[str, ...]:
    """The forms of `Entry.forms` that the header has."""
    return (("gguf",) if header.keys else ()) + (("config",) if header.config else ())


def _no_number(word: str) -> object:
    raise ValueError(f"{word} is not a number")


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.60} is not an object")
    if len(value) > MAX_ITEMS:
        raise ValueError(f"{len(value):,} items; the limit is {MAX_ITEMS:,}")
    return value


def _list(value: Any, length: int | None = None) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.60} is not a list")
    if length is not None and len(value) != length:
        raise ValueError(f"{value!r:.60} is not a list of {length}")
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


def _member(kind: type[E], value: Any) -> E:
    """The member of the enum with this value."""
    for member in kind:
        if member.value == value:
            return member
    names = ", ".join(member.value for member in kind)
    raise ValueError(f"{value!r:.40} is not one of {names}")


def _kinds(value: Any) -> tuple[ModelPurpose, ...]:
    return tuple(_member(ModelPurpose, name) for name in _list(value))


def read_sizes(value: Any) -> tuple[Size, ...]:
    """Sizes from an object: mix -> [bytes, basis]."""
    sizes = []
    for mix, pair in _object(value).items():
        size, basis = _list(pair, 2)
        sizes.append(Size(mix=_text(mix), tensor_bytes=_whole(size), basis=_member(Basis, basis)))
    return tuple(sizes)


def _speeds(value: Any) -> tuple[MeasuredSpeed, ...]:
    """Speeds from rows of [device, tokens per second, setting, source]."""
    speeds = []
    for row in _list(value):
        device, rate, setting, source = _list(row, 4)
        if type(rate) not in (int, float) or not 0 < rate < 1e9:
            raise ValueError(f"{rate!r:.40} is not a number of tokens per second")
        speed = MeasuredSpeed(
            device=_text(device),
            tokens_per_s=float(rate),
            setting=_text(setting),
            source=_text(source),
        )
        speeds.append(speed)
    return tuple(speeds)


def _sources(value: Any) -> Mapping[str, Source]:
    """Fact -> its source, from rows of [text, basis, facts]."""
    sources: dict[str, Source] = {}
    for row in _list(value):
        text, basis, facts = _list(row, 3)
        source = Source(text=_text(text), basis=_member(Basis, basis))
        sources |= {_text(fact): source for fact in _list(facts)}
    return MappingProxyType(sources)


def _keys(value: Any) -> Mapping[str, Any]:
    """GGUF values as formats/gguf.py returns them: scalars and tuples of scalars."""
    return MappingProxyType(
        {
            _text(key): tuple(map(_scalar, _list(item)))
            if isinstance(item, list)
            else _scalar(item)
            for key, item in _object(value).items()
        }
    )


def _scalar(value: Any) -> Any:
    """A string, cut to the limit, or a number or flag."""
    if isinstance(value, str):
        return value[:MAX_TEXT_CHARS]
    if isinstance(value, (bool, float)) or (type(value) is int and abs(value) <= MAX_NUMBER):
        return value
    raise ValueError(f"{value!r:.40} is not a valid GGUF value")


def _config(value: Any) -> Mapping[str, Any]:
    """A config.json; its values are checked by model/."""
    return MappingProxyType(_object(value))


def _tensor_runs(value: Any) -> tuple[str, ...]:
    for run in _list(value):
        if not isinstance(run, str) or not RUN.fullmatch(run):
            raise ValueError(f"{run!r:.80} is not a line like blk.*.attn_q.weight 64x64 F16 0-1")
    return tuple(value)


_READERS: Mapping[str, Callable[[Any], Any]] = {  # of the fields of Entry, in the order of a line
    "id": _id,
    "repository": _text,
    "family": _text,
    "architecture": _text,
    "parameters": _whole,
    "active_parameters": _whole,
    "native_context": _whole,
    "vocabulary": _whole,
    "kinds": _kinds,
    "licence": _text,
    "released": _text,
    "not_before": _text,
    "reference": _text,
    "sizes": read_sizes,
    "speeds": _speeds,
    "sources": _sources,
}
_HEADER: Mapping[str, Callable[[Any], Any]] = {  # of the fields of StoredHeader
    "keys": _keys,
    "tensors": _tensor_runs,
    "config": _config,
}
_REQUIRED = frozenset({"id", "family", "architecture"})
