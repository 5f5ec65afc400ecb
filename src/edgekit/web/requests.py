"""TABLE rows of the engines' flags -> what a request may say: one model for a query and for a body, field by field.

A field that was not said leaves no trace, so that the engine's own default counts.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from edgekit.engines import (
    default_engine,
    either,
    engine_named,
    engine_names,
    every_engine,
    lender_of,
    machine_keys,
    planned_engines,
)
from edgekit.engines.flags import CONTEXT, QUANT, Flag
from edgekit.request import Request

MAX_WORD_CHARS = 4096
MAX_DEVICES = 8
MOST_POINTS = 64
LARGEST_NUMBER = 2**63 - 1
_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
Fields = dict[str, Any]


def _word(value: object) -> str:
    """A number or a text as it would be typed."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PydanticCustomError("word", "must be text or a number")
    if isinstance(value, str):
        return _checked_text(value)
    if not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:  # neither is what is no number
        raise PydanticCustomError("word", "number out of range")
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if whole else value)


def _checked_text(text: str) -> str:
    if len(text) > MAX_WORD_CHARS:
        raise PydanticCustomError(
            "word", "must have at most {most} characters", {"most": f"{MAX_WORD_CHARS:,}"}
        )
    if _ODD.search(text):
        raise PydanticCustomError("word", "must not contain control characters")
    return text


def _several(value: object) -> object:
    """One device may stand alone."""
    return [value] if isinstance(value, str) else value


_TEXT = {"type": "string", "maxLength": MAX_WORD_CHARS}
Word = Annotated[
    str,
    BeforeValidator(_word),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "number"}]}),
]
Name = Annotated[
    str, BeforeValidator(_word), StringConstraints(min_length=1), WithJsonSchema(_TEXT)
]
Devices = Annotated[list[Word], Field(max_length=MAX_DEVICES), BeforeValidator(_several)]

_FLAGS = (CONTEXT, QUANT, *(flag for engine in every_engine() for flag in engine.flags))


