"""What has to be downloaded: the weights as the hub has them, whatever an engine makes of them in memory."""

from __future__ import annotations

import json

import pytest
from tests.unit.plan.machines import cards, mac
from tests.unit.plan.tasks import any_mix, from_config, gguf, one_file

from edgekit.cli import main
from edgekit.plan.plan import make_plan
from edgekit.plan.verdict import download_bytes


def test_download_bytes_of_a_quantisation_are_those_of_its_file() -> None:
    plan = make_plan(any_mix("llama-3.1-8b", cards(8)))
    assert plan.variant.name == "Q4_K_M"
    size = download_bytes(plan.result)
    stored = gguf("llama-3.1-8b").header
    assert size == pytest.approx(stored.tensor_bytes, rel=0.001)
    assert download_bytes(make_plan(one_file("llama-3.1-8b", cards(24))).result) == (
        stored.file_bytes or stored.tensor_bytes
    )


def test_download_bytes_do_not_depend_on_the_number_of_cards() -> None:
    sizes = {
        download_bytes(make_plan(from_config("llama-3.1-8b", cards(*gib), "vllm")).result)
        for gib in ((80,), (24, 24), (24, 24, 24, 24))
    }
    assert sizes == {2 * 8_030_261_248}  # 16 bits each


def test_download_bytes_for_mlx_are_those_of_the_packed_weights() -> None:
    plan = make_plan(from_config("llama-3.1-8b", mac(13), "mlx"))
    assert plan.variant.name == "4 bit"
    assert download_bytes(plan.result) == plan.result.estimate.weights_bytes


@pytest.mark.parametrize("model", ["gemma-3-27b", "sample:gemma-3-27b"])
@pytest.mark.parametrize("command", ["check", "plan"])
def test_the_download_is_shown_for_names_and_not_for_files(
    command: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    known = not model.startswith("sample:")
    main([command, model, "--device", "RTX 4090"])
    assert ("16.5 GB download" in capsys.readouterr().out) is known
    main([command, model, "--device", "RTX 4090", "--json"])
    size = json.loads(capsys.readouterr().out)["download_bytes"]
    assert (size is not None) is known
