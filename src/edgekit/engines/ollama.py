"""What is known of Ollama as a program: its executable, its libraries, and its server.

Layout and variables: ml/path.go, envconfig/config.go and docs/api.md of ollama @ fb30760.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from edgekit.engines.discovery import FoundProgram, ask_program, find_programs
from edgekit.engines.ports import LARGEST_PORT, connectable, in_address
from edgekit.errors import one_line
from edgekit.machine.surroundings import Surroundings
from edgekit.machine.types import System
from edgekit.sources.local import folders_in, is_folder

_PORT = 11434
_PORTS = {"http": 80, "https": 443}  # of an OLLAMA_HOST with a scheme
_REQUEST_S = 1.0  # a server on this machine answers within milliseconds
_REPLY_BYTES = 4096
_VERSION = re.compile(r"(?:version is|client version is) (\S{1,40})")
_VERSION_CHARS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaServer:
    """A server that runs on this machine."""

    address: str  # "http://127.0.0.1:11434"
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ollama:
    """Ollama on this machine: its program, its server, or both."""

    program: FoundProgram | None
    server: OllamaServer | None
    version: str = ""  # of the server, else of the program
    problem: str = ""  # why the version of the program is unknown
    library_folders: tuple[Path, ...] = ()  # of its llama.cpp: one for each kind of GPU


def find_ollama_program(here: Surroundings, *, timeout_s: float) -> Ollama | None:
    """Ollama's program and server; None if there is neither."""
    home = Path(here.environment.get("LOCALAPPDATA", ""))
    more = {
        System.MACOS: [
            ("Ollama", here.root / "Applications" / "Ollama.app" / "Contents" / "Resources")
        ],
        System.WINDOWS: [("Ollama", home / "Programs" / "Ollama")] if home.is_absolute() else [],
    }.get(here.system, [])
    program = next(iter(find_programs("ollama", here, more)), None)
    server = running_server(here.environment, timeout_s=min(timeout_s / 3, _REQUEST_S))
    if server is not None:
        version, problem = server.version, ""
    elif program is not None:
        words = [str(program.path), "--version"]  # which asks the server too
        output = ask_program(words, timeout_s=timeout_s * 2 / 3)
        match = _VERSION.search(output.text)
        version = one_line(match[1], _VERSION_CHARS) if match else ""
        problem = output.problem or ("" if version else "it does not report its version")
    else:
        return None
    return Ollama(
        program=program,
        server=server,
        version=version,
        problem=problem,
        library_folders=() if program is None else library_folders(program.path),
    )


def library_folders(program: Path) -> tuple[Path, ...]:
    """The folders with the libraries of its llama.cpp: lib/ollama, and one in it for each kind of GPU."""
    with suppress(OSError):
        program = program.resolve()
    folder = program.parent
    for root in (folder.parent / "lib" / "ollama", folder / "lib" / "ollama"):
        if is_folder(root):
            return (root, *folders_in(root))
    return (folder,)  # macOS: next to the program


def server_address(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Host and port of the server on this machine, by OLLAMA_HOST; None if it is set to another machine."""
    text = environment.get("OLLAMA_HOST", "").strip().strip("\"'")
    scheme, mark, rest = text.partition("://")
    default_port = _PORTS.get(scheme, _PORT) if mark else _PORT
    try:
        parts = urlsplit(f"//{rest if mark else text}")
        host, port = parts.hostname or "127.0.0.1", parts.port
        if port is None or not 0 < port <= LARGEST_PORT:
            port = default_port
        host = connectable(host)
        is_here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a host name, or no address at all
        return None
    return (host, port) if is_here and scheme != "https" else None


def running_server(environment: Mapping[str, str], *, timeout_s: float) -> OllamaServer | None:
    """The server that listens on this machine; None if none answers like Ollama within the time."""
    found = server_address(environment)
    if found is None:
        return None
    versions: list[str] = []
    asking = threading.Thread(
        target=_ask_version, args=(*found, timeout_s, versions.append), daemon=True
    )
    asking.start()  # in a thread, because a server that sends one byte at a time never times out
    asking.join(timeout_s)
    if not versions:
        return None
    host, port = found
    return OllamaServer(address=f"http://{in_address(host)}:{port}", version=versions[0])


def _ask_version(host: str, port: int, timeout_s: float, tell: Callable[[str], object]) -> None:
    """GET /api/version, which answers {"version": "0.12.3"}."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", "/api/version")
        reply = json.loads(connection.getresponse().read(_REPLY_BYTES))
        if isinstance(reply, dict) and isinstance(reply.get("version"), str):
            tell(one_line(reply["version"], _VERSION_CHARS))
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        pass  # no server, or not Ollama's
    finally:
        connection.close()
