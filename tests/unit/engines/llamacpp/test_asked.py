"""`--ask-engine`: the bill of the llama.cpp on this machine, for loads that our rules know and for models they do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.programs import write_program
from tests.runtime_engines import small_model

from edgekit.bill.types import CACHES, Component, Load, cache_type
from edgekit.cli import main
from edgekit.engines import engine_named
from edgekit.engines.llamacpp import asked, estimate
from edgekit.engines.llamacpp.architectures import architecture_names
from edgekit.engines.llamacpp.asked import asked_lines
from edgekit.engines.llamacpp.run import binding
from edgekit.engines.llamacpp.run.verification import ask_engine
from edgekit.engines.llamacpp.types import Backend, DeviceSlot, LlamaCppSetup, LlamaMode
from edgekit.engines.program import (
    NOTHING,
    EngineReport,
    Installation,
    MeasuredBytes,
    ReportedMemory,
)
from edgekit.errors import EngineError
from edgekit.machine.types import HOST, Pool, PoolKind
from edgekit.model import open_model
from edgekit.units import MIB, Basis

SERVER = LlamaCppSetup(mode=LlamaMode.SERVER, rules=11549)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small_model(tmp_path_factory.mktemp("asked") / "small.gguf", layers=2))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capsys.readouterr()
        return code, " ".join(out.split()) if "--json" not in words else out, err

    return run


@pytest.fixture
def _unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """EdgeKit does not know the architecture of the model, which llama.cpp does."""
    names = [name for name in architecture_names() if name != "llama"]
    monkeypatch.setattr(estimate, "architecture_names", lambda: names)


LOADS = {
    "usual": Load(context_tokens=2048),
    "one sequence": Load(context_tokens=1024, sequences=1),
    "apart": Load(context_tokens=1024, sequences=2, unified=False),
    "8-bit cache": Load(
        context_tokens=512,
        sequences=1,
        cache_k=cache_type("q8_0"),
        cache_v=cache_type("q8_0"),
        flash_attention=True,
    ),
}


@pytest.mark.parametrize("name", LOADS)
def test_asked_bill_is_our_own_within_the_precision_of_the_log(model: str, name: str) -> None:
    pytest.importorskip("xllamacpp")
    opened, load = open_model(model), LOADS[name]
    own = estimate.estimate(opened.model, load, SERVER)
    bill = asked.ask(opened.model, opened.files, load, SERVER, own)
    assert bill.basis is Basis.ASKED
    for component in (Component.WEIGHTS, *CACHES, Component.OUTPUT, Component.COMPUTE):
        lines = [line for line in bill.lines if line.component is component and line.reserved]
        bound = sum(line.size_bytes * (line.within or 0.0) for line in lines)
        off = abs(bill.of(component) - own.of(component))
        assert off <= max(bound, MIB // 100), component  # a size below 0.005 MiB is printed as 0
    later = [line for line in own.lines if not line.reserved]
    assert [line for line in bill.lines if not line.reserved] == later
    assert dict(bill.facts) == dict(own.facts)
    layers = {line.layer for line in own.lines if line.component is Component.WEIGHTS}
    assert {0, 1} <= layers
    assert {line.layer for line in bill.lines if line.component is Component.WEIGHTS} == layers


def test_asked_bill_of_a_model_of_the_index_has_a_generated_header() -> None:
    pytest.importorskip("xllamacpp")
    opened = open_model("sample:gemma-3-27b")
    load = Load(context_tokens=4096, sequences=1)
    setup = replace(SERVER, mix="Q8_0")
    own = estimate.estimate(opened.model, load, setup)
    bill = asked.ask(opened.model, None, load, setup, own)
    assert bill.of(Component.SLIDING_KV_CACHE) > 0
    assert abs(bill.weights_bytes - own.weights_bytes) <= MIB
    assert abs(bill.kv_cache_bytes - own.kv_cache_bytes) <= MIB // 10


def mib(low: float) -> MeasuredBytes:
    return MeasuredBytes(low_bytes=int(low * MIB), high_bytes=int((low + 1) * MIB) - 1)


def memory(device: int | None, weights: float, caches: float, compute: float) -> ReportedMemory:
    sizes = [mib(size) if size else mib(0) for size in (weights, caches, compute)]
    return ReportedMemory(device=device, weights=sizes[0], caches=sizes[1], compute=sizes[2])


def test_asked_lines_divide_each_part_among_the_memories() -> None:
    exact = MeasuredBytes(low_bytes=400 * MIB, high_bytes=400 * MIB)
    report = EngineReport(
        through="xllamacpp",
        version="2026.10",
        parts={
            Component.WEIGHTS: mib(600) + mib(200) + mib(100),
            Component.KV_CACHE: exact,
            Component.SLIDING_KV_CACHE: NOTHING,
            Component.STATE: NOTHING,
            Component.OUTPUT: mib(4),
            Component.COMPUTE: mib(90),
        },
        memories=(
            memory(0, 600, 300, 60),
            memory(1, 200, 100, 30),
            memory(None, 100, 0, 0),
        ),
    )
    lines = list(asked_lines(report))
    first, second = Pool(PoolKind.DEVICE, 0), Pool(PoolKind.DEVICE, 1)
    sizes = {(line.component, line.pool): line.size_bytes for line in lines}
    assert {pool for component, pool in sizes if component is Component.WEIGHTS} == {
        first,
        second,
        HOST,
    }
    assert sizes[Component.KV_CACHE, first] + sizes[Component.KV_CACHE, second] == 400 * MIB
    assert abs(sizes[Component.KV_CACHE, first] - 300 * MIB) <= MIB
    assert (Component.KV_CACHE, HOST) not in sizes
    assert (Component.OUTPUT, HOST) in sizes
    assert (Component.COMPUTE, HOST) not in sizes
    for line in lines:
        assert line.basis is Basis.ASKED
        assert line.within is not None
        assert line.within * line.size_bytes <= 4 * MIB


SIZES_MIB = st.integers(1, 4000)


@given(st.lists(st.tuples(SIZES_MIB, SIZES_MIB, SIZES_MIB), min_size=1, max_size=4))
@example([(300, 1, 1), (100, 100, 1)])  # the sliding layers are nearly all on the second device
def test_bound_of_each_cache_holds_the_truth(truth: list[tuple[int, int, int]]) -> None:
    """llama.cpp reports the total of each kind of cache, and the sum of all kinds in each memory."""
    totals = {
        kind: MeasuredBytes(low_bytes=size * MIB, high_bytes=size * MIB)
        for kind, size in zip(CACHES, map(sum, zip(*truth, strict=True)), strict=True)
    }
    memories = [memory(i, 1, sum(sizes), 1) for i, sizes in enumerate(truth)]
    report = EngineReport(
        through="xllamacpp",
        version="2026.10",
        parts={Component.WEIGHTS: mib(1), Component.COMPUTE: mib(1), **totals},
        memories=(*memories, memory(None, 0, 0, 0)),
    )
    lines = {(line.component, line.pool): line for line in asked_lines(report)}
    for index, sizes in enumerate(truth):
        for kind, size in zip(CACHES, sizes, strict=True):
            line = lines[kind, Pool(PoolKind.DEVICE, index)]
            assert line.within is not None
            assert abs(line.size_bytes - size * MIB) <= line.within * line.size_bytes + 1


@pytest.mark.parametrize("command", ["estimate", "check", "plan"])
def test_ask_engine_marks_the_answer(run: Run, model: str, command: str) -> None:
    pytest.importorskip("xllamacpp")
    code, out, _ = run(command, model, "-c", "1024", "--ask-engine")
    assert code == 0
    assert "memory: reported by the engine" in out
    code, out, _ = run(command, model, "-c", "1024", "--ask-engine", "--json")
    document = json.loads(out)
    bill = document if command == "estimate" else document["estimate"]
    assert bill["basis"] in {"asked", "modelled"}  # a prompt cache may come later
    weights = next(line for line in bill["lines"] if line["component"] == "weights")
    assert weights["basis"] == "asked"
    assert weights["because"].startswith("xllamacpp ")
    assert any("EdgeKit's own estimate is" in note for note in bill["notes"])


def test_ask_engine_gives_the_verdict_by_the_engines_bill(
    run: Run, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bill that is far too large, although our own fits."""
    pytest.importorskip("xllamacpp")

    def larger(*arguments: Any) -> EngineReport:
        report = ask_engine(*arguments)
        return replace(report, parts={**report.parts, Component.COMPUTE: mib(2**30)})

    monkeypatch.setattr(asked, "ask_engine", larger)
    code, out, _ = run("check", model, "-c", "1024", "--ask-engine")
    assert code == 3
    assert out.startswith("Does not fit")
    assert run("check", model, "-c", "1024")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("check", "--device", "RTX 4090"), "leave out --device, --ram, --vram and --cpu"),
        (("plan", "--ram", "16G"), "leave out --device, --ram, --vram and --cpu"),
        (("estimate", "--vram", "16G"), "leave out --device, --ram, --vram and --cpu"),
        (("estimate", "--engine", "vllm"), "vllm reports its memory only after it has loaded"),
        (("estimate", "--engine", "mlx"), "mlx reports its memory only after it has loaded"),
    ],
    ids=lambda item: " ".join(item) if isinstance(item, tuple) else "",
)
def test_ask_engine_that_cannot_be_asked(run: Run, words: tuple[str, ...], message: str) -> None:
    command, *more = words
    code, _, err = run(command, "qwen3-8b", "-c", "4k", "--ask-engine", *more)
    assert code == 2
    assert message in err


