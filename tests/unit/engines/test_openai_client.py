"""The client of OpenAI's API: reasoning, tool calls in pieces, and what is sent for images and earlier calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.openai_server import chunk, openai_server

from edgekit.engines.chat import Fitted, GenerationResult, Image, Message, Prompt, Sampling
from edgekit.engines.openai_client import OpenAiClient, message_json
from edgekit.errors import EngineError, RequestRefusedError

TOOL = {"type": "function", "function": {"name": "weather"}}
CALL = {"name": "weather", "arguments": '{"city": "Rome"}'}


def ask(
    events: Sequence[dict[str, Any]], prompt: Prompt
) -> tuple[str, GenerationResult, dict[str, Any]]:
    received, written = list[dict[str, Any]](), GenerationResult()
    with openai_server(events, received) as address:
        client = OpenAiClient(address, program="a server", window_tokens=100)
        fitted = Fitted(prompt=prompt, tokens=None, max_tokens=8)
        sampling = Sampling(stop=("END",))
        text = "".join(client.write(fitted, sampling, into=written))
    (body,) = received
    return text, written, body


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_not_part_of_the_answer(key: str) -> None:
    events = [
        chunk({key: "Is it "}),
        chunk({key: "blue?", "content": "It is "}),
        chunk({"content": "blue."}, "stop"),
    ]
    text, written, _ = ask(events, Prompt(messages=(Message(role="user", content="Colour?"),)))
    assert text == "It is blue."
    assert written.reasoning == ["Is it ", "blue?"]


def test_tool_calls_arrive_in_pieces() -> None:
    first = {"index": 0, "function": {"name": "weather", "arguments": '{"city": '}}
    other = {"index": 1, "function": {"name": "time", "arguments": "{}"}}
    events = [
        chunk({"tool_calls": [first]}),
        chunk({"tool_calls": [other, {"index": 0, "function": {"arguments": '"Rome"}'}}]}),
        chunk({}, "tool_calls"),
    ]
    prompt = Prompt(messages=(Message(role="user", content="Is it raining?"),), tools=(TOOL,))
    text, written, body = ask(events, prompt)
    assert text == ""
    assert written.tool_calls == [CALL, {"name": "time", "arguments": "{}"}]
    assert written.finish == "stop"
    assert body["tools"] == [TOOL]
    assert body["stop"] == ["END"]


def test_image_is_sent_as_a_data_url() -> None:
    image = Image(data=b"abc", media_type="image/png")
    sent = message_json(Message(role="user", content="What is this?", images=(image,)))
    assert sent["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,YWJj"}},
    ]


def test_earlier_tool_calls_are_sent_with_an_id() -> None:
    sent = message_json(Message(role="assistant", content="", tool_calls=(CALL, CALL)))
    assert [call["id"] for call in sent["tool_calls"]] == ["call00000", "call00001"]
    assert sent["tool_calls"][0]["function"] == CALL


def test_prompt_with_earlier_tool_calls_is_not_only_text() -> None:
    message = Message(role="assistant", content="", tool_calls=(CALL,))
    assert not Prompt(messages=(message,)).is_text
    assert Prompt(messages=(message,)).size_bytes == len('weather {"city": "Rome"}')


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 400, "message": "Failed to load image"}, RequestRefusedError),
        ({"code": 500, "message": "out of memory"}, EngineError),
        ({"message": "no code"}, EngineError),
    ],
)
def test_error_in_the_middle_of_an_answer(error: dict[str, Any], kind: type[EngineError]) -> None:
    with pytest.raises(EngineError, match=str(error["message"])) as caught:
        ask([chunk({"content": "It"}), {"error": error}], Prompt(text="Colour?"))
    assert type(caught.value) is kind
