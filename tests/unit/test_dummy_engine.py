"""A new engine is one folder (here tests/data/dummy_engine) and one line in the list of engines.

Every front end then has its name, its flag, its bill and its command.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tools.goldens import response_of

from edgekit import engines
from edgekit.cli import main
from edgekit.models import model_preflight

FOLDER = "tests.data.dummy_engine"
MODEL = "sample:gemma-3-27b"
SETTINGS = ("--engine", "dummy", "--dummy-spare", "1G", "-c", "8192")
FIELDS = {"model": MODEL, "engine": "dummy", "dummy_spare": "1G", "context": 8192}
WEIGHTS_BYTES = 16_539_843_584
CACHE_BYTES = 8192 * 62 * 2 * 16 * 128 * 2  # tokens, layers, K and V, heads, width, bytes
SPARE_BYTES = 2**30
BILL_BYTES = WEIGHTS_BYTES + CACHE_BYTES + SPARE_BYTES
COMMAND = "dummy-server gemma-3-27b.Q4_K_M.gguf --tokens 8192 --dummy-spare 1073741824"


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engines, "LIST", (*engines.LIST, FOLDER))
    engines._by_name.cache_clear()
    yield
    monkeypatch.undo()
    engines._by_name.cache_clear()


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    assert not code, err
    return out


def test_engine_names_has_the_dummy_engine_last() -> None:
    assert engines.engine_names() == ("llama.cpp", "vllm", "mlx", "stream", "dummy")
    assert engines.engine_named("DumDum").name == "dummy"


@pytest.mark.parametrize("command", ["check", "plan"])
def test_check_and_plan_print_bill_and_command(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    text = output_of(capsys, command, MODEL, *SETTINGS, "--ram", "64G")
    assert "Runs on the CPU: 20.3 of 62.0 GiB at 8K" in text
    assert "·  dummy  ·" in text
    assert COMMAND in " ".join(text.split())


def test_check_json_has_bill_and_command(capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads(output_of(capsys, "check", MODEL, *SETTINGS, "--ram", "64G", "--json"))
    assert result["engine"] == {"name": "dummy", "version": "dummy 1.0"}
    assert (result["required_bytes"], result["basis"]) == (BILL_BYTES, "exact")
    assert result["flags"] == {"context": "8192", "dummy_spare": "1073741824"}
    assert result["way"] == "in dummy memory"
    assert result["command"] == COMMAND
    assert result["estimate"]["asked"] == "8,192 dummy tokens"


def test_plan_chooses_a_context(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (MODEL, "--engine", "dummy", "--ram", "32G", "--json")
    result = json.loads(output_of(capsys, "plan", *arguments))
    cache_bytes = result["required_bytes"] - WEIGHTS_BYTES
    assert cache_bytes == CACHE_BYTES // 8192 * result["context_tokens"]
    assert result["required_bytes"] <= result["available_bytes"] == 30 * 2**30


def test_estimate_json_has_bill_and_command(capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads(output_of(capsys, "estimate", MODEL, *SETTINGS, "--json"))
    sizes = (result["model_bytes"], result["kv_bytes"], result["runtime_bytes"])
    assert sizes == (WEIGHTS_BYTES, CACHE_BYTES, SPARE_BYTES)
    assert (result["engine_version"], result["command"]) == ("dummy 1.0", COMMAND)


def test_check_of_all_engines_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of(capsys, "check", MODEL, "--engine", "all", "-c", "8192", "--ram", "64G")
    assert "dummy" in [line.split()[1] for line in text.splitlines() if line.startswith("fits")]


def test_help_lists_name_and_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "stream, dummy, auto or all" in text
    assert "Dummy: --dummy-spare SIZE memory to allocate for nothing" in text


def test_flag_alone_chooses_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (MODEL, "--dummy-spare", "1G", "--ram", "64G", "--json")
    assert json.loads(output_of(capsys, "check", *arguments))["engine"]["name"] == "dummy"


def test_flag_is_refused_for_another_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", MODEL, "--engine", "vllm", "--dummy-spare", "1G"]) == 2
    assert "--dummy-spare is a flag of dummy" in capsys.readouterr().err


def test_model_preflight_takes_the_option_as_a_number() -> None:
    options = {"dummy_spare": SPARE_BYTES}
    result = model_preflight(MODEL, "dummy", ram="64G", context=8192, options=options)
    assert (result.engine, result.estimate.total_bytes) == ("dummy", BILL_BYTES)


@pytest.fixture
def _web_with_dummy_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports edgekit.web again, which makes the fields of its calls from the list of engines."""
    import edgekit.web.app  # so that the first import can be restored

    monkeypatch.setattr(edgekit, "web", edgekit.web)
    for name in list(sys.modules):
        if name.startswith("edgekit.web"):
            monkeypatch.delitem(sys.modules, name)


def call_api(method: str, call: str, fields: dict[str, Any] | None = None) -> Any:
    status, body = response_of(method, call, fields)
    assert status == 200, body
    return body


@pytest.mark.usefixtures("_web_with_dummy_engine")
def test_rest_api_has_the_engine() -> None:
    check = call_api("POST", "check", {**FIELDS, "ram": "64G"})
    assert (check["engine"]["name"], check["required_bytes"]) == ("dummy", BILL_BYTES)
    assert check["command"] == COMMAND

    fit = call_api("POST", "fit", {**FIELDS, "ram": "64G"})
    assert (fit["engine"], fit["bars"][0]["required_bytes"]) == ("dummy", BILL_BYTES)
    assert (fit["command"], fit["flags"]["dummy_spare"]) == (COMMAND, "1073741824")

    plan = call_api("POST", "plan", {**FIELDS, "ram": "64G"})
    assert (plan["engine"]["name"], plan["required_bytes"]) == ("dummy", BILL_BYTES)

    estimate = call_api("POST", "estimate", FIELDS)
    assert (estimate["engine"], estimate["total_bytes"]) == ("dummy", BILL_BYTES)

    curves = call_api("POST", "curves", {**FIELDS, "ram": "64G", "points": 2})
    assert [curve["cache"] for curve in curves["curves"]] == ["f16"]

    *_, last = call_api("GET", "engines")["engines"]
    assert (last["name"], last["label"], last["program"]) == ("dummy", "Dummy", "dummy-server")
    assert last["cache"]["types"] == ["f16"]
    assert [row["key"] for row in last["controls"]] == ["dummy_spare"]
