"""The fields of each call, made from the engines' flags: one pydantic model for the query and for the body.

A field that is not given is left out, so that the engine's default applies.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
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
MOST_NAMED = 50  # models that complete a name, or that the hub finds
LARGEST_NUMBER = 2**63 - 1
_CONTROL_CHARS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

_FLAGS = (CONTEXT, QUANT, *(flag for engine in every_engine() for flag in engine.flags))
# The first flag with a key decides the type of its field.
_FIRST = {flag.key: flag for flag in reversed(_FLAGS)}


def _field_name(name: str) -> str:
    """The name of a flag as a field: --ctx-size is ctx_size."""
    return name.lstrip("-").replace("-", "_")


# The flags of each spelling. A table, because a body may have ten thousand names to look up.
_BY_NAME: dict[str, list[Flag]] = {}
for _flag in _FLAGS:
    for _alias in (*_flag.names, *_flag.aliases):
        _BY_NAME.setdefault(_field_name(_alias), []).append(_flag)


def _word(value: object) -> str:
    """Text or a number as it would be typed on the command line. Raises PydanticCustomError for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PydanticCustomError("word", "must be text or a number")
    if not isinstance(value, str):
        if not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:  # NaN too
            raise PydanticCustomError("word", "number out of range")
        is_whole = isinstance(value, float) and value.is_integer()
        return str(int(value) if is_whole else value)
    if len(value) > MAX_WORD_CHARS:
        raise PydanticCustomError(
            "word", "must have at most {most} characters", {"most": f"{MAX_WORD_CHARS:,}"}
        )
    if _CONTROL_CHARS.search(value):
        raise PydanticCustomError("word", "must not contain control characters")
    return value


_TEXT = {"type": "string", "maxLength": MAX_WORD_CHARS}
Word = Annotated[
    str,
    BeforeValidator(_word),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "number"}]}),
]
Name = Annotated[
    str, BeforeValidator(_word), StringConstraints(min_length=1), WithJsonSchema(_TEXT)
]
Devices = Annotated[
    list[Word],
    Field(max_length=MAX_DEVICES),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]
Fields = dict[str, Any]  # pydantic's: type and Field, by name


class CallFields(BaseModel):
    """The fields of a call. Unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    flags: ClassVar[frozenset[str]] = frozenset()  # the fields that are flags of an engine
    one_engine: ClassVar[bool] = False  # whether `auto` is not allowed

    @model_validator(mode="before")
    @classmethod
    def _refuse_flag_names(cls, body: object) -> object:
        """Raises for a flag that is given by its own name instead of its field's, and says which field to use."""
        for name in body if isinstance(body, Mapping) else ():
            instead = None if name in cls.model_fields else _instead_of(name, cls.model_fields)
            if instead is not None:
                values = {"name": name[:40], "instead": instead}
                raise PydanticCustomError("field", "{name}: unknown field; use {instead}", values)
        return body

    def request(self) -> Request:
        """Raises UsageError."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        return Request.from_query(values, self.flags, one_engine=self.one_engine)


def _instead_of(name: str, fields: Container[str]) -> str | None:
    """The field to use instead of a flag's name, with the value if the flag is a switch; None for an unknown name."""
    field = _field_name(name)
    if field in fields:
        return field
    for flag in _BY_NAME.get(field, ()):
        if flag.key in fields:
            switch = _FIRST[flag.key] if flag.metavar else flag
            return flag.key if switch.metavar else f"{flag.key}: {str(switch.value).lower()}"
    return None


def _optional(kind: Any, description: str, **limits: Any) -> Any:
    """A field that may be left out: the type and the Field that `create_model` expects."""
    return kind | None, Field(default=None, description=description, **limits)


