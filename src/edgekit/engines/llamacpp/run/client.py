"""Requests to a llama.cpp that is up -> text as it comes, counts of tokens, and what it says of its speed."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from edgekit.engines.chat import Message, Prompt, Sampling, Written
from edgekit.errors import ContextTooLargeError, EngineError, TextError

_LINE_BYTES = 4 * 2**20  # one event: a token and its figures
_REPLY_BYTES = 64 * 2**20  # one whole reply: the tokens of a prompt
_OVER = "exceed_context_size_error"  # tools/server/server-task.cpp: ERROR_TYPE_EXCEED_CONTEXT_SIZE


class Client:
    """Talks to one server. Every call has a connection of its own: closing it ends the work for it."""

    def __init__(
        self, address: str, *, api_key: str | None = None, timeout_s: float | None = None
    ) -> None:
        """Without a timeout: a long prompt is silent for minutes, and an engine that is gone closes its end."""
        self._host = urlsplit(address).netloc
        self._key, self._timeout_s = api_key, timeout_s

    def tokens_of(self, text: str, *, special: bool = True) -> list[int]:
        """As the engine cuts it; `special`: with the tokens it puts before and after a text."""
        asked = {"content": text, "add_special": special, "parse_special": True}
        tokens = self._call("/tokenize", asked).get("tokens")
        if not isinstance(tokens, list):
            raise EngineError("llama.cpp did not report how it tokenizes the prompt")
        return [int(token) for token in tokens]

    def as_prompt(self, messages: Sequence[Message]) -> str:
        """By the model's own chat template."""
        told = self._call(
            "/apply-template",
            {"messages": [{"role": one.role, "content": one.content} for one in messages]},
        )
        return str(told.get("prompt", ""))

    def complete(
        self,
        tokens: Sequence[int],
        sampling: Sampling,
        *,
        max_tokens: int | None,
        sinks: int = 0,
        into: Written,
    ) -> Iterator[str]:
        """What the engine goes on with, as text."""
        asked = {
            "prompt": list(tokens),
            "n_keep": sinks,
            **_sampled(sampling, max_tokens),
        }
        ended = False
        for event in self._events("/completion", asked):
            _note(event, into)
            if event.get("stop"):
                ended = True
                into.finish = "length" if event.get("stop_type") == "limit" else "stop"
                into.prompt_tokens = int(event.get("tokens_evaluated", 0))
                into.new_tokens = int(event.get("tokens_predicted", 0))
            yield str(event.get("content", ""))
        if not ended:  # a stream that is cut ends like one that is over
            raise EngineError("llama.cpp stopped in the middle of an answer")

    def _call(self, path: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        with self._reply(path, asked) as reply:
            return _object(reply.read(_REPLY_BYTES))

    def _events(self, path: str, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Server-sent events: lines that begin with 'data: ', until '[DONE]' or the end."""
        with self._reply(path, {**asked, "stream": True}) as reply:
            while line := reply.readline(_LINE_BYTES):
                name, colon, data = line.partition(b":")
                if not colon or data.strip() == b"[DONE]":
                    continue
                if name.strip() == b"error":
                    raise _refusal(_object(data))
                if name.strip() == b"data":
                    event = _object(data)
                    if "error" in event:
                        raise _refusal(event)
                    yield event

    @contextmanager
    def _reply(self, path: str, asked: Mapping[str, Any]) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._host, timeout=self._timeout_s)
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            connection.request("POST", path, json.dumps(dict(asked)).encode(), headers)
            reply = connection.getresponse()
            if reply.status != http.client.OK:
                raise _refusal(_object(reply.read(_REPLY_BYTES)), reply.status)
            yield reply
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"llama.cpp no longer answers: {error}") from error
        finally:
            connection.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaTalker:
    client: Client
    window_tokens: int
    sinks: int = 0
    reads_beyond: bool = False  # the server refuses a prompt that is longer than its window

    def tokens(self, prompt: Prompt) -> list[int]:
        """A chat template writes the first special token itself where the model wants one; the engine adds it once."""
        text = prompt.text if prompt.is_plain else self.client.as_prompt(prompt.messages)
        tokens = self.client.tokens_of(text)
        if not tokens:
            raise TextError("the prompt has no tokens")
        return tokens

    def write(
        self, tokens: Sequence[int], sampling: Sampling, *, max_tokens: int | None, into: Written
    ) -> Iterator[str]:
        return self.client.complete(
            tokens, sampling, max_tokens=max_tokens, sinks=self.sinks, into=into
        )


def _sampled(sampling: Sampling, max_tokens: int | None) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repeat_penalty,
        "repeat_last_n": sampling.repeat_last,
    }
    if sampling.seed is not None:
        asked["seed"] = sampling.seed
    if max_tokens is not None:
        asked["n_predict"] = max_tokens
    return asked


def _note(event: Mapping[str, Any], into: Written) -> None:
    timings = event.get("timings")
    if isinstance(timings, dict):
        into.timings = {
            name: float(value) for name, value in timings.items() if isinstance(value, int | float)
        }


def _object(raw: bytes) -> dict[str, Any]:
    try:
        told = json.loads(raw)
    except ValueError as error:
        raise EngineError(f"llama.cpp's answer is not valid JSON: {raw[:200]!r}") from error
    return told if isinstance(told, dict) else {"told": told}


def _refusal(
    told: Mapping[str, Any], status: int | None = None
) -> EngineError | ContextTooLargeError:
    error = told.get("error")
    error = error if isinstance(error, dict) else {"message": error or told}
    message = str(error.get("message"))[:400]
    if error.get("type") == _OVER:
        return ContextTooLargeError(f"llama.cpp: {message}")
    code = "" if status is None else f" (HTTP {status})"
    return EngineError(f"llama.cpp refused the request{code}: {message}")
