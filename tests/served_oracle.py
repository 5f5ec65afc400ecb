"""Real llama.cpp's server, asked over HTTP: chances of tokens, texts of tokens, messages in a chat format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.embed_oracle import answer, ask, post, server_params

Request = tuple[str, dict[str, Any]]


def llamacpp_replies(path: Path, requests: Sequence[Request]) -> list[dict[str, Any]]:
    """The reply to each (endpoint, body)."""
    return list(ask(path, {"requests": list(requests)}, __file__)["replies"])


def llamacpp_prompts(
    path: Path, names: Sequence[str], chats: Sequence[Sequence[dict[str, str]]]
) -> dict[str, list[str]]:
    """Each chat as each chat format of llama.cpp's own writes it; "" is the one that the file brings along."""
    requests = [("/apply-template", {"messages": list(chat)}) for chat in chats]
    output = ask(path, {"formats": list(names), "requests": requests}, __file__)["formats"]
    return {name: [reply["prompt"] for reply in replies] for name, replies in output.items()}


# --- the child


def _told(asked: dict[str, Any]) -> dict[str, Any]:
    if "formats" in asked:
        return {"formats": {name: _replies(asked, name) for name in asked["formats"]}}
    return {"replies": _replies(asked, "")}


def _replies(asked: dict[str, Any], chat_template: str) -> list[Any]:
    import xllamacpp

    wanted = server_params(asked, longest=256)
    if chat_template:
        wanted.chat_template, wanted.use_jinja = chat_template, False
    server = xllamacpp.Server(wanted)  # gone when nobody holds it
    address = server.listening_address
    return [post(address + endpoint, body) for endpoint, body in asked["requests"]]


if __name__ == "__main__":
    answer(_told)
