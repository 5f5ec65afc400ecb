"""tools/index.py: which rows are models, and what a geometry may be put together from."""

from __future__ import annotations

from typing import Any

import pytest
from tools.index import Known, contradicts, is_model
from tools.repositories import current_name

from edgekit.index.types import Entry

NOTHING_KNOWN: dict[str, Any] = {
    "kinds": ["chat"],
    "names": [{"name": "x", "scheme": "short"}],
    **dict.fromkeys(("parameters", "geometry_llmfit", "licence", "released", "hf_downloads", "ollama_pulls")),
}  # fmt: skip


def row(hub_id: str, **facts: Any) -> dict[str, Any]:
    return {**NOTHING_KNOWN, "hub_id": hub_id, **facts}


@pytest.mark.parametrize(
    "hub_id", ["pytorch/issues", "openai/gsm8k", "lmsys/lmsys-chat-1m", "HuggingFaceH4/ultrachat_200k"]
)  # fmt: skip
def test_row_of_which_only_the_name_is_known_is_not_a_model(hub_id: str) -> None:
    assert not is_model(row(hub_id), has_files=False)


@pytest.mark.parametrize("hub_id", ["EleutherAI/gpt-j-6b", "EleutherAI/pythia-70m"])
def test_row_with_a_size_in_its_name_is_a_model(hub_id: str) -> None:
    assert is_model(row(hub_id), has_files=False)


def test_row_with_a_licence_is_a_model() -> None:
    assert is_model(row("org/some-model", licence="mit"), has_files=False)


def test_base_model_and_model_of_a_registry_are_models() -> None:
    assert is_model(row("deepseek-ai/DeepSeek-V3-Base"), has_files=False)
    names = [{"name": "bge-m3", "scheme": "xinference"}]
    assert is_model(row("BAAI/bge-m3", names=names), has_files=False)
    assert is_model(row("tencent/Hy-Next"), has_files=True)


@pytest.mark.parametrize(
    "hub_id", ["Qwen/Qwen-Image-Edit-2511", "google/siglip2-base-patch16-224", "Lightricks/LTX-2"]
)  # fmt: skip
def test_generators_and_encoders_of_images_are_left_out_whatever_is_known(hub_id: str) -> None:
    assert not is_model(row(hub_id, parameters=20 * 10**9, licence="mit"), has_files=True)
    assert is_model(row("Qwen/Qwen-Image-Bench", parameters=27 * 10**9), has_files=True)


def test_config_with_another_number_contradicts() -> None:
    known = Known(
        entry=Entry(id="x", family="x", architecture=""),
        hub_id="org/x",
        named={"geometry_llmfit": {"num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128_264}},
    )  # fmt: skip
    config = {"num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128_256}
    assert not contradicts(known, config)  # vocabularies may be padded
    assert contradicts(known, {**config, "num_hidden_layers": 36})
    assert contradicts(known, {"text_config": {**config, "hidden_size": 5120}})


def test_current_name_follows_publishers_that_were_renamed() -> None:
    assert current_name("meta-llama/Meta-Llama-3.1-8B") == "meta-llama/llama-3.1-8b"
    assert current_name("CohereForAI/aya-23-8B") == "coherelabs/aya-23-8b"
