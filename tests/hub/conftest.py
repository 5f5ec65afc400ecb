"""The servers, and an environment without this machine's settings, tokens and caches."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from huggingface_hub import close_session
from tests.hub.nginx_hub import Hub, start
from tests.hub.raw_server import RawServer, Script, serve
from tests.patience import PATIENCE_S

from edgekit.sources.types import Reach

_READ_BY_SESSION = ("SSL_CERT", "HF_HUB_DISABLE_SSL")
_FOREIGN = ("HF_", "HUGGING", "TRANSFORMERS_", "EDGEKIT_", "SSL_CERT")


@pytest.fixture(scope="session")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed (Debian: apt install nginx-light)")
    hub, process = start(tmp_path_factory.mktemp("nginx"))
    yield hub
    process.terminate()
    process.wait(PATIENCE_S)


@pytest.fixture(autouse=True, scope="module")
def own_session() -> Iterator[None]:
    """One session of huggingface_hub per file: reading the certificates for a new one takes longer than most tests.

    It reads proxies and certificates when it opens; `surroundings` closes it after a test that set some.
    """
    close_session()
    yield
    close_session()


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in os.environ:
        if name.upper().startswith(_FOREIGN) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("EDGEKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")  # no token of this machine
    yield
    if any(
        name.upper().startswith(_READ_BY_SESSION) or name.upper().endswith("_PROXY")
        for name in os.environ
    ):
        close_session()


@pytest.fixture
def hub(nginx: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The nginx hub; HF_ENDPOINT and the Ollama registry point at it."""
    monkeypatch.setenv("HF_ENDPOINT", nginx.endpoint)
    monkeypatch.setenv("EDGEKIT_OLLAMA_REGISTRY", nginx.endpoint)
    nginx.clear_logs()
    return nginx


@pytest.fixture
def raw_server() -> Iterator[Callable[[Script], RawServer]]:
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(serve(script))


@pytest.fixture
def reach() -> Reach:
    """Timeouts that even a busy machine keeps; a test of a timeout sets its own."""
    return Reach(
        cache=False,
        connect_timeout_s=PATIENCE_S,
        read_timeout_s=PATIENCE_S,
        total_timeout_s=PATIENCE_S,
    )
