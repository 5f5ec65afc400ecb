"""A request compared with the rules of the engine that would get it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edgekit.engines.request_rules import (
    Endpoint,
    GrammarLimit,
    ImageLimit,
    ListLimit,
    NumberLimit,
    RequestLimits,
)
from edgekit.errors import quoted
from edgekit.gateway.errors import GatewayError, refused_field
from edgekit.gateway.grammars import GrammarError, gbnf_size, pattern_size
from edgekit.gateway.images import ImageError, pixels_in
from edgekit.gateway.json_body import read_object
from edgekit.gateway.schemas import SchemaError, check_schema

# Parts of a message; any other type would be fetched, decoded or unpickled by some engine.
_TEXT_PARTS = frozenset(
    {"text", "input_text", "output_text", "refusal", "reasoning_text", "summary_text"}
)
_IMAGE_PARTS = frozenset({"image_url", "input_image"})
_MESSAGES = ("messages", "input")  # the fields that have parts
_PARTS_IN = ("content", "output")
_DATA_URL = "data:image/"
_CHOICES = ("enum", "anyOf", "oneOf", "allOf", "properties")
_SCHEMAS = (
    "schema", "json_schema", "json_schema.schema", "format.schema", "parameters", "function.parameters",
)  # fmt: skip
_CONTINUATIONS = ("n", "n_cmpl", "best_of")
_OWN_NAMES_IN = frozenset({"schema", "parameters", "arguments", "metadata"})
# Keywords whose values are no schemas, and those whose values are schemas by a name of the client's own.
_LITERALS = frozenset({"default", "examples", "example", "const", "enum"})
_NAMED = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
_BOUNDS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")


@dataclass(frozen=True, slots=True)
class Images:
    """The images of a request together."""

    chars: int  # of their data URLs
    pixels: int


def check_request(body: Mapping[str, Any], endpoint: Endpoint, limits: RequestLimits) -> Images:
    """The images in it. GatewayError, which names the field, for a request that the engine must not get."""
    rules = limits.rules
    if rules.ignores_case:
        _check_keys(body)
    for field, reason in rules.refused.items():
        if not _is_unset(_value(body, field)):
            raise refused_field(field, reason)
    for field, choice in rules.only.items():
        if _value(body, field) not in (None, *choice.values):
            raise refused_field(field, choice.reason)
    for field, number in rules.numbers.items():
        _check_number(field, _value(body, field), number)
    for field, entries in rules.lists.items():
        _check_list(field, _value(body, field), entries)
    images = {field: _check_parts(field, body.get(field), rules.images) for field in _MESSAGES}
    _check_texts(body, endpoint, limits, {field: found.chars for field, found in images.items()})
    _check_empty_prompt(body, endpoint)
    if rules.grammars is not None:
        _check_grammars(body, rules.grammars)
    return Images(
        chars=sum(found.chars for found in images.values()),
        pixels=sum(found.pixels for found in images.values()),
    )


def _check_keys(body: Mapping[str, Any]) -> None:
    """The names in schemas and arguments are the client's own, and no engine looks for them."""
    level: list[object] = [body]
    while level:
        item = level.pop()
        if isinstance(item, list):
            level += item
        elif isinstance(item, dict):
            for key, value in item.items():
                if not key.isascii() or key != key.lower():
                    raise refused_field(
                        key[:40], "keys must be in lower-case ASCII for this engine"
                    )
                if key not in _OWN_NAMES_IN:
                    level.append(value)


def _check_number(field: str, value: object, limit: NumberLimit) -> None:
    if value is None or isinstance(value, bool):
        return
    if not isinstance(value, int | float):
        raise refused_field(field, f"must be a number (got {quoted(value)})")
    if not limit.least <= value <= limit.most:
        raise refused_field(
            field,
            f"{value:,} is not between {limit.least:,} and {limit.most:,}: {limit.reason}",
        )


def _check_list(field: str, value: object, limit: ListLimit) -> None:
    if value is None:
        return
    if not isinstance(value, str | list | dict):
        raise refused_field(field, f"must be a list (got {quoted(value)})")
    entries = [value] if isinstance(value, str) and limit.chars is not None else value
    if len(entries) > limit.most:
        raise refused_field(
            field, f"{len(entries):,} entries; the limit is {limit.most:,}: {limit.reason}"
        )
    if limit.chars is not None:
        longest = max((sum(map(len, _texts(entry))) for entry in entries), default=0)
        if longest > limit.chars:
            raise refused_field(
                field,
                f"an entry has {longest:,} characters; the limit is {limit.chars:,}: {limit.reason}",
            )


