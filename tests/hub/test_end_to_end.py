"""From a hub id to a header: the requests and bytes of the first and the second read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.hub.hub_files import gguf_header, write_gguf
from tests.hub.nginx_hub import Hub

from edgekit.errors import HeaderError
from edgekit.formats import read_header
from edgekit.formats.types import Depth
from edgekit.sources.locator import locate
from edgekit.sources.types import Reach, Traffic

HEADER_BYTES = len(gguf_header(vocabulary=100_000))


def test_architecture_takes_one_range(hub: Hub, reach: Reach) -> None:
    header = read_header(locate("acme/large-GGUF", reach=reach), depth=Depth.ARCHITECTURE)
    assert header.keys["llama.block_count"] == 2
    assert reach.traffic.ranges == 1
    assert [line.split()[3] for line in hub.log("cdn")] == ["bytes=0-524287"]


def test_tensor_directory_takes_the_header_and_at_most_one_mebibyte_more(
    hub: Hub, reach: Reach
) -> None:
    header = read_header(locate("acme/large-GGUF", reach=reach), depth=Depth.TENSORS)
    assert header.tensors is not None
    assert [tensor.shape for tensor in header.tensors] == [(4, 64)]
    assert reach.traffic.received_bytes <= HEADER_BYTES + 1024**2
    assert reach.traffic.requests <= 8


def test_second_read_takes_the_listing_and_one_redirect(hub: Hub, reach: Reach) -> None:
    for _ in range(2):
        hub.clear_logs()
        again = replace(reach, cache=True, traffic=Traffic())
        header = read_header(locate("acme/large-GGUF", reach=again), depth=Depth.TENSORS)
    assert header.tensor_count == 1
    assert (len(hub.log("hub")), hub.log("cdn")) == (2, [])
    assert again.traffic.received_bytes < 2048
    assert again.traffic.cached_bytes >= HEADER_BYTES


def test_invalid_header_is_not_cached(hub: Hub, reach: Reach) -> None:
    write_gguf(
        hub.root / "cdn/broken-header.gguf", b"GGUF\x03\0\0\0" + b"\xff" * 64, weights_bytes=0
    )
    for _ in range(2):
        again = replace(reach, cache=True, traffic=Traffic())
        with pytest.raises(HeaderError):
            read_header(locate(f"{hub.cdn}/broken-header.gguf", reach=again))
        assert again.traffic.cached_bytes == 0


@pytest.mark.parametrize(
    "text",
    [
        "acme/tensors",
        "{endpoint}/acme/tensors",
        "{endpoint}/acme/tensors/tree/main",
        "hf://acme/tensors",
        "{endpoint}/acme/tensors/blob/main/model-00001-of-00002.safetensors",
        "{endpoint}/acme/tensors/resolve/main/model-00002-of-00002.safetensors?download=true",
        "{cdn}/acme/tensors/model-00001-of-00002.safetensors",
    ],
)
def test_every_spelling_of_a_model_has_the_same_tensors(hub: Hub, reach: Reach, text: str) -> None:
    files = locate(text.format(endpoint=hub.endpoint, cdn=hub.cdn), reach=reach)
    assert [file.name for file in files.weights] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert files.config is not None


def test_ollama_name_is_read_to_its_header(hub: Hub, reach: Reach) -> None:
    header = read_header(locate("ollama:tiny:latest", reach=reach))
    assert header.keys["general.architecture"] == "model"