def _engine_fields(engines: Iterable[str], *, without: frozenset[str] = frozenset()) -> Fields:
    """One field for each key of the engines' flags. Two switches with the same key are one field: true and false."""
    names = tuple(engines)
    by_key: dict[str, list[Flag]] = {CONTEXT.key: [CONTEXT]}
    if names:
        by_key.setdefault(QUANT.key, []).append(QUANT)
    for engine in names:
        for flag in engine_named(engine).flags:
            if flag.key not in without and lender_of(flag) not in names:
                by_key.setdefault(flag.key, []).append(flag)
    fields: Fields = {}
    for key, flags in by_key.items():
        first = flags[0]
        if first.metavar:
            fields[key] = _optional(Word, f"{first.help} ({', '.join(first.names)})")
        else:
            values = [
                f"{str(flag.value).lower()}: {flag.help} ({flag.names[0]})"
                for flag in flags
                if not flag.metavar
            ]
            fields[key] = _optional(bool, "; ".join(values))
    return fields


_HUB = "a Hugging Face ID (unsloth/Qwen3-8B-GGUF:Q4_K_M), a URL"
_OTHERS = either(planned_engines()[1:])
_PLANNED: Fields = {"engine": _optional(Word, f"{default_engine().name} (default), {_OTHERS}")}
_TABLE: Fields = {
    "model": (
        Name,
        Field(
            description=f"{_HUB}, a name of the index, sample:NAME, or a file in a --models-dir folder",
            examples=["qwen3-8b", "sample:gemma-3-27b"],  # work offline: the page suggests them
        ),
    ),
    "engine": _optional(
        Word, f"{', '.join(engine_names())} (default: the engine for this file format)"
    ),
    # The machine.
    "device": _optional(
        Devices,
        'device of the machine to check: "RTX 4090", "2x RTX 3090", m3-max-64 (default: this machine)',
    ),
    "ram": _optional(Word, "system RAM: 32G, 32G DDR5-6000, 8x32G DDR4-3200"),
    "vram": _optional(Word, "VRAM of each GPU (NVIDIA), for a GPU without a known name: 24G,24G"),
    "cpu": _optional(Word, "processor: Ryzen 7 7700, i7-12700K, EPYC 9654"),
    "max_use": _optional(Word, "refuse what needs more than this share of the usable memory: 85%"),
    "reserve": _optional(Word, "memory to leave free on every card and in RAM: 512M, 0"),
    # The load.
    "min_context": _optional(
        Word, "smallest context to accept (default 16k, or the trained context if shorter)"
    ),
    "min_speed": _optional(Word, "slowest typical speed to accept, in tokens per second: 20"),
    "prompt_tokens": _optional(
        Word, "prompt for which the time to the first token is given (default 1000)"
    ),
    "users": _optional(Word, "users at the same time, each with a context of their own"),
    "job": _optional(Word, "size the context for a prompt of P tokens and N new tokens: 6000+800"),
    "window_budget": _optional(Word, "size the context by its KV cache when none is given: 4G"),
    "prefer_accurate_kv": _optional(bool, "prefer an accurate KV cache to a longer context"),
    "nodes": _optional(Word, "number of identical machines joined by Ray (vLLM)"),
    "no_drafter": _optional(bool, "do not look for a draft model"),
    # What is listed.
    "layers": _optional(bool, "list every layer"),
    "tensors": _optional(bool, "list every tensor"),
    "keys": _optional(bool, "list every metadata key"),
    "light": _optional(bool, "read only the architecture keys: fewer bytes from a remote file"),
    "per_layer": _optional(bool, "list the memory of each layer"),
    "points": _optional(int, "number of points per curve (default 16)", ge=2, le=MOST_POINTS),
    "task": _optional(Word, "chat (default), code, reasoning, vision or embed"),
    "limit": _optional(Word, "number of models (default 5)"),
    "q": (
        Name,
        Field(description="what was typed so far", examples=["llama3.1"], max_length=400),
    ),
    "all_sizes": _optional(bool, "list several models of a family, not only the best"),
    "kind": _optional(
        Word, "only models for this task: chat, code, reasoning, embedding or vision"
    ),
    "family": _optional(Word, "only models of this family: qwen3, llama-3.1, gemma"),
    "theme": _optional(Word, "colours of the picture: light (default) or dark"),
    "checked": _optional(bool, "only the models that the page checks by itself: the most used"),
}


