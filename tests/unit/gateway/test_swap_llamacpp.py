"""Two real llama.cpp servers in a memory for one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from openai import InternalServerError, OpenAI
from tests.gateways import gateway
from tests.runtime_engines import launch_of, small_model

from edgekit.bill.types import Load
from edgekit.engines.llamacpp.run.engine import EngineProcess, start
from edgekit.engines.llamacpp.run.request_rules import request_rules
from edgekit.engines.program import LocalWeights
from edgekit.engines.request_rules import RequestLimits
from edgekit.gateway.engines import checker
from edgekit.gateway.swap import Begun, LoadedModel, ModelEntry, SwappingModels
from edgekit.gateway.types import Upstream

pytest.importorskip("xllamacpp")

WINDOW = 512
RULES = request_rules(window_tokens=WINDOW, slots=1, reads_images=False)


@dataclass(frozen=True, slots=True)
class Handle:
    process: EngineProcess

    @property
    def pid(self) -> int:
        return self.process.pid

    def on_end(self, tell: Callable[[str, str], None]) -> None:
        def wait() -> None:
            ended = self.process.wait()
            why = "" if ended is None else ended.why
            tell(why, why)

        threading.Thread(target=wait, daemon=True).start()

    def stop(self) -> None:
        self.process.stop()


class Started:
    """The processes that were started, and that were alive when the next one was."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.pids: list[int] = []

    def entry(self, name: str, path: Path) -> ModelEntry:
        def start_model(begun: Begun) -> LoadedModel:
            assert not [pid for pid in self.pids if psutil.pid_exists(pid)]
            load = Load(context_tokens=WINDOW, sequences=1)
            process = start(launch_of(path, load=load, alias=name), begun=begun)
            self.names.append(name)
            self.pids.append(process.pid)
            upstream = Upstream(address=process.address, model=name)
            return LoadedModel(upstream=upstream, handle=Handle(process))

        limits = RequestLimits(rules=RULES, window_tokens=WINDOW)
        return ModelEntry(
            name=name, start=start_model, check=checker(LocalWeights(model=path)), limits=limits
        )


@pytest.fixture
def started() -> Started:
    return Started()


@pytest.fixture
def client(started: Started, tmp_path: Path) -> Iterator[OpenAI]:
    model = small_model(tmp_path / "small.gguf")
    missing = tmp_path / "missing.gguf"
    paths = {"one": model, "two": model, "broken": missing}
    entries = [started.entry(name, path) for name, path in paths.items()]
    models = SwappingModels(entries, lambda names: len(names) == 1)
    with gateway(models) as address, OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client:  # fmt: skip
        yield client
    models.close()
    assert not [pid for pid in started.pids if psutil.pid_exists(pid)]


def test_models_take_turns(client: OpenAI, started: Started) -> None:
    for name in ("one", "one", "two", "one"):
        reply = client.completions.create(model=name, prompt="hello", max_tokens=3)
        assert (reply.model, bool(reply.choices[0].text)) == (name, True)
    assert started.names == ["one", "two", "one"]


def test_model_that_cannot_start_leaves_the_others_alone(client: OpenAI, started: Started) -> None:
    with pytest.raises(InternalServerError, match=r"broken: .*missing.gguf") as caught:
        client.completions.create(model="broken", prompt="hello")
    assert caught.value.status_code == 503
    assert client.completions.create(model="two", prompt="hello", max_tokens=3).model == "two"
    assert started.names == ["two"]
    with pytest.raises(InternalServerError, match=r"broken: .*missing.gguf"):
        client.completions.create(model="broken", prompt="hello")
    assert [psutil.pid_exists(pid) for pid in started.pids] == [True]  # it was not stopped
