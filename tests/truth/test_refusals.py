"""Headers with one false key or tensor: EdgeKit refuses exactly those that llama.cpp refuses, with the same reason."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from tests.header_changes import EditableHeader, recorded_header, single_changes
from tests.header_files import FLOAT32, STRING
from tests.recorded import DATA, TRUTH, gguf_files, header_bytes
from tests.thoroughness import LONG, sampled

from edgekit.bill.types import Load
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.refusals import refusal
from edgekit.engines.llamacpp.run import binding
from edgekit.engines.llamacpp.run.binding import LoadQuestion, choose_method
from edgekit.engines.llamacpp.run.generated import HollowFile, on_disk
from edgekit.engines.llamacpp.run.verification import ask_engine
from edgekit.engines.llamacpp.types import NEWEST, LlamaCppSetup
from edgekit.errors import EdgekitError, EngineError, RefusedError
from edgekit.formats import read_header
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.units import GIB

LOAD = Load(context_tokens=2048)
SETUP = LlamaCppSetup(rules=NEWEST, use_mmap=False)
QWEN3 = "qwen3-0.6b.Q8_0.novocab.gguf.head.gz"


def read(data: bytes, data_bytes: int) -> Model:
    header = read_header(gguf_files("model.gguf", data, data_bytes))
    return Model(header=header, geometry=read_geometry(header))


def our_reason(changed: EditableHeader) -> str:
    """The reason of EdgeKit's refusal; empty if there is a bill."""
    try:
        llamacpp.estimate(read(*changed.build()), LOAD, SETUP)
    except EdgekitError as error:
        return str(error)
    return ""


@cache
def qwen3() -> EditableHeader:
    return recorded_header(QWEN3)


def without_tensor(name: str) -> Callable[[EditableHeader], object]:
    return lambda changed: changed.tensors.pop(name)


def without_key(name: str) -> Callable[[EditableHeader], object]:
    return lambda changed: changed.drop_key(name)


def with_shape(name: str, *dimensions: int) -> Callable[[EditableHeader], object]:
    return lambda changed: changed.reshape(name, list(dimensions))


def with_key(name: str, value: object, kind: int = 4) -> Callable[[EditableHeader], object]:
    return lambda changed: changed.put(name, value, kind)


def with_type(name: str, number: int) -> Callable[[EditableHeader], object]:
    return lambda changed: changed.tensors.update({name: (changed.tensors[name][0], number)})


def with_tensors(*names: str) -> Callable[[EditableHeader], object]:
    return lambda changed: changed.tensors.update({name: ([32, 4], 0) for name in names})


def add_block(changed: EditableHeader) -> None:
    first_block = {n: t for n, t in changed.tensors.items() if n.startswith("blk.0.")}
    changed.tensors |= {
        name.replace("blk.0.", "blk.99."): tensor for name, tensor in first_block.items()
    }


