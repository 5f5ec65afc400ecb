"""Models in an Ollama registry: manifests, blobs, and the errors for what does not exist."""

from __future__ import annotations

import pytest
from tests.hub.nginx_hub import Hub

from edgekit.errors import (
    HeaderError,
    NotFoundError,
    RemoteInspectError,
    RemoteNotFoundError,
    UsageError,
)
from edgekit.sources.ollama import locate_ollama
from edgekit.sources.reference import OllamaModel
from edgekit.sources.types import Container, Origin, Reach


def test_ollama_name_is_its_model_layer_and_projectors(hub: Hub, reach: Reach) -> None:
    result = locate_ollama(OllamaModel(name="tiny"), reach)
    assert (result.label, result.origin, result.container) == (
        "tiny:latest",
        Origin.OLLAMA,
        Container.GGUF,
    )
    assert (len(result.weights), len(result.projectors)) == (1, 1)
    file = result.weights[0].open()
    assert file.read(0, 4) == b"GGUF"
    assert file.size_bytes == result.weights[0].size_bytes
    assert file.name.startswith("tiny:latest (sha256:")
    file.close()


def test_registry_serves_the_manifest_and_redirects_to_blobs(hub: Hub, reach: Reach) -> None:
    locate_ollama(OllamaModel(name="tiny"), reach).weights[0].open().close()
    assert [line.split()[1].rpartition("/")[0] for line in hub.log("hub")] == [
        "/v2/library/tiny/manifests",
        "/v2/library/tiny/blobs",
    ]
    assert len(hub.log("cdn")) == 1


@pytest.mark.parametrize("model", [OllamaModel(name="tinny"), OllamaModel(name="tiny", tag="7b")])
def test_missing_model_is_an_error(hub: Hub, reach: Reach, model: OllamaModel) -> None:
    with pytest.raises(
        RemoteNotFoundError, match=f"^{model.name}:{model.tag}: .* has no such model or tag"
    ):
        locate_ollama(model, reach)


def test_cloud_only_model_is_an_error(hub: Hub, reach: Reach) -> None:
    with pytest.raises(NotFoundError, match="tiny:cloud has no weights"):
        locate_ollama(OllamaModel(name="tiny", tag="cloud"), reach)


@pytest.mark.parametrize("tag", ["bad", "list"])
def test_answer_that_is_not_a_manifest_is_an_error(hub: Hub, reach: Reach, tag: str) -> None:
    with pytest.raises(HeaderError, match=f"tiny:{tag}: not an Ollama manifest"):
        locate_ollama(OllamaModel(name="tiny", tag=tag), reach)


def test_other_registries_are_contacted_over_https(hub: Hub, reach: Reach) -> None:
    model = OllamaModel(name="tiny", namespace="me", host="127.0.0.1:9")
    message = r"^127\.0\.0\.1:9/me/tiny:latest: cannot reach 127\.0\.0\.1:9 "
    with pytest.raises(RemoteInspectError, match=message):
        locate_ollama(model, reach)


def test_invalid_registry_setting_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, reach: Reach
) -> None:
    monkeypatch.setenv("EDGEKIT_OLLAMA_REGISTRY", "localhost")
    with pytest.raises(
        UsageError, match="EDGEKIT_OLLAMA_REGISTRY='localhost' is not a web address"
    ):
        locate_ollama(OllamaModel(name="tiny"), reach)