def _check_texts(
    body: Mapping[str, Any],
    endpoint: Endpoint,
    limits: RequestLimits,
    image_chars: Mapping[str, int],
) -> None:
    """More text than the window holds is not even tokenized. The exact number of tokens is the engine's to check."""
    several: dict[str, list[object]] = {}
    for field in endpoint.prompts:
        value = body.get(field)
        if _has_object(value):
            raise refused_field(field, "must be text or tokens; send images in messages")
        if isinstance(value, list) and not all(map(_is_number, value)):  # not the tokens of one
            several[field] = value
    most = limits.rules.prompts
    for field, prompts in several.items():
        if len(prompts) > most:
            raise refused_field(
                field,
                f"{len(prompts):,} entries; the limit is {most:,} in one request: send them in several",
            )
        for index, prompt in enumerate(prompts):
            _check_text(f"{field}[{index}]", prompt, 0, limits)
    others_bytes = 0
    for field, value in body.items():
        if field not in several:
            others_bytes -= image_chars.get(field, 0)
            others_bytes += _check_text(field, value, others_bytes, limits)


def _check_empty_prompt(body: Mapping[str, Any], endpoint: Endpoint) -> None:
    """llama.cpp never answers a request for several continuations of nothing, and its slots stay occupied."""
    if not any(_is_number(body.get(field)) and body[field] > 1 for field in _CONTINUATIONS):
        return
    if "prompt" in endpoint.prompts:
        prompt = body.get("prompt")
        is_list = isinstance(prompt, list) and not all(map(_is_number, prompt))
        is_complete = all(map(_has_text, prompt)) if is_list and prompt else _has_text(prompt)
    else:
        messages = [body[field] for field in _MESSAGES if field in body]
        is_complete = not messages or _has_text(messages)
    if not is_complete:
        raise refused_field(
            "n", "several answers to an empty prompt: send some text, or leave out n"
        )


def _check_text(field: str, value: object, others_bytes: int, limits: RequestLimits) -> int:
    """The bytes of text in a field. GatewayError if they do not fit into the window together with the others'."""
    window_tokens = limits.window_tokens
    tokens = len(value) if isinstance(value, list) and value and _is_number(value[0]) else 0
    if tokens > window_tokens:
        raise refused_field(
            field,
            f"{tokens:,} tokens, but the context holds {window_tokens:,}: shorten it, or serve with a larger -c",
        )
    size = _text_bytes(value)
    total = others_bytes + size
    if total > limits.most_bytes:
        why = f"{total:,} bytes of text cannot fit into a context of {window_tokens:,} tokens"
        if limits.rules.truncates:
            why = (
                f"{total:,} bytes of text; the limit is {limits.most_bytes:,}: more might not fit into a context of"
                f" {window_tokens:,} tokens, and the engine would drop part of it without an error"
            )
        raise refused_field(field, f"{why}: shorten it, or serve with a larger -c")
    return size


def _check_parts(field: str, messages: object, limit: ImageLimit | None) -> Images:
    """All images, whose characters do not count as text.

    Only text and images inside of the request are let in: an engine would fetch an address, or decode any file.
    """
    images, pixels, chars = 0, 0, 0
    for part in _parts(messages):
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in _TEXT_PARTS | _IMAGE_PARTS:
            raise refused_field(
                field, f"a part of the type {quoted(kind)} is not supported: send text or image_url"
            )
        if kind in _TEXT_PARTS:
            continue
        if limit is None:
            raise refused_field(field, "this model does not support images: send text only")
        images += 1
        if images > limit.images:
            raise refused_field(field, f"more than {limit.images} images: send fewer at once")
        url = part.get("image_url")
        url = url.get("url") if isinstance(url, dict) else url
        if not (isinstance(url, str) and url.startswith(_DATA_URL)):
            raise refused_field(
                field,
                "an image must be in the request itself, as a data URL (data:image/png;base64,...): this server"
                " does not fetch URLs",
            )
        chars += len(url)
        try:
            pixels += pixels_in(url)
        except ImageError as error:
            raise refused_field(field, str(error)) from error
        if pixels > limit.pixels:
            raise refused_field(
                field,
                f"images of {pixels:,} pixels together; the limit is {limit.pixels:,}: scale them down",
            )
    return Images(chars, pixels)


def _parts(value: object) -> Iterator[Mapping[str, Any]]:
    """The parts of all messages in a value."""
    level = [value]
    while level:
        item = level.pop()
        if isinstance(item, list):
            level += item
        elif isinstance(item, dict):
            for key in _PARTS_IN:
                inner = item.get(key)
                if isinstance(inner, dict):
                    yield inner
                elif isinstance(inner, list):
                    yield from (part for part in inner if isinstance(part, dict))
            level += [inner for inner in item.values() if isinstance(inner, list | dict)]


