"""architectures.json: every record can be read, every rule that it names exists, and none is unused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from inspect import isfunction
from pathlib import Path
from typing import Any

import gguf
import pytest
from tools.architectures import PARTS, laid_out

from edgekit.errors import EdgekitError
from edgekit.formats import records as reading
from edgekit.model import architectures as module
from edgekit.model import layers, mixers
from edgekit.model.architectures import (
    RULES,
    Architecture,
    architecture_of,
    names,
    read_section,
    records,
    section_by_name,
)
from edgekit.model.hyperparameters import SPELLINGS
from edgekit.model.tensor_recipes import TensorRecipe, tensor_recipe

FILE = Path(module.__file__).with_name(module.FILE)


def parts(*kinds: str) -> Iterable[Mapping[str, Any]]:
    return (record[kind] for record in records() for kind in kinds if record.get(kind))


@pytest.mark.parametrize("format_", ["gguf", "config"])
def test_every_name_has_only_one_record(format_: str) -> None:
    counts = Counter(name for record in records() for name in record.get(format_, ()))
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_architecture_of_gguf_py_is_known() -> None:
    known = set(gguf.MODEL_ARCH_NAMES.values())
    assert len(known) > 100
    # mmproj is gguf-py's name for the projectors of vision models.
    reasons = section_by_name("not_a_language_model").keys()
    assert known - names(gguf=True) - reasons - {"mmproj"} == set()


@pytest.mark.parametrize("is_gguf", [True, False])
def test_every_record_can_be_read(*, is_gguf: bool) -> None:
    assert len(names(gguf=is_gguf)) > 100
    for name in names(gguf=is_gguf):
        assert architecture_of(name, gguf=is_gguf) is not None
        tensor_recipe(name)


def test_every_section_is_known_and_has_a_source() -> None:
    sources = json.loads(FILE.read_text())["sources"]
    used = {part for record in records() for part in record}
    assert used == set(PARTS)
    overrides = {part for part in used if part.startswith("gguf_") or part == "constants"}
    assert used - overrides - {"like", "note", "not_a_language_model"} == sources.keys()


def test_every_rule_is_named_by_a_record() -> None:
    rules = {
        name
        for source in (layers, mixers)
        for name, rule in vars(source).items()
        if isfunction(rule) and rule.__module__ == source.__name__ and not name.startswith("_")
    }
    others = {
        "as_stated",
        "by_kv_heads",
        "feed_forwards",
        "listed_types",
        "stated_width",
    }
    others |= {"stated_windows", "unless_listed"}
    sections = list(parts("layers", "gguf_layers"))
    named = {section["arrange"]["rule"] for section in sections if "arrange" in section}
    for key in ("attend", "recur", "width", "adjust", "rounds"):
        named |= {section[key] for section in sections if key in section}
    assert named == rules - others


def test_every_field_is_set_by_a_record() -> None:
    layers = {key for part in parts("layers", "gguf_layers") for key in part}
    assert layers == {field.name for field in fields(Architecture)} - {
        "constants",
        "library",
        "tied_by_default",
    }
    tensors = {key for part in parts("tensors", "gguf_tensors") for key in part}
    assert tensors - {"attention_bias"} == {field.name for field in fields(TensorRecipe)}


def test_defaults_and_constants_are_known_hyperparameters() -> None:
    keys = {key for part in parts("library", "constants", "gguf_constants") for key in part}
    assert keys <= SPELLINGS.keys()


def test_gguf_names_with_their_own_tensors_are_not_model_types() -> None:
    with_tensors = [record for record in records() if "gguf_tensors" in record]
    assert with_tensors
    assert all(not names(gguf=False) & set(record["gguf"]) for record in with_tensors)


def test_architectures_json_is_formatted_by_the_tool() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert laid_out(json.loads(text)) == text


@pytest.mark.parametrize("text", [b"", b'{"records": [', b"{}"])
def test_damaged_architectures_json_is_an_error(
    monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    monkeypatch.setattr(reading, "get_data", lambda *_: text)
    with pytest.raises(
        EdgekitError, match=r"installation .* damaged: architectures.json .* install it again"
    ):
        records.__wrapped__()


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ({"attend": "telepathy"}, "telepathy"),
        ({"arrange": {"rule": "windows", "perod": 4}}, "missing a required argument: 'period'"),
        ({"arrange": {"rule": "windows", "period": 4, "perod": 4}}, "perod"),
        ({"arrange": {"rule": "wndows"}}, "wndows"),
        ({"gatd": False}, "gatd"),
        ({"sublayers": "two"}, "'two' is not of type int"),
    ],
)
def test_damaged_record_is_an_error(section: dict[str, Any], fault: str) -> None:
    with pytest.raises(EdgekitError, match=f"damaged: architectures.json, made-up: .*{fault}"):
        read_section(Architecture, section, RULES, where="made-up")