def test_ask_engine_without_llamacpp_says_what_to_install(
    run: Run, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = tuple(replace(method, is_here=lambda: False) for method in binding.METHODS)
    for module in (binding, asked):
        monkeypatch.setattr(module, "METHODS", nowhere)
    code, _, err = run("estimate", model, "--ask-engine")
    assert code == 5
    assert "no llama.cpp found on this machine" in err
    assert "pip install 'edgekit-models[llama]'" in err


@pytest.mark.usefixtures("_unknown")
@pytest.mark.parametrize("command", ["estimate", "check", "plan"])
def test_unknown_architecture_is_asked_without_the_flag(run: Run, model: str, command: str) -> None:
    pytest.importorskip("xllamacpp")
    code, out, _ = run(command, model, "-c", "1024")
    assert code == 0
    assert "memory: reported by the engine" in out
    assert "llama-server -m" in out


@pytest.mark.usefixtures("_unknown")
def test_unknown_architecture_has_the_bill_of_a_known_one(run: Run, model: str) -> None:
    pytest.importorskip("xllamacpp")
    _, out, _ = run("estimate", model, "-c", "1024", "--mode", "server", "--json")
    bill = json.loads(out)
    load, setup = engine_named("llama.cpp").setup({"context": 1024, "mode": "server"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimate, "architecture_names", lambda: ["llama"])
        own = estimate.estimate(open_model(model).model, load, LlamaCppSetup.of(setup))
    assert abs(bill["model_bytes"] - own.weights_bytes) <= MIB
    assert abs(bill["kv_bytes"] - own.kv_cache_bytes) <= MIB // 100
    assert {name: bill["facts"][name] for name in ("n_ctx", "n_seq_max", "kv_cells")} == {
        name: dict(own.facts)[name] for name in ("n_ctx", "n_seq_max", "kv_cells")
    }


@pytest.mark.parametrize("command", ["estimate", "check", "plan"])
def test_architecture_that_nobody_knows_has_the_engines_reason(
    run: Run, model: str, tmp_path: Path, command: str
) -> None:
    pytest.importorskip("xllamacpp")
    path = tmp_path / "new.gguf"
    path.write_bytes(Path(model).read_bytes().replace(b"llama", b"zzama"))
    code, _, err = run(command, str(path), "-c", "1024")
    assert code == 2
    assert (
        "does not support architecture 'zzama'; a newer version may; asked on this machine" in err
    )
    assert "unknown model architecture: 'zzama'" in err


@pytest.mark.usefixtures("_unknown")
def test_unknown_architecture_is_not_asked_for_another_machine(run: Run, model: str) -> None:
    code, _, err = run("check", model, "-c", "1024", "--ram", "16G")
    assert code == 2
    assert "a newer version may" in err
    assert "asked on this machine" not in err


# As llama-fit-params logs it for Qwen2.5 7B on an H200, and as it would with another card.
GPU_LOG = """\
llama_context: n_seq_max             = 1
llama_context: n_ctx                 = 4096
llama_context:  CUDA_Host  output buffer size =     0.49 MiB
llama_kv_cache: size =  448.00 MiB (  4096 cells,  28 layers,  1/1 seqs), K (f16):  224.00 MiB, V (f16):  224.00 MiB
sched_reserve:      CUDA0 compute buffer size =    30.50 MiB
sched_reserve:      CUDA1 compute buffer size =    10.10 MiB
sched_reserve:  CUDA_Host compute buffer size =    12.02 MiB
common_memory_breakdown_print: |   - CUDA0 (NVIDIA H200)  | 143167 = 142000 + (1328 =   850 +     336 +      30) +        -161 |
common_memory_breakdown_print: |   - CUDA1 (NVIDIA H200)  | 143167 = 142000 + (1328 =   300 +     112 +      10) +        -161 |
common_memory_breakdown_print: |   - Host                 |                   299 =   287 +       0 +      12                |
"""

CPU_LOG = """\
llama_context:        CPU  output buffer size =     0.00 MiB
llama_kv_cache: size =    0.06 MiB (   256 cells,   2 layers,  1/1 seqs)
sched_reserve:        CPU compute buffer size =     1.00 MiB
common_memory_breakdown_print: |   - Host |      1 =     1 +       0 +       1       |
"""


@pytest.fixture
def _fit_params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A llama-fit-params on the PATH that reports two GPUs, and no wheel."""
    code = (
        "import sys\n"
        "if '--version' in sys.argv: print('version: 0.6.0-dev (build 11549, commit 0c1e570)')\n"
        f"else: print({GPU_LOG!r}, file=sys.stderr)"
    )
    write_program(tmp_path / "llama-fit-params", code)
    monkeypatch.setenv("PATH", str(tmp_path))
    wheel = replace(binding.XLLAMACPP, is_here=lambda: False)
    monkeypatch.setattr(asked, "METHODS", (wheel, binding.FIT_TOOL))


@pytest.mark.usefixtures("_unknown")
def test_run_of_an_unknown_architecture_asks_each_question_once(
    run: Run, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xllamacpp")
    contexts: list[int | None] = []

    def counted(method: Any, question: Any) -> EngineReport:
        contexts.append(question.load.context_tokens)
        return ask_engine(method, question)

    monkeypatch.setattr(asked, "ask_engine", counted)
    assert run("run", model, "-p", "a", "-n", "4", "--raw", "-q")[0] == 0
    assert contexts
    assert len(set(contexts)) == len(contexts)


def test_the_build_of_the_chosen_llama_server_is_asked(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not another one on the PATH, and not the wheel."""
    versions = {"chosen": "version: 9294 (0c1e570)", "other": "version: 9993 (0c1e570)"}
    for name, version in versions.items():
        code = f"import sys\nprint({version!r} if '--version' in sys.argv else {CPU_LOG!r})"
        write_program(tmp_path / name / "llama-fit-params", code.replace("print(", "sys.exit("))
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    chosen = Installation(
        program="llama-server", origin="PATH", path=str(tmp_path / "chosen" / "llama-server")
    )
    opened, load = open_model(model), Load(context_tokens=256, sequences=1)
    bill = asked.ask(opened.model, opened.files, load, SERVER, None, program=chosen)
    weights = next(line for line in bill.lines if line.component is Component.WEIGHTS)
    assert weights.because == "llama-fit-params 9294 (0c1e570) reports it"


@pytest.mark.usefixtures("_fit_params")
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_asked_bill_of_two_gpus(model: str, *, is_known: bool) -> None:
    opened, load = open_model(model), Load(context_tokens=4096, sequences=1)
    setup = replace(SERVER, backend=Backend.CUDA, devices=(DeviceSlot(), DeviceSlot()))
    own = estimate.estimate(opened.model, load, setup)
    bill = asked.ask(opened.model, opened.files, load, setup, own if is_known else None)
    first, second = Pool(PoolKind.DEVICE, 0), Pool(PoolKind.DEVICE, 1)

    def size(component: Component, pool: Pool) -> int:
        return sum(
            line.size_bytes
            for line in bill.lines
            if (line.component, line.pool) == (component, pool)
        )

    for component, pool, mebibytes in (
        (Component.WEIGHTS, first, 850),
        (Component.WEIGHTS, second, 300),
        (Component.WEIGHTS, HOST, 287),
        (Component.KV_CACHE, first, 336),
        (Component.KV_CACHE, second, 112),
        (Component.COMPUTE, first, 30),
        (Component.COMPUTE, second, 10),
        (Component.COMPUTE, HOST, 12),
    ):
        assert abs(size(component, pool) - mebibytes * MIB) <= MIB, (component, pool)
    assert abs(bill.of(Component.KV_CACHE) - 448 * MIB) <= MIB // 100
    for pool in (first, second):  # the driver's context, which llama.cpp does not report
        assert size(Component.RUNTIME, pool) > 500 * MIB
    assert dict(bill.facts)["n_ctx"] == 4096
    assert any(
        "reported by llama-fit-params, which runs llama.cpp as a library" in note
        for note in bill.notes
    )


@pytest.mark.usefixtures("_fit_params")
def test_asked_gpu_that_llamacpp_does_not_find(model: str, tmp_path: Path) -> None:
    """A build for the CPU ignores the layers that are meant for a GPU."""
    log = "\n".join(line for line in GPU_LOG.splitlines() if "- CUDA" not in line)
    log = log.replace("size =  448.00", "size =    0.00")
    log = "\n".join(
        line
        for line in log.splitlines()
        if "CUDA0 compute" not in line and "CUDA1 compute" not in line
    )
    write_program(tmp_path / "llama-fit-params", f"import sys\nprint({log!r}, file=sys.stderr)")
    opened = open_model(model)
    setup = replace(SERVER, backend=Backend.CUDA)
    with pytest.raises(EngineError, match="finds no GPU on this machine"):
        asked.ask(opened.model, opened.files, Load(context_tokens=4096), setup, None)
