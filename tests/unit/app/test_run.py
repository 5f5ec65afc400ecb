"""`app.run`: the events passed to Session.notify, and the errors, while an engine is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.runnable import write_chatting
from tests.runtime_engines import ask
from tests.small_mlx import write_small_model

from edgekit.app.programs import ChosenProgram, choose_program
from edgekit.app.run import (
    DoesNotFitError,
    EngineMessage,
    Forced,
    Starting,
    WeightsChosen,
    fetch,
    run,
)
from edgekit.engines import engine_named
from edgekit.engines.chat import Fitted, GenerationResult, Message, Prompt, Sampling
from edgekit.engines.program import Installation
from edgekit.errors import SourceError, UsageError
from edgekit.machine.what_if import requested_machine
from edgekit.request import Request, Session
from edgekit.sources.types import Reach
from edgekit.units import MIB

REQUEST = Request(engines=("stream",))
STREAM = choose_program("run", "any.gguf", Session(reach=Reach()), engine="stream", wanted=None)
WHEEL = ChosenProgram(
    engine=engine_named("llama.cpp"),
    program=engine_named("llama.cpp").program("run", "xllamacpp"),
    installation=Installation(
        program="xllamacpp", origin="Python package", path="", devices=("CUDA0",)
    ),
)
PROMPT = Prompt(messages=(Message(role="user", content="Hello"),))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_chatting(tmp_path_factory.mktemp("app") / "run.gguf", tied=False))


def session(events: list[Any]) -> Session:
    return Session(reach=Reach(network=False), notify=events.append)


def test_run_notifies_of_the_check_and_prints_nothing(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[Any] = []
    judged, weights = fetch(model, REQUEST, STREAM, session(events))
    assert (weights.model, events) == (Path(model), [])
    with run(judged, weights, prompt=PROMPT, new_tokens=8) as (up, started):
        assert up.generator.window_tokens == started.check.result.context_tokens
    assert events[0] == Starting(started.check)
    assert [type(event) for event in events] == [Starting, EngineMessage]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("engine", "module"), [("llama.cpp", "xllamacpp"), ("mlx", "mlx_lm")])
def test_the_engine_of_run_demands_a_key(
    engine: str, module: str, model: str, tmp_path: Path
) -> None:
    pytest.importorskip(module)
    reference = model if engine == "llama.cpp" else str(write_small_model(tmp_path / "small"))
    chosen = choose_program("run", reference, session([]), engine=engine, wanted=None)
    request = Request(engines=(engine,), context=64)
    judged, weights = fetch(reference, request, chosen, session([]))
    with run(judged, weights, prompt=None, new_tokens=8) as (up, _):
        assert up.server is not None
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        assert ask(up.server.address, "/v1/chat/completions", body)[0] == 401
        written = GenerationResult()
        fitted = Fitted(prompt=PROMPT, tokens=None, max_tokens=2)
        assert list(up.generator.write(fitted, Sampling(), into=written)) or written.finish


def test_fetch_of_a_model_that_does_not_fit_raises_with_the_check(model: str) -> None:
    small = Request(engines=("stream",), budget_bytes=MIB)
    with pytest.raises(DoesNotFitError) as caught:
        fetch(model, small, STREAM, session([]))
    assert caught.value.check.result.failed
    assert caught.value.exit_code == 3


def test_fetch_with_force_notifies_that_it_does_not_fit(model: str) -> None:
    events: list[Any] = []
    small = Request(engines=("stream",), budget_bytes=MIB, force=True)
    judged, _ = fetch(model, small, STREAM, session(events))
    assert events == [Forced(judged.check)]
    judged.still_fits()  # it does not, but was forced


def test_fetch_names_the_weights_of_a_catalog_name(monkeypatch: pytest.MonkeyPatch) -> None:
    card = requested_machine(devices=("RTX 4090",), ram="64G")
    monkeypatch.setattr("edgekit.app.run.detect", lambda: card)
    events: list[Any] = []
    with pytest.raises(SourceError, match="the network is off"):
        fetch("qwen3-8b", Request(engines=("llama.cpp",)), WHEEL, session(events))
    assert [type(event) for event in events] == [WeightsChosen]
    assert (events[0].name, events[0].mix) == ("qwen3-8b", "Q6_K")


def test_fetch_of_an_embedding_model_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot chat: use edgekit embed"):
        fetch("nomic-embed-text-v1.5", Request(engines=("llama.cpp",)), WHEEL, session([]))