def _spelled(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


_FIRST = {flag.key: flag for flag in reversed(_FLAGS)}  # decides what the field of a key is
_BY_NAME: dict[str, list[Flag]] = {}  # a body may hold ten thousand names: each is looked up once
for _flag in _FLAGS:
    for _one in (*_flag.names, *_flag.aliases):
        _BY_NAME.setdefault(_spelled(_one), []).append(_flag)


def _instead_of(name: str, fields: Container[str]) -> str | None:
    """The field, and the value of a switch, that a flag of this name sets."""
    plain = _spelled(name)
    if plain in fields:
        return plain
    for flag in _BY_NAME.get(plain, ()):
        if flag.key in fields:
            switch = _FIRST[flag.key] if flag.metavar else flag
            return flag.key if switch.metavar else f"{flag.key}: {str(switch.value).lower()}"
    return None


class CallFields(BaseModel):
    """The fields of a call. Unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    flags: ClassVar[frozenset[str]] = frozenset()  # those of its fields that are an engine's
    one_engine: ClassVar[bool] = False  # auto is none

    @model_validator(mode="before")
    @classmethod
    def _named_as_flags(cls, said: Any) -> Any:
        """Raises for a flag's own name: its field may have another."""
        for name in said if isinstance(said, Mapping) else ():
            instead = None if name in cls.model_fields else _instead_of(name, cls.model_fields)
            if instead is not None:
                words = {"name": name[:40], "instead": instead}
                raise PydanticCustomError("field", "{name}: unknown field; use {instead}", words)
        return said

    def request(self) -> Request:
        """What is asked of the model. Raises UsageError."""
        said = {name: getattr(self, name) for name in self.model_fields_set}
        return Request.from_query(said, self.flags, one_engine=self.one_engine)


def _said(kind: Any, told: str, **more: Any) -> Any:
    return kind | None, Field(default=None, description=told, **more)


def _flag_fields(flags: Iterable[Flag]) -> Iterator[tuple[str, Any]]:
    """One for each key; two switches of one key are its true and its false."""
    by_key: dict[str, list[Flag]] = {}
    for flag in flags:
        by_key.setdefault(flag.key, []).append(flag)
    for key, same in by_key.items():
        yield key, _said(Word if same[0].metavar else bool, _told(same))


def _told(same: list[Flag]) -> str:
    if same[0].metavar:
        return f"{same[0].help} ({', '.join(same[0].names)})"
    switches = (one for one in same if not one.metavar)
    return "; ".join(f"{str(one.value).lower()}: {one.help} ({one.names[0]})" for one in switches)


def _engine_fields(engines: Iterable[str], *, without: frozenset[str] = frozenset()) -> Fields:
    names = tuple(engines)
    flags = (
        flag
        for engine in names
        for flag in engine_named(engine).flags
        if flag.key not in without and lender_of(flag) not in names
    )
    return dict(_flag_fields((CONTEXT, QUANT, *flags) if names else (CONTEXT,)))


def _model(told: str, *examples: str) -> Fields:
    """Examples are answered without a network too: the page shows them as commands to try."""
    return {"model": (Name, Field(description=told, examples=list(examples)))}


_HUB = "a Hugging Face ID (unsloth/Qwen3-8B-GGUF:Q4_K_M), a URL"
_MODEL = _model(
    f"{_HUB}, a catalog name, sample:NAME, or a file in a --models-dir folder",
    "qwen3-8b",
    "sample:gemma-3-27b",
)
_ENGINE: Fields = {
    "engine": _said(Word, f"{', '.join(engine_names())} (default: the engine for this file format)")
}
_OTHERS = either(planned_engines()[1:])
_PLANNED: Fields = {"engine": _said(Word, f"{default_engine().name} (default), {_OTHERS}")}
_DESCRIBED: Fields = {
    "device": _said(
        Devices,
        'device of the machine to check: "RTX 4090", "2x RTX 3090", m3-max-64 (default: this machine)',
    ),
    "ram": _said(Word, "system RAM: 32G"),
    "vram": _said(Word, "VRAM of each GPU (NVIDIA), for a GPU without a known name: 24G,24G"),
}
_MACHINE: Fields = _DESCRIBED | {
    "max_use": _said(Word, "refuse what needs more than this share of the usable memory: 85%"),
    "reserve": _said(Word, "memory to leave free on every card and in RAM: 512M, 0"),
}
_LEAST: Fields = {
    "min_context": _said(
        Word, "smallest context to accept (default 16k, or the trained context if shorter)"
    )
}
_USERS: Fields = {"users": _said(Word, "users at the same time, each with a context of their own")}
_JOB: Fields = {
    "job": _said(Word, "size the context for a prompt of P tokens and N new tokens: 6000+800")
}
_CHECK: Fields = {
    **_LEAST,
    **_JOB,
    "window_budget": _said(Word, "size the context by its KV cache when none is given: 4G"),
}
_WISHES: Fields = (
    _LEAST
    | _USERS
    | _JOB
    | {
        "prefer_accurate_kv": _said(bool, "prefer an accurate KV cache to a longer context"),
    }
)
_CHECKED = _engine_fields(engine_names(), without=machine_keys())
_EVERY = _engine_fields(engine_names())


def _made(name: str, *parts: Fields, one_engine: bool = False) -> type[CallFields]:
    fields: Fields = {}
    for part in parts:
        fields |= part
    made = create_model(name, __base__=CallFields, **fields)
    made.flags = frozenset(flag.key for flag in _FLAGS) & fields.keys()
    made.one_engine = one_engine
    return made


INSPECT = _made(
    "InspectRequest",
    _MODEL,
    {
        "layers": _said(bool, "list every layer"),
        "tensors": _said(bool, "list every tensor"),
        "keys": _said(bool, "list every metadata key"),
        "quant": _said(Word, "the file of a repository, or a known model, at this quantisation"),
        "light": _said(bool, "read only the architecture keys: fewer bytes from a remote file"),
    },
)
ESTIMATE = _made(
    "EstimateRequest",
    _MODEL,
    _ENGINE,
    _EVERY,
    _USERS,
    {name: field for name, field in _MACHINE.items() if name in {"device", "vram"}},
    {"per_layer": _said(bool, "list the memory of each layer")},
    one_engine=True,
)
CHECK = _made("CheckRequest", _MODEL, _ENGINE, _CHECKED, _CHECK, _USERS, _MACHINE)
PLAN = _made(
    "PlanRequest",
    _MODEL,
    _ENGINE,
    _engine_fields(planned_engines(), without=machine_keys()),
    _WISHES,
    {
        "nodes": _said(Word, "number of identical machines joined by Ray (vLLM)"),
        "no_drafter": _said(bool, "do not look for a draft model"),
    },
    _MACHINE,
)
RECOMMEND = _made(
    "RecommendRequest",
    {"task": _said(Word, "chat (default), code, reasoning, vision or embed")},
    _PLANNED,
    _engine_fields(()),
    _WISHES,
    {
        "limit": _said(Word, "number of models (default 5)"),
        "all_sizes": _said(bool, "list several models of a family, not only the best"),
    },
    _MACHINE,
    one_engine=True,
)
FIT = _made("FitRequest", _MODEL, _ENGINE, _CHECKED, _CHECK, _USERS, _MACHINE)
CURVES = _made(
    "CurvesRequest",
    _MODEL,
    _ENGINE,
    _CHECKED,
    _CHECK,
    _MACHINE,
    {"points": _said(int, "number of points per curve (default 16)", ge=2, le=MOST_POINTS)},
)
HARDWARE = _made("HardwareRequest", _DESCRIBED)
CARDS = _made("CardsRequest", _PLANNED, _MACHINE, one_engine=True)
DEVICES = _made("DevicesRequest")
ENGINES = _made("EnginesRequest")
CATALOG = _made(
    "CatalogRequest",
    {
        "kind": _said(
            Word, "only models for this task: chat, code, reasoning, embedding or vision"
        ),
        "family": _said(Word, "only models of this family: qwen3, llama-3.1, gemma"),
    },
)
