"""The real llama.cpp of xllamacpp, asked about recorded headers and about broken ones."""

from __future__ import annotations

import struct
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests import tiny_llama
from tests.header_files import UINT16, BytesSource, key, model_files
from tests.patience import PATIENCE_S, wait_until
from tests.recorded import DATA, gguf_files, header_bytes, models, rows
from tests.thoroughness import LONG, sampled

from edgekit.bill.types import Component, Load, MemoryEstimate, MemoryLine, cache_type
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.run import binding
from edgekit.engines.llamacpp.run import verification as check
from edgekit.engines.llamacpp.run.binding import (
    LoadQuestion,
    VerifyMethod,
    choose_method,
)
from edgekit.engines.llamacpp.run.generated import HollowFile, hollow_out, on_disk
from edgekit.engines.llamacpp.run.verification import (
    COMPUTE_FLOOR_BYTES,
    ask_engine,
    compare,
    verify_model,
)
from edgekit.engines.llamacpp.types import (
    NEWEST,
    Backend,
    LlamaCppSetup,
    LlamaMode,
    answered_version,
    version_name,
)
from edgekit.engines.program import ComparedRow, MeasuredBytes, Verification
from edgekit.errors import EngineError, PredictionError, RefusedError, UsageError
from edgekit.machine.types import HOST
from edgekit.sources.local import locate_path
from edgekit.sources.types import ModelFiles
from edgekit.units import GIB, MIB

pytest.importorskip("xllamacpp")

SERVER = binding.METHODS[0]


def recorded(model: str, quant: str = "Q4_K_M") -> ModelFiles:
    fact = next(m for m in models() if (m["model"], m["quant"]) == (model, quant))
    file = fact["header_without_vocabulary"]
    return gguf_files(file, header_bytes(file), fact["data_section_bytes"])


def small(*more: bytes) -> ModelFiles:
    return model_files(BytesSource(tiny_llama.model_bytes(None, *more)))


def ask(files: ModelFiles, **load: object) -> Verification:
    return verify_model(files, Load(**load), LlamaCppSetup(), method=SERVER)  # type: ignore[arg-type]


def off(found: Verification) -> dict[str, int]:
    return {row.part: row.difference_bytes for row in found.rows if row.part != "compute"}


@pytest.mark.parametrize(
    "model",
    sampled(
        (
            "gemma-3-4b",  # sliding
            "llama-3.2-1b",  # dense
            "deepseek-v2-lite",  # latent attention, experts
            "qwen3-30b-a3b",  # experts
            "granite-4-h-tiny",  # recurrent layers, experts
        ),
        each=2,
    ),
)
def test_five_kinds_are_within_bounds(model: str) -> None:
    """Compute too, in whatever version of llama.cpp is installed."""
    result = ask(recorded(model), context_tokens=8192)
    assert set(off(result).values()) == {0}
    assert result.within, result.rows[-1]
    assert result.notes == ()


ALL = sorted({model["model"] for model in models() if model["quant"] == "Q4_K_M"})
# Dense, sliding, per-layer inputs, latent, experts, and each kind of state.
SOME = [
    "llama-3.2-1b", "gemma-3-4b", "gemma-3n-e4b", "deepseek-v2-lite", "llama-4-scout",
    "falcon-h1-1.5b", "mamba-2.8b", "jamba-1.5-mini", "qwen3-next-80b-a3b", "lfm2-1.2b",
]  # fmt: skip
LOADS = {
    "as it comes": {"context_tokens": 4096},
    "alone": {"context_tokens": 8192, "sequences": 1, "microbatch_tokens": 256},
    "no flash attention": {"context_tokens": 2048, "sequences": 3, "flash_attention": False},
}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
@pytest.mark.parametrize("model", ALL if LONG else SOME)
def test_compute_is_what_the_newest_version_known_tells(
    model: str, load: dict[str, object]
) -> None:
    result = ask(recorded(model), **load)
    if answered_version(result.answer.version) != (NEWEST, None):
        pytest.skip(f"xllamacpp {result.answer.version} is another version")
    assert result.rules_version == version_name(NEWEST, None)
    assert {row.part: row.difference_bytes for row in result.rows if row.difference_bytes} == {}