NAN = float("nan")
# A change, and the error of llama.cpp b11549 (empty if it loads the file).
# fmt: off
CHANGES: list[tuple[Callable[[EditableHeader], object], str]] = [
    (lambda _: None, ""),
    (with_tensors("blk.0.bogus.weight"), "wrong number of tensors; expected 311, got 310"),
    (with_tensors("bogus"), "wrong number of tensors; expected 311, got 310"),
    (add_block, "wrong number of tensors; expected 321, got 310"),
    (without_tensor("token_embd.weight"), "tensor 'token_embd.weight' not found"),
    (without_tensor("output_norm.weight"), "tensor 'output_norm.weight' not found"),
    (without_tensor("blk.0.attn_q.weight"), "tensor 'blk.0.attn_q.weight' not found"),
    (without_tensor("blk.5.attn_k_norm.weight"), "tensor 'blk.5.attn_k_norm.weight' not found"),
    (without_tensor("blk.3.ffn_down.weight"), "tensor 'blk.3.ffn_down.weight' not found"),
    (without_tensor("blk.7.attn_norm.weight"), "tensor 'blk.7.attn_norm.weight' not found"),
    (without_tensor("blk.27.ffn_norm.weight"), "tensor 'blk.27.ffn_norm.weight' not found"),
    (with_shape("blk.0.attn_q.weight", 1024, 32),
     "tensor 'blk.0.attn_q.weight' has wrong shape; expected 1024, 2048, got 1024, 32, 1, 1"),
    (with_shape("blk.0.attn_q.weight", 32, 2048), "'blk.0.attn_q.weight' has wrong shape"),
    (with_shape("blk.2.ffn_down.weight", 3072, 2048), "'blk.2.ffn_down.weight' has wrong shape"),
    (with_shape("blk.2.ffn_up.weight", 1024, 64), "'blk.2.ffn_up.weight' has wrong shape"),
    (with_shape("token_embd.weight", 1024, 1), "'token_embd.weight' has wrong shape; expected 1024, 151936, got 1024, 1, 1, 1"),
    (with_shape("token_embd.weight", 1024, 0), "'token_embd.weight' has wrong shape"),
    (with_shape("output_norm.weight", 1), "'output_norm.weight' has wrong shape"),
    (with_shape("blk.4.attn_k_norm.weight", 64), "'blk.4.attn_k_norm.weight' has wrong shape; expected 128"),
    (with_shape("blk.0.attn_v.weight", 1024, 1024, 2), "'blk.0.attn_v.weight' has wrong shape"),
    (with_shape("blk.0.attn_norm.weight", 1024, 2), "'blk.0.attn_norm.weight' has wrong shape"),
    (with_shape("blk.9.attn_output.weight", 2048, 1), "'blk.9.attn_output.weight' has wrong shape"),
    (with_type("blk.0.attn_q.weight", 27), ""), (with_type("blk.0.attn_norm.weight", 24), ""), (with_type("token_embd.weight", 28), ""),
    (with_type("blk.1.ffn_up.weight", 9), ""), (with_type("blk.1.ffn_up.weight", 15), ""),
    (with_key("block_count", 1), "wrong number of tensors; expected 310, got 13"),
    (with_key("block_count", 27), "wrong number of tensors; expected 310, got 299"),
    (with_key("block_count", 29), "tensor 'blk.28.attn_norm.weight' not found"),
    (with_key("context_length", 0), ""), (with_key("context_length", 1), ""), (with_key("context_length", 2**32 - 1), ""),
    (with_key("attention.head_count", 15), "15 attention heads cannot be divided evenly among 8 KV heads"),
    (with_key("attention.head_count", 32), "'blk.0.attn_q.weight' has wrong shape"),
    (with_key("attention.head_count_kv", 3), "16 attention heads cannot be divided evenly among 3 KV heads"),
    (with_key("attention.head_count_kv", 16), "'blk.0.attn_k.weight' has wrong shape"),
    (with_key("attention.head_count_kv", 1), "'blk.0.attn_k.weight' has wrong shape"),
    (with_key("attention.key_length", 64), "'blk.0.attn_q.weight' has wrong shape"),
    (with_key("attention.key_length", 127), "'blk.0.attn_q.weight' has wrong shape"),
    (with_key("attention.value_length", 256), "'blk.0.attn_k.weight' has wrong shape"),
    (with_key("feed_forward_length", 1), "'blk.0.ffn_gate.weight' has wrong shape"),
    (with_key("feed_forward_length", 2**31), "'blk.0.ffn_gate.weight' has wrong shape"),
    (with_key("embedding_length", 2048), "'token_embd.weight' has wrong shape"),
    (with_key("vocab_size", 1), "'token_embd.weight' has wrong shape"),
    (with_key("vocab_size", 2**31), "'token_embd.weight' has wrong shape"),
    (with_key("rope.freq_base", 0.0), ""), (with_key("rope.freq_base", NAN), ""),
    (with_key("rope.dimension_count", 127), "GGML_ASSERT(n_embd_head == n_rot) failed"),
    (with_key("rope.dimension_count", 4096), "GGML_ASSERT(n_embd_head == n_rot) failed"),
    (with_key("attention.layer_norm_rms_epsilon", NAN), ""), (with_key("attention.layer_norm_rms_epsilon", -1.0), ""),
    (with_key("expert_count", 8), "invalid expert counts: 0 used of 8"),
    (with_key("attention.sliding_window", 1), ""), (with_key("attention.causal", False, 7), ""), (with_key("pooling_type", 3), ""),
    (with_key("rope.scaling.type", "bogus", STRING), "rope_scaling_type_train != LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED"),
    (with_key("rope.scaling.factor", 0.0, FLOAT32), ""),
    (without_key("attention.layer_norm_rms_epsilon"), "key not found in model: qwen3.attention.layer_norm_rms_epsilon"),
    (without_key("attention.head_count"), "does not state its heads"),
    (without_key("context_length"), "key not found in model: qwen3.context_length"),
]
# fmt: on


