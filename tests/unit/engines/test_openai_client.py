"""The client of OpenAI's API: tool calls in pieces, and what is sent for images and earlier calls."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from edgekit.engines.chat import Fitted, GenerationResult, Image, Message, Prompt, Sampling
from edgekit.engines.openai_client import OpenAiClient, message_json

TOOL = {"type": "function", "function": {"name": "weather"}}
CALL = {"name": "weather", "arguments": '{"city": "Rome"}'}


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


@contextmanager
def server(events: Sequence[dict[str, Any]], received: list[dict[str, Any]]) -> Iterator[str]:
    """A server that answers every request with these events."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            for event in events:
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_: object) -> None: ...

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def ask(
    events: Sequence[dict[str, Any]], prompt: Prompt
) -> tuple[str, GenerationResult, dict[str, Any]]:
    received, written = list[dict[str, Any]](), GenerationResult()
    with server(events, received) as address:
        client = OpenAiClient(address, program="a server", window_tokens=100)
        fitted = Fitted(prompt=prompt, tokens=None, max_tokens=8)
        sampling = Sampling(stop=("END",))
        text = "".join(client.write(fitted, sampling, into=written))
    (body,) = received
    return text, written, body


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
