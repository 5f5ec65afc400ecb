"""Endpoints that a model behind llama.cpp cannot answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.embed_models import write_model
from tests.gateways import CHAT, ask, gateway
from tests.runnable import write_chatting

from edgekit.app.programs import ChosenProgram
from edgekit.app.run import judge
from edgekit.engines import engine_named
from edgekit.engines.flags import read_flags
from edgekit.engines.llamacpp.run.program import SERVER
from edgekit.engines.program import Installation, LocalWeights
from edgekit.engines.request_rules import RequestLimits
from edgekit.model import open_model
from edgekit.request import Request, Session
from edgekit.sources.types import Reach

EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"


def limits_of(model: Path, *, embeddings: bool = False) -> RequestLimits:
    installation = Installation(program="llama-server", origin="PATH", path="", version="0.6.0")
    engine = engine_named("llama.cpp")
    flags = read_flags(engine.flags, {"embeddings": True} if embeddings else {})
    request = Request(engines=("llama.cpp",), context=256).with_flags("llama.cpp", flags)
    chosen = ChosenProgram(engine=engine, program=SERVER, installation=installation)
    session = Session(reach=Reach(network=False))
    judged = judge(request, chosen, open_model(model), None, session)
    return SERVER.request_limits(judged.check.result, LocalWeights(model=model))


def test_chat_model_does_not_embed_or_rank(tmp_path: Path) -> None:
    limits = limits_of(write_chatting(tmp_path / "chat.gguf"))
    assert set(limits.rules.unserved) == {EMBEDDINGS, "/embeddings", RERANK, "/rerank"}


def test_embedding_model_does_not_write_or_rank(tmp_path: Path) -> None:
    unserved = limits_of(write_model(tmp_path / "e.gguf", "bert"), embeddings=True).rules.unserved
    assert {CHAT, "/v1/completions", "/v1/responses", RERANK} <= set(unserved)
    assert EMBEDDINGS not in unserved
    assert "/tokenize" not in unserved


def test_reranking_model_ranks(tmp_path: Path) -> None:
    model = write_model(tmp_path / "r.gguf", "bert", pooling="rank")
    unserved = limits_of(model, embeddings=True).rules.unserved
    assert CHAT in unserved
    assert RERANK not in unserved


@pytest.mark.parametrize("name", ["tiny", "gpt-4", None])
def test_response_names_the_model_and_what_to_do(tmp_path: Path, name: str | None) -> None:
    """One model answers to any name."""
    limits = limits_of(write_chatting(tmp_path / "chat.gguf"))
    body = {"input": "a"} if name is None else {"model": name, "input": "a"}
    with gateway("http://127.0.0.1:9", limits=limits) as address:
        reply = ask(address, EMBEDDINGS, body)
    assert (reply.status, reply.error["code"]) == (400, "wrong_model")
    message = "tiny is not an embedding model: serve one, such as nomic-embed-text-v1.5"
    assert reply.error["message"] == message