FURTHER = {row["file"]: row["data_bytes"] for row in rows("llama_cpp_more.jsonl.gz")}
# Inputs of all layers, pictures in layers, pictures with a scale, weights of their own for pictures.
ODD = ("gemma-4-e2b", "qwen3vl-small", "granite-vision-small", "cogvlm")


UNASKED = (
    "deepseek-v4",
    "plm",
)  # a cache that its log does not tell; it aborts with flash attention


@pytest.mark.parametrize(
    "file",
    [file for file in FURTHER if (LONG or file.startswith(ODD)) and not file.startswith(UNASKED)],
)
def test_further_architectures_of_the_newest_version(file: str) -> None:
    head = header_bytes(f"{file}.head.gz", DATA / "headers_more")
    result = ask(gguf_files(f"{file}.gguf", head, FURTHER[file]), context_tokens=2048)
    if answered_version(result.answer.version) != (NEWEST, None):
        pytest.skip(f"xllamacpp {result.answer.version} is another version")
    assert {row.part: row.difference_bytes for row in result.rows if row.difference_bytes} == {}


@pytest.mark.parametrize(
    ("model", "load"),
    [
        ("gemma-3-4b", {"context_tokens": 5000, "sequences": 3}),  # a cache for each
        (
            "gemma-3-4b",
            {"context_tokens": 5000, "sequences": 3, "unified": True, "full_window": True},
        ),
        ("llama-3.2-1b", {"context_tokens": 5000, "flash_attention": False, "batch_tokens": 100}),
        ("qwen3-30b-a3b", {"context_tokens": 32768, "cache_k": "q8_0", "cache_v": "q4_0"}),
        ("qwen3.5-9b", {}),  # its whole native context
    ],
)
def test_weights_caches_and_output_are_exact(model: str, load: dict[str, object]) -> None:
    types = {side: cache_type(str(load[side])) for side in ("cache_k", "cache_v") if side in load}
    result = ask(recorded(model), **(load | types))
    assert set(off(result).values()) == {0}
    assert result.notes == ()
    assert result.rows[-1].measured.resolution_bytes < 0.01 * MIB


def test_a_model_without_a_cache_has_none() -> None:
    result = ask(recorded("all-minilm-l6-v2", "F16"), context_tokens=512)
    assert off(result)["kv cache"] == 0
    assert result.rows[1].measured.high_bytes == 0


def test_the_engine_is_told_apart_from_the_rules() -> None:
    result = ask(small())
    assert result.rules_version == version_name(*answered_version(result.answer.version))
    assert result.answer.through == "xllamacpp"
    assert "(llama.cpp " in result.answer.version
    assert result.answer.resolved["n_seq_max"] == "4"
    assert result.mode == "server"


def test_shards_are_one_model() -> None:
    names = list(tiny_llama.shapes())
    split = (
        key("split.count", UINT16, 2),
        key("split.tensors.count", 5, len(names)),
    )
    shards = [
        tiny_llama.model_bytes(part, key("split.no", UINT16, i), *split)
        for i, part in enumerate((names[:5], names[5:]))
    ]
    assert off(ask(model_files(*map(BytesSource, shards)))) == off(ask(small()))


