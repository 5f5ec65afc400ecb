"""A client of the servers that engines bring: OpenAI's API, streamed.

Every call has its own connection: closing it ends the work. There is no timeout: a long prompt is silent for minutes,
and an engine that is gone closes its end.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from edgekit.engines.chat import Fitted, GenerationResult, Image, Message, Prompt, Sampling
from edgekit.errors import ContextTooLargeError, EngineError, RequestRefusedError

LINE_BYTES = 4 * 2**20  # one event: a token and its figures
REPLY_BYTES = 64 * 2**20  # one reply: the tokens of a prompt
# error types of llama.cpp (tools/server/server-task.cpp) and vLLM for a prompt that is longer than the window
_CONTEXT_EXCEEDED = frozenset({"exceed_context_size_error", "context_length_exceeded"})
# The names of OpenAI's API; engines may take more (top_k, min_p) or spell them in another way.
OPENAI_NAMES: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
}


class OpenAiClient:
    """Asks one server."""

    reads_beyond = False  # the server refuses a prompt that is longer than its window

    def __init__(
        self,
        address: str,
        *,
        program: str,
        window_tokens: int,
        model: str = "",
        api_key: str | None = None,
        sampling_names: Mapping[str, str] = OPENAI_NAMES,
        too_long: str = "",
    ) -> None:
        """`program`: as messages name it. `model`: the name that the server knows the model by.

        `too_long`: what the server's message says of a prompt that is longer than the window, if no type says it
        (a regular expression).

        `sampling_names`: field of Sampling -> its name in a request, for all fields that the server takes.
        """
        self.window_tokens = window_tokens
        self._program, self._model, self._key = program, model, api_key
        self._too_long = too_long
        self._host, self._names = urlsplit(address).netloc, sampling_names

    def tokens(self, _prompt: Prompt) -> list[int] | None:
        """None: the server counts a prompt only while it answers."""
        return None

    def write(
        self, fitted: Fitted, sampling: Sampling, *, into: GenerationResult
    ) -> Generator[str, None, None]:
        """Generates text piece by piece; reasoning, counts, tool calls and timings go to `into`."""
        prompt = fitted.prompt
        body = {**self.sampling_body(sampling), "stream_options": {"include_usage": True}}
        if self._model:
            body["model"] = self._model
        if fitted.max_tokens is not None:
            body["max_tokens"] = fitted.max_tokens
        if prompt.is_plain:
            yield from self._read("/v1/completions", {**body, "prompt": prompt.text}, into)
            return
        body["messages"] = [message_json(message) for message in prompt.messages]
        if prompt.tools:
            body["tools"] = list(prompt.tools)
        yield from self._read("/v1/chat/completions", body, into)

    def sampling_body(self, sampling: Sampling) -> dict[str, Any]:
        """The fields of a request that say how to sample."""
        values = {name: getattr(sampling, field) for field, name in self._names.items()}
        values = {name: value for name, value in values.items() if value is not None}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value != ()
        }

    def _read(
        self, path: str, body: Mapping[str, Any], into: GenerationResult
    ) -> Generator[str, None, None]:
        """The pieces of one streamed answer of OpenAI's API."""
        begun_s, first_s, calls = time.monotonic(), 0.0, _ToolCalls()
        for event in self.events(path, body):
            usage, timings = event.get("usage"), event.get("timings")
            if isinstance(usage, dict):
                into.prompt_tokens = _count(usage.get("prompt_tokens"))
                into.new_tokens = _count(usage.get("completion_tokens"))
            if isinstance(timings, dict):
                into.timings = numbers_in(timings)
            choices = event.get("choices")
            if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
                continue
            choice: dict[str, Any] = choices[0]
            into.finish = _FINISHES.get(str(choice.get("finish_reason")), into.finish)
            delta = choice.get("delta")
            delta = delta if isinstance(delta, dict) else {"content": choice.get("text")}
            calls.add(delta.get("tool_calls"))
            reasoning = delta.get("reasoning_content") or delta.get("reasoning")
            text = delta.get("content")
            if isinstance(reasoning, str) and reasoning:
                first_s = first_s or time.monotonic()
                into.reasoning.append(reasoning)
                yield ""
            if isinstance(text, str) and text:
                first_s = first_s or time.monotonic()
                yield text
        if not into.finish:  # a broken stream ends like a complete one
            raise EngineError(f"{self._program} stopped in the middle of an answer")
        into.tool_calls = calls.complete()
        if not into.timings and first_s and into.new_tokens:
            into.timings = _measured(into, begun_s, first_s)

    def call(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object that a request is answered with."""
        with self._reply(path, body) as reply:
            return self._object(reply.read(REPLY_BYTES))

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Server-sent events: lines that begin with 'data: ', until '[DONE]' or the end."""
        with self._reply(path, {**body, "stream": True}) as reply:
            while line := reply.readline(LINE_BYTES):
                name, colon, data = line.partition(b":")
                if not colon or not name.strip() or data.strip() == b"[DONE]":
                    continue
                if name.strip() == b"error":
                    raise self._refusal(self._object(data))
                if name.strip() == b"data":
                    event = self._object(data)
                    if "error" in event:
                        raise self._refusal(event)
                    yield event

    @contextmanager
    def _reply(
        self, path: str, body: Mapping[str, Any] | None
    ) -> Iterator[http.client.HTTPResponse]:
        """Posts a request, or gets a path without a body; yields the reply, or raises what the server refused."""
        connection = http.client.HTTPConnection(self._host)
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            if body is None:
                connection.request("GET", path, headers=headers)
            else:
                connection.request("POST", path, json.dumps(dict(body)).encode(), headers)
            with connection.getresponse() as reply:
                if reply.status != http.client.OK:
                    raise self._refusal(self._object(reply.read(REPLY_BYTES)), reply.status)
                yield reply
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"{self._program} no longer answers: {error}") from error
        finally:
            connection.close()

    def _object(self, raw: bytes) -> dict[str, Any]:
        """The JSON object in a reply; another JSON value is wrapped in an object. EngineError if it is not JSON."""
        try:
            value = json.loads(raw)
        except ValueError as error:
            raise EngineError(
                f"the answer of {self._program} is not valid JSON: {raw[:200]!r}"
            ) from error
        return value if isinstance(value, dict) else {"message": value}

    def _refusal(
        self, reply: Mapping[str, Any], status: int | None = None
    ) -> EngineError | ContextTooLargeError:
        """The error that a reply of the server describes."""
        error = reply.get("error")
        error = (
            error
            if isinstance(error, dict)
            else {"message": error or reply.get("message") or reply}
        )
        message = str(error.get("message"))[:400]
        kinds = {str(error.get("type")), str(error.get("code"))}
        if kinds & _CONTEXT_EXCEEDED or (self._too_long and re.search(self._too_long, message)):
            return ContextTooLargeError(f"{self._program}: {message}")
        if status is None and isinstance(error.get("code"), int):
            status = error["code"]
        is_refusal = status is not None and 400 <= status < 500
        code = "" if status is None else f" (HTTP {status})"
        kind = RequestRefusedError if is_refusal else EngineError
        return kind(f"{self._program} refused the request{code}: {message}")