@pytest.mark.parametrize(("change", "reason"), CHANGES, ids=range(len(CHANGES)))
def test_header_with_one_change_is_refused_like_the_engine(
    change: Callable[[EditableHeader], object], reason: str
) -> None:
    changed = deepcopy(qwen3())
    change(changed)
    result = our_reason(changed)
    assert reason in result
    assert bool(reason) is bool(result)


def header_paths() -> list[Path]:
    return [
        *sampled(sorted((DATA / "headers").glob("*.gz")), each=4),
        *sampled(sorted((DATA / "headers_more").glob("*.gz")), each=3),
        *(sorted((TRUTH / "headers").glob("*.gz")) if LONG else ()),
    ]


def test_no_recorded_header_is_refused() -> None:
    refused = {}
    for path in header_paths():
        data = header_bytes(path.name, path.parent)
        if reason := refusal(read(data, 2**44)):
            refused[path.name] = reason
    assert refused == {}


FAMILIES = (
    "qwen2.5-0.5b.Q8_0.novocab.gguf.head.gz",
    "llama-3.2-1b.Q4_K_M.novocab.gguf.head.gz",
    "gemma-3-1b.Q4_K_M.novocab.gguf.head.gz",
    "phi-3-mini-4k.Q4_K_M.novocab.gguf.head.gz",
    "deepseek-v2-lite.Q4_K_M.novocab.gguf.head.gz",
    "gpt-oss-20b.MXFP4_MOE.novocab.gguf.head.gz",
    "qwen3-30b-a3b.Q4_K_M.novocab.gguf.head.gz",
    "mamba-130m.F16.head.gz",
    "nomic-embed-text-v1.5.Q8_0.novocab.gguf.head.gz",
    "falcon-h1-0.5b.Q8_0.head.gz",
    "qwen35-4b.Q4_K_M.head.gz",
    "lfm2-1.2b.Q8_0.novocab.gguf.head.gz",
)
# Errors of llama.cpp's loader. A crash while it builds the graph does not count.
LOADER_REFUSES = ("error loading model", "failed to load model")


def engine_reason(changed: EditableHeader) -> str:
    """The error of the installed llama.cpp; empty if it loads the file."""
    data, data_bytes = changed.build()
    file = HollowFile(name="model.gguf", header=data, size_bytes=len(data) + data_bytes)
    with on_disk([file]) as path:
        try:
            question = LoadQuestion(
                path=path, load=LOAD, setup=SETUP, timeout_s=120.0, memory_bytes=6 * GIB
            )
            ask_engine(choose_method(), question)
        except EngineError as error:
            return str(error)
    return ""


@pytest.mark.skipif(not binding.has_xllamacpp(), reason="needs xllamacpp")
@pytest.mark.parametrize("file", FAMILIES)
def test_changed_headers_are_refused_exactly_where_the_engine_refuses(file: str) -> None:
    turn = FAMILIES.index(file)
    changes = list(single_changes(recorded_header(file)))
    disagreements = {}
    for name, changed in sampled(changes, each=len(changes), turn=7 * turn):
        ours, engine = our_reason(changed), engine_reason(changed)
        refused_too_much = bool(ours) and not engine
        refused_too_little = not ours and any(word in engine for word in LOADER_REFUSES)
        if refused_too_much or refused_too_little:
            disagreements[name] = (ours, engine[-300:])
    assert disagreements == {}


def test_big_endian_file_is_inspected_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data, data_bytes = qwen3().build(">")
    monkeypatch.setattr("sys.byteorder", "little")
    assert read(data, data_bytes).header.tensor_count == 310
    with pytest.raises(RefusedError, match="mismatch between the host and model endianness"):
        llamacpp.estimate(read(data, data_bytes), LOAD, SETUP)
    monkeypatch.setattr("sys.byteorder", "big")
    assert llamacpp.estimate(read(data, data_bytes), LOAD, SETUP).lines


def test_missing_key_is_refused_without_the_tensor_directory() -> None:
    model = read(*qwen3().build())
    unread = Model(header=replace(model.header, tensors=None), geometry=model.geometry)
    assert llamacpp.estimate(unread, LOAD, SETUP).lines
    incomplete = replace(
        unread.header, keys={k: v for k, v in unread.header.keys.items() if "rms" not in k}
    )
    with pytest.raises(RefusedError, match="key not found"):
        llamacpp.estimate(Model(header=incomplete, geometry=model.geometry), LOAD, SETUP)
