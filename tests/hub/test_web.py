"""Addresses of files on any web server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.hub.hub_files import gguf_header
from tests.hub.nginx_hub import Hub
from tests.hub.raw_server import RawServer, Request, Script, Send, range_response, response

from edgekit.errors import HeaderError, RemoteInspectError, UsageError
from edgekit.sources.remote import locate_url
from edgekit.sources.types import Container, Origin, Reach

Server = Callable[[Script], RawServer]


def test_url_of_a_gguf_is_opened_on_first_use(hub: Hub, reach: Reach) -> None:
    url = f"{hub.cdn}/acme/tiny-GGUF/tiny-Q4_K_M.gguf"
    result = locate_url(url, reach)
    assert result.label == "tiny-Q4_K_M.gguf"
    assert (result.origin, result.container) == (Origin.URL, Container.GGUF)
    assert reach.traffic.requests == 0
    file = result.weights[0].open()
    assert (file.name, file.read(0, 4)) == (url, b"GGUF")
    file.close()


def test_url_of_a_shard_means_the_whole_set(hub: Hub, reach: Reach) -> None:
    url = f"{hub.cdn}/acme/split-GGUF/Q8_0/split-Q8_0-00002-of-00003.gguf?download=true"
    result = locate_url(url, reach)
    assert [file.name[-19:-5] for file in result.weights] == [
        "00001-of-00003",
        "00002-of-00003",
        "00003-of-00003",
    ]
    for file in result.weights:
        opened = file.open()
        assert opened.read(0, 4) == b"GGUF"
        opened.close()


def test_url_of_safetensors_includes_the_config_next_to_it(hub: Hub, reach: Reach) -> None:
    url = f"{hub.cdn}/acme/tensors/model-00001-of-00002.safetensors"
    result = locate_url(url, reach)
    assert result.container is Container.SAFETENSORS
    assert [file.name for file in result.weights] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert result.config is not None
    assert result.index is not None
    requests = reach.traffic.requests
    config = result.config.open()
    assert config.read(0, 13) == b'{"model_type"'
    assert reach.traffic.requests == requests  # locate_url had opened it to see whether it exists
    config.close()
    again = result.config.open()
    assert again.read(0, 13) == b'{"model_type"'
    again.close()


def test_url_of_safetensors_without_a_config_has_none(hub: Hub, reach: Reach) -> None:
    path = hub.root / "cdn/lonely/model.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    result = locate_url(f"{hub.cdn}/lonely/model.safetensors", reach)
    assert result.config is None
    assert len(result.weights) == 1


def test_url_of_a_config_is_a_model_without_weights(hub: Hub, reach: Reach) -> None:
    result = locate_url(f"{hub.cdn}/acme/tensors/config.json", reach)
    assert result.container is Container.CONFIG
    assert result.config is not None


def test_url_without_a_suffix_is_recognised_by_its_first_bytes(
    raw_server: Server, reach: Reach
) -> None:
    server = raw_server(lambda request, send: send(range_response(gguf_header(), request)))
    result = locate_url(f"{server.address}/download?id=s3cr3t", reach)
    assert result.container is Container.GGUF
    result.weights[0].open().close()
    assert len(server.requests) == 1


def test_url_of_another_file_type_is_an_error(raw_server: Server, reach: Reach) -> None:
    server = raw_server(lambda request, send: send(range_response(b"PK\x03\x04" * 100, request)))
    with pytest.raises(HeaderError, match="and the file is not a GGUF"):
        locate_url(f"{server.address}/model.zip", reach)


def test_server_error_for_the_config_is_not_a_missing_config(
    raw_server: Server, reach: Reach
) -> None:
    def script(request: Request, send: Send) -> None:
        send(response("500 Internal Server Error"))

    server = raw_server(script)
    with pytest.raises(RemoteInspectError, match="answered 500"):
        locate_url(f"{server.address}/model.safetensors", reach)


@pytest.mark.parametrize("url", ["ftp://a.example/a.gguf", "https:///a.gguf", "http://[::/a.gguf"])
def test_invalid_url_is_an_error(url: str, reach: Reach) -> None:
    with pytest.raises(UsageError, match="not the address of a file"):
        locate_url(url, reach)
