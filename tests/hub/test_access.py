"""Redirects and tokens: which addresses are followed, and which servers get the token."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hub.nginx_hub import TOKEN, Hub
from tests.hub.raw_server import RawServer, Request, Script, Send, range_response, response

from edgekit.errors import (
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    UsageError,
)
from edgekit.sources.address import redact, redirect_target, token_for
from edgekit.sources.http import Transport
from edgekit.sources.hub import locate_hub
from edgekit.sources.reference import HubModel
from edgekit.sources.remote import GGUF, HttpFile
from edgekit.sources.types import Reach

Server = Callable[[Script], RawServer]
GATED = HubModel(repo="acme/gated-GGUF")
CONTENT = bytes(range(256)) * 4096


def open_file(url: str, reach: Reach) -> HttpFile:
    return HttpFile(Transport(reach), url, name="the file", stride=GGUF)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def set_token(value: str) -> None:
        monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", raising=False)
        monkeypatch.setenv("HF_TOKEN", value)

    return set_token


def test_gated_model_without_a_token_says_how_to_log_in(hub: Hub, reach: Reach) -> None:
    files = locate_hub(GATED, reach)
    with pytest.raises(RemoteAccessError) as caught:
        files.weights[0].open()
    assert str(caught.value) == (
        f"acme/gated-GGUF/gated-Q4_K_M.gguf: the model is gated ({hub.endpoint[7:]} answered 401); "
        "accept its terms on the model's page, then log in with `hf auth login`, or set HF_TOKEN"
    )


def test_gated_model_with_the_wrong_token_is_refused(
    hub: Hub, reach: Reach, token: Callable[[str], None]
) -> None:
    token("hf_other")
    files = locate_hub(GATED, reach)
    with pytest.raises(RemoteAccessError, match=r"answered 403.*the token has no access"):
        files.weights[0].open()


def test_gated_model_with_the_right_token_opens(
    hub: Hub, reach: Reach, token: Callable[[str], None]
) -> None:
    token(TOKEN)
    file = locate_hub(GATED, reach).weights[0].open()
    assert file.read(0, 4) == b"GGUF"
    file.close()


def test_token_is_sent_to_the_hub_but_not_to_a_redirect_target(
    hub: Hub, reach: Reach, token: Callable[[str], None]
) -> None:
    token(TOKEN)
    file = locate_hub(HubModel(repo="acme/large-GGUF"), reach).weights[0].open()
    file.read(700_000, 10)
    file.close()
    hub_lines, cdn_lines = hub.log("hub"), hub.log("cdn")
    assert len(hub_lines) == 2
    assert all(line.endswith(f"auth=[Bearer {TOKEN}]") for line in hub_lines)
    assert len(cdn_lines) == 2
    assert all(line.endswith("auth=[-]") for line in cdn_lines)


def test_token_is_not_sent_to_other_addresses(
    hub: Hub, reach: Reach, token: Callable[[str], None]
) -> None:
    token(TOKEN)
    open_file(f"{hub.cdn}/acme/tiny-GGUF/tiny-Q4_K_M.gguf", reach).close()
    assert hub.log("cdn")[0].endswith("auth=[-]")


@pytest.mark.parametrize(
    ("endpoint", "url", "sent"),
    [
        ("https://huggingface.co", "https://huggingface.co/a/b/resolve/main/c.gguf", True),
        ("https://huggingface.co", "https://huggingface.co:443/a", True),
        ("https://huggingface.co", "https://HuggingFace.co/a", True),
        ("https://huggingface.co", "http://huggingface.co/a", False),
        ("https://huggingface.co", "https://huggingface.co:8443/a", False),
        ("https://huggingface.co", "https://huggingface.co.evil.example/a", False),
        ("https://huggingface.co", "https://huggingface.co@evil.example/a", False),
        ("https://huggingface.co", "https://cdn-lfs.huggingface.co/a", False),
        ("https://mirror.example/hf", "https://mirror.example/hf/a", True),
        ("http://mirror.example", "http://mirror.example/a", False),  # unencrypted
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/a", True),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8081/a", False),
    ],
)
def test_token_for_each_address(
    token: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    endpoint: str,
    url: str,
    *,
    sent: bool,
) -> None:
    token(TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert token_for(url) == (TOKEN if sent else None)


def test_token_for_respects_disabled_implicit_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "yes")
    assert token_for("https://huggingface.co/a") is None


@pytest.mark.parametrize("value", ["hf_go\x07od", "hf_gööd"])
def test_token_with_impossible_characters_is_an_error(
    token: Callable[[str], None], value: str
) -> None:
    token(value)
    with pytest.raises(RemoteAccessError, match="characters that no token contains") as caught:
        token_for("https://huggingface.co/a")
    assert value not in str(caught.value)


def test_hub_token_reads_the_file_of_hf_auth_login(tmp_path: Path) -> None:
    """In a new process: huggingface_hub reads HF_HOME when it is imported."""
    (tmp_path / "token").write_text("hf_written\n")
    script = "from edgekit.sources.address import hub_token; print(hub_token())"
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_IMPLICIT_TOKEN": ""}
    run = [sys.executable, "-c", script]
    printed = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout == "hf_written\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_hub_token_refuses_a_pipe_as_token_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "token")
    script = "from edgekit.sources.address import hub_token; hub_token()"
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_IMPLICIT_TOKEN": ""}
    run = [sys.executable, "-c", script]
    printed = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert "RemoteAccessError" in printed.stderr
    assert "is a pipe" in printed.stderr


def test_invalid_hf_endpoint_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, reach: Reach
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "hf-mirror.example")
    with pytest.raises(UsageError, match=r"HF_ENDPOINT='hf-mirror\.example' is not a web address"):
        locate_hub(GATED, reach)


def test_refusal_by_another_server_says_that_tokens_only_go_to_the_hub(
    raw_server: Server, reach: Reach, hub: Hub, token: Callable[[str], None]
) -> None:
    token(TOKEN)
    server = raw_server(lambda _, send: send(response("403 Forbidden")))
    with pytest.raises(
        RemoteAccessError, match="no token was sent, because tokens only go to Hugging Face"
    ):
        open_file(server.address + "/a.gguf", reach)
    assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize(
    ("path", "error", "sentence"),
    [
        ("/nothing.gguf", RemoteNotFoundError, "the file: not found on localhost.*check the spell"),
        ("/teapot.gguf", RemoteInspectError, "answered 418 instead of sending a model file"),
        ("/loop.gguf", RemoteInspectError, "redirects in a loop"),
        ("/hops/", RemoteInspectError, "more than 5 redirects"),
        ("/disk.gguf", RemoteInspectError, "redirects to something that is not a web address"),
    ],
)
def test_error_statuses_and_bad_redirects_are_one_sentence(
    hub: Hub, reach: Reach, path: str, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        open_file(hub.cdn + path, reach)
    assert reach.traffic.requests <= 6
    assert reach.traffic.received_bytes < 6 * 512  # nginx sends a short page with each


def test_relative_redirect_is_followed(hub: Hub, reach: Reach) -> None:
    file = open_file(f"{hub.cdn}/named.gguf", reach)
    assert file.read(0, 4) == b"GGUF"
    file.close()


@pytest.mark.parametrize(
    ("source", "location", "target"),
    [
        ("https://a.example/x", "https://b.example/y?z=1", "https://b.example/y?z=1"),
        ("https://a.example/x/y", "../z", "https://a.example/z"),
        ("http://a.example/x", "https://a.example/x", "https://a.example/x"),
        ("https://a.example/x", "https:///y", "https://a.example/y"),
        ("http://127.0.0.1:1/x", "http://localhost:2/x", "http://localhost:2/x"),
        ("https://a.example/x", "http://b.example/y", None),  # from https to http
        ("https://a.example/x", "http://a.example/x", None),
        ("http://a.example/x", "http://127.0.0.1:6379/x", None),  # not to this machine
        ("http://a.example/x", "http://localhost/x", None),
        ("https://a.example/x", "https://[::1]/x", None),
        ("https://a.example/x", "file:///etc/passwd", None),
        ("https://a.example/x", "ftp://a.example/x", None),
        ("https://a.example/x", "data:text/plain,GGUF", None),
        ("https://a.example/x", "https://[::/x", None),
        ("https://a.example/x", "https://b.example:99999/x", None),
    ],
)
def test_redirect_target_allows_only_safe_addresses(
    source: str, location: str, target: str | None
) -> None:
    if target is None:
        with pytest.raises(RemoteInspectError, match=r"^the file: a.example redirects"):
            redirect_target(source, location, name="the file")
    else:
        assert redirect_target(source, location, name="the file") == target


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://user:pass@a.example:8443/b/c.gguf?sig=1#x", "https://a.example:8443/b/c.gguf"),
        ("https://a.example/b\x1b[31m.gguf", "https://a.example/b%1B%5B31m.gguf"),
        ("https://u@v@a.example/b", "https://a.example/b"),
    ],
)
def test_redact_hides_logins_queries_and_escapes(url: str, expected: str) -> None:
    assert redact(url) == expected


def test_password_in_an_address_is_not_sent_to_a_redirect_target(
    raw_server: Server, reach: Reach
) -> None:
    other = raw_server(lambda request, send: send(range_response(CONTENT, request)))
    moved = response("302 Found", {"Location": f"{other.address}/b.gguf?sig=1"})
    first = raw_server(lambda _, send: send(moved))
    address = first.address.replace("//", "//me:s3cr3t@")
    open_file(f"{address}/a.gguf", reach).close()
    assert first.requests[0].headers["authorization"] == "Basic bWU6czNjcjN0"
    assert "authorization" not in other.requests[0].headers


def test_error_messages_hide_the_secrets_of_an_address(raw_server: Server, reach: Reach) -> None:
    def script(request: Request, send: Send) -> None:
        send(response("404 Not Found"))

    address = raw_server(script).address.replace("//", "//me:s3cr3t@") + "/a.gguf?sig=s3cr3t"
    with pytest.raises(RemoteNotFoundError) as caught:
        HttpFile(Transport(reach), address, name=redact(address))
    assert "s3cr3t" not in str(caught.value)


def test_unparsable_address_is_an_error_without_its_text(reach: Reach) -> None:
    with pytest.raises(RemoteInspectError, match="invalid address") as caught:
        open_file("http://me:pa\x00ss@example.com/a.gguf", reach)
    assert "pa" not in str(caught.value).replace("spelling", "")
