"""`edgekit web` as a process: address, token, browser and shutdown."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import segno
from tests.hub.hub_files import gguf_header, split_header
from tests.hub.raw_server import RawServer, Request, Send, serve
from tests.patience import PATIENCE_S, wait_until
from tests.thoroughness import costly, sampled
from tests.web.serving import WebProcess, ask, events, start_process

from edgekit.cli import main
from edgekit.cli.qr import can_show, on_dark, qr_code
from edgekit.cli.web import _print_lan
from edgekit.errors import UsageError
from edgekit.web import lan, serving
from edgekit.web.lan import lan_hosts
from edgekit.web.serving import TRIED_PORTS, address_of, listen, show_browser
from edgekit.web.types import DEFAULT_PORT, WebSettings

# Limits so long that only an orderly shutdown or a second signal ends the process.
WITHOUT_TIME_LIMITS = f"""
from edgekit.web import serving
serving.GRACE_S = serving.PATIENCE_S = {10 * PATIENCE_S}
"""


@pytest.fixture
def hanging_server() -> Iterator[RawServer]:
    """A server that accepts requests and answers none of them before the test is over."""
    over = threading.Event()

    def script(_: Request, __: Send) -> None:
        over.wait()

    with serve(script) as server:
        try:
            yield server
        finally:
            over.set()


def stop(web: WebProcess, number: signal.Signals) -> tuple[str, str]:
    """Stops the process with this signal; returns the rest of its output."""
    web.process.send_signal(number)
    out, error = web.process.communicate(timeout=PATIENCE_S)
    assert web.process.returncode == 0, error
    return out, error


def test_web_with_a_file_serves_only_that_file(tmp_path: Path) -> None:
    """On IPv6 where it is available, so that the address has brackets."""
    for name in ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf"):
        (tmp_path / name).write_bytes(split_header(int(name[6]) - 1, 2) + b"\0" * 4096)
    (tmp_path / "b.gguf").write_bytes(gguf_header() + b"\0" * 4096)
    path = str(tmp_path / "a-00001-of-00002.gguf")
    try:
        listen("::1", 0).close()
        host = "[::1]"
    except UsageError:
        host = "127.0.0.1"
    with start_process(path, "--offline", "--host", host) as web:
        assert web.address.startswith(f"http://{host}:")
        assert web.ready.keys() == {"event", "url", "addresses", "token", "pid"}
        assert web.ready["addresses"] == [web.ready["url"]]
        assert (web.ready["event"], web.ready["token"]) == ("ready", None)
        assert web.ready["pid"] == web.process.pid
        url = urlsplit(web.ready["url"])
        assert url.path == "/model"
        (reference,) = parse_qs(url.query)["ref"]
        assert reference == path
        answer = ask(web.address, "/api/v1/inspect", {"model": reference})
        assert (answer.status, answer.json()["format"]) == (200, "gguf"), answer.body
        other = ask(web.address, "/api/v1/inspect", {"model": str(tmp_path / "b.gguf")})
        assert (other.status, other.error["type"]) == (403, "NotAllowedError")


def test_listen_takes_the_next_port_if_the_default_is_in_use() -> None:
    with listen("127.0.0.1", None) as first, listen("127.0.0.1", None) as second:
        ports = [item.getsockname()[1] for item in (first, second)]
    assert DEFAULT_PORT <= ports[0] < ports[1] < DEFAULT_PORT + TRIED_PORTS


def test_listen_without_a_free_port_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen("127.0.0.1", 0) as socket_in_use:
        monkeypatch.setattr(serving, "DEFAULT_PORT", socket_in_use.getsockname()[1])
        monkeypatch.setattr(serving, "TRIED_PORTS", 1)
        with pytest.raises(UsageError, match="use --port 0 to pick any free port"):
            listen("127.0.0.1", None)


def test_requested_port_in_use_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0) as socket_in_use:
        port = str(socket_in_use.getsockname()[1])
        assert main(("web", "--no-browser", "--port", port, "--json")) == 2
    out, error = capsys.readouterr()
    assert f"port {port} of 127.0.0.1 is already in use" in error
    assert json.loads(out)["error"]["type"] == "UsageError"


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("--port", "65536"), 2, "--port"),
        (("--port", "abc"), 2, "--port: 'abc' is not a whole number from 0 to 65,535"),
        (("--port", "32k"), 2, "--port: '32k' is not a whole number"),
        (("--port", "-1"), 2, "--port: must not be negative (got -1)"),
        (("--port", "9" * 5000), 2, "--port"),
        (("--host", "no.such.host.invalid"), 2, "no.such.host.invalid"),
        (("--host", "192.0.2.1"), 2, "for this machine only, use 127.0.0.1"),
        (("--rate", "0"), 2, "--rate: must be at least 1 (got 0)"),
        (("--rate", "x"), 2, "--rate: 'x' is not a whole number from 1 to 1,000,000"),
        (("--models-dir", "a" * 300), 4, "is too long for a path"),
        (("--models-dir", "a\0b"), 4, "--models-dir: no such folder: 'a\\x00b'"),
        (("--models-dir", __file__), 4, "--models-dir: no such folder"),
        (("a" * 300 + ".gguf",), 4, "is too long for a path"),
        (("./a\0b.gguf",), 2, "contains control characters"),
        (("--timeout", "nan"), 2, "--timeout"),
        (("--models-dir", "nowhere"), 4, "--models-dir: no such folder: 'nowhere'"),
        (("./nowhere.gguf",), 4, "nowhere.gguf"),
        (("--token", "short"), 2, "--token needs 8 to 200 characters"),
        (("--token", "with a space in it"), 2, "--token"),
        (("--token", ""), 2, "--token needs 8 to 200 characters"),
        (("--models-dir", ""), 4, "--models-dir: no such folder: ''"),
        (("--models-dir", "~no-such-user/x"), 4, "--models-dir: no such folder: '~no-such"),
        (("--port", "0", "a", "b"), 2, "unexpected argument: b"),
        (("--qr",), 2, "other devices cannot reach 127.0.0.1; to let them, add --host 0.0.0.0"),
        (("--qr", "--host", "0.0.0.0", "--json"), 2, "--qr prints a picture and --json only JSON"),
        (("--qr", "--host", "0.0.0.0", "--no-qr"), 2, "--qr and --no-qr exclude each other"),
    ],
)
def test_error_message_and_exit_code(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], code: int, message: str
) -> None:
    try:
        result = main(("web", "--no-browser", *argv))
    except SystemExit as end:
        result = int(end.code or 0)
    error = capsys.readouterr().err
    assert (result, message in error) == (code, True), error
    assert "with a space in it" not in error


@pytest.mark.parametrize("argv", [("--models-dir", "/shut/x"), ("/shut/x.gguf",)])
def test_unreadable_folder_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: tuple[str, ...],
) -> None:
    stat = os.stat

    def refuse(path: Any, *more: Any, **named: Any) -> os.stat_result:
        """Stands for folder permissions, which root ignores."""
        if str(path).startswith("/shut/"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return stat(path, *more, **named)

    monkeypatch.setattr(os, "stat", refuse)
    assert main(("web", "--no-browser", "--port", "0", *argv)) == 4
    assert "cannot be read by this user" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_unwritable_stdout_is_one_line_and_exit_code_1() -> None:
    code = (
        "import sys; from edgekit.cli import main\n"
        "argv = ['web', '--no-browser', '--port', '0', '--offline']\n"
        "codes = [main(argv)]\n"
        "sys.stdout = open('/dev/full', 'w')\n"
        "codes.append(main([*argv, '--json']))\n"
        "sys.exit(codes != [1, 1])"
    )
    with Path("/dev/full").open("w") as full:
        completed = subprocess.run(
            [sys.executable, "-c", code],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert completed.returncode == 0
    answer = "edgekit: the answer could not be written: No space left on device\n"
    assert completed.stderr == answer * 2


def test_token_is_generated_for_a_public_host() -> None:
    with start_process("--host", "0.0.0.0", "--offline") as web:
        token = web.ready["token"]
        assert len(token) >= 32
        assert web.ready["url"] == f"{web.address}/?token={token}"
        assert ask(web.address, "/api/v1/devices").status == 401
        bearer = {"Authorization": f"Bearer {token}"}
        assert ask(web.address, "/api/v1/devices", headers=bearer).status == 200
        assert ask(web.address, "/healthz").status == 200
        assert stop(web, signal.SIGTERM) == ("", "")


@pytest.mark.parametrize(
    ("argv", "environment_token", "message"),
    [
        ((), "short", "EDGEKIT_WEB_TOKEN needs 8 to 200"),
        (("--token", "brief"), "long-enough", "--token needs 8 to 200"),
    ],
)
def test_error_of_an_invalid_token_names_its_source(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: tuple[str, ...],
    environment_token: str,
    message: str,
) -> None:
    monkeypatch.setenv("EDGEKIT_WEB_TOKEN", environment_token)
    assert main(("web", "--no-browser", *argv)) == 2
    error = capsys.readouterr().err
    assert f"edgekit: {message}" in error
    assert not {"short", "brief"} & set(error.split())


def test_token_is_not_in_the_repr_of_the_settings() -> None:
    assert "secret-secret" not in repr(WebSettings(token="secret-secret"))


# A hanging request or a stream, and a second signal after a pause during the shutdown.
SECOND_SIGNALS = tuple(
    product(
        ("inspect?model={}/a.gguf", "cards/events?device=RTX+4090"),
        (0.0, 0.15, 0.3),
        (signal.SIGINT, signal.SIGTERM),
    )
)


@contextmanager
def open_request(web: WebProcess, hanging_server: RawServer, call: str) -> Iterator[None]:
    """A request that has begun and does not end by itself."""
    port = int(web.address.rpartition(":")[2])
    with closing(socket.create_connection(("127.0.0.1", port), PATIENCE_S)) as connection:
        path = f"/api/v1/{call.format(hanging_server.address)}"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        if hanging_server.address in path:
            wait_until(lambda: bool(hanging_server.requests))
        else:
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        yield


def test_shutdown_ends_jobs_and_streams_at_once(hanging_server: RawServer) -> None:
    """Also while a request waits for a slow server."""
    with (
        start_process("--allow-private", "--no-cache", setup=WITHOUT_TIME_LIMITS) as web,
        open_request(web, hanging_server, "inspect?model={}/a.gguf"),
    ):
        model = f"{hanging_server.address}/a.gguf"
        job = ask(web.address, "/api/v1/jobs/inspect", {"model": model}).json()
        following = events(web.address, f"/api/v1/jobs/{job['id']}/events")
        assert next(following)["event"] == "progress"
        cards = events(web.address, "/api/v1/cards/events?device=RTX+4090&ram=64G")
        assert next(cards)["event"] == "machine"
        assert stop(web, signal.SIGINT) == ("", "")
        assert [item["event"] for item in following] == ["cancelled"]
        assert [card["event"] for card in cards if card["event"] != "card"] == ["failed"]
        with listen("127.0.0.1", int(web.address.rpartition(":")[2])):
            pass  # the port is free again


@costly
@pytest.mark.parametrize(("call", "pause_s", "first"), sampled(SECOND_SIGNALS, each=7))
def test_second_signal_ends_the_process_at_once_without_output(
    hanging_server: RawServer, first: signal.Signals, pause_s: float, call: str
) -> None:
    # Not the same signal twice: two equal pending signals are delivered as one.
    second = signal.SIGTERM if first == signal.SIGINT else signal.SIGINT
    with (
        start_process("--allow-private", "--no-cache", setup=WITHOUT_TIME_LIMITS) as web,
        open_request(web, hanging_server, call),
    ):
        web.process.send_signal(first)
        time.sleep(pause_s)
        assert stop(web, second) == ("", "")


def test_browser_opens_the_printed_address(tmp_path: Path) -> None:
    """With the token from the environment."""
    seen, browser = tmp_path / "seen", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}.part && mv {seen}.part {seen}\n')
    browser.chmod(0o755)
    command = [
        sys.executable,
        "-m",
        "edgekit",
        "web",
        "org/name:Q4_K_M",
        "--port",
        "0",
        "--offline",
    ]
    environment = {
        **os.environ,
        "BROWSER": f"{browser} %s",
        "EDGEKIT_WEB_TOKEN": "from-the-environment",
    }
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline().rstrip("\n")
        url = urlsplit(line)
        assert re.fullmatch(r"127\.0\.0\.1:\d+", url.netloc)
        fields = {"ref": ["org/name:Q4_K_M"], "token": ["from-the-environment"]}
        assert (url.path, parse_qs(url.query)) == ("/model", fields)
        assert ask(f"http://{url.netloc}", "/").status == 401
        wait_until(seen.exists)
        assert seen.read_text() == line
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE_S)[0] == ""
        assert process.returncode == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems open a window")
def test_show_browser_does_not_use_a_terminal_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert not show_browser("http://127.0.0.1:1/")


def test_show_browser_ignores_a_browser_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER", "/no/such/browser %s")
    assert show_browser("http://127.0.0.1:1/")


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        (WebSettings(), "http://127.0.0.1:8421/"),
        (WebSettings(host="::1", port=1), "http://[::1]:1/"),
        (WebSettings(host="0.0.0.0", port=1, token="t~.-_"), "http://127.0.0.1:1/?token=t~.-_"),
    ],
)
def test_address_of_settings(settings: WebSettings, address: str) -> None:
    assert address_of(settings) == address


def test_missing_package_is_named() -> None:
    code = (
        "import sys; from edgekit.cli import main\n"
        "for missing in ('fastapi', 'uvicorn'):\n"
        "    sys.modules[missing] = None\n"
        "    assert main(['web', '--port', '0']) == 2\n"
        "    del sys.modules[missing]\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    for line, missing in zip(completed.stderr.splitlines(), ("fastapi", "uvicorn"), strict=True):
        assert f"the page needs {missing}: pip install 'edgekit-models[web]'" in line


# --- addresses for other devices

LAN = "192.168.1.20"
URL = f"http://{LAN}:8421/?token=" + "a" * 32


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[int, str]]]:
    """The network interfaces of this machine, without a default route."""
    found: dict[str, list[tuple[int, str]]] = {}
    monkeypatch.setattr(lan, "_interfaces", lambda: found)
    monkeypatch.setattr(lan, "_address_to_elsewhere", lambda _: None)
    return found


def test_lan_hosts_lists_private_addresses_first(
    interfaces: dict[str, list[tuple[int, str]]],
) -> None:
    v4, v6 = socket.AF_INET, socket.AF_INET6
    interfaces |= {
        "lo": [(v4, "127.0.0.1"), (v6, "::1")],
        "ppp0": [(v4, "8.8.8.8")],
        "docker0": [(v4, "172.17.0.1")],
        "vEthernet (WSL)": [(v4, "172.20.0.1")],
        "eth0": [(v4, "10.0.0.5"), (v6, "fe80::1%eth0"), (v6, "fd00::5"), (v4, "169.254.3.4")],
        "wlan0": [(v4, LAN), (v6, "2a00:1450::1"), (17, "00:00:5e:00:53:01")],
    }
    assert lan_hosts("0.0.0.0") == ("10.0.0.5", LAN, "8.8.8.8")
    assert lan_hosts("::") == ("fd00::5", "2a00:1450::1")
    assert lan_hosts(LAN) == (LAN,)


def test_lan_hosts_begins_with_the_address_of_the_default_route(
    monkeypatch: pytest.MonkeyPatch, interfaces: dict[str, list[tuple[int, str]]]
) -> None:
    """Also if it looks like one of a virtual network: on Windows the real network may be behind one."""
    interfaces["eth0"] = [(socket.AF_INET, f"10.0.0.{n}") for n in range(9)]
    interfaces["vEthernet (bridge)"] = [(socket.AF_INET, LAN)]
    monkeypatch.setattr(lan, "_address_to_elsewhere", lambda _: LAN)
    assert lan_hosts("0.0.0.0") == (LAN, "10.0.0.0", "10.0.0.1", "10.0.0.2")


def test_lan_hosts_of_this_machine_accept_connections() -> None:
    with listen("0.0.0.0", 0) as listening:
        for host in lan_hosts("0.0.0.0"):
            port = listening.getsockname()[1]
            socket.create_connection((host, port), PATIENCE_S).close()


def test_ready_event_has_the_addresses_for_other_devices() -> None:
    setup = f"from edgekit.web import serving; serving.lan_hosts = lambda _: ({LAN!r},)"
    with start_process("--host", "0.0.0.0", "--offline", setup=setup) as web:
        url = web.ready["url"]
        assert url.startswith("http://127.0.0.1:")
        assert web.ready["addresses"] == [url, url.replace("127.0.0.1", LAN)]


def lan_output(capsys: pytest.CaptureFixture[str], addresses: tuple[str, ...], *, qr: bool) -> str:
    _print_lan(addresses, with_qr=qr, is_required=qr)
    return capsys.readouterr().out


def test_addresses_for_other_devices_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert lan_output(capsys, (URL,), qr=False) == f"On other devices in this network:\n  {URL}\n"
    assert "No network address found" in lan_output(capsys, (), qr=True)
    code = lan_output(capsys, (URL,), qr=True).splitlines()[2:]
    assert tuple(code) == qr_code(URL)  # not a terminal: without colours


@pytest.mark.parametrize(("columns", "is_shown"), [("41", True), ("40", False)])
def test_qr_code_is_left_out_of_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
    *,
    is_shown: bool,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    _print_lan((URL,), with_qr=True, is_required=False)
    assert ("█" in capsys.readouterr().out) == is_shown


def test_qr_code_has_the_modules_of_the_text() -> None:
    """Each character is two modules, one above the other. Light ones are drawn."""
    symbol = segno.make(URL, error="l", micro=False)
    lines = qr_code(URL)
    modules = [list(row) for row in symbol.matrix_iter(border=4)]
    drawn = {"█": (0, 0), "▀": (0, 1), "▄": (1, 0), " ": (1, 1)}
    for row, line in enumerate(lines):
        top = modules[2 * row]
        below = modules[2 * row + 1] if 2 * row + 1 < len(modules) else [1] * len(top)
        assert [drawn[character] for character in line] == list(zip(top, below, strict=True))
    assert not can_show("ascii")
    assert can_show("utf-8")
    assert on_dark("█") == "\x1b[38;5;231;48;5;16m█\x1b[0m"
