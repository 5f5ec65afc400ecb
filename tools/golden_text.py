"""A compact text of JSON answers: no quotes, lists of objects as tables, repeated parts as references.

Different values have different texts, with two exceptions: the order of keys is only partly recorded, and hashes have
32 bits, so that two long parts may, rarely, have the same one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

WIDTH = 100  # shorter values stay in one line
FIELDS_PER_LINE = 4
SHORT_FIELD = 45
REPEAT = 60  # repeats of parts with at least this many characters become references
WIDEST_ROW = 420
MISSING = "-"
COMMON: dict[str, Any] = {
    "null": None,
    "false": False,
    "true": True,
    "0": 0,
    '""': "",
    "[]": [],
    "{}": {},
}

# Parts of long answers that are recorded as a name or a length and a hash. Most of them are recorded in full in some
# other answer (machines: "hardware", bills: "estimate", programs' commands: --for ...), but not all of them.
BRIEF = frozenset(
    (
        "machine",
        "lines",
        "facts",
        "decisions",
        "steps",
        "commands",
        "setup",
        "budget",
        "budgets",
        "layers",
        "sizes",
        "sources",
        "devices",
    )
)
LONG_TEXT = 80
LONG_ANSWER = 2000
LONG_LIST = 100  # lines
SHOWN = 600  # characters of the text behind a hash

_texts: dict[str, str] = {}  # hash -> text, for what this process has hashed


class _Raw(str):
    """Text that is written without quoting."""

    __slots__ = ()


def brief(value: Any) -> Any:
    """A long answer, with a hash in place of each long string and each long part that is named in BRIEF."""
    return _brief(value) if len(_flat(value)) > LONG_ANSWER else value


def _brief(value: Any) -> Any:
    if isinstance(value, list):
        return [_brief(item) for item in value]
    if isinstance(value, dict):
        return {
            key: hashed(item) if key in BRIEF and len(_flat(item)) > REPEAT else _brief(item)
            for key, item in value.items()
        }
    is_long = isinstance(value, str) and not isinstance(value, _Raw) and len(value) > LONG_TEXT
    return hashed(value, head=40) if is_long else value


def hashed(value: Any, *, head: int = 24) -> Any:
    """The beginning, name or length of a value, and a hash of all of it; `hashed_texts` shows the value."""
    digest = f"#{hashlib.sha256(_flat(value).encode()).hexdigest()[:8]}"
    _texts[digest] = value if isinstance(value, str) else _flat(value)
    if isinstance(value, str):
        return _Raw(f"{json.dumps(value[:head], ensure_ascii=False)}… {digest}")
    name = value.get("name", len(value)) if isinstance(value, dict) else len(value)
    return _Raw(f"{name} {digest}")


def hashed_texts(before: str, after: str) -> Iterator[str]:
    """A line for each hash that is only in `after`: the hash, and the start of the hashed text."""
    old, new = (re.findall(r"#[0-9a-f]{8}\b", text) for text in (before, after))
    for digest in dict.fromkeys(item for item in new if item not in old):
        text = _texts.get(digest)
        if text is not None:
            cut = f"… ({SHOWN} of {len(text)} characters)" if len(text) > SHOWN else ""
            yield f"{digest}: {text[:SHOWN]}{cut}"


def json_text(value: Any) -> str:
    """The text of a value of JSON."""
    value = _with_references(value, "", {})
    return "\n".join(_lines(value, "")) + "\n"


def _flat(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _with_references(value: Any, path: str, seen: dict[str, str]) -> Any:
    """The value with a reference in place of each part that equals an earlier one."""
    if not isinstance(value, dict | list):
        return value
    flat = _flat(value)
    if flat in seen and len(flat) >= REPEAT:
        return _Raw(f"= {seen[flat]}")
    result: Any
    if isinstance(value, dict):
        result = {
            key: _with_references(item, f"{path}.{_flat(key) if '.' in key else _name(key)}", seen)
            for key, item in value.items()
        }
    else:
        result = [
            _with_references(item, f"{path}[{index}]", seen) for index, item in enumerate(value)
        ]
    seen.setdefault(flat, path)
    return result


def _lines(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield from _object(value, indent)
    elif isinstance(value, list) and _is_table(value):
        yield from (indent + line for line in _table(value))
    elif isinstance(value, list) and value:
        for item in value:
            if _is_long(item):
                yield f"{indent}-"
                yield from _lines(item, f"{indent} ")
            else:
                yield f"{indent}- {_inline(item)}"
    else:
        yield indent + _inline(value)


def _object(value: Mapping[str, Any], indent: str) -> Iterator[str]:
    """Several short fields per line, long ones on their own lines, finally the names of fields that are null, 0, ..."""
    short_fields: list[str] = []
    common: dict[str, list[str]] = {}
    for key, item in value.items():
        usual = next((text for text, constant in COMMON.items() if _same(constant, item)), None)
        field = f"{_name(key)}:" if _is_long(item) else f"{_name(key)}: {_inline(item)}"
        if usual is not None:
            common.setdefault(usual, []).append(_name(key))
        elif _is_long(item) or len(field) > SHORT_FIELD:
            yield from _joined(short_fields, indent)
            short_fields = []
            yield indent + field
            if _is_long(item):
                yield from _lines(item, f"{indent} ")
        else:
            short_fields.append(field)
    yield from _joined(short_fields, indent)
    for text, keys in common.items():
        yield f"{indent}{text}: {', '.join(keys)}"


def _joined(fields: list[str], indent: str) -> Iterator[str]:
    for first in range(0, len(fields), FIELDS_PER_LINE):
        yield indent + "; ".join(fields[first : first + FIELDS_PER_LINE])


def _same(item: Any, other: Any) -> bool:
    return type(item) is type(other) and item == other


def _is_long(value: Any) -> bool:
    return isinstance(value, dict | list) and len(_inline(value)) > WIDTH


def _is_table(value: list[Any]) -> bool:
    rows = [item for item in value if isinstance(item, dict)]
    return (
        len(rows) > 1
        and all(rows)
        and all(isinstance(item, dict | _Raw) for item in value)
        and max(len(_inline(row)) for row in rows) <= WIDEST_ROW
    )


def _table(value: list[Any]) -> Iterator[str]:
    """Column names and, after "else", usual values of the other fields; then rows, with unusual values appended."""
    rows = [item for item in value if isinstance(item, dict)]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    usual = {}
    for key in keys[1:]:
        text, count = Counter(_cell(row, key) for row in rows).most_common(1)[0]
        if count > len(rows) / 2:
            usual[key] = text
    columns = [key for key in keys if key not in usual]
    others = ", ".join(f"{_inline(key)}: {text}" for key, text in usual.items())
    yield " | ".join([*map(_inline, columns), *([f"else {others}"] if others else [])])
    for row in value:
        if isinstance(row, _Raw):
            yield row
            continue
        cells = [_cell(row, key) for key in columns]
        cells += (
            f"{_inline(key)}: {_cell(row, key)}"
            for key, text in usual.items()
            if _cell(row, key) != text
        )
        yield " | ".join(cells)


def _name(key: str) -> str:
    """The text of a key; an empty one differs from the `""` before the names of empty fields."""
    return _inline(key) if key else '[""]'


def _cell(row: Mapping[str, Any], key: str) -> str:
    return _inline(row[key]) if key in row else MISSING


_SPECIAL = re.compile(r'[:,;|=#"\\\[\]{}\x00-\x1f\x7f-\x9f\u2028\u2029]|^[\s-]|\s$|^else |  ')


def _inline(value: Any) -> str:
    if isinstance(value, _Raw):
        return value
    if isinstance(value, dict):
        parts = (f"{_inline(key)}: {_inline(item)}" for key, item in value.items())
        return f"{{{', '.join(parts)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, str) and value and not _SPECIAL.search(value) and not _is_json(value):
        return value
    return _flat(value)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def with_short_bars(text: str) -> str:
    """The text with `█*12` in place of 12 equal blocks or dots."""
    return re.sub(r"([█·])\1{3,}", lambda row: f"{row[1]}*{len(row[0])}", text)


def with_short_lists(text: str) -> str:
    """Removes column padding after the first 100 lines and appends a hash of the text."""
    lines = text.splitlines()
    if len(lines) <= 2 * LONG_LIST:
        return text
    others = [re.sub(" {2,}", "  ", line) for line in lines[LONG_LIST:]]
    return "\n".join([*lines[:LONG_LIST], *others, hashed(text, head=0)])


_ENTRY = re.compile(r"^(?= {0,2}\S)", re.MULTILINE)  # a line with the indented lines below it
_RUN = re.compile(r"= (.+?)(?: \.\. (.+))?\n+")
_HEAD = 40


def shortened(text: str, base: str) -> str:
    """The text with references in place of entries that `base` has too; `lengthened` restores it."""
    entries, known = _entries(text), _entries(base)
    result, index = "", 0
    while index < len(entries):
        run = _longest_run(entries[index:], known)
        reference = _reference(run, known)
        if reference and sum(map(len, run)) > len(reference):
            result += reference
            index += len(run)
        else:
            result += entries[index]
            index += 1
    return result if lengthened(result, base) == text else text


def _reference(run: list[str], known: list[str]) -> str:
    """A reference to a run of the base's entries by its first and last line; "" if those are ambiguous."""
    for length in (_HEAD, None):
        ends = dict.fromkeys(
            item.partition("\n")[0].strip()[:length].strip() for item in (*run[:1], *run[-1:])
        )
        reference = f"= {' .. '.join(ends)}\n"
        if run and _lengthened(reference, known) == "".join(run):
            return reference
    return ""


def lengthened(text: str, base: str) -> str:
    """The full text of what `shortened` returned."""
    known = _entries(base)
    return "".join(_lengthened(entry, known) for entry in _entries(text))


def _lengthened(entry: str, known: list[str]) -> str:
    run = _RUN.fullmatch(entry)
    first = _place(known, run[1], 0) if run else None
    last = _place(known, run[2] or run[1], first) if run and first is not None else None
    return entry if first is None or last is None else "".join(known[first : last + 1])


def _entries(text: str) -> list[str]:
    return [word for word in _ENTRY.split(text) if word]


def _longest_run(entries: list[str], known: list[str]) -> list[str]:
    longest: list[str] = []
    for start in range(len(known)):
        count = 0
        while (
            count < len(entries)
            and start + count < len(known)
            and entries[count] == known[start + count]
        ):
            count += 1
        if count > len(longest):
            longest = entries[:count]
    return longest


def _place(entries: list[str], head: str, start: int) -> int | None:
    places = (
        index for index in range(start, len(entries)) if entries[index].strip().startswith(head)
    )
    return next(places, None)
