"""Sizes, resolved options and complaints read from lines of real logs."""

from __future__ import annotations

import pytest

from edgekit.bill.types import Component
from edgekit.engines.llamacpp.run.engine_log import EngineLog, hundredths, whole_mib
from edgekit.engines.program import MeasuredBytes
from edgekit.errors import EngineError
from edgekit.units import MIB

SLIDING = """\
0.00.026.496 I llama_context: constructing llama_context
0.00.026.496 I llama_context: n_seq_max             = 4
0.00.026.499 I llama_context: kv_unified            = true
0.00.026.499 I llama_context: flash_attn            = auto
0.00.028.468 I llama_context:        CPU  output buffer size =     4.00 MiB
0.00.028.478 I llama_kv_cache_iswa: creating non-SWA KV cache, size = 4096 cells
0.00.028.564 I llama_kv_cache:        CPU KV buffer size =     0.00 MiB
0.00.028.569 I llama_kv_cache: size =   16.00 MiB (  4096 cells,   4 layers,  4/1 seqs), K (f16):    8.00 MiB, V (f16):    8.00 MiB
0.00.028.572 I llama_kv_cache_iswa: creating     SWA KV cache, size = 2560 cells
0.00.028.698 I llama_kv_cache:        CPU KV buffer size =     0.00 MiB
0.00.028.700 I llama_kv_cache: size =   55.00 MiB (  2560 cells,  22 layers,  4/1 seqs), K (f16):   27.50 MiB, V (f16):   27.50 MiB
0.00.029.901 I resolve_fused_ops: Flash Attention enabled
0.00.046.698 I sched_reserve:        CPU compute buffer size =    58.28 MiB
0.00.047.281 I common_memory_breakdown_print: | memory breakdown [MiB] | total   free    self   model   context   compute    unaccounted |
0.00.047.281 I common_memory_breakdown_print: |   - Host               |                 2036 =  1907 +      71 +      58                |
"""
HYBRID = """\
llama_context:        CPU  output buffer size =     0.38 MiB
llama_kv_cache: size =   64.00 MiB (  8192 cells,   4 layers,  1/1 seqs), K (f16):   32.00 MiB, V (f16):   32.00 MiB
llama_memory_recurrent:        CPU RS buffer size =    55.37 MiB
llama_memory_recurrent: size =   55.37 MiB (     1 cells,  40 layers,  1 seqs  0 rs_seq), R (f32):    1.37 MiB, S (f32):   54.00 MiB
sched_reserve:        CPU compute buffer size =    59.02 MiB
common_memory_breakdown_print: |   - Host               |                  5122 =  4258 +     119 +      59                |
common_memory_breakdown_print: |   - CPU_REPACK         |                 13432 = 13432 +       0 +       0                |
"""
DEVICE = """\
llama_context:  CUDA_Host  output buffer size =     0.49 MiB
llama_kv_cache: size =  448.00 MiB (  4096 cells,  28 layers,  1/1 seqs), K (f16):  224.00 MiB, V (f16):  224.00 MiB
sched_reserve:      CUDA0 compute buffer size =    30.50 MiB
sched_reserve:  CUDA_Host compute buffer size =    12.02 MiB
common_memory_breakdown_print: |   - CUDA0 (NVIDIA H200)  | 143167 = 142000 + (1328 =   850 +     448 +      30) +        -161 |
common_memory_breakdown_print: |   - Host                 |                   299 =   287 +       0 +      12                |
"""


def read(log: str, *more: str) -> EngineLog:
    result = EngineLog()
    for line in (*log.splitlines(keepends=True), *more):
        result.add(line)
    return result


def test_printed_size_is_an_interval() -> None:
    assert hundredths("0.00").low_bytes == 0
    half = MIB // 200
    assert hundredths("16.00").low_bytes == 16 * MIB - half - 2 - 1
    assert hundredths("16.00").high_bytes == 16 * MIB + half + 2 + 1
    # llama.cpp prints a 32-bit float, whose steps at 131,072.00 MiB are 16 KiB.
    assert hundredths("131072.00").resolution_bytes > 16 * 1024
    assert whole_mib("1137") == MeasuredBytes(low_bytes=1137 * MIB, high_bytes=1138 * MIB - 1)


def test_off_by_is_zero_inside_the_interval() -> None:
    measured = MeasuredBytes(low_bytes=100, high_bytes=110)
    assert [measured.off_by(size) for size in (90, 100, 105, 110, 111)] == [-10, 0, 0, 0, 1]


def test_parts_separate_sliding_and_full_caches() -> None:
    parts = read(SLIDING).parts()
    assert parts[Component.KV_CACHE] == hundredths("16.00")
    assert parts[Component.SLIDING_KV_CACHE] == hundredths("55.00")
    assert parts[Component.STATE] == MeasuredBytes(low_bytes=0, high_bytes=0)
    assert parts[Component.OUTPUT] == hundredths("4.00")
    assert parts[Component.COMPUTE] == hundredths("58.28")
    assert parts[Component.WEIGHTS] == whole_mib("1907")


def test_parts_include_states_and_repacked_weights() -> None:
    parts = read(HYBRID).parts()
    assert parts[Component.STATE] == hundredths("55.37")
    assert parts[Component.WEIGHTS] == whole_mib("4258") + whole_mib("13432")


