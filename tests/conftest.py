"""No test sees this machine's tokens, caches or models, or waits long for a server that does not answer."""

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

# Hundreds of tests start EdgeKit in a new process: bytecode files spare each of them the compilation.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

restore_for_children()

# Figures in tests are those of the recorded llama.cpp, whatever is installed.
os.environ["EDGEKIT_LLAMA_VERSION"] = "0.5"

# No example fails for being slow. Every run tries the same examples, unless EDGEKIT_RANDOM=1 asks for new ones.
settings.register_profile(
    "edgekit",
    deadline=None,
    derandomize=not RANDOM,
    suppress_health_check=(HealthCheck.too_slow,),
)
settings.load_profile("edgekit")

# The longest files run first: a worker takes a whole file, and would finish long after the others if it began one last.
LONGEST = (
    "web/test_model_page.py", "web/test_home_page.py", "web/test_compare_page.py", "cli/test_embed.py", "cli/test_check.py",
    "web/test_cards.py", "embed/test_stdio.py", "web/test_page_errors.py", "embed/test_embedder.py", "cli/test_run.py",
    "cli/test_web.py", "web/test_accessibility.py", "truth/test_embed_minilm.py", "web/test_schema.py",
)  # fmt: skip


# These share a server, which computes the cards of each machine once: one worker runs them all.
WITH_ONE_SERVER = (
    "test_accessibility.py", "test_compare_page.py", "test_first_visit.py", "test_home_page.py", "test_machine_page.py",
    "test_model_page.py", "test_page_errors.py",
)  # fmt: skip


# These share tokenizers, which take seconds to build and are cached in the process: one worker runs them all.
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
    """Keeps at most --cases cases of each test, spread evenly; of a costly test one.

    They are removed before pytest makes items of them, which would take longer than collecting the rest.
    """
    max_cases = metafunc.config.getoption("cases")
    if max_cases is not None and metafunc._calls:
        max_cases = 1 if metafunc.definition.get_closest_marker("costly") else max_cases
        metafunc._calls[:] = metafunc._calls[:: -(-len(metafunc._calls) // max_cases)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the longest files first, and the others in their order."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get("/".join(item.path.parts[-2:]), len(ranks)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """No garbage collection while thousands of items are made; none of them is searched later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _nothing_left_open() -> Iterator[None]:
    """Collects garbage after each file, so that a file or socket that was not closed is reported there.

    What is left (modules, caches of the session) is frozen: later collections do not search it again.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Numbered folders. (tmp_path would list all existing ones each time.)"""
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
    monkeypatch.setattr(transport, "FIRST_PAUSE_S", 0.02)  # the usual waits add up to 1.4 s
    import huggingface_hub.constants  # noqa: F401 - reads HF_HUB_OFFLINE on import, so import it while unset
