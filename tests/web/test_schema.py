"""What the OpenAPI document promises, held against the real application: no 500, and every answer of a declared shape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.patience import wait_until
from tests.thoroughness import LONG, RANDOM

from edgekit.engines import engine_named, engine_names
from edgekit.web.app import OPENAPI, create_app
from edgekit.web.calls import CALLS
from edgekit.web.types import WebSettings

ORIGIN = "http://127.0.0.1:8421"
HEADERS = {"Host": "127.0.0.1:8421"}
OPERATIONS = 25  # those of the calls, twice; of lists, jobs and health


def checks_of_answers() -> list[Any]:
    """Imported here: every worker reads this file, and one of them runs it."""
    from schemathesis import checks

    return [
        checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]


def bounded(examples: int, longer: int) -> settings:
    return settings(
        max_examples=longer if LONG else examples,
        deadline=None,
        derandomize=not RANDOM,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    made = create_app(WebSettings(network=False, cache=False, requests_per_s=1e9))
    yield made
    made.state.edgekit.close()


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url=ORIGIN, raise_server_exceptions=False) as result:
        yield result


def test_every_answer_is_one_that_was_promised(app: FastAPI) -> None:
    """Streams end when somebody closes them: they have tests of their own."""
    import schemathesis
    from schemathesis.core.result import Ok

    schema = schemathesis.openapi.from_asgi(OPENAPI, app, headers=HEADERS).exclude(
        path_regex="/events$"
    )
    count = 0
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        count += 1
        _hold(result.ok())
    assert count >= OPERATIONS


def _hold(operation: Any) -> None:
    from schemathesis import GenerationMode, checks

    @bounded(2, 100)
    @given(case=operation.as_strategy())
    def hold(case: Any) -> None:
        if operation.path.endswith("/recommend"):  # among 8 models, not among 131
            _complete(case, task="embed")
        case.call_and_validate(
            checks=[*checks_of_answers(), checks.negative_data_rejection], headers=HEADERS
        )

    @bounded(1, 100)
    @given(
        case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        model=st.sampled_from(MODELS),
    )
    def hold_known(case: Any, model: str) -> None:
        """No text that is made up is the name of a model that there is."""
        _complete(case, model=model)
        case.call_and_validate(checks=checks_of_answers(), headers=HEADERS)

    hold()
    if operation.path.removeprefix("/api/v1/") in CALLS.keys() - {"recommend"}:
        hold_known()


def _complete(case: Any, **more: str) -> None:
    fields = case.query if case.method == "GET" else case.body
    if isinstance(fields, dict):
        fields.update(more)


def _examples(operation: dict[str, Any], schemas: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """For a query or a body: fields with an example each, so often that every example was there once."""
    fields = {
        parameter["name"]: parameter
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query"
    }
    body = operation.get("requestBody")
    if body is not None:
        shape = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        fields = {name: {"schema": one} for name, one in schemas[shape]["properties"].items()}
    known = {
        name: [*one.get("examples", ()), *one["schema"].get("examples", ())]
        for name, one in fields.items()
    }
    for number in range(max(map(len, known.values()), default=0)):
        yield {name: text[number % len(text)] for name, text in known.items() if text}


def test_every_example_is_answered() -> None:
    """By an application of its own: that of the tests above has ended once, and starts no job any more."""
    app = create_app(WebSettings(network=False, cache=False, requests_per_s=1e9))
    with TestClient(app, base_url=ORIGIN) as client:
        _send_every_example(client)


def _send_every_example(client: TestClient) -> None:
    document = client.get(OPENAPI).json()
    schemas, sent = document["components"]["schemas"], 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for fields in _examples(operation, schemas):
                is_get = method == "get"
                answer = (
                    client.get(path, params=fields) if is_get else client.post(path, json=fields)
                )
                assert answer.status_code in {200, 202}, (path, fields, answer.text)
                sent += 1
                if answer.status_code == 202:
                    _await_job(client, answer.headers["location"])
    assert sent >= 2 * len(CALLS.keys() - {"recommend"})


def _await_job(client: TestClient, location: str) -> None:
    wait_until(lambda: client.get(location).json()["state"] != "running")
    answer = client.get(location).json()
    assert answer["state"] == "done", answer


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/api/v1/catalog/{id}", {"id": "qwen3-8b"}),
        ("/api/v1/catalog", {}),
        ("/api/v1/devices", {}),
        ("/api/v1/hardware", {}),
    ],
)
def test_what_is_known_has_the_shape_that_is_described(
    app: FastAPI, path: str, named: dict[str, str]
) -> None:
    """No name that is made up is one of the catalog: there the test above sees 404 alone."""
    import schemathesis

    operation = schemathesis.openapi.from_asgi(OPENAPI, app, headers=HEADERS)[path]["GET"]
    case = operation.Case(path_parameters=named)
    answer = case.call_and_validate(checks=checks_of_answers(), headers=HEADERS)
    assert answer.status_code == 200


def test_a_body_that_is_no_json_has_a_status_that_is_described(client: TestClient) -> None:
    answers = client.get(OPENAPI).json()["paths"]["/api/v1/estimate"]["post"]["responses"]
    answer = client.post(
        "/api/v1/estimate", content="model=qwen3-8b", headers={"Content-Type": "text/plain"}
    )
    assert answer.status_code == 400
    assert "400" in answers
    assert "415" not in answers


WORDS = (
    "0", "1", "2", "3", "7", "31", "64", "255", "256", "511", "512", "4096", "8192", "32k", "131072", "2147483647",
    "-1", "-2", "all", "none", "auto", "on", "off", "f16", "f32", "bf16", "q8_0", "q4_0", "iq4_nl", "fp8", "fp8_e5m2",
    "float16", "float32", "bfloat16", "cpu", "cuda", "metal", "vulkan", "library", "server", "1,1", "3,1,2", "0,1",
    "24G", "24G,8G", "1", "0.01", "0.9", "1.0", "Q4_K_M", "Q2_K", "Q8_0", "F16", "q4", "mxfp4", "0.5", "0.6",
    "draft-mtp", "draft-simple", "H100", "RTX 4090", "awq", "gptq", "16", "8", "4", "6000+800", "sample:gemma-3-27b",
)  # fmt: skip
MODELS = (
    "qwen3-8b", "sample:gemma-3-27b", "sample:qwen3-30b-a3b", "deepseek-v3", "nomic-embed-text-v1.5",
    "qwen3-next-80b-a3b", "all-minilm-l6-v2", "mamba-2.8b",
)  # fmt: skip
MACHINES: tuple[dict[str, Any], ...] = (
    {"device": ["RTX 4090"], "ram": "64G"}, {"ram": "16G"}, {"device": ["m3-max-64"]}, {"vram": "24G,12G"},
    {"device": ["2x H100"]}, {"device": ["RX 7900 XTX"], "ram": "1G"}, {"device": ["phone-8"]}, {"vram": "1G"},
)  # fmt: skip


@st.composite
def loads(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A call and fields that a person could mean: most of them are understood, and many are refused by an engine."""
    call = draw(st.sampled_from(("estimate", "fit", "fit", "check", "curves")))
    engine = draw(st.sampled_from((*engine_names(), "llama.cpp", "llama.cpp")))
    known = CALLS[call].request.model_fields
    flags = [flag for flag in engine_named(engine).flags if flag.key in known]
    fields: dict[str, Any] = {"model": draw(st.sampled_from(MODELS)), "engine": engine}
    for flag in draw(st.lists(st.sampled_from(flags), max_size=4, unique_by=lambda item: item.key)):
        fields[flag.key] = draw(st.sampled_from(WORDS) if flag.metavar else st.booleans())
    if draw(st.booleans()):
        fields["context"] = draw(st.sampled_from(WORDS[:16]) | st.integers(0, 2**31))
    if call != "estimate":
        fields |= draw(st.sampled_from(MACHINES))
    return call, fields


@bounded(60, 1000)
@given(asked=loads())
def test_loads_that_a_person_could_mean(client: TestClient, asked: tuple[str, Any]) -> None:
    call, fields = asked
    answer = client.post(f"/api/v1/{call}", json=fields)
    assert answer.status_code in {200, 400, 404, 422}, (call, fields, answer.text)
    output = json.loads(answer.text, parse_constant=pytest.fail)
    assert ("error" in output) == (answer.status_code != 200)
    if call == "fit" and answer.status_code == 200:
        for bar in output["bars"]:
            assert sum(part["bytes"] for part in bar["parts"]) == bar["required_bytes"]
