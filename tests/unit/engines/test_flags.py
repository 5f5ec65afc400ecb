"""Tables of flags: values survive a round trip through load and setup, and llama.cpp's through its command line."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.bill.types import Load
from edgekit.cli.flags import add_flags
from edgekit.engines import engine_named, every_engine
from edgekit.engines.flags import Flag, flag_words, given_flags, read_flags
from edgekit.engines.llamacpp.flags import command_words
from edgekit.engines.llamacpp.types import NEWEST, OLDEST, LlamaCppSetup
from edgekit.engines.memo import ENGINE as MEMO
from edgekit.engines.protocol import Engine
from edgekit.errors import UsageError

ENGINES = (*every_engine(), MEMO)
# Values of flags as users type them: every kind that a reader accepts.
TYPED: dict[str, dict[str, tuple[str, ...]]] = {
    "llama.cpp": {
        "context": ("4096", "32k"),
        "batch": ("1024",),
        "ubatch": ("0", "256"),
        "type_k": ("q8_0", "f16"),
        "type_v": ("q4_0",),
        "flash_attn": ("on", "off", "auto"),
        "parallel": ("1", "8"),
        "n_gpu_layers": ("all", "0", "20"),
        "override_tensor": ("exps=CPU", r"blk\.1=CPU,blk\.2=CUDA0"),
        "n_cpu_moe": ("3",),
        "tensor_split": ("3,1", "1,0,2"),
        "split_mode": ("none", "layer", "tensor"),
        "main_gpu": ("0", "1"),
        "rpc": ("10.0.0.5:50052=24G", "10.0.0.5:50052=24G+8G,10.0.0.6:1=3G"),
        "cache_ram": ("0", "512"),
        "ctx_checkpoints": ("4",),
        "spec_type": ("draft-mtp", "none"),
        "mode": ("server", "library"),
        "backend": ("cpu", "cuda", "metal", "vulkan"),
        "mix": ("Q4_K_M",),
        "llama_version": ("b9294", "0.6", "2026.9"),
        "cpu": ("x86", "arm"),
        "device_memory": ("24G", "24G,8G"),
    },
    "vllm": {
        "context": ("4096",),
        "tensor_parallel_size": ("1", "2"),
        "pipeline_parallel_size": ("2",),
        "kv_cache_dtype": ("auto", "fp8"),
        "gpu_memory_utilization": ("0.5", "0.92"),
        "kv_cache_memory_bytes": ("20G",),
        "max_num_seqs": ("4",),
        "block_size": ("32",),
        "dtype": ("float16",),
        "quantization": ("fp8",),
        "gpu": ("RTX 4090", "H100"),
        "gpu_memory": ("80G",),
    },
    "mlx": {
        "context": ("4096",),
        "kv_bits": ("4",),
        "kv_group_size": ("32",),
        "quantized_kv_start": ("0", "5000"),
        "max_tokens": ("0", "64"),
        "quantize": ("q4", "q8_g32", "mxfp4", "nvfp4", "mixed_3_6", "mxfp4-q8_g32", "bf16", "stored"),
    },
    "stream": {
        "context": ("4096",),
        "keep": ("2G", "all", "none"),
        "sinks": ("0", "4"),
        "chunk": ("32",),
        "threads": ("2",),
        "type_k": ("q8_0", "f32"),
    },
    "memo": {
        "context": ("4096",),
        "latency": ("voice", "text"),
        "type_k": ("q8_0", "qjl1_256"),
        "type_v": ("q8_0", "q4_polar"),
    },
}  # fmt: skip


@st.composite
def flag_values(draw: st.DrawFn, engine: Engine) -> dict[str, Any]:
    texts = TYPED[engine.name]
    keys = draw(st.lists(st.sampled_from(sorted(texts)), unique=True, max_size=8))
    switches = [flag for flag in engine.flags if not flag.metavar]
    switched = draw(st.lists(st.sampled_from(switches), max_size=3)) if switches else []
    typed = {key: draw(st.sampled_from(texts[key])) for key in keys}
    return read_flags(engine.table, typed | {flag.key: flag.value for flag in switched})


@pytest.mark.parametrize("name", list(TYPED))
@given(data=st.data())
def test_values_of_load_and_setup_give_the_same_load_and_setup(
    name: str, data: st.DataObject
) -> None:
    engine = next(item for item in ENGINES if item.name == name)
    values = data.draw(flag_values(engine))
    try:
        load, setup = engine.setup(values)
    except UsageError:
        return  # flags that contradict each other
    assert engine.setup(engine.values(load, setup)) == (load, setup)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_fields_in_a_table_are_fields_of_load_or_setup(engine: Engine) -> None:
    load, setup = engine.setup({})
    names = {field.name for instance in (load, setup) for field in fields(instance)}
    assert {flag.field for flag in engine.table if flag.field} <= names


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_keys_have_at_most_one_row_reader_parameter_and_control(engine: Engine) -> None:
    """Two switches with one key are its true and its false; only the first has these columns."""
    for key in {flag.key for flag in engine.table}:
        flags = [flag for flag in engine.table if flag.key == key]
        assert sum(bool(flag.row) for flag in flags) <= 1
        assert sum(flag.parameter is not None for flag in flags) <= 1
        assert sum(flag.control is not None for flag in flags) <= 1


def test_ncmoe_is_read_from_text_and_row_and_printed() -> None:
    engine = engine_named("llama.cpp")
    values = read_flags(engine.flags, {"n_cpu_moe": "3"})
    load, setup = engine.setup(values)
    _, row_setup = engine.read_row({"n_cpu_moe": 3}, None)
    assert LlamaCppSetup.of(setup).n_cpu_moe == LlamaCppSetup.of(row_setup).n_cpu_moe == 3
    assert engine.values(load, setup) == {"n_cpu_moe": 3}
    assert flag_words(engine.flags, values) == ["-ncmoe", "3"]


# Flags of llama.cpp that are in neither load nor setup, or only together with others.
OTHERS = {
    "mmproj": ("auto", "p.gguf"),
    "lora": ("a.gguf,b.gguf",),
    "draft_model": ("d.gguf", "org/name-GGUF:Q4_K_M"),
    "draft_type_k": ("q8_0",),
    "draft_type_v": ("f16",),
    "draft_gpu_layers": ("all",),
    "draft_device": ("none",),
    "draft_max": ("8",),
}


def example_values(flag: Flag) -> tuple[Any, ...]:
    if not flag.metavar:
        return (flag.value,)
    if flag.names[0] == "-lm":
        return "none", "mmap", "auto"
    return (TYPED["llama.cpp"] | OTHERS)[flag.key]


@pytest.mark.parametrize("build", [OLDEST, NEWEST])
def test_command_words_of_llama_cpp_are_parsed_as_the_same_values(build: int) -> None:
    """Except the free memory of an RPC server, which llama.cpp itself requests from the server."""
    engine = engine_named("llama.cpp")
    examples = [(flag, text) for flag in engine.flags for text in example_values(flag)]
    for flag, text in examples:
        values = read_flags(engine.table, {flag.key: text})
        words = command_words(values, build)
        # "auto" is the projector that -hf loads unasked; for a local file it is replaced by its path
        unwritten = ({"mmap": True}, {"mmproj": "auto"})
        assert words or flag.ours or flag.key == "backend" or values in unwritten
        if flag.key == "rpc":
            assert words == [
                "--rpc",
                ",".join(server.partition("=")[0] for server in values["rpc"]),
            ]
        elif words:
            assert read_flags(engine.table, parsed(words)) == values


def parsed(words: list[str]) -> dict[str, Any]:
    engine = engine_named("llama.cpp")
    parser = argparse.ArgumentParser()
    add_flags(parser, engine.name, engine.title, engine.table[: len(engine.flags) + 1])
    return given_flags(parser.parse_args(words))[engine.name]


def test_command_words_of_newest_llama_cpp_have_a_load_mode_for_no_mmap() -> None:
    assert command_words({"mmap": False}, OLDEST) == ["--no-mmap"]
    assert command_words({"mmap": False}, NEWEST) == ["-lm", "none"]
    with pytest.raises(UsageError, match="-lm/--load-mode: 'mlock' is not one of none, mmap, auto"):
        read_flags(engine_named("llama.cpp").flags, {"mmap": "mlock"})


def test_command_words_have_ot_before_ncmoe() -> None:
    """The first pattern that matches a tensor decides."""
    words = command_words({"n_cpu_moe": 3, "override_tensor": ("exps=CUDA0",)}, NEWEST)
    assert words == ["-ot", "exps=CUDA0", "-ncmoe", "3"]


def test_read_row_takes_null_as_not_given() -> None:
    for engine in ENGINES:
        nulls = {flag.option or flag.key: None for flag in engine.table if flag.row}
        assert engine.read_row(nulls, None) == engine.read_row({}, None)
    assert engine_named("vllm").read_row({}, None)[0] == Load()


def test_command_words_have_rpc_before_ot() -> None:
    """-ot may name devices that --rpc adds."""
    values = {"override_tensor": ("exps=RPC0[10.0.0.5:50052]",), "rpc": ("10.0.0.5:50052=24G",)}
    words = command_words(values, NEWEST)
    assert words == ["--rpc", "10.0.0.5:50052", "-ot", "exps=RPC0[10.0.0.5:50052]"]
