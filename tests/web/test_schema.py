"""The application keeps to its OpenAPI document: no 500, and every response has a documented status and schema."""

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

from edgekit import index
from edgekit.engines import engine_named, engine_names
from edgekit.web.app import OPENAPI, create_app
from edgekit.web.calls import CALLS
from edgekit.web.types import WebSettings

ORIGIN = "http://127.0.0.1:8421"
HEADERS = {"Host": "127.0.0.1:8421"}
WITHOUT_MODEL = {"recommend", "search", "upgrades"}
MIN_OPERATIONS = 25  # each call as GET and POST; lists, jobs and the health check


def response_checks() -> list[Any]:
    """schemathesis is slow to import, and every pytest worker imports this file: so it is imported in functions."""
    from schemathesis import checks

    return [
        checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]


def bounded(examples: int, long_examples: int) -> settings:
    return settings(
        max_examples=long_examples if LONG else examples,
        deadline=None,
        derandomize=not RANDOM,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "CHECKED_MODELS", 4)  # of 160: random requests are not stored answers
        result = create_app(WebSettings(network=False, cache=False, requests_per_s=1e9))
        yield result
        result.state.edgekit.close()


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url=ORIGIN, raise_server_exceptions=False) as result:
        yield result


def test_every_operation_conforms_to_its_schema(app: FastAPI) -> None:
    """Except streams, which do not end by themselves; test_jobs.py and test_cards.py test them."""
    import schemathesis
    from schemathesis.core.result import Ok

    schema = schemathesis.openapi.from_asgi(OPENAPI, app, headers=HEADERS).exclude(
        path_regex="/events$"
    )
    count = 0
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        count += 1
        _check_operation(result.ok())
    assert count >= MIN_OPERATIONS


def _check_operation(operation: Any) -> None:
    from schemathesis import GenerationMode, checks

    @bounded(2, 100)
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        if operation.path.endswith("/recommend"):  # 8 models instead of 131
            _set_fields(case, task="embed")
        if operation.path.endswith("/search"):  # one model, without a plan of every other
            _set_fields(case, words="qwen3 0.6b", limit="1")
        case.call_and_validate(
            checks=[*response_checks(), checks.negative_data_rejection], headers=HEADERS
        )

    @bounded(1, 100)
    @given(
        case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        model=st.sampled_from(MODELS),
    )
    def check_with_model(case: Any, model: str) -> None:
        """Random text is never the name of a model."""
        _set_fields(case, model=model)
        case.call_and_validate(checks=response_checks(), headers=HEADERS)

    check()
    if operation.path.removeprefix("/api/v1/") in CALLS.keys() - WITHOUT_MODEL:
        check_with_model()


def _set_fields(case: Any, **more: str) -> None:
    fields = case.query if case.method == "GET" else case.body
    if isinstance(fields, dict):
        fields.update(more)


def _examples(operation: dict[str, Any], schemas: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Fields of a query or a body that together use each documented example at least once."""
    fields = {
        parameter["name"]: parameter
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query"
    }
    body = operation.get("requestBody")
    if body is not None:
        model = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        properties = schemas[model]["properties"]
        fields = {name: {"schema": schema} for name, schema in properties.items()}
    examples = {
        name: [*field.get("examples", ()), *field["schema"].get("examples", ())]
        for name, field in fields.items()
    }
    for number in range(max(map(len, examples.values()), default=0)):
        yield {name: texts[number % len(texts)] for name, texts in examples.items() if texts}


def test_every_documented_example_is_answered() -> None:
    """With a new application: the one of the other tests was shut down by schemathesis and accepts no more jobs."""
    app = create_app(WebSettings(network=False, cache=False, requests_per_s=1e9))
    with TestClient(app, base_url=ORIGIN) as client:
        document = client.get(OPENAPI).json()
        schemas, sent = document["components"]["schemas"], 0
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                for fields in _examples(operation, schemas):
                    is_get = method == "get"
                    query, body = (fields, None) if is_get else (None, fields)
                    answer = client.request(method, path, params=query, json=body)
                    assert answer.status_code in {200, 202}, (path, fields, answer.text)
                    sent += 1
                    if answer.status_code == 202:
                        _wait_for_job(client, answer.headers["location"])
    assert sent >= 2 * len(CALLS.keys() - WITHOUT_MODEL)


def _wait_for_job(client: TestClient, location: str) -> None:
    wait_until(lambda: client.get(location).json()["state"] != "running")
    job = client.get(location).json()
    assert job["state"] == "done", job


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("/api/v1/catalog/{id}", {"id": "qwen3-8b"}),
        ("/api/v1/catalog", {}),
        ("/api/v1/devices", {}),
        ("/api/v1/hardware", {}),
    ],
)
def test_list_operation_conforms_to_its_schema(
    app: FastAPI, path: str, parameters: dict[str, str]
) -> None:
    """Also for a model of the catalog: with random names, `/catalog/{id}` only ever answers 404."""
    import schemathesis

    operation = schemathesis.openapi.from_asgi(OPENAPI, app, headers=HEADERS)[path]["GET"]
    case = operation.Case(path_parameters=parameters)
    answer = case.call_and_validate(checks=response_checks(), headers=HEADERS)
    assert answer.status_code == 200


def test_body_without_json_gets_a_documented_status(client: TestClient) -> None:
    documented = client.get(OPENAPI).json()["paths"]["/api/v1/estimate"]["post"]["responses"]
    answer = client.post(
        "/api/v1/estimate", content="model=qwen3-8b", headers={"Content-Type": "text/plain"}
    )
    assert answer.status_code == 400
    assert "400" in documented
    assert "415" not in documented


VALUES = (
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
    """A call and plausible fields: most are valid, and many loads are refused by an engine."""
    call = draw(st.sampled_from(("estimate", "fit", "fit", "check", "curves")))
    engine = draw(st.sampled_from((*engine_names(), "llama.cpp", "llama.cpp")))
    known = CALLS[call].request.model_fields
    flags = [flag for flag in engine_named(engine).flags if flag.key in known]
    fields: dict[str, Any] = {"model": draw(st.sampled_from(MODELS)), "engine": engine}
    for flag in draw(st.lists(st.sampled_from(flags), max_size=4, unique_by=lambda item: item.key)):
        fields[flag.key] = draw(st.sampled_from(VALUES) if flag.metavar else st.booleans())
    if draw(st.booleans()):
        fields["context"] = draw(st.sampled_from(VALUES[:16]) | st.integers(0, 2**31))
    if call != "estimate":
        fields |= draw(st.sampled_from(MACHINES))
    return call, fields


@bounded(60, 1000)
@given(call_and_fields=loads())
def test_plausible_load_is_answered_or_refused(
    client: TestClient, call_and_fields: tuple[str, Any]
) -> None:
    call, fields = call_and_fields
    answer = client.post(f"/api/v1/{call}", json=fields)
    assert answer.status_code in {200, 400, 404, 422}, (call, fields, answer.text)
    content = json.loads(answer.text, parse_constant=pytest.fail)  # fails on NaN
    assert ("error" in content) == (answer.status_code != 200)
    if call == "fit" and answer.status_code == 200:
        for bar in content["bars"]:
            assert sum(part["bytes"] for part in bar["parts"]) == bar["required_bytes"]