def _check_grammars(body: Mapping[str, Any], limit: GrammarLimit) -> None:
    chars = 0
    texts: list[tuple[str, Callable[[str], int]]] = [(field, gbnf_size) for field in limit.texts]
    texts += [(field, pattern_size) for field in limit.patterns]
    for field, size_of in texts:
        text = _value(body, field)
        if isinstance(text, str):
            chars += len(text)
            _check_size(field, text, chars, size_of, limit)
    for field in limit.schemas:
        schemas = _schema(field, _value(body, field))
        for root in _roots(schemas):
            try:
                check_schema(root, expands=limit.expands_schemas)
            except SchemaError as error:
                where = f"{field}: {error.key}" if error.key else field
                raise refused_field(where, str(error)) from error
        for key, value in _pairs(schemas):
            where = f"{field}: {key}"
            if key == "pattern" and isinstance(value, str):
                chars += len(value)
                _check_size(where, value, chars, pattern_size, limit)
            elif key in _BOUNDS and _is_number(value) and value > limit.repetitions:
                raise refused_field(
                    where, f"{value:,} is over the limit of {limit.repetitions:,}: {limit.reason}"
                )
            elif key in _CHOICES and isinstance(value, list | dict) and len(value) > limit.choices:
                raise refused_field(
                    where,
                    f"{len(value):,} entries; the limit is {limit.choices:,}: {limit.reason}",
                )


def _check_size(
    field: str, text: str, all_chars: int, size_of: Callable[[str], int], limit: GrammarLimit
) -> None:
    if all_chars > limit.chars:
        raise refused_field(
            field, f"{all_chars:,} characters; the limit is {limit.chars:,}: {limit.reason}"
        )
    try:
        size = size_of(text)
    except GrammarError as error:
        raise refused_field(field, str(error)) from error
    if size > limit.repetitions:
        raise refused_field(
            field,
            f"nested repetitions and alternatives multiply to {size:,}; the limit is {limit.repetitions:,}:"
            f" {limit.reason}",
        )


def _value(body: Mapping[str, Any], field: str) -> object:
    """The value of a field; "a.b" is b in the object a."""
    name, _, rest = field.partition(".")
    value = body.get(name)
    if not rest:
        return value
    return _value(value, rest) if isinstance(value, dict) else None


def _schema(field: str, value: object) -> object:
    """A schema, which may be written as text."""
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        try:
            return read_object(value.encode(errors="replace"))
        except GatewayError as error:
            raise refused_field(field, f"not a JSON schema: {error}") from error
    return value


def _roots(value: object) -> Iterator[object]:
    """Where references may start: the value itself, and the places of schemas in response formats and tools."""
    for entry in value if isinstance(value, list) else [value]:
        yield entry
        if isinstance(entry, dict):
            for place in _SCHEMAS:
                yield _value(entry, place)


def _pairs(value: object) -> Iterator[tuple[str, Any]]:
    """The keys and values of all objects in schemas, without examples and other values that are not schemas."""
    skipped = _LITERALS if all(map(_is_plain_reference, _references(value))) else frozenset[str]()
    level = [(value, False)]  # with whether its keys are names of properties
    while level:
        item, has_names = level.pop()
        if isinstance(item, list):
            level += [(entry, False) for entry in item]
        elif isinstance(item, dict):
            for key, inner in item.items():
                yield key, inner
                if has_names or key not in skipped:
                    level.append((inner, not has_names and key in _NAMED))


def _values(value: object) -> Iterator[object]:
    """A value and all values inside it."""
    level = [value]
    while level:
        item = level.pop()
        yield item
        if isinstance(item, dict):
            level += item.values()
        elif isinstance(item, list):
            level += item


def _references(value: object) -> Iterator[object]:
    for item in _values(value):
        if isinstance(item, dict):
            yield from (item[key] for key in item if key.endswith(("$ref", "Ref")))


def _is_plain_reference(reference: object) -> bool:
    """Whether it is not a string, which engines do not follow, or surely leads to a schema, not to an example."""
    if not isinstance(reference, str) or reference == "#":
        return True
    start, *names = reference.split("/")
    is_escaped = "%" in reference or "~" in reference
    return (
        start == "#"
        and bool(names)
        and not is_escaped
        and names[-1] not in _NAMED
        and _LITERALS.isdisjoint(names)
    )


def _is_unset(value: object) -> bool:
    """Whether a field has no effect. 0 may have one."""
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


def _has_object(value: object) -> bool:
    return any(isinstance(item, dict) for item in _values(value))


def _has_text(value: object) -> bool:
    """Whether there is a token or a text that is not blank in a prompt, or in messages."""
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, list):
        return any(map(_has_text, value))
    if isinstance(value, dict):
        return any(_has_text(inner) for key, inner in value.items() if key not in {"role", "type"})
    return _is_number(value)


def _texts(value: object) -> Iterator[str]:
    """All texts in a value, and the keys of its objects."""
    for item in _values(value):
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            yield from item


def _text_bytes(value: object) -> int:
    """The bytes of all texts in a value, in UTF-8."""
    return sum(
        len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        for text in _texts(value)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
