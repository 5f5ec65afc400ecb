"""Verdicts as a program reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.report.verdicts import LINES, RECORDED, TOO_LARGE, made, recorded

from edgekit.app.answers import Unanswered
from edgekit.bill.verdict import Speed
from edgekit.errors import NotFoundError
from edgekit.report.check import check_json
from edgekit.report.tables import checks_json, unanswered_json
from edgekit.units import GIB

NAMES = [
    "schema", "model", "reference", "headline", "status", "can_load", "context_tokens", "context_asked", "context_because",
    "max_context", "way_context", "recommended_context", "native_context",
    "quantization", "cache", "download_bytes", "step", "speed", "required_bytes", "available_bytes", "utilization",
    "engine", "machine", "budgets", "way", "flags", "reasons", "changes", "basis", "estimate", "command", "notes",
]  # fmt: skip
BUDGET = {
    "name", "pools", "total_bytes", "free_bytes", "reserve_bytes", "because", "blocked", "available_bytes",
    "limit_bytes", "limit_because", "required_bytes", "covered_bytes", "utilization", "status",
}  # fmt: skip
MISSING = Unanswered(
    reference="no/such", engine="vllm", error=NotFoundError("there is no such model")
)


def test_the_figures_of_the_tightest_memory() -> None:
    told = check_json(made())
    assert list(told) == NAMES
    assert (told["status"], told["can_load"]) == ("passed", True)
    assert (told["required_bytes"], told["available_bytes"]) == (11 * GIB + GIB // 2, 23 * GIB)
    assert told["utilization"] == 0.5
    assert (told["context_tokens"], told["context_asked"], told["context_because"]) == (
        32_768,
        True,
        None,
    )
    assert (told["max_context"], told["recommended_context"], told["native_context"]) == (
        74_240,
        59_392,
        131_072,
    )
    assert told["engine"] == {"name": "llama.cpp", "version": "1.0"}
    assert told["basis"] == "assumed"
    assert told["command"] == "llama-server -m tiny.gguf -c 32768 -ngl all"
    assert told["notes"] == ["a note of the model", "a note of the bill"]
    assert told["estimate"]["total_bytes"] == sum(one.size_bytes for one in LINES if one.reserved)


def test_the_headline_and_what_was_chosen() -> None:
    speed = Speed(decode=(24.0, 60.0), prefill=(900.0, 3600.0), because="a token reads 8 GiB")
    told = check_json(made(speed=speed, quantization="Q4_K_M", cache="q8_0", step=2))
    assert told["headline"].startswith("Runs fully on your RTX 4090: 11.5 of 23.0 GiB at 32K")
    assert (told["quantization"], told["cache"], told["step"]) == ("Q4_K_M", "q8_0", 2)
    assert told["speed"] == {
        "typical": 37.95, "decode": [24.0, 60.0], "prefill": [900.0, 3600.0], "basis": "modelled",
        "because": "a token reads 8 GiB",
    }  # fmt: skip
    bare = check_json(made())
    assert (bare["quantization"], bare["cache"], bare["speed"]) == (None, None, None)


def test_every_budget_with_what_is_taken_of_it() -> None:
    card, host = check_json(made())["budgets"]
    assert set(card) == BUDGET
    assert (card["name"], card["pools"], card["reserve_bytes"]) == ("RTX 4090", ["device"], GIB)
    assert (host["required_bytes"], host["available_bytes"]) == (GIB + GIB // 2, 15 * GIB)
    assert (host["utilization"], host["status"], host["blocked"]) == (0.1, "passed", None)


def test_one_that_does_not_fit_has_reasons_and_no_command() -> None:
    told = check_json(TOO_LARGE)
    assert (told["status"], told["can_load"], told["command"]) == ("failed", False, None)
    assert told["reasons"] == ["32,768 tokens need 24.00 GiB; RAM has 15.00 GiB usable"]
    assert told["context_because"] == "the default minimum"
    assert told["changes"] == [
        {
            "kind": "cache",
            "value": "q8_0",
            "told": "-ctk q8_0 -ctv q8_0: fits, up to 131,072 tokens",
            "flags": {"type_k": "q8_0", "type_v": "q8_0"},
            "max_context": 131_072,
        }
    ]


def test_a_share_of_nothing_is_null() -> None:
    told = check_json(recorded("nothing free"))
    assert told["available_bytes"] == 0
    assert told["utilization"] is None
    assert told["budgets"][0]["utilization"] is None


@pytest.mark.parametrize("name", RECORDED)
def test_valid_json_and_whole_bytes(name: str) -> None:
    told = check_json(recorded(name))
    assert json.loads(json.dumps(told, allow_nan=False)) == told | {
        "estimate": json.loads(json.dumps(told["estimate"]))
    }
    for key, value in _leaves(told):
        if key.endswith("_bytes"):
            assert value is None or type(value) is int, key


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    match value:
        case dict():
            for name, one in value.items():
                yield from _leaves(one, name)
        case list():
            for one in value:
                yield from _leaves(one, key)
        case _:
            yield key, value


def test_many() -> None:
    told = checks_json([made(), MISSING, TOO_LARGE])
    assert told["schema"] == 1
    assert told["models"] == [check_json(made()), unanswered_json(MISSING), check_json(TOO_LARGE)]
    assert told["models"][1] == {
        "reference": "no/such",
        "engine": "vllm",
        "error": {"type": "NotFoundError", "message": "there is no such model"},
    }
    assert told["summary"] == {
        "fits": 1,
        "tight": 0,
        "does_not_fit": 1,
        "cannot_run": 0,
        "not_read": 1,
    }
