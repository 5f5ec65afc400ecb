"""`edgekit inspect` against the hub of the tests, from the command line to its JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.hub.nginx_hub import TOKEN, Hub

from edgekit.cli import main


def inspect(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code = main(["inspect", *words, "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {"code": code, **answer}


@pytest.mark.parametrize(
    "reference",
    [
        "acme/tiny-GGUF",
        "acme/tiny-GGUF:Q8_0",
        "acme/tiny-GGUF:q8_0",
        "acme/tiny-GGUF@main",
        "hf.co/acme/tiny-GGUF:Q8_0",
        "hf://acme/tiny-GGUF/tiny-Q8_0.gguf",
        "https://huggingface.co/acme/tiny-GGUF/blob/main/tiny-Q8_0.gguf",
        "https://huggingface.co/acme/tiny-GGUF/resolve/main/tiny-Q8_0.gguf?download=true",
    ],
)
def test_inspect_reads_every_form_of_reference(
    reference: str, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = inspect(capsys, reference)
    assert (answer["code"], answer["layers"], answer["tensor_bytes"]) == (0, 2, 64 * 4 * 4)
    assert answer["network"]["ranges"] == 1


def test_inspect_lists_companion_files(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    answer = inspect(capsys, "acme/tiny-GGUF")
    assert answer["projectors"] == ["mmproj-tiny-F16.gguf"]
    assert answer["alternatives"] == ["Q8_0"]


def test_inspect_reads_a_split_file_as_one_model(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = inspect(capsys, "acme/pair-GGUF", "--tensors")
    assert (answer["tensors"], answer["tensor_bytes"]) == (2, 2 * 64 * 4 * 4)
    assert [tensor["shard"] for tensor in answer["tensor_list"]] == [0, 1]


def test_inspect_adds_up_safetensors_shards(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    answer = inspect(capsys, "acme/llama")
    assert (answer["format"], answer["tensors"]) == ("safetensors", 2)
    assert (answer["tensor_bytes"], answer["parameters"]) == (1024 + 2048, 16 * 32 + 32 * 32)


def test_inspect_light_reads_only_config_and_index(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.clear_logs()
    answer = inspect(capsys, "acme/llama", "--light")
    assert (answer["tensor_bytes"], answer["tensors"]) == (3072, None)
    assert answer["parameters_basis"] == "modelled"
    assert hub.log("cdn") == []
    assert answer["network"]["requests"] == 3  # the listing, config.json, the index


def test_inspect_light_reads_one_range_of_a_gguf(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = inspect(capsys, "acme/large-GGUF", "--light")
    assert (answer["complete"], answer["vocabulary"], answer["tensor_bytes"]) == (
        False,
        100_000,
        None,
    )
    assert answer["network"]["ranges"] == 1
    assert answer["file_bytes"] > 64 << 20
    listed = answer["network"]["received_bytes"] - 512 * 1024
    assert 0 <= listed < 1024


def test_inspect_counts_packed_weights_as_weights(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = inspect(capsys, "acme/llama-mlx")
    assert (answer["format"], answer["parameters"]) == ("mlx", 16 * 16 * 32 // 4)
    assert answer["quantization"] == {
        "method": "affine",
        "format": None,
        "bits": 4,
        "group_size": 64,
        "overrides": 0,
    }


def test_second_inspect_transfers_no_header_bytes(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    first = inspect(capsys, "acme/large-GGUF")
    hub.clear_logs()
    again = inspect(capsys, "acme/large-GGUF")
    assert again["tensor_bytes"] == first["tensor_bytes"]
    assert again["network"]["cached_bytes"] >= first["header_bytes"]
    assert hub.log("cdn") == []
    assert inspect(capsys, "acme/large-GGUF", "--no-cache")["network"]["cached_bytes"] == 0


def test_inspect_opens_a_gated_model_with_the_token(
    hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = inspect(capsys, "acme/gated-GGUF")
    assert refused["code"] == 4
    assert "HF_TOKEN" in refused["error"]["message"]
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.clear_logs()
    opened = inspect(capsys, "acme/gated-GGUF")
    assert opened["code"] == 0, opened
    assert all("auth=[-]" in line for line in hub.log("cdn"))
    assert TOKEN in "".join(hub.log("hub"))


@pytest.mark.parametrize(
    ("reference", "code"),
    [
        ("acme/nothing", 4),
        ("acme/tiny-GGUF:Q2_K", 4),
        ("{cdn}/page.gguf", 4),
        ("{cdn}/broken.gguf", 4),
        ("{cdn}/empty.gguf", 5),
        ("{cdn}/nowhere.gguf", 4),
        ("{cdn}/whole/acme/tiny-GGUF/tiny-Q4_K_M.gguf", 4),
    ],
)
def test_inspect_errors_are_one_sentence(
    reference: str, code: int, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = inspect(capsys, reference.replace("{cdn}", hub.cdn))
    assert answer["code"] == code
    assert len(answer["error"]["message"]) > 20