def _call_fields(name: str, *parts: str | Fields, one_engine: bool = False) -> type[CallFields]:
    """A pydantic model with these fields, in order. A string lists names of _TABLE."""
    fields: Fields = {}
    own: set[str] = set()  # our fields, even if an engine has a flag of that name (cpu)
    for part in parts:
        own |= set(part.split()) if isinstance(part, str) else set()
        fields |= {key: _TABLE[key] for key in part.split()} if isinstance(part, str) else part
    model = create_model(name, __base__=CallFields, **fields)
    model.flags = frozenset(_FIRST) & (fields.keys() - own)
    model.one_engine = one_engine
    return model


_DESCRIBED = "device ram vram cpu"
_MACHINE = f"{_DESCRIBED} max_use reserve"
_CHECK = "min_context job window_budget"
_PLAN = "min_context min_speed users job prefer_accurate_kv"
_CHECKED = _engine_fields(engine_names(), without=machine_keys())

INSPECT = _call_fields(
    "InspectRequest",
    "model layers tensors keys",
    {"quant": _optional(Word, "the file of a repository, or a known model, at this quantisation")},
    "light",
)
ESTIMATE = _call_fields(
    "EstimateRequest",
    "model engine",
    _engine_fields(engine_names()),
    "users device vram per_layer",
    one_engine=True,
)
_CHECK_FIELDS = ("model engine", _CHECKED, _CHECK, "min_speed prompt_tokens users", _MACHINE)
CHECK = _call_fields("CheckRequest", *_CHECK_FIELDS)
LADDER = _call_fields("LadderRequest", *_CHECK_FIELDS)
PICTURE = _call_fields("PictureRequest", *_CHECK_FIELDS, "theme")
PLAN = _call_fields(
    "PlanRequest",
    "model engine",
    _engine_fields(planned_engines(), without=machine_keys()),
    _PLAN,
    "prompt_tokens nodes no_drafter",
    _MACHINE,
)
RECOMMEND = _call_fields(
    "RecommendRequest",
    "task",
    _PLANNED,
    _engine_fields(()),
    _PLAN,
    "limit all_sizes",
    _MACHINE,
    one_engine=True,
)
UPGRADES = _call_fields("UpgradesRequest", "task", _PLANNED, _MACHINE, one_engine=True)
FIT = _call_fields("FitRequest", "model engine", _CHECKED, _CHECK, "users", _MACHINE)
CURVES = _call_fields("CurvesRequest", "model engine", _CHECKED, _CHECK, _MACHINE, "points")
HARDWARE = _call_fields("HardwareRequest", _DESCRIBED)
CARDS = _call_fields("CardsRequest", "task", _PLANNED, _MACHINE, one_engine=True)
HOME = _call_fields("HomeRequest", "task", _PLANNED, _MACHINE, one_engine=True)
_MOST = {"limit": _optional(int, "number of models (default 8)", ge=1, le=MOST_NAMED)}
COMPLETE = _call_fields("CompleteRequest", "q", _MOST)
HUB_SEARCH = _call_fields("HubSearchRequest", "q", _MOST)
DEVICES = _call_fields("DevicesRequest")
ENGINES = _call_fields("EnginesRequest")
INDEX = _call_fields("IndexRequest", "kind family checked")
SEARCH = _call_fields(
    "SearchRequest",
    {
        "words": _optional(
            Word,
            "what has to be in names, publisher or purposes, in any order",
            examples=["qwen coder"],
        ),
        "fits": _optional(bool, "only models that fit the machine"),
        "sort": _optional(Word, "quality (default), speed, size, context, released, uses or name"),
        "publisher": _optional(Word, "only models of this publisher: google, mistralai"),
        "licence": _optional(Word, "only models under this licence: apache-2.0, mit"),
        "min_params": _optional(Word, "least number of parameters: 7B, 500M"),
        "max_params": _optional(Word, "largest number of parameters: 40B"),
        "released_after": _optional(Word, "only models released in this month or later: 2025-06"),
        "exact": _optional(bool, "only models whose geometry is their own, or proved equal"),
    },
    "family",
    {"task": _optional(Word, "only models for this task: chat, code, reasoning, vision or embed")},
    _PLANNED,
    _engine_fields(()),
    {QUANT.key: _optional(Word, QUANT.help)},
    _PLAN,
    {"limit": _optional(Word, "number of models (default 10)")},
    _MACHINE,
    one_engine=True,
)
