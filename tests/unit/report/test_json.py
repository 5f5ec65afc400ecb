"""report/json.py: fields of objects, and documents as text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import MappingProxyType

from edgekit.report.json import fields, json_line, json_text
from edgekit.units import Basis


@dataclass
class Part:
    name: str = "cache"
    basis: Basis = Basis.EXACT
    shape: tuple[int, ...] = (2, 3)
    because: str = ""
    layer: int = 0


def test_fields_of_an_object() -> None:
    assert fields(Part(), "name basis shape because") == {
        "name": "cache",
        "basis": "exact",
        "shape": [2, 3],
        "because": "",
    }


def test_fields_with_a_question_mark_are_null_if_empty() -> None:
    assert fields(Part(), "name? because? layer?") == {
        "name": "cache",
        "because": None,
        "layer": None,
    }


@dataclass
class Whole:
    part: Part | None


def test_fields_with_paths_and_other_keys() -> None:
    names = "label=part.name shape=part.shape known=part.basis.name why=part.because?"
    expected = {"label": "cache", "shape": [2, 3], "known": "EXACT", "why": None}
    assert fields(Whole(Part()), names) == expected
    assert fields(Whole(None), names) == dict.fromkeys(expected)


def test_json_text_and_json_line_write_infinite_numbers_as_strings() -> None:
    value = {"rope": [float("inf"), 1.5], "keys": MappingProxyType({"é": float("nan")})}
    expected = {"rope": ["inf", 1.5], "keys": {"é": "nan"}}
    assert json.loads(json_text(value)) == json.loads(json_line(value)) == expected
    assert json_text(value).isascii()
