"""Fixtures of the browser tests: a browser, `edgekit web`, and a model hub on loopback."""

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

MakeVisit = Callable[..., Visit]
DENSE, EXPERTS = ("llama-3.1-8b", "Q4_K_M"), ("qwen3-30b-a3b", "Q4_K_M")
MACHINE = "device=RTX+4090&ram=64G"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A running `edgekit web`, its hub, and its --models-dir folder."""

    server: WebProcess
    hub: Hub
    folder: Path
    environment: dict[str, str]

    @property
    def origin(self) -> str:
        return self.server.address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Closed after each file: while it runs, nothing else in this process can start an event loop."""
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
        environment = environment_for(home, hub)
        flags = ("--models-dir", str(folder), "--allow-private")
        with start_process(*flags, env=environment) as server:
            yield Site(server=server, hub=hub, folder=folder, environment=environment)


def environment_for(home: Path, hub: Hub) -> dict[str, str]:
    """The environment of this process, with the hub on loopback, and without this machine's tokens, caches and models."""
    removed = ("HF_", "HUGGING", "EDGEKIT_", "OLLAMA", "XDG_")
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(removed) and not name.upper().endswith("_PROXY")
    }
    return {
        **inherited,
        "HOME": str(home),
        "HF_HOME": str(home / "hub"),
        "EDGEKIT_CACHE": str(home / "cache"),
        "EDGEKIT_DATA": str(home / "data"),
        "EDGEKIT_LLAMA_VERSION": os.environ["EDGEKIT_LLAMA_VERSION"],
        "HF_ENDPOINT": hub.endpoint,
        "EDGEKIT_OLLAMA_REGISTRY": hub.endpoint,
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    }


@pytest.fixture
def make_visit(browser: Browser, site: Site) -> Iterator[MakeVisit]:
    """Makes visits. At the end of the test, asserts that their tabs had no faults."""
    visits: list[Visit] = []

    def make(
        *, size: tuple[int, int] = WIDE, dark: bool = False, expected_faults: tuple[str, ...] = ()
    ) -> Visit:
        visits.append(
            new_visit(browser, site.origin, size=size, dark=dark, expected_faults=expected_faults)
        )
        return visits[-1]

    yield make
    faults = [fault for visit in visits for fault in visit.close()]
    assert not faults, "\n".join(faults)
