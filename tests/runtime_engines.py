"""Real llama.cpp processes in tests: small random models, launches of them, and plain HTTP requests."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S

from edgekit.bill.types import Load
from edgekit.engines.llamacpp.run.engine import EngineProcess
from edgekit.engines.llamacpp.run.launch import Launch
from edgekit.engines.llamacpp.types import LlamaCppSetup, LlamaMode
from edgekit.engines.program import Address, Ended, LocalWeights
from edgekit.engines.watch import Probes
from edgekit.formats import read_header
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.sources.local import locate_path
from edgekit.units import GIB

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
SERVER = LlamaCppSetup(mode=LlamaMode.SERVER, cache_ram_mib=0)
COMPLETION = {"prompt": "the quick brown fox", "n_predict": 8, "ignore_eos": True}
# What a watch sees on a machine with plenty of memory.
CALM = Probes(limits=lambda _: (), available_bytes=lambda: GIB, devices=tuple)


def small_model(path: Path, architecture: str = "llama", **changes: Any) -> Path:
    """Random weights and a chat template: a megabyte unless `changes` make it larger."""
    # Imported here because it takes a second, and child processes do not need it.
    from tests.embed_models import write_model

    defaults: dict[str, Any] = {
        "layers": 1,
        "kind": "F16",
        "context_tokens": 2048,
        "keys": {"tokenizer.chat_template": TEMPLATE},
    }
    return write_model(path, architecture, **(defaults | changes))


def launch_of(path: Path, **changes: Any) -> Launch:
    """One thread: two that wait for each other are slow on a busy machine. `changes`: fields of Launch, LocalWeights and Address."""
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
    defaults: dict[str, Any] = {
        "weights": LocalWeights(model=path, **files),
        "at": Address(**address),
        "load": Load(context_tokens=512, sequences=1),
        "setup": SERVER,
        "threads": 1,
        "timeout_s": PATIENCE_S,
    }
    return Launch(**(defaults | changes))


def model_of(path: Path) -> Model:
    header = read_header(locate_path(path))
    return Model(header=header, geometry=read_geometry(header))


def ask(
    address: str, path: str, body: dict[str, Any] | None = None, key: str | None = None
) -> tuple[int, Any]:
    """POSTs `body`, or GETs if it is None. Returns the status and the JSON of the response."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE_S)
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    raw = None if body is None else json.dumps(body)
    try:
        connection.request("GET" if body is None else "POST", path, raw, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")
    finally:
        connection.close()


def wait_for_end(running: EngineProcess) -> Ended:
    result = running.wait(PATIENCE_S)
    assert result is not None, "the engine has not ended"
    return result
