"""Small models with random weights that real llama.cpp and the built-in engine run and chat with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tests.embed_models import write_model

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)
ENDS = ("<|im_end|>", "<|endoftext|>")
SMALL: dict[str, Any] = {"layers": 2, "context_tokens": 4096}


def write_endless(path: Path) -> Path:
    """It never ends an answer as long as only its few best tokens are drawn from: logits of all ends are 0."""
    write_chatting(path, tied=False)
    reader = GGUFReader(path, "r+")
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    [output] = [tensor.data for tensor in reader.tensors if tensor.name == "output.weight"]
    for word in ENDS:
        output[tokens.index(word)] = 0
    del output, reader
    return path


def write_chatting(path: Path, architecture: str = "qwen2", **more: Any) -> Path:
    keys = {"tokenizer.chat_template": CHATML, **more.pop("keys", {})}
    return write_model(path, architecture, keys=keys, **{**SMALL, **more})
