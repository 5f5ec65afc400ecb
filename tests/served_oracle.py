"""Requests to a real llama.cpp server: token probabilities, detokenized texts, prompts in a chat format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.embed_oracle import answer, ask, post, server_params

Request = tuple[str, dict[str, Any]]


def llamacpp_replies(path: Path, requests: Sequence[Request]) -> list[dict[str, Any]]:
    """The server's reply to each (endpoint, body)."""
    return list(ask(path, {"requests": list(requests)}, __file__)["replies"])


def llamacpp_prompts(
    path: Path, names: Sequence[str], chats: Sequence[Sequence[dict[str, str]]]
) -> dict[str, list[str]]:
    """Chat format of llama.cpp -> the prompt of each chat; "" is the template in the file."""
    requests = [("/apply-template", {"messages": list(chat)}) for chat in chats]
    output = ask(path, {"formats": list(names), "requests": requests}, __file__)["formats"]
    return {name: [reply["prompt"] for reply in replies] for name, replies in output.items()}


# --- the child


def _output(task: dict[str, Any]) -> dict[str, Any]:
    if "formats" in task:
        return {"formats": {name: _replies(task, name) for name in task["formats"]}}
    return {"replies": _replies(task, "")}


def _replies(task: dict[str, Any], chat_template: str) -> list[Any]:
    import xllamacpp

    params = server_params(task, longest=256)
    if chat_template:
        params.chat_template, params.use_jinja = chat_template, False
    server = xllamacpp.Server(params)  # stops when it is deleted
    address = server.listening_address
    return [post(address + endpoint, body) for endpoint, body in task["requests"]]


if __name__ == "__main__":
    answer(_output)