def test_a_prediction_that_is_off_is_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = llamacpp.estimate

    def short_by_eight_mebibytes(*asked: object) -> object:
        bill = estimate(*asked)  # type: ignore[arg-type]
        lines = [
            replace(line, size_bytes=line.size_bytes - MIB // 2)
            if line.component is Component.KV_CACHE
            else line
            for line in bill.lines
        ]
        return replace(bill, lines=tuple(lines))

    monkeypatch.setattr(llamacpp, "estimate", short_by_eight_mebibytes)
    result = ask(recorded("llama-3.2-1b"), context_tokens=4096)
    cache = result.rows[1]
    assert not cache.within
    assert not result.within
    assert -16 * MIB // 2 <= cache.difference_bytes < -15 * MIB // 2


def test_a_refusal_that_the_engine_does_not_share_is_a_wrong_prediction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> object:
        raise RefusedError("llama.cpp would not load it")

    monkeypatch.setattr(llamacpp, "estimate", refuse)
    with pytest.raises(
        PredictionError, match=r"llama\.cpp 0\.6.*loads it, so EdgeKit's prediction is wrong"
    ):
        ask(small())


def test_a_refusal_that_the_engine_shares_is_the_answer() -> None:
    raw = tiny_llama.model_bytes(["token_embd.weight"])
    with pytest.raises(RefusedError, match=r"output_norm\.weight. not found"):
        ask(model_files(BytesSource(raw)))


# --- an engine that dies


def question(path: Path, load: Load) -> LoadQuestion:
    return LoadQuestion(
        path=path, load=load, setup=LlamaCppSetup(), timeout_s=30.0, memory_bytes=4 * GIB
    )


def ask_raw(header: bytes, size_bytes: int) -> None:
    with on_disk([HollowFile(name="m", header=header, size_bytes=size_bytes)]) as path:
        ask_engine(SERVER, question(path, Load()))


def changed(name: str, value: int) -> bytes:
    """The small model with another number behind that key."""
    raw = tiny_llama.model_bytes()
    at = raw.index(name.encode()) + len(name) + 4
    return raw[:at] + struct.pack("<I", value) + raw[at + 4 :]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (changed("llama.block_count", 2**31 - 1), "died of SIGABRT.*GGML_ASSERT.*n_layer"),
        (changed("llama.attention.head_count", 0), "exited .*error loading model"),
        (changed("llama.feed_forward_length", 4096), "exited .*wrong shape"),
        (tiny_llama.model_bytes()[:700], "exited .*failed to load model"),
        (tiny_llama.model_bytes(["output.weight"]), "exited .*not found"),
        (b"GGUF\x03" + b"\xff" * 60, "exited .*failed to load model"),
        (b"", "exited .*failed to load model"),
    ],
)
def test_a_corrupt_header_ends_the_child_only(raw: bytes, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        ask_raw(raw, len(raw))


def test_an_abort_in_the_graph_is_told() -> None:
    q8 = cache_type("q8_0")
    load = Load(context_tokens=4096, sequences=4, unified=False, cache_k=q8, cache_v=q8)
    with (
        on_disk(hollow_out(recorded("phi-3-medium-4k"))) as path,
        pytest.raises(EngineError, match=r"died of SIGABRT.*ggml-impl.h"),
    ):
        ask_engine(SERVER, question(path, load))


def test_memory_beyond_the_limit_is_refused_by_the_system() -> None:
    fact = next(m for m in models() if (m["model"], m["quant"]) == ("qwen3-0.6b", "F16"))
    raw = header_bytes(fact["header_without_vocabulary"])
    at = raw.index(b"qwen3.vocab_size") + len(b"qwen3.vocab_size") + 4
    hungry = raw[:at] + struct.pack("<I", 2**31 - 1) + raw[at + 4 :]
    with pytest.raises(EngineError, match=r"limit was 4.00 GiB of address space"):
        ask_raw(hungry, len(raw) + fact["data_section_bytes"])


# --- another way, and none


def tool(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> VerifyMethod:
    path = folder / "llama-fit-params"
    path.write_text(f"#!{sys.executable}\nimport sys, time\nsys.stdout = sys.stderr\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return choose_method(LlamaMode.LIBRARY)


def ask_tool(way: VerifyMethod, timeout_s: float = PATIENCE_S) -> Verification:
    return verify_model(
        small(), Load(context_tokens=256), LlamaCppSetup(), method=way, timeout_s=timeout_s
    )


def test_llama_fit_params_is_asked_by_its_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = (
        "if '--version' in sys.argv:\n"
        "    sys.exit('version: 0.5.0-dev (build 1, commit 0c1e570)')\n"
        "print('llama_context:        CPU  output buffer size =     0.00 MiB')\n"
        "print('llama_kv_cache: size =    0.06 MiB (   256 cells,   2 layers,  1/1 seqs)')\n"
        "print('sched_reserve:        CPU compute buffer size =     1.00 MiB')\n"
        "print('common_memory_breakdown_print: |   - Host |      1 =     0 +       0 +       1       |')\n"
    )
    result = ask_tool(tool(tmp_path, monkeypatch, body))
    assert result.answer.through == "llama-fit-params"
    assert result.answer.version == "0.5.0-dev (build 1, commit 0c1e570)"
    assert result.mode == "library"
    assert set(off(result).values()) == {0}


def test_a_slow_engine_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over when the tool has said something, however long that takes to start."""
    spoken = tmp_path / "spoken"
    placement = tool(
        tmp_path,
        monkeypatch,
        f"print('error: thinking', flush=True)\nopen({str(spoken)!r}, 'x').close()\ntime.sleep(600)",
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    class Timer(threading.Timer):
        def run(self) -> None:
            wait_until(spoken.exists)
            self.function(*self.args, **self.kwargs)

    monkeypatch.setattr(threading, "Timer", Timer)
    with pytest.raises(
        EngineError, match=r"did not answer within 0.7 s \(--engine-timeout\): error: thinking"
    ):
        ask_tool(placement, timeout_s=0.7)
    spoken.unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["llama-fit-params"]


def test_an_engine_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="did not finish its answer: no output"):
        ask_tool(tool(tmp_path, monkeypatch, ""))


def test_an_engine_that_floods_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "for _ in range(64): sys.stdout.write('x' * 1_000_000)\nsys.exit(1)"
    with pytest.raises(EngineError, match=r"exited .code 1.*xxx") as caught:
        ask_tool(tool(tmp_path, monkeypatch, body))
    assert len(str(caught.value)) < 2000


def test_a_gpu_that_is_not_there() -> None:
    setup = LlamaCppSetup(backend=Backend.CUDA)
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU: what is tested is its absence")
    with pytest.raises(EngineError, match="finds no GPU on this machine"):
        verify_model(small(), Load(), setup, method=SERVER)


# --- really loaded


def test_a_small_model_is_loaded_and_used(tmp_path: Path) -> None:
    files = locate_path(tiny_llama.write_model(tmp_path))
    result = verify_model(files, Load(), LlamaCppSetup(), method=SERVER, really=True)
    held = {item.when: item for item in result.resident}
    steps = ["started", "weights loaded", "context created", "8 tokens decoded"]
    assert list(held) in (steps, [steps[0], *steps[2:]])  # the second may pass too quickly
    sizes = [held[when].resident_bytes for when in (steps[0], *steps[2:])]
    assert 10 * MIB < sizes[0] < sizes[1] <= sizes[2] < 500 * MIB
    assert all(item.anonymous_bytes and item.file_bytes for item in held.values())


def test_what_does_not_fit_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = locate_path(tiny_llama.write_model(tmp_path))
    monkeypatch.setattr(check, "available_bytes", lambda: MIB)
    with pytest.raises(
        UsageError, match=r"not loaded: it would need .* only 1.00 MiB is available"
    ):
        verify_model(files, Load(), LlamaCppSetup(), method=SERVER, really=True)


def test_what_is_elsewhere_is_not_loaded() -> None:
    with pytest.raises(UsageError, match="not a file on this machine"):
        verify_model(small(), Load(), LlamaCppSetup(), method=SERVER, really=True)


def test_available_memory_is_less_than_there_is() -> None:
    available = check.available_bytes()
    assert available is None or MIB < available < 2**60


def row(component: Component, predicted: int, measured: int) -> ComparedRow:
    line = MemoryLine(component=component, size_bytes=predicted, pool=HOST)
    bill = MemoryEstimate(engine="llama.cpp", backend="cpu", lines=(line,))
    answer = MeasuredBytes(low_bytes=measured, high_bytes=measured)
    return next(item for item in compare(bill, {component: answer}) if item.part == component.value)


@pytest.mark.parametrize(
    ("measured", "allowed"),
    [
        (0, 4 * MIB),
        (5 * MIB, 4 * MIB),
        (40 * MIB, 4 * MIB),
        (50 * MIB, 5 * MIB),
        (1000 * MIB, 100 * MIB),
    ],
)
def test_compute_within_a_tenth_or_4_mib(measured: int, allowed: int) -> None:
    assert COMPUTE_FLOOR_BYTES == 4 * MIB
    assert row(Component.COMPUTE, measured + allowed, measured).within
    assert not row(Component.COMPUTE, measured + allowed + 1, measured).within
    if measured > allowed:
        assert row(Component.COMPUTE, measured - allowed, measured).within
        assert not row(Component.COMPUTE, measured - allowed - 1, measured).within


@pytest.mark.parametrize(
    "component", [Component.WEIGHTS, Component.KV_CACHE, Component.STATE, Component.OUTPUT]
)
def test_of_all_else_nothing_is_allowed(component: Component) -> None:
    assert row(component, 10 * MIB, 10 * MIB).within
    assert not row(component, 10 * MIB - 1, 10 * MIB).within
    assert not row(component, 10 * MIB + 1, 10 * MIB).within
