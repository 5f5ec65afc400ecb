"""Small random models with a chat template that llama.cpp and the built-in engine can run."""

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
    """A model whose answers do not end: the logits of its end tokens are 0, never among the best few."""
    write_chatting(path, tied=False)
    reader = GGUFReader(path, "r+")
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    [output] = [tensor.data for tensor in reader.tensors if tensor.name == "output.weight"]
    for token in ENDS:
        output[tokens.index(token)] = 0
    del output, reader
    return path


def write_chatting(path: Path, architecture: str = "qwen2", **more: Any) -> Path:
    keys = {"tokenizer.chat_template": CHATML, **more.pop("keys", {})}
    return write_model(path, architecture, keys=keys, **{**SMALL, **more})
