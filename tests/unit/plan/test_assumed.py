"""A name that is found nowhere: judged by the size and the quantisation that it states."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from edgekit.basis import Basis
from edgekit.bill.types import Component
from edgekit.bill.verdict import Verdict
from edgekit.cli import main
from edgekit.errors import EdgekitError, NotFoundError, RefusedError
from edgekit.models import can_load, model_preflight
from edgekit.units import GIB

NAME = "13B at Q5_K_M"
WEIGHTS = 13 * 10**9 * 5.69 / 8  # the mix's bits per weight
OVERHEAD = 2.5 * GIB  # of 10 to 30 billion parameters
CACHE_TOKEN = 40 * 2 * 10 * 128 * 2  # phi-3-medium: 40 layers, K and V of 10 heads of 128, 16 bit


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Port 9 of this machine: nobody listens."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("EDGEKIT_OLLAMA_REGISTRY", "http://127.0.0.1:9")


def judged(name: str = NAME, **more: Any) -> Verdict:
    return model_preflight(name, context=16_384, **more)


@pytest.mark.parametrize("name", [NAME, "Llama-13B-Q5_K_M", "llama-13b-q5_k_m", "13B Q5_K_M"])
def test_model_preflight_adds_up_a_bare_name(name: str) -> None:
    result = judged(name, ram="32G")
    bill = result.estimate
    assert bill.weights_bytes == pytest.approx(WEIGHTS, rel=1e-6)
    assert bill.kv_cache_bytes == 16_384 * CACHE_TOKEN
    assert bill.of(Component.RUNTIME) == OVERHEAD
    assert {line.basis for line in bill.lines} == {Basis.ASSUMED}
    assert any("ASSUMED from the name alone" in note for note in bill.notes)
    assert any(
        "without grouped-query attention needs 4 times as much" in note for note in bill.notes
    )
    assert (result.native_context, result.max_context) == (None, 32_768)


@pytest.mark.parametrize(
    ("ram", "status"), [("24G", "PASSED"), ("20G", "WARNING"), ("16G", "FAILED")]
)
def test_model_preflight_judges_an_assumed_bill_by_70_and_85_percent(ram: str, status: str) -> None:
    """14.2 GiB: 8.6 of weights, 3.1 of cache at f16 and 2.5; 62, 75 and 95 % of what is left after 1 GiB."""
    result = judged(ram=ram, options={"type_k": "f16", "type_v": "f16"})
    assert f"{result.required_gb:.1f}" == "14.2"
    assert result.status.name == status


@pytest.mark.parametrize(
    "flags", [("--mix", "Q8_0"), ("-md", "sample:gemma-3-27b"), ("--mmproj", "sample:gemma-3-27b")]
)
def test_check_refuses_what_a_bare_name_cannot_be_billed_with(
    flags: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", NAME, *flags, "--ram", "32G"]) == 2
    assert re.search(rf"{flags[0]}\S* does not apply to '{NAME}'", capsys.readouterr().err)


def test_an_assumed_bill_is_divided_among_cards_and_host() -> None:
    alone, both = judged(ram="32G"), judged(ram="32G", vram="10G,10G")
    part = judged(ram="32G", vram="10G")
    assert both.estimate.total_bytes == alone.estimate.total_bytes
    assert part.estimate.total_bytes == alone.estimate.total_bytes
    assert [pool.label for pool in both.estimate.pools] == ["device", "device 1"]
    assert [pool.label for pool in part.estimate.pools] == ["device", "host"]
    assert part.can_load


def test_check_marks_what_is_assumed_and_prints_no_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", NAME, "--ram", "32G"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Runs on the CPU: ")
    assert out.splitlines()[0].endswith("(rough estimate from the name alone)")
    assert "\nRun" not in out
    assert main(["check", NAME, "--ram", "32G", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["basis"], told["command"]) == ("assumed", None)


def test_a_name_alone_says_nothing_about_speed(capsys: pytest.CaptureFixture[str]) -> None:
    assert judged(ram="32G").speed is None
    main(["check", NAME, "--ram", "32G", "--why"])
    assert "tokens/s" not in capsys.readouterr().out


def test_vllm_is_not_judged_by_a_name() -> None:
    with pytest.raises(RefusedError, match="give a repository"):
        judged(engine="vllm", device="RTX 4090")


@pytest.mark.parametrize("name", ["13B", "no-such-model-Q4_K_M", "no-such-13B-Q4_K_M.gguf"])
def test_a_name_without_size_and_quantisation_is_not_found(name: str) -> None:
    with pytest.raises(NotFoundError):
        judged(name, ram="32G")


def test_a_name_with_a_tag_is_not_judged_by_its_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model and its quantisation, of Ollama's or of the catalog: a guess would look like its answer."""
    monkeypatch.setenv("EDGEKIT_OLLAMA_REGISTRY", "http://127.0.0.1:9")
    with pytest.raises(EdgekitError, match="acme-9b:Q8_0"):
        judged("acme-9b:Q8_0", ram="32G")


def test_plan_and_can_load_need_more_than_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", NAME, "--ram", "32G"]) == NotFoundError.exit_code
    assert "model not found" in capsys.readouterr().err
    with pytest.raises(NotFoundError):
        can_load(NAME, ram="32G")
