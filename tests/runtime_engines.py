"""Real llama.cpp for the tests of the runtime: small random models, how they are started, and plain HTTP."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S

from edgekit.bill.types import Load
from edgekit.engines.llamacpp.run.launch import Launch
from edgekit.engines.llamacpp.types import LlamaCppSetup, LlamaMode
from edgekit.engines.program import Address, LocalWeights
from edgekit.formats import read_header
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.sources.local import locate_path

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
SERVER = LlamaCppSetup(mode=LlamaMode.SERVER, cache_ram_mib=0)


def small_model(path: Path, architecture: str = "llama", **changes: Any) -> Path:
    """With a chat template; a megabyte unless it is changed."""
    from tests.embed_models import write_model  # a second of imports that a child does not need

    answer: dict[str, Any] = {
        "layers": 1,
        "kind": "F16",
        "context_tokens": 2048,
        "keys": {"tokenizer.chat_template": TEMPLATE},
    }
    return write_model(path, architecture, **(answer | changes))


def launch_of(path: Path, **changes: Any) -> Launch:
    """One thread: two that wait for each other are slow on a busy machine."""
    files = {
        key: changes.pop(key) for key in ("drafter", "adapters", "projector") if key in changes
    }
    names = {
        "host": "host",
        "port": "port",
        "api_key": "api_key",
        "alias": "alias",
        "chat": "chats",
    }
    address = {field: changes.pop(key) for key, field in names.items() if key in changes}
    given: dict[str, Any] = {
        "weights": LocalWeights(model=path, **files),
        "at": Address(**address),
        "load": Load(context_tokens=512, sequences=1),
        "setup": SERVER,
        "threads": 1,
        "timeout_s": PATIENCE_S,
    }
    return Launch(**(given | changes))


def model_of(path: Path) -> Model:
    header = read_header(locate_path(path))
    return Model(header=header, geometry=read_geometry(header))


def ask(
    address: str, path: str, asked: dict[str, Any] | None = None, key: str | None = None
) -> tuple[int, Any]:
    """POST where something is asked, else GET -> the status and what JSON came back."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE_S)
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    body = None if asked is None else json.dumps(asked)
    try:
        connection.request("GET" if asked is None else "POST", path, body, headers)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read() or b"null")
    finally:
        connection.close()
