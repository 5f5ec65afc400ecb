"""parse_reference: what a user types, and the model it refers to."""

from __future__ import annotations

import pytest
from huggingface_hub import parse_hf_uri
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._validators import validate_repo_id
from hypothesis import given
from hypothesis import strategies as st

from edgekit.errors import UsageError
from edgekit.sources.reference import (
    HUB_HOSTS,
    MAX_TEXT_CHARS,
    BareName,
    HubModel,
    OllamaModel,
    Reference,
    SampleName,
    WebFile,
    ollama_model,
    parse_reference,
)

HUB: list[tuple[str, HubModel]] = [
    ("org/name", HubModel(repo="org/name")),
    (" org/name ", HubModel(repo="org/name")),
    ("org/name/", HubModel(repo="org/name")),
    ("Qwen/Qwen2.5-7B-Instruct", HubModel(repo="Qwen/Qwen2.5-7B-Instruct")),
    ("org/name:Q4_K_M", HubModel(repo="org/name", quant="Q4_K_M")),
    ("org/name:q4_k_m", HubModel(repo="org/name", quant="q4_k_m")),
    ("org/name:UD-Q4_K_XL", HubModel(repo="org/name", quant="UD-Q4_K_XL")),
    ("org/name:latest", HubModel(repo="org/name")),
    ("org/name:model-Q8_0.gguf", HubModel(repo="org/name", filename="model-Q8_0.gguf")),
    ("org/name:BF16/m-BF16.GGUF", HubModel(repo="org/name", filename="BF16/m-BF16.GGUF")),
    ("org/name@v1.0", HubModel(repo="org/name", revision="v1.0")),
    ("org/name@refs/pr/1", HubModel(repo="org/name", revision="refs/pr/1")),
    ("org/name@refs%2Fpr%2F1", HubModel(repo="org/name", revision="refs/pr/1")),
    ("org/name@main:Q8_0", HubModel(repo="org/name", revision="main", quant="Q8_0")),
    ("org/name:Q8_0@main", HubModel(repo="org/name", revision="main", quant="Q8_0")),
    ("org/name@refs/pr/1:Q8_0", HubModel(repo="org/name", revision="refs/pr/1", quant="Q8_0")),
    ("org/name/a/m.gguf", HubModel(repo="org/name", filename="a/m.gguf")),
    ("hf.co/org/name", HubModel(repo="org/name")),
    ("HF.co/org/name:Q4_0", HubModel(repo="org/name", quant="Q4_0")),
    ("huggingface.co/org/name", HubModel(repo="org/name")),
    ("hf://org/name", HubModel(repo="org/name")),
    ("hf://models/org/name", HubModel(repo="org/name")),
    ("hf://org/name@dev/a/m.gguf", HubModel(repo="org/name", revision="dev", filename="a/m.gguf")),
    (
        "hf://org/name@refs/pr/12/m.gguf",
        HubModel(repo="org/name", revision="refs/pr/12", filename="m.gguf"),
    ),
    ("https://huggingface.co/org/name", HubModel(repo="org/name")),
    ("https://www.huggingface.co/org/name/", HubModel(repo="org/name")),
    ("HTTPS://HuggingFace.co/org/name", HubModel(repo="org/name")),
    ("https://hf.co/org/name:Q6_K", HubModel(repo="org/name", quant="Q6_K")),
    ("https://huggingface.co/org/name/tree/dev", HubModel(repo="org/name", revision="dev")),
    (
        "https://huggingface.co/org/name/tree/main/UD-Q4_K_XL",
        HubModel(repo="org/name", revision="main", quant="UD-Q4_K_XL"),
    ),
    (
        "https://huggingface.co/org/name/blob/main/a/m.gguf",
        HubModel(repo="org/name", revision="main", filename="a/m.gguf"),
    ),
    (
        "https://huggingface.co/org/name/resolve/main/m.gguf?download=true#x",
        HubModel(repo="org/name", revision="main", filename="m.gguf"),
    ),
    (
        "https://huggingface.co/org/name/resolve/refs%2Fpr%2F1/a%20b.gguf",
        HubModel(repo="org/name", revision="refs/pr/1", filename="a b.gguf"),
    ),
    (
        "huggingface.co/org/name/blob/main/config.json",
        HubModel(repo="org/name", revision="main", filename="config.json"),
    ),
]

OLLAMA: list[tuple[str, OllamaModel]] = [
    ("llama3.2:3b", OllamaModel(name="llama3.2", tag="3b")),
    ("ollama:llama3.2", OllamaModel(name="llama3.2")),
    ("ollama://llama3.2:3b", OllamaModel(name="llama3.2", tag="3b")),
    ("ollama:me/mine:q8_0", OllamaModel(namespace="me", name="mine", tag="q8_0")),
    ("registry.ollama.ai/library/qwen3:8b", OllamaModel(name="qwen3", tag="8b")),
    ("https://ollama.com/library/qwen3:8b", OllamaModel(name="qwen3", tag="8b")),
    ("https://ollama.com/library/qwen3", OllamaModel(name="qwen3")),
    ("https://ollama.com/me/mine", OllamaModel(namespace="me", name="mine")),
    (
        "ollama:hf.co/bartowski/X-GGUF:Q4_K_M",
        OllamaModel(host="hf.co", namespace="bartowski", name="X-GGUF", tag="Q4_K_M"),
    ),
    (
        "ollama:localhost:5000/me/mine",
        OllamaModel(host="localhost:5000", namespace="me", name="mine"),
    ),
]

