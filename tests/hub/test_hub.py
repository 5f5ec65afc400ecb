"""Models on the hub: listings, names, shards, and the errors for what does not exist."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.hub.nginx_hub import Hub
from tests.hub.raw_server import RawServer, Script, response

from edgekit.errors import (
    NotFoundError,
    RemoteInspectError,
    RemoteNotFoundError,
)
from edgekit.sources.hub import locate_hub
from edgekit.sources.reference import HubModel
from edgekit.sources.types import Container, Origin, Reach

Server = Callable[[Script], RawServer]


def test_repository_without_a_tag_means_q4_k_m(hub: Hub, reach: Reach) -> None:
    result = locate_hub(HubModel(repo="acme/tiny-GGUF"), reach)
    assert (result.label, result.origin, result.container) == (
        "acme/tiny-GGUF:Q4_K_M",
        Origin.HUB,
        Container.GGUF,
    )
    assert [file.name for file in result.weights] == ["tiny-Q4_K_M.gguf"]
    assert [file.name for file in result.projectors] == ["mmproj-tiny-F16.gguf"]
    assert result.alternatives == ("Q8_0",)
    assert reach.traffic.requests == 1
    assert reach.traffic.ranges == 0


def test_tag_is_case_insensitive(hub: Hub, reach: Reach) -> None:
    result = locate_hub(HubModel(repo="acme/tiny-GGUF", quant="q8_0"), reach)
    assert [file.name for file in result.weights] == ["tiny-Q8_0.gguf"]


def test_unknown_tag_lists_the_tags_that_exist(hub: Hub, reach: Reach) -> None:
    with pytest.raises(NotFoundError, match=r"acme/tiny-GGUF has no Q5_K_M.*Q4_K_M"):
        locate_hub(HubModel(repo="acme/tiny-GGUF", quant="Q5_K_M"), reach)


def test_listed_size_is_the_size_of_the_file(hub: Hub, reach: Reach) -> None:
    (listed,) = locate_hub(HubModel(repo="acme/large-GGUF"), reach).weights
    file = listed.open()
    assert listed.size_bytes == file.size_bytes
    file.close()


def test_opening_a_file_takes_one_range_of_half_a_mebibyte(hub: Hub, reach: Reach) -> None:
    locate_hub(HubModel(repo="acme/large-GGUF"), reach).weights[0].open().close()
    assert reach.traffic.ranges == 1
    assert reach.traffic.requests == 3  # listing, hub, cdn
    assert reach.traffic.received_bytes < 524_288 + 2048  # the redirect's page and the listing


def test_later_ranges_skip_the_hub(hub: Hub, reach: Reach) -> None:
    file = locate_hub(HubModel(repo="acme/large-GGUF"), reach).weights[0].open()
    file.read(700_000, 10)
    file.close()
    assert len(hub.log("hub")) == 2
    assert len(hub.log("cdn")) == 2


def test_shard_set_is_one_model(hub: Hub, reach: Reach) -> None:
    result = locate_hub(HubModel(repo="acme/split-GGUF"), reach)
    names = [f"Q8_0/split-Q8_0-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    assert [file.name for file in result.weights] == names
    for file in result.weights:
        opened = file.open()
        assert opened.read(0, 4) == b"GGUF"
        opened.close()


def test_named_shard_means_its_set_without_a_listing(hub: Hub, reach: Reach) -> None:
    name = "Q8_0/split-Q8_0-00002-of-00003.gguf"
    result = locate_hub(HubModel(repo="acme/split-GGUF", filename=name), reach)
    assert [file.name[-19:-5] for file in result.weights] == [
        "00001-of-00003",
        "00002-of-00003",
        "00003-of-00003",
    ]
    assert reach.traffic.requests == 0
    opened = result.weights[2].open()
    assert opened.read(0, 4) == b"GGUF"
    opened.close()


def test_named_file_needs_no_listing(hub: Hub, reach: Reach) -> None:
    model = HubModel(repo="acme/tiny-GGUF", filename="tiny-Q8_0.gguf")
    file = locate_hub(model, reach).weights[0].open()
    assert file.name == "acme/tiny-GGUF/tiny-Q8_0.gguf"
    assert len(hub.log("hub")) == 1
    file.close()


def test_missing_named_file_is_searched_in_the_listing(hub: Hub, reach: Reach) -> None:
    model = HubModel(repo="acme/tiny-GGUF", filename="tiny-Q4_K_S.gguf")
    result = locate_hub(model, reach)
    with pytest.raises(RemoteNotFoundError) as caught:
        result.weights[0].open()
    assert str(caught.value).startswith(
        f"acme/tiny-GGUF/tiny-Q4_K_S.gguf: no such file in the repository on {hub.endpoint[7:]}; "
        "check the spelling. Did you mean: tiny-Q4_K_M.gguf"
    )


def test_safetensors_include_config_and_index(hub: Hub, reach: Reach) -> None:
    result = locate_hub(HubModel(repo="acme/tensors"), reach)
    assert result.container is Container.SAFETENSORS
    assert len(result.weights) == 2
    assert result.config is not None
    assert result.index is not None
    config = result.config.open()
    assert json.loads(config.read(0, config.size_bytes))["model_type"] == "llama"
    config.close()
    shard = result.weights[1].open()
    assert shard.read(8, 1) == b"{"
    shard.close()


def test_named_safetensors_file_includes_its_config(hub: Hub, reach: Reach) -> None:
    name = "model-00001-of-00002.safetensors"
    result = locate_hub(HubModel(repo="acme/tensors", filename=name), reach)
    assert (len(result.weights), result.config is not None) == (2, True)


def test_listing_is_read_to_its_last_page(hub: Hub, reach: Reach) -> None:
    result = locate_hub(HubModel(repo="acme/paged-GGUF"), reach)
    assert [file.name for file in result.weights] == ["paged-Q4_K_M.gguf"]
    assert reach.traffic.requests == 2


def test_endless_listing_is_given_up(hub: Hub, reach: Reach) -> None:
    with pytest.raises(
        RemoteInspectError, match="more than 20 pages or 20,000 files; give one file"
    ):
        locate_hub(HubModel(repo="acme/endless-GGUF"), reach)
    assert reach.traffic.requests == 20


def test_next_page_on_another_host_is_not_followed(hub: Hub, reach: Reach) -> None:
    with pytest.raises(RemoteInspectError, match=r"continues on another host .localhost"):
        locate_hub(HubModel(repo="acme/strange-GGUF"), reach)
    assert hub.log("cdn") == []


def test_web_page_instead_of_a_listing_is_an_error(hub: Hub, reach: Reach) -> None:
    with pytest.raises(
        RemoteInspectError, match="did not answer with a file list; check HF_ENDPOINT"
    ):
        locate_hub(HubModel(repo="acme/page-GGUF"), reach)


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b'{"error": 1}', b"\xff\xfe", b"", b"[1e999999]" + b" " * 10 + b"}"],
)
def test_damaged_listing_is_an_error(
    raw_server: Server, reach: Reach, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    server = raw_server(lambda _, send: send(response("200 OK", {}, body)))
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    with pytest.raises(RemoteInspectError, match="not answer with a file list"):
        locate_hub(HubModel(repo="acme/any"), reach)


def test_listing_beyond_the_size_limit_is_an_error(
    raw_server: Server, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = raw_server(lambda _, send: send(response("200 OK", {}, b" " * (3 << 20))))
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    with pytest.raises(
        RemoteInspectError, match="more than 2,097,152 bytes where a small document"
    ):
        locate_hub(HubModel(repo="acme/any"), reach)
    assert reach.traffic.received_bytes < (2 << 20) + 2 * 65_536


def test_unsafe_paths_in_a_listing_are_skipped(
    raw_server: Server, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = [
        "../a.gguf",
        "/a.gguf",
        "b/../a.gguf",
        "a\x1b.gguf",
        "x" * 2000 + ".gguf",
        "",
        "a//b.gguf",
    ]
    entries: list[object] = [{"type": "file", "path": path, "size": 1} for path in odd]
    entries += [3, None, {"type": "file"}, {"type": "file", "path": 3}, []]
    entries.append({"type": "file", "path": "good.gguf", "size": -1, "lfs": {"size": "many"}})
    reply = response("200 OK", {}, json.dumps(entries).encode())
    monkeypatch.setenv("HF_ENDPOINT", raw_server(lambda _, send: send(reply)).address)
    (file,) = locate_hub(HubModel(repo="acme/any"), reach).weights
    assert (file.name, file.size_bytes) == ("good.gguf", None)


@pytest.mark.parametrize("size", [2**63, 10**400])
def test_invalid_sizes_in_a_listing_are_unknown(
    size: int, raw_server: Server, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = f'[{{"type": "file", "path": "a.gguf", "size": {"9" * len(str(size))}}}]'
    reply = response("200 OK", {}, entry.encode())
    monkeypatch.setenv("HF_ENDPOINT", raw_server(lambda _, send: send(reply)).address)
    (file,) = locate_hub(HubModel(repo="acme/any"), reach).weights
    assert file.size_bytes is None


def test_listing_of_too_many_files_is_given_up(
    raw_server: Server, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [{"type": "file", "path": f"{n}.txt", "size": 1} for n in range(20_001)]
    reply = response("200 OK", {"Link": '<?cursor=1>; rel="next"'}, json.dumps(entries).encode())
    monkeypatch.setenv("HF_ENDPOINT", raw_server(lambda _, send: send(reply)).address)
    with pytest.raises(RemoteInspectError, match="20,000 files"):
        locate_hub(HubModel(repo="acme/any"), reach)
    assert reach.traffic.requests == 1


def test_missing_repository_is_an_error(hub: Hub, reach: Reach) -> None:
    """The hub answers 401, so as not to reveal which private repositories exist."""
    with pytest.raises(RemoteNotFoundError) as caught:
        locate_hub(HubModel(repo="acme/nothing"), reach)
    assert str(caught.value) == (
        f"acme/nothing: model not found (no such repository, or a private one) on {hub.endpoint[7:]}; "
        "check the spelling; if it is private, log in with `hf auth login`, or set HF_TOKEN"
    )


def test_missing_repository_suggests_similar_ones(hub: Hub, reach: Reach) -> None:
    with pytest.raises(RemoteNotFoundError, match=r"Did you mean: acme/tiny-GGUF\?$"):
        locate_hub(HubModel(repo="acme/tiny-GGFU"), reach)


def test_missing_revision_is_an_error(
    raw_server: Server, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = response("404 Not Found", {"X-Error-Code": "RevisionNotFound"})
    server = raw_server(lambda _, send: send(reply))
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    with pytest.raises(RemoteNotFoundError, match="acme/a@v9: no such revision in the repository"):
        locate_hub(HubModel(repo="acme/a", revision="v9"), reach)


def test_revisions_and_names_are_quoted_in_urls(
    raw_server: Server, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = raw_server(lambda _, send: send(response("404 Not Found")))
    monkeypatch.setenv("HF_ENDPOINT", server.address + "/")
    model = HubModel(repo="acme/a", revision="refs/pr/1", filename="é #1?.gguf")
    with pytest.raises(RemoteNotFoundError):
        locate_hub(model, reach).weights[0].open()
    lines = [request.line for request in server.requests[:2]]
    assert lines == [
        "GET /acme/a/resolve/refs%2Fpr%2F1/%C3%A9%20%231%3F.gguf HTTP/1.1",
        "GET /api/models/acme/a/tree/refs%2Fpr%2F1?recursive=true HTTP/1.1",
    ]
