"""No test sees this machine's tokens, caches or models, or waits long for a server that is not there."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.signals import restore_for_children
from tests.thoroughness import RANDOM
from xdist.scheduler import LoadFileScheduling

from edgekit.sources import http as transport

# Hundreds of tests start EdgeKit in a process of its own: what one has compiled, the next one reads.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

restore_for_children()

# Figures in tests are those of the llama.cpp whose answers are recorded, whatever is installed.
os.environ["EDGEKIT_LLAMA_VERSION"] = "0.5"

# No example fails for taking long. The same examples are tried each time, unless EDGEKIT_RANDOM=1 asks for new ones.
settings.register_profile(
    "edgekit",
    deadline=None,
    derandomize=not RANDOM,
    suppress_health_check=(HealthCheck.too_slow,),
)
settings.load_profile("edgekit")

# The longest files, each handed to a worker as a whole: begun last, one of them keeps a worker while the others idle.
LONGEST = (
    "web/test_pages.py", "web/test_model_page.py", "cli/test_embed.py", "cli/test_check.py",
    "web/test_cards.py", "embed/test_stdio.py", "web/test_page_errors.py", "embed/test_embedder.py", "cli/test_run.py",
    "cli/test_web_command.py", "web/test_accessibility.py", "truth/test_embed_minilm.py", "web/test_schema.py",
)  # fmt: skip


# These share a server, which works out the cards of every machine once: one worker runs them all.
WITH_ONE_SERVER = (
    "test_accessibility.py", "test_model_page.py", "test_page_errors.py", "test_pages.py",
)  # fmt: skip


# These build the same tokenizers, which takes seconds and is kept in the process: one worker runs them all.
WITH_VOCABULARIES = ("tokenizer/test_text.py", "tokenizer/test_vectors.py")


class _ByFile(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        if file.endswith(WITH_VOCABULARIES):
            return "vocabularies"
        return "tests/web" if file.endswith(WITH_ONE_SERVER) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByFile:
    return _ByFile(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases",
        type=int,
        metavar="N",
        help="run at most N cases of each parametrised test, spread evenly over all of them",
    )


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """At most --cases of a table, of a costly one a single case.

    The others are not made at all, which would take longer than collecting the rest.
    """
    most = metafunc.config.getoption("cases")
    if most is not None and metafunc._calls:
        most = 1 if metafunc.definition.get_closest_marker("costly") else most
        metafunc._calls[:] = metafunc._calls[:: -(-len(metafunc._calls) // most)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, the others in their order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get("/".join(item.path.parts[-2:]), len(places)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Thousands of tests are made, and all stay: no search for garbage among them, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _nothing_left_open() -> Iterator[None]:
    """A file, socket or process that a test did not close is reported in its own file, not in a later one.

    What is left then stays (modules, caches of the session): the next search does not go through it again.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder after the other. (pytest's own numbering looks at all that are there, each time.)"""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in count())


@pytest.fixture(autouse=True)
def _own_environment(_homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    home = next(_homes)
    home.mkdir()
    for name in (
        "HF_TOKEN",
        "HF_ENDPOINT",
        "HF_HUB_OFFLINE",
        "HF_HUB_CACHE",
        "COLUMNS",
        "NO_COLOR",
        "OLLAMA_MODELS",
        "XDG_DATA_HOME",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_HOME", str(home / "huggingface"))
    monkeypatch.setenv("EDGEKIT_CACHE", str(home / "edgekit-cache"))
    monkeypatch.setenv("EDGEKIT_DATA", str(home / "edgekit-data"))
    monkeypatch.setattr(transport, "FIRST_PAUSE_S", 0.02)  # waits of 1.4 s would add up
    import huggingface_hub.constants  # noqa: F401 - reads HF_HUB_OFFLINE once: here, where it is not set
