"""The browser, the server behind it, and a hub on loopback for the server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from tests.hub.nginx_hub import Hub
from tests.hub.test_check import running
from tests.web.browser import WAIT_MS, WIDE, Visit, chromium, chromium_path, new_visit
from tests.web.model_files import write_model
from tests.web.serving import WebProcess, start_process

Visitor = Callable[..., Visit]
DENSE, EXPERTS = ("llama-3.1-8b", "Q4_K_M"), ("qwen3-30b-a3b", "Q4_K_M")
MACHINE = "device=RTX+4090&ram=64G"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """`edgekit web`, which asks the hub and may name the files of a folder."""

    server: WebProcess
    hub: Hub
    folder: Path
    environment: dict[str, str]

    @property
    def origin(self) -> str:
        return self.server.address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One a file: while it runs, nothing else in this process can have an event loop."""
    expect.set_options(timeout=WAIT_MS)
    with chromium() as result:
        yield result


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    chromium_path()
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed (Debian: apt install nginx-light)")
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("models")
    for name, quant in (DENSE, EXPERTS):
        write_model(folder, name, quant)
    (folder / "broken.gguf").write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 64)
    with running(tmp_path_factory.mktemp("nginx")) as (hub, _):
        environment = surroundings(home, hub)
        words = ("--models-dir", str(folder), "--allow-private")
        with start_process(*words, env=environment) as server:
            yield Site(server=server, hub=hub, folder=folder, environment=environment)


def surroundings(home: Path, hub: Hub) -> dict[str, str]:
    """Nothing of this machine's own is found, and the hub is the one on loopback."""
    foreign = ("HF_", "HUGGING", "EDGEKIT_", "OLLAMA", "XDG_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(foreign) and not name.upper().endswith("_PROXY")
    }
    own = {"HOME": home, "HF_HOME": home / "hub", "EDGEKIT_CACHE": home / "cache"}
    return {
        **kept,
        **{name: str(path) for name, path in own.items()},
        "EDGEKIT_DATA": str(home / "data"),
        "EDGEKIT_LLAMA_VERSION": os.environ["EDGEKIT_LLAMA_VERSION"],
        "HF_ENDPOINT": hub.endpoint,
        "EDGEKIT_OLLAMA_REGISTRY": hub.endpoint,
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    }


@pytest.fixture
def visitor(browser: Browser, site: Site) -> Iterator[Visitor]:
    """Makes visits. When the test ends, no tab may have complained, or asked anyone but the server."""
    made: list[Visit] = []

    def make(
        *, size: tuple[int, int] = WIDE, dark: bool = False, forgiven: tuple[str, ...] = ()
    ) -> Visit:
        made.append(new_visit(browser, site.origin, size=size, dark=dark, forgiven=forgiven))
        return made[-1]

    yield make
    faults = [fault for visit in made for fault in visit.close()]
    assert not faults, "\n".join(faults)
