"""Requests compared with an engine's rules."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.gateway.test_images import file_of, url_of

from edgekit.engines.llamacpp.run import request_rules as llamacpp
from edgekit.engines.mlx import request_rules as mlx
from edgekit.engines.request_rules import RequestLimits, RequestRules
from edgekit.engines.vllm import request_rules as vllm
from edgekit.gateway.checks import check_request
from edgekit.gateway.errors import GatewayError

WINDOW = 4096
LLAMACPP = llamacpp.request_rules(window_tokens=WINDOW, slots=2, reads_images=False)
VISION = llamacpp.request_rules(window_tokens=WINDOW, slots=2, reads_images=True)
VLLM = vllm.request_rules(window_tokens=WINDOW, reads_images=False)
MLX = mlx.request_rules(window_tokens=WINDOW)
CHAT, COMPLETION, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MESSAGES = [{"role": "user", "content": "hi"}]
HUGE = 2**31 - 1
BOMB = url_of(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 60_000, 60_000) + bytes(5))
ENDLESS = {"allOf": [{"$ref": "#/d/a"}], "d": {"a": {"$ref": "#/d/a"}}}
NESTED = {"type": "string", "pattern": "((a{0,30}){0,30}){0,30}"}


def check(
    body: Mapping[str, Any], rules: RequestRules = LLAMACPP, path: str = COMPLETION
) -> GatewayError | None:
    """The refusal; None if the request passes."""
    endpoint = rules.endpoint(path)
    assert endpoint is not None
    try:
        check_request(body, endpoint, RequestLimits(rules=rules, window_tokens=WINDOW))
    except GatewayError as error:
        return error
    return None


def parts(*values: Mapping[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(values)}]}


def image(url: object) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def schema(value: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"schema": value}}


@pytest.mark.parametrize("rules", [LLAMACPP, VISION, VLLM, MLX], ids=["llama.cpp", "vision", "vllm", "mlx"])  # fmt: skip
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": MESSAGES, "max_tokens": 100, "temperature": 0.7, "stream": True, "stream_options": {"include_usage": True}}),
        (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 5, "stop": ["\n\n", "END"]}),
        (CHAT, {"messages": MESSAGES, "n": None, "stop": None, "tools": None, "logit_bias": {"50256": -100}}),
        (CHAT, {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]}),
        (CHAT, parts({"type": "text", "text": "hello"})),
        (COMPLETION, {"prompt": "once upon", "stop": "\n", "logprobs": 5}),
        (COMPLETION, {"prompt": [1, 2, 3]}),
        (COMPLETION, {"prompt": ["a", "b"]}),
        (COMPLETION, {"prompt": [[1, 2], [3]]}),
        (COMPLETION, {}),
        (COMPLETION, {"prompt": "", "n": 1}),
        (CHAT, {"messages": MESSAGES, "n": 1, "response_format": {"type": "text"}}),
        (CHAT, {"messages": MESSAGES, "chat_template": None, "echo": False, "prompt_embeds": [], "adapters": ""}),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_ordinary_requests_pass(rules: RequestRules, path: str, body: dict[str, Any]) -> None:
    assert check(body, rules, path) is None


@pytest.mark.parametrize("rules", [LLAMACPP, VLLM], ids=["llama.cpp", "vllm"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETION, {"prompt": ["a", "b"], "n": 2}),
        (COMPLETION, {"prompt": [[1], [2]], "n": 2}),
        (CHAT, {"messages": MESSAGES, "n": 2}),
        (CHAT, {"messages": MESSAGES, "response_format": {"type": "json_object"}}),
    ],
    ids=str,
)
def test_several_answers_and_formats_pass(
    rules: RequestRules, path: str, body: dict[str, Any]
) -> None:
    assert check(body, rules, path) is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"repeat_last_n": HUGE}, "repeat_last_n"),
        ({"repeat_last_n": WINDOW + 1}, "repeat_last_n"),
        ({"dry_multiplier": 1, "dry_penalty_last_n": HUGE}, "dry_penalty_last_n"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n"),
        ({"dry_sequence_breakers": ["a" * 100_000] * 50}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": ["a" * 41]}, "dry_sequence_breakers"),
        ({"n_probs": HUGE}, "n_probs"),
        ({"logprobs": 21}, "logprobs"),
        ({"top_logprobs": 10**9}, "top_logprobs"),
        ({"top_logprobs": "10"}, "top_logprobs"),
        ({"n": 10**9}, "n"),
        ({"n": 3}, "n"),
        ({"n": 0}, "n"),
        ({"n_cmpl": 3}, "n_cmpl"),
        ({"max_tokens": 2**62}, "max_tokens"),
        ({"n_predict": 1e300}, "n_predict"),
        ({"top_k": -(2**63)}, "top_k"),
        ({"id_slot": 10**9}, "id_slot"),
        ({"id_slot": -(2**31)}, "id_slot"),
        ({"logit_bias": [[5, 1.0]] * 2000}, "logit_bias"),
        ({"stop": [""] * 10_000}, "stop"),
        ({"stop": "x" * 1000}, "stop"),
        ({"stop": 5}, "stop"),
        ({"samplers": ["top_k"] * 1000}, "samplers"),
        ({"samplers": "k" * 1000}, "samplers"),
        ({"lora": [{"id": 0, "scale": 1}] * 100}, "lora"),
        ({"response_fields": ["a"] * 1000}, "response_fields"),
        ({"chat_template": "{% for a in range(10**9) %}x{% endfor %}"}, "chat_template"),
        ({"grammar_triggers": [{"type": 2, "value": "(a+)+$"}]}, "grammar_triggers"),
        ({"preserved_tokens": ["a"]}, "preserved_tokens"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["AAAA"]}}, "prompt"),
        ({"prompt": ["a", {"multimodal_data": ["AAAA"]}]}, "prompt"),
        ({"prompt": "a " * 200_000}, "prompt"),
        ({"prompt": ["a", "a " * 200_000]}, "prompt[1]"),
        ({"prompt": [5] * (WINDOW + 1)}, "prompt"),
        ({"prompt": [[5] * (WINDOW + 1)]}, "prompt[0]"),
        ({"prompt": ["a"] * 513}, "prompt"),
        ({"prompt": "a", "reasoning_budget_message": "x" * 200_000}, "reasoning_budget_message"),
        ({"messages": [{"role": "user", "content": "x" * 200_000}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 1000}] * 200}, "messages"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"a" * 200_000: 1}}, "chat_template_kwargs"),
        ({"tools": [{}] * 2000}, "tools"),
        ({"prompt": [["a", [{"multimodal_data": ["AAAA"]}]]]}, "prompt"),
        ({"prompt": "", "n": 2}, "n"),
        ({"prompt": [], "n_cmpl": 2}, "n"),
        ({"prompt": ["a", " "], "n": 2}, "n"),
        ({"prompt": [[]], "n": 2.0}, "n"),
        ({"n": 2}, "n"),
        ({"grammar": 'root ::= ((("a"{0,30}){0,30}){0,30})'}, "grammar"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"grammar": "root ::= " + " | ".join(f'"{number}"' for number in range(20_000))}, "grammar"),
        ({"json_schema": NESTED}, "json_schema: pattern"),
        ({"json_schema": {"properties": {"a": {"items": NESTED}}}}, "json_schema: pattern"),
        ({"json_schema": {"type": "string", "maxLength": 10**6}}, "json_schema: maxLength"),
        ({"json_schema": {"enum": ["a"] * 5000}}, "json_schema: enum"),
        ({"json_schema": {"properties": {f"p{number}": {} for number in range(5000)}}}, "json_schema: properties"),
        ({"response_format": schema({"type": "array", "minItems": 100_000})}, "response_format: minItems"),
        ({"tools": [{"function": {"parameters": NESTED}}]}, "tools: pattern"),
        ({"json_schema": ENDLESS}, "json_schema: $ref"),
        ({"response_format": {"type": "json_object", "schema": ENDLESS}}, "response_format: $ref"),
        ({"response_format": schema(ENDLESS)}, "response_format: $ref"),
        ({"text": {"format": {"type": "json_schema", "schema": ENDLESS}}}, "text: $ref"),
        ({"tools": [{}, {"function": {"parameters": ENDLESS}}]}, "tools: $ref"),
        ({"tools": [{"parameters": ENDLESS}]}, "tools: $ref"),
        ({"functions": [{"parameters": ENDLESS}]}, "functions: $ref"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_llamacpp_requests_that_are_refused(body: dict[str, Any], field: str) -> None:
    error = check(body)
    assert error is not None
    assert (error.status, error.code, error.param) == (400, "refused_field", field)
    assert str(error).startswith(f"{field}: ")
    assert len(str(error)) < 400


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"prompt_logprobs": 0.0}, "prompt_logprobs"),
        ({"response_format": {"type": "structural_tag", "structures": []}}, "response_format.type"),
        ({"response_format": {"type": ["text"]}}, "response_format.type"),
        ({"echo": True}, "echo"),
        ({"n": 1000}, "n"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_embeds": "gASV"}, "prompt_embeds"),
        ({"max_tokens": WINDOW + 1}, "max_tokens"),
        ({"guided_grammar": 'root ::= ((("a"{0,30}){0,30}){0,30})'}, "guided_grammar"),
        ({"structured_outputs": {"json": NESTED}}, "structured_outputs.json: pattern"),
        (
            {"structured_outputs": {"json": json.dumps(NESTED)}},
            "structured_outputs.json: pattern",
        ),
        ({"structured_outputs": {"regex": NESTED["pattern"]}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "root ::= ("}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": ["a"] * 5000}}, "structured_outputs.choice"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"guided_regex": NESTED["pattern"]}, "guided_regex"),
        ({"guided_json": json.dumps(NESTED)}, "guided_json: pattern"),
        ({"guided_json": json.dumps(ENDLESS)}, "guided_json: $ref"),
        ({"guided_json": '{"items":' * 70}, "guided_json"),
        ({"guided_choice": ["a"] * 5000}, "guided_choice"),
        ({"stop_token_ids": [1] * 5000}, "stop_token_ids"),
        ({"use_beam_search": True}, "use_beam_search"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_vllm_requests_that_are_refused(body: dict[str, Any], field: str) -> None:
    error = check(body, VLLM)
    assert error is not None
    assert error.param == field


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"adapters": "../x"}, "adapters"),
        ({"draft_model": "someone/else"}, "draft_model"),
        ({"n": 2}, "n"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": schema({})}, "response_format"),
        ({"max_tokens": WINDOW + 1}, "max_tokens"),
        ({"prompt": "a" * (40 * WINDOW)}, "prompt"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_mlx_requests_that_are_refused(body: dict[str, Any], field: str) -> None:
    error = check(body, MLX)
    assert error is not None
    assert error.param == field


class TestPrompts:
    @pytest.mark.parametrize("rules", [LLAMACPP, VLLM], ids=["llama.cpp", "vllm"])
    @pytest.mark.parametrize(
        ("path", "field"),
        [
            (EMBEDDINGS, "input"),
            (EMBEDDINGS, "content"),
            ("/v1/rerank", "documents"),
            ("/v1/rerank", "texts"),
            ("/rerank", "query"),
        ],
    )
    def test_every_name_of_the_prompts_has_their_limits(
        self, rules: RequestRules, path: str, field: str
    ) -> None:
        image_part = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}
        assert check({field: ["a"] * 512}, rules, path) is None
        for value in (["a"] * 513, {"content": [image_part]}, ["a", {"content": [image_part]}]):
            error = check({field: value}, rules, path)
            assert error is not None
            assert error.param == field

    @pytest.mark.parametrize("messages", [[], [{"role": "user", "content": ""}], [{"role": "user", "content": [{"type": "text", "text": " "}]}]])  # fmt: skip
    def test_several_answers_to_empty_messages_are_refused(self, messages: list[Any]) -> None:
        assert check({"messages": messages}, LLAMACPP, CHAT) is None
        assert "empty prompt" in str(check({"messages": messages, "n": 2}, LLAMACPP, CHAT))


class TestEngineThatIgnoresCase:
    """Ollama reads {"model": "x", "Model": "y"} as y."""

    RULES = RequestRules(endpoints=MLX.endpoints, numbers=MLX.numbers, ignores_case=True)

    @pytest.mark.parametrize(
        "body",
        [
            {"model": "x", "Model": "llama3.3:70b"},
            {"Max_Tokens": 10**9},
            {"max_to\u212aens": 5},  # a Kelvin sign, which folds to k
            {"\u017ftop": ["a"]},  # a long s
            {"messages": [{"role": "user", "Content": [{"type": "image_url"}]}]},
            {"response_format": {"type": "json_schema", "json_schema": {"Schema": ENDLESS}}},
        ],
        ids=str,
    )
    def test_other_spellings_are_refused(self, body: dict[str, Any]) -> None:
        assert "lower-case ASCII" in str(check(body, self.RULES, CHAT))
        assert "lower-case ASCII" not in str(check(body, MLX, CHAT))

    def test_names_in_schemas_and_arguments_are_free(self) -> None:
        own = {"type": "object", "properties": {"firstName": {}, "größe": {}}}
        tool = {"type": "function", "function": {"name": "f", "parameters": own}}
        body = {"messages": MESSAGES, "tools": [tool], "response_format": schema(own)}
        assert check(body, self.RULES, CHAT) is None


FIELDS = sorted(
    {"messages", "input", "prompt", "documents", "response_format", "json_schema", "tools", "grammar", "model"}
    | {field for rules in (LLAMACPP, VLLM, MLX) for field in (*rules.numbers, *rules.lists, *rules.refused)}
)  # fmt: skip
KEYS = st.sampled_from(["type", "content", "text", "image_url", "url", "pattern", "enum", "maxItems"]) | st.text(max_size=3)  # fmt: skip
WORDS = st.sampled_from(["text", "image_url", "data:image/png;base64,iVBORw0KGgo=", "(a{0,9})"]) | st.text(max_size=5)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(
    st.sampled_from([VISION, VLLM, MLX]),
    st.sampled_from([CHAT, COMPLETION]),
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6),
)
def test_any_request_passes_or_is_refused(
    rules: RequestRules, path: str, body: dict[str, Any]
) -> None:
    error = check(body, rules, path)
    assert error is None or (error.status == 400 and str(error.param) in str(error))


def test_message_names_the_field_the_limit_and_the_reason() -> None:
    assert str(check({"dry_penalty_last_n": HUGE})) == (
        "dry_penalty_last_n: 2,147,483,647 is not between -1 and 4,096: llama.cpp allocates 8 bytes for each, and the"
        " context holds no more"
    )


class TestImages:
    def test_images_in_the_request_pass(self) -> None:
        body = parts({"type": "text", "text": "what is it?"}, image(url_of(file_of("PNG"))))
        assert check(body, VISION, CHAT) is None
        body = {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url_of(file_of("JPEG"))}]}]}  # fmt: skip
        assert check(body, VISION, "/v1/responses") is None

    def test_pictures_do_not_count_as_text(self) -> None:
        body = parts(image(url_of(file_of("BMP", 400, 400))))
        assert len(str(body)) > 32 * WINDOW + 16_384
        assert check(body, VISION, CHAT) is None

    @pytest.mark.parametrize(
        "body",
        [
            {"prompt": "data:image/" + "a" * 200_000},
            {"messages": [{"role": "user", "content": "data:image/" + "a" * 200_000}]},
            {"messages": MESSAGES, "tools": [{"url": "data:image/" + "a" * 200_000}]},
            parts({"type": "text", "text": "a", "image_url": "data:image/" + "a" * 200_000}),
        ],
        ids=" ".join,
    )
    def test_text_that_looks_like_an_image_counts(self, body: dict[str, Any]) -> None:
        assert "bytes of text cannot fit" in str(check(body, VISION))

    @pytest.mark.parametrize(
        ("part", "message"),
        [
            (image("file:///etc/passwd"), "does not fetch URLs"),
            (image("http://127.0.0.1:1/x"), "does not fetch URLs"),
            (image("iVBORw0KGgo="), "does not fetch URLs"),
            (image(None), "does not fetch URLs"),
            (image(BOMB), "scale them down"),
            (image("data:image/png;base64,AAAA"), "not PNG"),
            ({"type": "image_url", "image_url": "http://127.0.0.1/"}, "does not fetch URLs"),
            ({"type": "input_audio", "input_audio": {"data": "http://a", "format": "mp3"}}, "not supported"),
            ({"type": "video_url", "video_url": {"url": "http://a"}}, "not supported"),
            ({"type": "image_embeds", "image_embeds": "gASV"}, "not supported"),
            ({"type": "input_file", "file_id": "a"}, "not supported"),
            ({"audio_url": "http://a"}, "not supported"),
            ({"type": ["text"]}, "not supported"),
        ],
        ids=lambda value: str(value)[:50],
    )  # fmt: skip
    def test_parts_that_are_refused(self, part: dict[str, Any], message: str) -> None:
        nested = {"messages": [{"role": "tool", "content": [{"type": "text", "text": "a"}, part]}]}
        for body in (parts(part), nested, {"messages": [{"role": "user", "content": part}]}):
            error = check(body, VISION, CHAT)
            assert error is not None
            assert message in str(error)
            assert error.param == "messages"

    def test_number_of_images_and_of_all_pixels(self) -> None:
        url = url_of(file_of("PNG"))
        assert "more than 16 images" in str(check(parts(*[image(url)] * 17), VISION, CHAT))
        png = bytearray(file_of("PNG"))
        png[16:24] = struct.pack(">II", 4096, 4096)
        several = parts(*[image(url_of(bytes(png)))] * 3)
        assert "50,331,648 pixels together" in str(check(several, VISION, CHAT))

    def test_model_that_reads_no_images(self) -> None:
        error = check(parts(image(url_of(file_of("PNG")))), LLAMACPP, CHAT)
        assert "does not support images" in str(error)


class TestExamplesInSchemas:
    """Values of `default` and the like are no schemas."""

    @pytest.mark.parametrize("value", [
        {"default": {"pattern": "*.[ch"}},
        {"examples": [{"pattern": "src/[a"}]},
        {"example": {"maxItems": 10**6}},
        {"const": {"pattern": "["}},
        {"enum": [{"pattern": "["}]},
        {"properties": {"pattern": {"default": {"pattern": "["}}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"default": {"pattern": "["}}}},
    ], ids=str)  # fmt: skip
    def test_they_are_not_read(self, value: dict[str, Any]) -> None:
        for rules in (LLAMACPP, VLLM):
            assert check({"tools": [{"function": {"parameters": value}}]}, rules) is None
            assert check({"response_format": schema(value)}, rules) is None

    @pytest.mark.parametrize("value", [
        {"properties": {"default": NESTED}},
        {"properties": {"properties": {"properties": {"const": NESTED}}}},
        {"$defs": {"enum": NESTED}},
        {"properties": {"a": {"default": {}, "items": NESTED}}},
        {"$ref": "#/default", "default": NESTED},
        {"$ref": "#/x/examples/0", "x": {"examples": [NESTED]}},
        {"$ref": "#/def%61ult", "default": NESTED},
        {"$dynamicRef": "#there", "default": {"$anchor": "there", **NESTED}},
        {"$ref": "#/properties", "properties": {"properties": {"default": NESTED}}},
    ], ids=str)  # fmt: skip
    def test_schemas_of_such_names_are_read(self, value: dict[str, Any]) -> None:
        error = check({"json_schema": value})
        assert error is not None
        assert error.param == "json_schema: pattern"


def test_only_schemas_for_llamacpp_must_not_expand() -> None:
    """As pydantic before 2.9 wrote a node with the next one."""
    node = {"type": "object", "properties": {"next": {"allOf": [{"$ref": "#/definitions/Node"}]}}}
    body = {
        "response_format": schema({"$ref": "#/definitions/Node", "definitions": {"Node": node}})
    }
    assert "allOf" in str(check(body, LLAMACPP))
    assert check(body, VLLM) is None
