"""-ot, -sm and --rpc through the REST API and the page's own call: the answers of the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.web.serving import ask, start

from edgekit.cli import main

QWEN = "sample:qwen3-30b-a3b"
SERVER = "10.0.0.5:50052=24G"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with start() as address:
        yield address


@pytest.mark.parametrize(
    ("call", "fields", "words"),
    [
        ("estimate", {"override_tensor": "exps=CPU"}, ("-ot", "exps=CPU")),
        ("estimate", {"rpc": SERVER}, ("--rpc", SERVER)),
        (
            "check",
            {"device": ["2x RTX 3090"], "ram": "64G", "split_mode": "tensor"},
            ("--device", "2x RTX 3090", "--ram", "64G", "-sm", "tensor"),
        ),
        (
            "plan",
            {"device": ["RTX 3060"], "ram": "64G", "rpc": SERVER},
            ("--device", "RTX 3060", "--ram", "64G", "--rpc", SERVER),
        ),
    ],
)
def test_a_call_answers_as_the_command_does(
    server: str,
    call: str,
    fields: dict[str, Any],
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    request = {"model": QWEN, "context": 8192, **fields}
    answer = ask(server, f"/api/v1/{call}", request).json()
    main([call, QWEN, "-c", "8192", *words, "--json"])
    assert answer == json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "fields",
    [
        {"device": ["RTX 3060"], "ram": "64G", "rpc": SERVER},
        {"ram": "64G", "rpc": SERVER},
        {"device": ["RTX 4090", "RTX 3090"], "ram": "64G", "split_mode": "none", "main_gpu": 1},
        {"device": ["2x RTX 3090"], "ram": "64G", "split_mode": "tensor"},
    ],
    ids=["card and server", "server alone", "one of two cards", "slices"],
)
def test_flags_of_an_answer_give_its_bill_again(server: str, fields: dict[str, Any]) -> None:
    """What the page hands on from its picture of the fit to the breakdown."""
    result = ask(server, "/api/v1/fit", {"model": QWEN, "context": 8192, **fields}).json()
    again = ask(server, "/api/v1/estimate", {"model": QWEN, **result["flags"]}).json()
    assert again["lines"] == result["estimate"]["lines"]