def test_parts_add_buffers_of_a_gpu_to_those_of_the_host() -> None:
    log = read(DEVICE)
    parts = log.parts()
    assert log.devices == ["CUDA0 (NVIDIA H200)"]
    assert parts[Component.WEIGHTS] == whole_mib("850") + whole_mib("287")
    assert parts[Component.COMPUTE] == hundredths("30.50") + hundredths("12.02")


def test_log_is_complete_with_the_line_after_the_breakdown() -> None:
    assert not read(SLIDING).complete
    log = read(SLIDING, "common_params_fit_impl: projected to use 2036 MiB")
    assert log.complete
    log.add("llama_context:        CPU  output buffer size =     9.00 MiB")
    assert log.parts()[Component.OUTPUT] == hundredths("4.00")


def test_parts_of_a_second_context_are_not_added_to_the_first() -> None:
    before, breakdown = SLIDING.split("0.00.047.281", 1)
    again = read(before + before + "0.00.047.281" + breakdown)
    assert again.parts() == read(SLIDING).parts()


def test_resolved_options() -> None:
    assert read(SLIDING).resolved == {
        "n_seq_max": "4",
        "kv_unified": "true",
        "flash_attn": "enabled",
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("llama_kv_cache: size =   55", "llama_kv_cache: holds   55", "its cache lines add up to"),
        ("compute buffer size =    58", "compute buffer size =    68", "its compute buffer lines"),
        ("output buffer size", "output buffer takes", "did not finish its answer"),
        ("breakdown_print", "print", "did not finish its answer"),
    ],
)
def test_parts_of_an_unknown_log_format_is_an_error(old: str, new: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        read(SLIDING.replace(old, new)).parts()


def test_last_words_are_complaints_else_the_last_lines() -> None:
    log = read(
        "0.00.1 I llama_model_loader: - kv 1: general.name str = x\n"
        "0.00.2 E llama_model_load: error loading model: tensor 'a' not found\n"
        "0.00.3 I srv    operator(): cleaning up before exit...\n"
    )
    assert log.last_words() == "llama_model_load: error loading model: tensor 'a' not found"
    assert read("one\ntwo\n").last_words() == "one | two"
    assert EngineLog().last_words() == "no output"


def test_last_words_of_endless_lines_and_logs_are_short() -> None:
    log = EngineLog()
    for _ in range(1000):
        log.add("x" * 100_000)
    assert len(log.last_words()) < 2000
    for number in range(1000):
        log.add(f"error: {number}")
    assert log.last_words() == "error: 0 | error: 1 | error: 2"


def test_last_words_find_an_abort_in_the_middle_of_the_log() -> None:
    log = read("0.00.1 I load: /src/ggml-impl.h:330: fatal error\n", *["0.00.2 D more"] * 1000)
    assert log.last_words() == "load: /src/ggml-impl.h:330: fatal error"


LOADED = """\
0.00.012.140 I load_tensors: loading model tensors, this can take a while... (load_mode = mmap)
0.00.012.809 I load_tensors:   CPU_Mapped model buffer size =     3.87 MiB
0.00.012.809 I load_tensors:        CUDA0 model buffer size =    16.00 MiB
0.00.013.129 I llama_context: constructing llama_context
0.00.013.155 I llama_context: n_seq_max             = 2
0.00.013.446 I llama_context:        CPU  output buffer size =     0.01 MiB
0.00.014.098 I llama_kv_cache: size =    0.75 MiB (   256 cells,   3 layers,  2/2 seqs), K (f16):    0.38 MiB, V (f16):    0.38 MiB
0.00.014.179 I sched_reserve: reserving ...
0.00.015.803 I sched_reserve:        CPU compute buffer size =     5.77 MiB
"""


def test_allocations_of_a_model_and_its_draft_model() -> None:
    draft_log = LOADED.replace("0.75 MiB", "0.25 MiB").replace(
        "n_seq_max             = 2", "n_rs_seq = 0"
    )
    allocations = read(LOADED + draft_log).allocations()
    assert (
        allocations.weights
        == (
            ("CPU_Mapped", hundredths("3.87")),
            ("CUDA0", hundredths("16.00")),
        )
        * 2
    )
    assert allocations.parts[Component.KV_CACHE] == hundredths("0.75") + hundredths("0.25")
    assert allocations.parts[Component.COMPUTE] == hundredths("5.77") + hundredths("5.77")
    assert allocations.parts[Component.STATE].high_bytes == 0
    assert allocations.resolved == {"n_seq_max": "2"}  # of the model, not of the draft model


def test_allocations_count_the_last_reservation() -> None:
    reserved = "sched_reserve: reserving ...\nsched_reserve: CPU compute buffer size =     7.00 MiB"
    assert read(LOADED, *reserved.splitlines()).allocations().parts[
        Component.COMPUTE
    ] == hundredths("7.00")


@pytest.mark.parametrize("word", ["model buffer", "compute buffer", "output buffer"])
def test_allocations_of_an_unknown_log_format_is_an_error(word: str) -> None:
    with pytest.raises(EngineError, match="it does not list its buffers"):
        read(LOADED.replace(word, "other")).allocations()