_FINISHES = {"stop": "stop", "length": "length", "tool_calls": "stop", "function_call": "stop"}


class _ToolCalls:
    """Puts the calls together, whose arguments arrive in pieces."""

    MOST = 64
    MOST_CHARS = 2**20

    def __init__(self) -> None:
        self._calls: dict[int, dict[str, str]] = {}

    def add(self, deltas: object) -> None:
        for delta in deltas if isinstance(deltas, list) else ():
            index, function = delta.get("index", 0), delta.get("function")
            if not isinstance(function, dict) or len(self._calls) > self.MOST:
                continue
            call = self._calls.setdefault(index, {"name": "", "arguments": ""})
            for name in call:
                piece = function.get(name)
                if isinstance(piece, str) and len(call[name]) < self.MOST_CHARS:
                    call[name] += piece

    def complete(self) -> list[dict[str, str]]:
        return [self._calls[index] for index in sorted(self._calls)]


def message_json(message: Message) -> dict[str, Any]:
    """A message as OpenAI's API takes it, its images as data URLs."""
    if message.tool_calls:
        calls = [
            # Mistral's templates accept only ids of nine letters and digits.
            {"id": f"call{index:05d}", "type": "function", "function": dict(call)}
            for index, call in enumerate(message.tool_calls)
        ]
        return {"role": message.role, "content": message.content, "tool_calls": calls}
    if not message.images:
        return {"role": message.role, "content": message.content}
    parts: list[dict[str, Any]] = [{"type": "text", "text": message.content}]
    for image in message.images:
        url = f"data:{image.media_type};base64,{encoded_image(image)}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return {"role": message.role, "content": parts}


def encoded_image(image: Image) -> str:
    return base64.b64encode(image.data).decode()


def numbers_in(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _measured(written: GenerationResult, begun_s: float, first_s: float) -> dict[str, float]:
    """The speeds as this client saw them. The first word includes the time in which the prompt was read."""
    timings = {"prompt_per_second": written.prompt_tokens / max(first_s - begun_s, 1e-6)}
    rest_s = time.monotonic() - first_s
    if written.new_tokens > 1 and rest_s > 0:
        timings["predicted_per_second"] = (written.new_tokens - 1) / rest_s
    return timings
