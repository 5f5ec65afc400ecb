"""engines/ollama.py: Ollama's program, its folders and its server on this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S
from tests.programs import FLOOD, answering, write_program
from tests.unit.machine.trees import machine

from edgekit.engines.llamacpp.installed import installations
from edgekit.engines.ollama import (
    find_ollama_program,
    library_folders,
    running_server,
    server_address,
)

NOBODY = {"OLLAMA_HOST": "127.0.0.1:1"}


@contextmanager
def answering_server(reply: bytes, *, closes: bool = True) -> Iterator[str]:
    """A server that sends the same bytes to everyone. Yields its host and port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                connection.recv(4096)
                connection.sendall(reply)
                if closes:
                    connection.close()
                kept.append(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)
        for connection in kept:
            connection.close()


def http(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", ("127.0.0.1", 11434)),
        ("0.0.0.0", ("127.0.0.1", 11434)),
        ("0.0.0.0:8000", ("127.0.0.1", 8000)),
        (":8000", ("127.0.0.1", 8000)),
        ("localhost", ("localhost", 11434)),
        ("http://127.0.0.1", ("127.0.0.1", 80)),
        ("http://127.0.0.1:1234/path", ("127.0.0.1", 1234)),
        ("[::1]:8000", ("::1", 8000)),
        ("[::]", ("::1", 11434)),
        ("192.168.1.2:11434", None),
        ("ollama.com", None),
        ("https://127.0.0.1", None),
        ("127.0.0.1:99999", None),
        ("127.0.0.1:port", None),
        ("[::1", None),
    ],
)
def test_server_address(text: str, address: tuple[str, int] | None) -> None:
    assert server_address({"OLLAMA_HOST": text}) == address


def test_running_server() -> None:
    with answering_server(http(b'{"version": "0.12.3"}')) as address:
        server = running_server({"OLLAMA_HOST": address}, timeout_s=PATIENCE_S)
    assert server is not None
    assert (server.version, server.address) == ("0.12.3", f"http://{address}")


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        http(b"<html>"),
        http(b"[]"),
        http(b'{"version": 3}'),
        http(b"[" * 100_000),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000,
    ],
    ids=["nothing", "ssh", "page", "list", "number", "nested", "headers"],
)
def test_running_server_ignores_other_servers(reply: bytes) -> None:
    with answering_server(reply) as address:
        assert running_server({"OLLAMA_HOST": address}, timeout_s=PATIENCE_S) is None


def test_running_server_does_not_wait_for_a_server_that_hangs() -> None:
    with answering_server(b"HTTP/1.1 200 OK\r\n", closes=False) as address:
        assert running_server({"OLLAMA_HOST": address}, timeout_s=0.2) is None


def test_ollama_without_its_server_says_its_version(tmp_path: Path) -> None:
    shown = (
        "Warning: could not connect to a running Ollama instance\nWarning: client version is 0.12.3"
    )
    write_program(tmp_path / "ollama", answering({"--version": shown}))
    here = machine(tmp_path / "root", environment={"PATH": str(tmp_path), **NOBODY})
    found = find_ollama_program(here, timeout_s=PATIENCE_S)
    assert found is not None
    assert (found.server, found.version, found.problem) == (None, "0.12.3", "")


def test_ollama_that_floods_has_a_problem(tmp_path: Path) -> None:
    write_program(tmp_path / "ollama", FLOOD)
    here = machine(tmp_path / "root", environment={"PATH": str(tmp_path), **NOBODY})
    (found,) = (item for item in installations(PATIENCE_S, here) if item.program == "ollama")
    assert found.problem == "it prints more than 64 KiB"


def test_no_ollama(tmp_path: Path) -> None:
    assert find_ollama_program(machine(tmp_path, environment=NOBODY), timeout_s=PATIENCE_S) is None


def test_ollama_with_its_server_is_listed_under_llamacpp(tmp_path: Path) -> None:
    write_program(tmp_path / "bin" / "ollama", "")
    for folder in ("", "cuda_v13", "vulkan"):
        (tmp_path / "lib" / "ollama" / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / "lib" / "ollama" / "cuda_v13" / "libggml-cuda.so").touch()
    (tmp_path / "lib" / "ollama" / "vulkan" / "libggml-vulkan.so").touch()
    with answering_server(http(b'{"version": "0.12.3"}')) as address:
        environment = {"PATH": str(tmp_path / "bin"), "OLLAMA_HOST": address}
        here = machine(tmp_path / "root", environment=environment)
        found = [item for item in installations(PATIENCE_S, here) if item.program == "ollama"]
    assert [(item.origin, item.path, item.problem) for item in found] == [
        ("PATH", str(tmp_path / "bin" / "ollama"), ""),
        ("running server", f"http://{address}", "already running; EdgeKit starts its own server"),
    ]
    assert {(item.version, item.backends) for item in found} == {
        ("0.12.3", ("CUDA", "Vulkan", "CPU"))
    }


def test_server_of_an_ollama_that_is_elsewhere_cannot_be_started(tmp_path: Path) -> None:
    with answering_server(http(b'{"version": "0.12.3"}')) as address:
        here = machine(tmp_path, environment={"OLLAMA_HOST": address})
        (found,) = (item for item in installations(PATIENCE_S, here) if item.program == "ollama")
    assert found.problem == "its program is not on this machine's PATH"


def test_library_folders_of_the_macos_app_are_next_to_the_program(tmp_path: Path) -> None:
    assert library_folders(tmp_path / "Ollama.app" / "ollama") == (tmp_path / "Ollama.app",)
