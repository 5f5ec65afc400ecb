"""The gateway in front of a real llama.cpp: OpenAI's client, and the requests that made it take gigabytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from tests.gateways import ask, gateway, upstream_at
from tests.llama_server import write_llama_server
from tests.runtime_engines import launch_of, small_model

from edgekit.bill.types import Load
from edgekit.engines.llamacpp.run.engine import EngineProcess, start
from edgekit.engines.llamacpp.run.request_rules import ENDPOINTS, request_rules
from edgekit.engines.program import Installation
from edgekit.engines.request_rules import RequestLimits
from edgekit.units import MIB

pytest.importorskip("xllamacpp")

WINDOW, SLOTS = 1024, 2
PROMPT = {"prompt": "a", "max_tokens": 2}
MESSAGES: list[Any] = [{"role": "user", "content": "hello world"}]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    folder = tmp_path_factory.mktemp("engine")
    model = small_model(folder / "small.gguf")
    program = Installation(
        program="llama-server",
        origin="PATH",
        path=str(write_llama_server(folder / "bin")),
        version="0.6.0",
        build="b1",
    )
    load = Load(context_tokens=WINDOW, sequences=SLOTS, unified=True)
    with start(launch_of(model, program=program, load=load, api_key="inner", alias="tiny")) as running:  # fmt: skip
        yield running


@pytest.fixture(scope="module")
def address(engine: EngineProcess) -> Iterator[str]:
    rules = request_rules(window_tokens=WINDOW, slots=SLOTS, reads_images=False)
    upstream = upstream_at(engine.address, api_key="inner", model="tiny")
    limits = RequestLimits(rules=rules, window_tokens=WINDOW)
    with gateway(upstream, limits=limits) as address:
        yield address


@pytest.fixture
def client(address: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client:
        yield client


class TestOpenAiClient:
    def test_chat(self, client: OpenAI) -> None:
        reply = client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=5, logprobs=True, top_logprobs=3
        )
        assert reply.usage is not None
        assert (reply.model, reply.usage.completion_tokens) == ("tiny", 5)
        logprobs = reply.choices[0].logprobs
        assert logprobs is not None
        assert len((logprobs.content or [])[0].top_logprobs) == 3

    def test_streams(self, client: OpenAI) -> None:
        options: Any = {"stream_options": {"include_usage": True}}
        with client.chat.completions.create(
            model="any name", messages=MESSAGES, max_tokens=5, stream=True, extra_body=options
        ) as stream:
            events = list(stream)
        assert events[-1].usage is not None
        assert events[-1].usage.completion_tokens == 5
        assert events[-2].choices[0].finish_reason == "length"

    def test_other_endpoints(self, client: OpenAI) -> None:
        assert client.completions.create(model="tiny", prompt="a", max_tokens=3).choices[0].text
        assert [model.id for model in client.models.list()] == ["tiny"]
        response = client.responses.create(model="tiny", input="hello", max_output_tokens=4)
        assert response.usage is not None
        assert response.usage.output_tokens == 4

    def test_refusals_are_the_clients_exceptions(self, client: OpenAI) -> None:
        with pytest.raises(BadRequestError, match="n: 9 is not between 1 and 2") as caught:
            client.chat.completions.create(model="tiny", messages=MESSAGES, n=9)
        assert caught.value.param == "n"
        with pytest.raises(NotFoundError):
            client.images.generate(prompt="a cat")
        too_long = [{"role": "user", "content": "word " * 2 * WINDOW}]
        with pytest.raises(BadRequestError, match="exceeds the available context size"):
            client.chat.completions.create(model="tiny", messages=too_long)  # type: ignore[arg-type] # a list of dicts


def test_native_endpoints(address: str) -> None:
    tokens = ask(address, "/tokenize", {"content": "the quick"}).json["tokens"]
    assert ask(address, "/detokenize", {"tokens": tokens}).json["content"].strip() == "the quick"
    assert "hello world" in ask(address, "/apply-template", {"messages": MESSAGES}).json["prompt"]
    assert ask(address, "/completion", {"prompt": "a", "n_predict": 3}).json["tokens_predicted"] == 3  # fmt: skip


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_llamacpp_has_every_endpoint(address: str, endpoint: Any) -> None:
    """An empty request is answered by the engine: it misses a field, or the model cannot do that."""
    reply = ask(address, endpoint.path, {})
    assert reply.status in {200, 400, 500, 501}
    assert reply.json.get("error", {}).get("type") not in {"not_found_error", None} or reply.status == 200  # fmt: skip


ATTACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "history of penalties": ("/v1/completions", PROMPT | {"repeat_last_n": 2**31 - 1, "repeat_penalty": 1.1}),
    "history of DRY": ("/v1/completions", PROMPT | {"dry_multiplier": 1, "dry_penalty_last_n": 2**27}),
    "breakers of DRY": ("/v1/completions", PROMPT | {"dry_multiplier": 1, "dry_sequence_breakers": [f"a{n}" for n in range(5000)]}),
    "probabilities": ("/v1/completions", {"prompt": "a", "max_tokens": 900, "ignore_eos": True, "n_probs": 2**31 - 1}),
    "samplers": ("/v1/completions", PROMPT | {"samplers": ["top_k"] * 200_000}),
    "grammar": ("/v1/completions", PROMPT | {"grammar": 'root ::= ((("a"{0,30}){0,30}){0,30})'}),
    "grammar of references": ("/v1/completions", PROMPT | {"grammar": 'root ::= b{0,30}\nb ::= c{0,30}\nc ::= "a"{0,30}'}),
    "grammar behind a carriage return": ("/v1/completions", PROMPT | {"grammar": 'root ::= ("a" #\r ((("a"{0,30}){0,30}){0,30})\n)'}),
    "grammar of two recursive rules": ("/v1/completions", PROMPT | {"grammar": 'root ::= "a" root y | "a"\ny ::= "a" y root | "a"'}),
    "grammar that doubles": ("/v1/completions", PROMPT | {"grammar": 'root ::= "a" root root | "a" root | "b"'}),
    "pattern with blanks": ("/v1/completions", PROMPT | {"json_schema": {"type": "string", "pattern": "^((a{ 0,30}){ 0,30}){ 0,30}$"}}),
    "endless schema": ("/apply-template", {"messages": MESSAGES, "json_schema": {"allOf": [{"$ref": "#/d/a"}], "d": {"a": {"$ref": "#/d/a"}}}}),
    "schema within itself": ("/apply-template", {"messages": MESSAGES, "json_schema": {"$ref": "#/d/a", "d": {"a": {"properties": {"a": {"allOf": [{"$ref": "#/d/a"}]}}}}}}),
    "schema of many levels": ("/apply-template", {"messages": MESSAGES, "json_schema": {"$ref": "#/d/0", "d": [*({"items": {"$ref": f"#/d/{n + 1}"}} for n in range(600)), {}]}}),
    "optional properties": ("/apply-template", {"messages": MESSAGES, "json_schema": {"properties": {f"p{n}": {} for n in range(800)}}}),
    "answers to nothing": ("/v1/completions", {"prompt": "", "n": 2, "max_tokens": 2}),
    "long prompt": ("/v1/completions", {"prompt": "a " * 2_000_000, "max_tokens": 1}),
    "long text": ("/tokenize", {"content": "a " * 2_000_000}),
    "many prompts": ("/v1/completions", {"prompt": ["a"] * 3000, "max_tokens": 1}),
    "slots": ("/v1/chat/completions", {"messages": MESSAGES, "n": 10**9}),
    "file": ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]}),
    "deep": ("/v1/completions", {"prompt": eval("[" * 90 + "]" * 90)}),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_refused_and_take_no_memory(
    engine: EngineProcess, address: str, attack: str
) -> None:
    """Each of them took up to 7 GB, or all slots for minutes, when llama.cpp got it."""
    assert ask(address, "/v1/completions", PROMPT).status == 200
    before = engine.resident()
    path, body = ATTACKS[attack]
    reply = ask(address, path, body)
    after = engine.resident()
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert before is not None
    assert after is not None
    assert after.resident_bytes - before.resident_bytes < 4 * MIB


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/slots/0?action=save", {"filename": "../../pwn"}),
        ("/slots", None),
        ("/props", {"chat_template": "x"}),
        ("/props", None),
        ("/lora-adapters", [{"id": 0, "scale": 9}]),
        ("/models/load", {"model": "/etc/passwd"}),
        ("/tools", {}),
        ("/mcp", {}),
        ("/cors-proxy", {}),
        ("/v1/stream", None),
        ("/v1/audio/transcriptions", {}),
    ],
    ids=str,
)
def test_endpoints_that_change_the_server_are_404(address: str, path: str, body: Any) -> None:
    assert ask(address, path, body).status == 404


def test_limits_themselves_are_let_in(address: str) -> None:
    """What the rules allow, llama.cpp answers."""
    at_limits = {
        "repeat_last_n": WINDOW,
        "repeat_penalty": 1.1,
        "dry_multiplier": 1,
        "dry_penalty_last_n": WINDOW,
        "dry_sequence_breakers": [f"b{number}" for number in range(32)],
        "n": SLOTS,
        "n_probs": 20,
        "id_slot": -1,
        "logit_bias": [[number, 1.0] for number in range(500)],
        "stop": [f"stop {number}" for number in range(32)],
        "samplers": ["dry", "penalties", "top_k", "top_p", "temperature"] * 6,
        "max_tokens": 2,
        "grammar": 'root ::= [a-z ]{0,1000} | "x"{0,1000}',
    }
    reply = ask(address, "/v1/completions", {"prompt": "a", **at_limits})
    assert (reply.status, len(reply.json["choices"])) == (200, SLOTS)