OTHERS: list[tuple[str, Reference]] = [
    ("sample:gemma-3-27b", SampleName(name="gemma-3-27b")),
    ("llama3.2", BareName(name="llama3.2")),
    ("my model (v2)", BareName(name="my model (v2)")),
    ("https://example.com/m.gguf", WebFile(url="https://example.com/m.gguf")),
    ("http://127.0.0.1:8080/a/m.gguf?t=1#f", WebFile(url="http://127.0.0.1:8080/a/m.gguf?t=1")),
    (
        "https://registry.ollama.ai/v2/library/x/blobs/sha256:ab",
        WebFile(url="https://registry.ollama.ai/v2/library/x/blobs/sha256:ab"),
    ),
]


@pytest.mark.parametrize(("text", "expected"), [*HUB, *OLLAMA, *OTHERS])
def test_parse_reference(text: str, expected: Reference) -> None:
    assert parse_reference(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "a" * (MAX_TEXT_CHARS + 1),
        "org/na\x00me",
        "org/na\nme",
        "org/\x1b[31mname",
        "org/",
        "/name",
        "org//name",
        "../name",
        "org/..",
        "org/na me",
        "org/näme",
        "org/-name",
        "org/name.",
        "org/a--b",
        "org/a..b",
        "org/name.git",
        "org/" + "n" * 97,
        "org/name:",
        "org/name@",
        "org/name:Q4_K_M:Q8_0@",
        "org/name@a@b",
        "org/name:Q4_K_M@a@b",
        "org/name:Q4 K M",
        "org/name:../../x",
        "org/name/folder",
        "org/name/../x.gguf",
        "org/name/a//x.gguf",
        "org/name/a\\x.gguf",
        "org/name@../..",
        "org/name@a%00b",
        "org/name@%2e%2e%2fx",
        "datasets/org/name",
        "https://huggingface.co/datasets/org/name",
        "https://huggingface.co/spaces/org/name",
        "https://huggingface.co/org",
        "https://huggingface.co/",
        "https://huggingface.co/org/name/discussions/3",
        "https://huggingface.co/org/name/tree/main/a/b",
        "https://huggingface.co/org/name/blob/main/..%2F..%2Fx.gguf",
        "https://example.com",
        "https://example.com/",
        "https:///m.gguf",
        "http://",
        "name:",
        "name:a:b",
        "name:..",
        ":tag",
        "ollama:",
        "ollama:a/b/c/d:e",
        "ollama:../x:y",
        "ollama:a.b/x:y",
        "n" * 81 + ":tag",
        "https://ollama.com/library/qwen3/tags",
        "sample:",
        "sample:../x",
        "..",
        "n" * 300,
    ],
)
def test_parse_reference_of_an_invalid_text_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_reference(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://127.0.0.1:9/org/name", HubModel(repo="org/name")),
        (
            "http://127.0.0.1:9/org/name/resolve/main/m.gguf",
            HubModel(repo="org/name", revision="main", filename="m.gguf"),
        ),
        (
            "https://hub.corp/hf/org/name/blob/v2/m.gguf",
            HubModel(repo="org/name", revision="v2", filename="m.gguf"),
        ),
        ("hub.corp/hf/org/name", HubModel(repo="org/name")),
        ("http://127.0.0.1:99/org/m.gguf", WebFile(url="http://127.0.0.1:99/org/m.gguf")),
    ],
)
def test_parse_reference_treats_given_hosts_as_the_hub(text: str, expected: Reference) -> None:
    hosts = HUB_HOSTS | {"127.0.0.1:9", "hub.corp/hf"}
    assert parse_reference(text, hub_hosts=hosts) == expected


# huggingface_hub knows neither tags (llama.cpp and Ollama have them) nor www.
ADDRESSES = [
    text
    for text, model in HUB
    if text.startswith(("hf://", "https://")) and not model.quant and "www." not in text
]


@pytest.mark.parametrize("text", ADDRESSES)
def test_parse_reference_of_hub_addresses_agrees_with_huggingface_hub(text: str) -> None:
    expected, actual = parse_hf_uri(text), parse_reference(text)
    assert isinstance(actual, HubModel)
    assert (actual.repo, actual.revision, actual.filename or "") == (
        expected.id,
        expected.revision,
        expected.path_in_repo,
    )


@given(st.text("ab.-_/", min_size=1, max_size=12).filter(lambda t: t.count("/") == 1))
def test_valid_repository_names_are_those_of_huggingface_hub(repo: str) -> None:
    try:
        validate_repo_id(repo)
        valid = True
    except HFValidationError:
        valid = False
    try:
        assert parse_reference(f"hf://{repo}") == HubModel(repo=repo)
    except UsageError:
        assert not valid
    else:
        assert valid


@given(st.text(max_size=60))
def test_any_text_is_a_reference_or_a_printable_usage_error(text: str) -> None:
    message = ""
    try:
        parse_reference(text)
    except UsageError as error:
        message = str(error)
    assert message.isprintable()


def test_ollama_model_of_a_bare_name_has_the_tag_latest() -> None:
    assert ollama_model(BareName(name="qwen3")) == OllamaModel(name="qwen3", tag="latest")
    with pytest.raises(UsageError):
        ollama_model(BareName(name="my model"))
