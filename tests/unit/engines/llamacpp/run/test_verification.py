"""EdgeKit's bill compared with what the real llama.cpp of xllamacpp reports, for recorded and for broken headers."""

from __future__ import annotations

import os
import signal
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

from edgekit.bill.types import Component, Load, cache_type
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.run import binding, verification
from edgekit.engines.llamacpp.run.binding import (
    LoadQuestion,
    VerifyMethod,
    choose_method,
)
from edgekit.engines.llamacpp.run.generated import HollowFile, hollow_out, on_disk
from edgekit.engines.llamacpp.run.verification import (
    ask_engine,
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
from edgekit.engines.program import Verification
from edgekit.errors import EngineError, PredictionError, RefusedError, UsageError
from edgekit.sources.local import locate_path
from edgekit.sources.types import ModelFiles
from edgekit.units import GIB, MIB

pytest.importorskip("xllamacpp")

SERVER = binding.METHODS[0]


def recorded_files(model: str, quant: str = "Q4_K_M") -> ModelFiles:
    fact = next(m for m in models() if (m["model"], m["quant"]) == (model, quant))
    file = fact["header_without_vocabulary"]
    return gguf_files(file, header_bytes(file), fact["data_section_bytes"])


def tiny_files() -> ModelFiles:
    return model_files(BytesSource(tiny_llama.model_bytes()))


def verify(files: ModelFiles, **load: object) -> Verification:
    return verify_model(files, Load(**load), LlamaCppSetup(), method=SERVER)  # type: ignore[arg-type]


def differences(result: Verification) -> dict[str, int]:
    """Predicted minus reported bytes of each part except compute, which is allowed to differ."""
    return {row.part: row.difference_bytes for row in result.rows if row.part != "compute"}


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
def test_verify_model_of_each_kind_is_within_bounds(model: str) -> None:
    """Including compute, with any installed version of llama.cpp."""
    result = verify(recorded_files(model), context_tokens=8192)
    assert set(differences(result).values()) == {0}
    assert result.within, result.rows[-1]
    assert result.notes == ()


RECORDED = sorted({model["model"] for model in models() if model["quant"] == "Q4_K_M"})
# Dense, sliding, per-layer inputs, latent, experts, and each kind of state.
REPRESENTATIVE = [
    "llama-3.2-1b", "gemma-3-4b", "gemma-3n-e4b", "deepseek-v2-lite", "llama-4-scout",
    "falcon-h1-1.5b", "mamba-2.8b", "jamba-1.5-mini", "qwen3-next-80b-a3b", "lfm2-1.2b",
]  # fmt: skip
LOADS = {
    "defaults": {"context_tokens": 4096},
    "one sequence": {"context_tokens": 8192, "sequences": 1, "microbatch_tokens": 256},
    "no flash attention": {"context_tokens": 2048, "sequences": 3, "flash_attention": False},
}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
@pytest.mark.parametrize("model", RECORDED if LONG else REPRESENTATIVE)
def test_verify_model_equals_the_newest_known_version(model: str, load: dict[str, object]) -> None:
    result = verify(recorded_files(model), **load)
    if answered_version(result.answer.version) != (NEWEST, None):
        pytest.skip(f"xllamacpp {result.answer.version} is another version")
    assert result.rules_version == version_name(NEWEST, None)
    assert {row.part: row.difference_bytes for row in result.rows if row.difference_bytes} == {}


MORE_HEADERS = {row["file"]: row["data_bytes"] for row in rows("llama_cpp_more.jsonl.gz")}
# Inputs for every layer, image features in several layers, a scale for images, separate weights for images.
UNUSUAL = ("gemma-4-e2b", "qwen3vl-small", "granite-vision-small", "cogvlm")


# deepseek-v4 does not log one of its caches; plm aborts with flash attention.
NOT_VERIFIED = ("deepseek-v4", "plm")


@pytest.mark.parametrize(
    "file",
    [
        file
        for file in MORE_HEADERS
        if (LONG or file.startswith(UNUSUAL)) and not file.startswith(NOT_VERIFIED)
    ],
)
def test_verify_model_of_more_architectures_equals_the_newest_known_version(file: str) -> None:
    head = header_bytes(f"{file}.head.gz", DATA / "headers_more")
    result = verify(gguf_files(f"{file}.gguf", head, MORE_HEADERS[file]), context_tokens=2048)
    if answered_version(result.answer.version) != (NEWEST, None):
        pytest.skip(f"xllamacpp {result.answer.version} is another version")
    assert {row.part: row.difference_bytes for row in result.rows if row.difference_bytes} == {}


@pytest.mark.parametrize(
    ("model", "load"),
    [
        ("gemma-3-4b", {"context_tokens": 5000, "sequences": 3}),  # one cache per sequence
        (
            "gemma-3-4b",
            {"context_tokens": 5000, "sequences": 3, "unified": True, "full_window": True},
        ),
        ("llama-3.2-1b", {"context_tokens": 5000, "flash_attention": False, "batch_tokens": 100}),
        ("qwen3-30b-a3b", {"context_tokens": 32768, "cache_k": "q8_0", "cache_v": "q4_0"}),
        ("qwen3.5-9b", {}),  # its full trained context
    ],
)
def test_verify_model_is_exact_for_weights_caches_and_output(
    model: str, load: dict[str, object]
) -> None:
    cache_types = {
        side: cache_type(str(load[side])) for side in ("cache_k", "cache_v") if side in load
    }
    result = verify(recorded_files(model), **(load | cache_types))
    assert set(differences(result).values()) == {0}
    assert result.notes == ()
    assert result.rows[-1].measured.resolution_bytes < 0.01 * MIB


def test_verify_model_without_a_kv_cache() -> None:
    result = verify(recorded_files("all-minilm-l6-v2", "F16"), context_tokens=512)
    assert differences(result)["kv cache"] == 0
    assert result.rows[1].measured.high_bytes == 0


def test_verify_model_names_the_rules_and_the_engines_version() -> None:
    result = verify(tiny_files())
    assert result.rules_version == version_name(*answered_version(result.answer.version))
    assert result.answer.through == "xllamacpp"
    assert "(llama.cpp " in result.answer.version
    assert result.answer.resolved["n_seq_max"] == "4"
    assert result.mode == "server"


def test_verify_model_of_two_shards_equals_one_file() -> None:
    names = list(tiny_llama.shapes())
    split = (
        key("split.count", UINT16, 2),
        key("split.tensors.count", 5, len(names)),
    )
    shards = [
        tiny_llama.model_bytes(part, key("split.no", UINT16, i), *split)
        for i, part in enumerate((names[:5], names[5:]))
    ]
    assert differences(verify(model_files(*map(BytesSource, shards)))) == differences(
        verify(tiny_files())
    )


def test_verify_model_reports_a_wrong_kv_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = llamacpp.estimate

    def estimate_8_mib_less(*request: object) -> object:
        bill = estimate(*request)  # type: ignore[arg-type]
        lines = [
            replace(line, size_bytes=line.size_bytes - MIB // 2)  # in each of 16 layers
            if line.component is Component.KV_CACHE
            else line
            for line in bill.lines
        ]
        return replace(bill, lines=tuple(lines))

    monkeypatch.setattr(llamacpp, "estimate", estimate_8_mib_less)
    result = verify(recorded_files("llama-3.2-1b"), context_tokens=4096)
    cache = result.rows[1]
    assert not cache.within
    assert not result.within
    assert -16 * MIB // 2 <= cache.difference_bytes < -15 * MIB // 2


def test_refusal_that_the_engine_does_not_share_is_a_prediction_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> object:
        raise RefusedError("llama.cpp would not load it")

    monkeypatch.setattr(llamacpp, "estimate", refuse)
    with pytest.raises(
        PredictionError, match=r"llama\.cpp 0\.6.*loads it, so EdgeKit's prediction is wrong"
    ):
        verify(tiny_files())


def test_refusal_that_the_engine_shares_is_raised() -> None:
    raw = tiny_llama.model_bytes(["token_embd.weight"])
    with pytest.raises(RefusedError, match=r"output_norm\.weight. not found"):
        verify(model_files(BytesSource(raw)))


# --- an engine that dies or refuses


def question(path: Path, load: Load) -> LoadQuestion:
    return LoadQuestion(
        path=path, load=load, setup=LlamaCppSetup(), timeout_s=30.0, memory_bytes=4 * GIB
    )


def ask_engine_about(header: bytes, size_bytes: int) -> None:
    with on_disk([HollowFile(name="m", header=header, size_bytes=size_bytes)]) as path:
        ask_engine(SERVER, question(path, Load()))


def changed(name: str, value: int) -> bytes:
    """The tiny model with another number as the value of this key."""
    raw = tiny_llama.model_bytes()
    at = raw.index(name.encode()) + len(name) + 4
    return raw[:at] + struct.pack("<I", value) + raw[at + 4 :]


@pytest.mark.parametrize(
    ("raw", "message"),
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
def test_corrupt_header_ends_only_the_child_process(raw: bytes, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        ask_engine_about(raw, len(raw))


def test_abort_while_building_the_graph_is_reported() -> None:
    q8 = cache_type("q8_0")
    load = Load(context_tokens=4096, sequences=4, unified=False, cache_k=q8, cache_v=q8)
    with (
        on_disk(hollow_out(recorded_files("phi-3-medium-4k"))) as path,
        pytest.raises(EngineError, match=r"died of SIGABRT.*ggml-impl.h"),
    ):
        ask_engine(SERVER, question(path, load))


def test_header_that_needs_too_much_memory_hits_the_childs_limit() -> None:
    fact = next(m for m in models() if (m["model"], m["quant"]) == ("qwen3-0.6b", "F16"))
    raw = header_bytes(fact["header_without_vocabulary"])
    at = raw.index(b"qwen3.vocab_size") + len(b"qwen3.vocab_size") + 4
    greedy = raw[:at] + struct.pack("<I", 2**31 - 1) + raw[at + 4 :]
    with pytest.raises(EngineError, match=r"limit was 4.00 GiB of address space"):
        ask_engine_about(greedy, len(raw) + fact["data_section_bytes"])


# --- llama-fit-params


def install_tool(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> VerifyMethod:
    """A llama-fit-params with this Python code, first in PATH."""
    path = folder / "llama-fit-params"
    path.write_text(f"#!{sys.executable}\nimport sys, time\nsys.stdout = sys.stderr\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return choose_method(LlamaMode.LIBRARY)


def ask_tool(method: VerifyMethod, timeout_s: float = PATIENCE_S) -> Verification:
    return verify_model(
        tiny_files(), Load(context_tokens=256), LlamaCppSetup(), method=method, timeout_s=timeout_s
    )


VERSION = """\
if '--version' in sys.argv:
    sys.exit('version: 0.5.0-dev (build 1, commit 0c1e570)')
"""
FIGURES = """\
print('llama_context:        CPU  output buffer size =     0.00 MiB')
print('llama_kv_cache: size =    0.06 MiB (   256 cells,   2 layers,  1/1 seqs)')
print('sched_reserve:        CPU compute buffer size =     1.00 MiB')
print('common_memory_breakdown_print: |   - Host |      1 =     0 +       0 +       1       |', flush=True)
"""


@pytest.mark.parametrize("on_windows", [False, True])
def test_verify_model_with_llama_fit_params(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, on_windows: bool
) -> None:
    monkeypatch.setattr(verification, "ON_WINDOWS", on_windows)
    result = ask_tool(install_tool(tmp_path, monkeypatch, VERSION + FIGURES))
    assert result.answer.through == "llama-fit-params"
    assert result.answer.version == "0.5.0-dev (build 1, commit 0c1e570)"
    assert result.mode == "library"
    assert set(differences(result).values()) == {0}


def test_tool_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer fires only after the tool has printed something, however long that takes on a busy machine."""
    printed = tmp_path / "printed"
    method = install_tool(
        tmp_path,
        monkeypatch,
        f"print('error: thinking', flush=True)\nopen({str(printed)!r}, 'x').close()\ntime.sleep(600)",
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    class Timer(threading.Timer):
        def run(self) -> None:
            wait_until(printed.exists)
            self.function(*self.args, **self.kwargs)

    monkeypatch.setattr(threading, "Timer", Timer)
    with pytest.raises(
        EngineError, match=r"did not answer within 0.7 s \(--engine-timeout\): error: thinking"
    ):
        ask_tool(method, timeout_s=0.7)
    printed.unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["llama-fit-params"]


def test_tool_that_leaves_a_process_with_its_output_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "_OUTPUT_S", 0.01)
    pids = tmp_path / "pids"
    leave = f"""
import subprocess
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
open({str(pids)!r}, "a").write(f"{{left.pid}}\\n")
"""
    body = f"{VERSION}{leave}{FIGURES}time.sleep(3600)"
    try:
        result = ask_tool(install_tool(tmp_path, monkeypatch, body))
        assert set(differences(result).values()) == {0}
    finally:
        for pid in pids.read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def test_tool_that_prints_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="did not finish its answer: no output"):
        ask_tool(install_tool(tmp_path, monkeypatch, ""))


def test_tool_that_prints_64_mb_gives_a_short_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "for _ in range(64): sys.stdout.write('x' * 1_000_000)\nsys.exit(1)"
    with pytest.raises(EngineError, match=r"exited .code 1.*xxx") as error:
        ask_tool(install_tool(tmp_path, monkeypatch, body))
    assert len(str(error.value)) < 2000


def test_verify_model_on_a_missing_gpu() -> None:
    setup = LlamaCppSetup(backend=Backend.CUDA)
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU: what is tested is its absence")
    with pytest.raises(EngineError, match="finds no GPU on this machine"):
        verify_model(tiny_files(), Load(), setup, method=SERVER)


# --- with the weights loaded


def test_verify_model_loads_the_weights_and_decodes(tmp_path: Path) -> None:
    files = locate_path(tiny_llama.write_model(tmp_path))
    result = verify_model(files, Load(), LlamaCppSetup(), method=SERVER, really=True)
    resident = {item.when: item for item in result.resident}
    steps = ["started", "weights loaded", "context created", "8 tokens decoded"]
    without_weights = [steps[0], *steps[2:]]  # loading them may end before the first look
    assert list(resident) in (steps, without_weights)
    sizes = [resident[when].resident_bytes for when in (steps[0], *steps[2:])]
    assert 10 * MIB < sizes[0] < sizes[1] <= sizes[2] < 500 * MIB
    assert all(item.anonymous_bytes and item.file_bytes for item in resident.values())


def test_verify_model_does_not_load_what_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = locate_path(tiny_llama.write_model(tmp_path))
    monkeypatch.setattr(verification, "available_bytes", lambda: MIB)
    with pytest.raises(
        UsageError, match=r"not loaded: it would need .* only 1.00 MiB is available"
    ):
        verify_model(files, Load(), LlamaCppSetup(), method=SERVER, really=True)


def test_verify_model_does_not_load_a_remote_file() -> None:
    with pytest.raises(UsageError, match="not a file on this machine"):
        verify_model(tiny_files(), Load(), LlamaCppSetup(), method=SERVER, really=True)


def test_available_bytes_is_plausible() -> None:
    available = verification.available_bytes()
    assert available is None or MIB < available < 2**60
