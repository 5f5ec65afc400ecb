"""Files whose texts contain terminal escapes: no error and no note repeats them.

The command line removes escapes from its output, but a program that logs str(error) or reads `notes` does not.
"""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tests.thoroughness import sampled

from edgekit.cli import main
from edgekit.errors import RemoteInspectError
from edgekit.index import index_entries
from edgekit.index.database import header_of
from edgekit.sources.address import host_of, redact, redirect_target
from edgekit.units import Basis

ESCAPE = "\x1b[31m\nX\x07\u202e"  # colour, newline, bell, right-to-left override
COMMANDS = (
    ("inspect",),
    ("check", "--engine", "llama.cpp", "--ram", "64G"),
    ("check", "--engine", "vllm", "--device", "RTX 4090"),
    ("check", "--engine", "mlx", "--device", "m3-max-64"),
    ("estimate", "--engine", "llama.cpp"),
    ("estimate", "--engine", "vllm"),
    ("estimate", "--engine", "mlx"),
)
MESSAGES = {"error", "message", "notes", "because", "reasons", "changes"}


def messages(answer: Any, key: str = "") -> Iterator[str]:
    """The texts of an answer under the keys in MESSAGES."""
    if isinstance(answer, dict):
        for name, value in answer.items():
            yield from messages(value, name)
    elif isinstance(answer, list):
        for value in answer:
            yield from messages(value, key)
    elif isinstance(answer, str) and key in MESSAGES:
        yield answer


def check_messages(capsys: pytest.CaptureFixture[str], model: Path, *words: str) -> list[str]:
    command, *rest = words
    main([command, str(model), *rest, "--json"])
    result = list(messages(json.loads(capsys.readouterr().out)))
    for message in result:
        assert message.replace(str(model), "").isprintable(), message
    return result


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in nested lists and objects."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()  # fmt: skip
    for key, inner in items:
        yield from places(inner, (*path, key))


def with_escape(config: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    changed = copy.deepcopy(config)
    inner: Any = changed
    for key in path[:-1]:
        inner = inner[key]
    value = inner[path[-1]]
    inner[path[-1]] = value + ESCAPE if isinstance(value, str) else ESCAPE
    return changed


CONFIGS = {entry.id: json.loads(json.dumps(dict(header_of(entry).config), default=dict)) for entry in index_entries() if entry.basis is Basis.EXACT and "config" in entry.forms}  # fmt: skip
CHOSEN = ("llama-3.1-8b", "deepseek-v2-lite", "gemma-3-27b", "gpt-oss-20b")
CASES = [
    (name, path, COMMANDS[number % len(COMMANDS)])
    for name in CHOSEN
    for number, path in enumerate(places(CONFIGS[name]))
]


@pytest.mark.parametrize(("name", "path", "command"), sampled(CASES, each=3))
def test_messages_about_a_config_have_no_escapes(
    name: str,
    path: tuple[Any, ...],
    command: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(with_escape(CONFIGS[name], path)))
    check_messages(capsys, tmp_path, *command)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("key", ["model_type", "architectures"])
def test_messages_about_an_unknown_architecture_have_no_escapes(
    key: str, command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dict(next(iter(CONFIGS.values())))
    config[key] = ["Some" + ESCAPE] if key == "architectures" else "some" + ESCAPE
    (tmp_path / "config.json").write_text(json.dumps(config))
    check_messages(capsys, tmp_path, *command)


QUANTIZED: tuple[dict[str, Any], ...] = (
    {"quant_method": "gptq" + ESCAPE, "bits": 4},
    {"quant_method": "compressed-tensors", "format": ESCAPE},
    {"quant_method": "awq", "bits": ESCAPE},
    {"quant_method": ESCAPE},
    {"bits": 4, "group_size": 64, ESCAPE: {"bits": ESCAPE}},
)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("quantization", QUANTIZED)
def test_messages_about_a_safetensors_folder_have_no_escapes(
    quantization: dict[str, Any],
    command: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = {**next(iter(CONFIGS.values())), "quantization_config": quantization}
    (tmp_path / "config.json").write_text(json.dumps(config))
    names = ("model.embed_tokens.weight", f"model.layers.0.{ESCAPE}.weight", f"lm_head.{ESCAPE}")
    directory: dict[str, Any] = {
        name: {"dtype": "BF16", "shape": [4, 4], "data_offsets": [32 * place, 32 * place + 32]}
        for place, name in enumerate(names)
    }
    header = json.dumps({"__metadata__": {"format": ESCAPE, ESCAPE: "x"}, **directory}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(96))
    check_messages(capsys, tmp_path, *command)
    broken = header.replace(b"[4, 4]", b"[4, 5]", 1)
    path.write_bytes(struct.pack("<Q", len(broken)) + broken + bytes(96))
    check_messages(capsys, tmp_path, *command)


def write_gguf(path: Path, architecture: str, texts: dict[str, str]) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for name in ("block_count", "context_length", "embedding_length", "attention.head_count"):
        if f"{architecture}.{name}" not in texts:
            writer.add_uint32(f"{architecture}.{name}", 64)
    for key, text in texts.items():
        writer.add_string(key, text)
    writer.add_tensor_info("blk.0." + ESCAPE, [64, 64], np.dtype("float32"), 64 * 64 * 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("ab") as file:
        file.truncate(file.tell() + 64 * 64 * 4 + 64)
    return path


@pytest.mark.parametrize("command", [*COMMANDS, ("check", "--engine", "stream", "--ram", "8G")])
@pytest.mark.parametrize(
    ("architecture", "key"),
    [
        ("some" + ESCAPE, "general.name"), ("llama", "general.name"), ("llama", "llama.block_count"),
        ("llama", "llama.attention.head_count"), ("llama", "tokenizer.ggml.model"), ("llama", "llama.rope.scaling.type"),
        ("clip", "clip.projector_type"), ("some" + ESCAPE, f"some{ESCAPE}.block_count"),
    ],
)  # fmt: skip
def test_messages_about_a_gguf_have_no_escapes(
    architecture: str,
    key: str,
    command: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write_gguf(tmp_path / "model.gguf", architecture, {key: ESCAPE})
    check_messages(capsys, path, *command)


def test_messages_about_an_ollama_manifest_have_no_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    manifest = tmp_path / "manifests/registry.ollama.ai/library/m/1b"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "b" * 64, "size": 100}  # fmt: skip
    document = {"schemaVersion": 2, "config": {"digest": "x"}, "layers": [layer, dict(layer)]}
    for path in places(document):
        manifest.write_text(json.dumps(with_escape(document, path)))
        assert check_messages(capsys, Path("m:1b"), "inspect", "--offline")


@pytest.mark.parametrize("host", ["evil\x1bc.example", "evil\x07.example", "evil\u202e.example"])
def test_messages_about_a_redirect_have_no_escapes(host: str) -> None:
    assert host_of(f"http://{host}/a").isprintable()
    assert redact(f"http://{host}/a?b").isprintable()
    with pytest.raises(RemoteInspectError) as caught:
        redirect_target("https://good.example/a", f"http://{host}/a", name="the file")
    assert str(caught.value).isprintable()
