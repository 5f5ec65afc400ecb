"""What can go wrong before an engine answers, and how it is started."""

from __future__ import annotations

import socket
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import psutil
import pytest
from tests.runtime_engines import SERVER, ask, launch_of, model_of, small_model

from edgekit.bill.types import Component, Load, MemoryEstimate, MemoryLine, cache_type
from edgekit.engines import process as ports
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.companions import bill_with_drafter
from edgekit.engines.llamacpp.run import binding
from edgekit.engines.llamacpp.run.engine import Progress, start
from edgekit.engines.llamacpp.run.launch import make_settings
from edgekit.engines.llamacpp.run.program import compare_reported, logged_part
from edgekit.engines.llamacpp.types import Backend
from edgekit.engines.process import check_port
from edgekit.engines.program import Resident
from edgekit.errors import (
    EngineError,
    MemoryPressureError,
    MissingExtraError,
    NotFoundError,
    UsageError,
)
from edgekit.machine.types import HOST
from edgekit.units import GIB, MIB

pytest.importorskip("xllamacpp")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("models") / "small.gguf")


def engines() -> set[int]:
    """Processes that were started here and are still there."""
    return {child.pid for child in psutil.Process().children()}


# --- started as it was said


Q8 = cache_type("q8_0")
F16 = cache_type("f16")


def test_the_settings_are_the_launch() -> None:
    launch = launch_of(
        Path("m.gguf"),
        load=Load(
            context_tokens=4096,
            sequences=3,
            unified=True,
            batch_tokens=256,
            microbatch_tokens=128,
            cache_k=Q8,
            cache_v=Q8,
            flash_attention=True,
        ),
        setup=replace(
            SERVER,
            backend=Backend.CUDA,
            n_gpu_layers=7,
            n_cpu_moe=1,
            tensor_split=(3.0, 1.0),
            repack=True,
            use_mmap=False,
            cache_ram_mib=64,
            ctx_checkpoints=2,
            draft_max=6,
        ),
        sinks=4,
        rolling=True,
        drafter=Path("d.gguf"),
        drafter_load=Load(cache_k=F16, cache_v=F16),
        adapters=(Path("a.gguf"), Path("b.gguf")),
        port=8080,
        alias="name",
    )
    answer = make_settings(launch)
    assert {name: answer["parameters"][name] for name in EXPECTED} == EXPECTED
    assert answer["enums"] == {
        "load_mode": ("llama_load_mode", "LLAMA_LOAD_MODE_NONE"),
        "flash_attn_type": ("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_ENABLED"),
        "cache_type_k": ("ggml_type", "GGML_TYPE_Q8_0"),
        "cache_type_v": ("ggml_type", "GGML_TYPE_Q8_0"),
    }
    assert answer["needs_device"]
    assert answer["drafter"] == {
        "path": "d.gguf",
        "type": "COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE",
        "parameters": {"n_gpu_layers": -1, "n_max": 6},
        "enums": {  # its own, not the model's
            "cache_type_k": ("ggml_type", "GGML_TYPE_F16"),
            "cache_type_v": ("ggml_type", "GGML_TYPE_F16"),
        },
    }
    assert answer["adapters"] == ["a.gguf", "b.gguf"]
    assert answer["projector"] is None
    assert launch.files == (Path("m.gguf"), Path("d.gguf"), Path("a.gguf"), Path("b.gguf"))


EXPECTED: dict[str, Any] = {
    "n_ctx": 4096,
    "n_parallel": 3,
    "kv_unified": True,
    "n_batch": 256,
    "n_ubatch": 128,
    "n_gpu_layers": 7,
    "tensor_split": [3.0, 1.0],
    "tensor_buft_overrides": r"blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU",
    "no_extra_bufts": False,
    "no_kv_offload": False,
    "n_keep": 4,
    "ctx_shift": True,
    "cache_ram_mib": 64,
    "n_ctx_checkpoints": 2,
    "fit_params": False,
    "warmup": True,
    "load_mtp": False,
    "hostnames": ["127.0.0.1"],
    "port": 8080,
    "api_keys": [],
    "cors_origins": "localhost",  # web pages of others have no key
    "model_alias": ["name"],
    "chat_template": "",
    "no_mmproj": True,
    "mmproj_use_gpu": True,
}


def test_a_projector_and_a_template_of_ones_own() -> None:
    launch = launch_of(Path("m.gguf"), projector=Path("p.gguf"), chat=False)
    answer = make_settings(launch)
    assert answer["projector"] == "p.gguf"
    assert answer["parameters"]["no_mmproj"] is False
    assert answer["parameters"]["mmproj_use_gpu"] is False  # it is billed to the host
    assert answer["parameters"]["chat_template"] == "chatml"
    assert launch.files == (Path("m.gguf"), Path("p.gguf"))
    assert [launch.maps(path) for path in launch.files] == [True, False]


def test_blocks_that_predict_further_tokens_are_a_drafter() -> None:
    setup = replace(SERVER, load_mtp=True, draft_max=3)
    answer = make_settings(
        launch_of(Path("m.gguf"), setup=setup, load=Load(cache_k=Q8, cache_v=Q8))
    )
    assert answer["parameters"]["load_mtp"]
    assert answer["drafter"]["path"] is None
    assert answer["drafter"]["type"] == "COMMON_SPECULATIVE_TYPE_DRAFT_MTP"
    assert answer["drafter"]["enums"] == {}  # their cache is f16, as the bill has it


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sinks": -1}, "at least 0 and at most 508"),
        ({"sinks": 509}, "at least 0 and at most 508 .got 509"),
        (
            {"load": Load(context_tokens=3)},
            "a context of 3 tokens is too short: .* so the minimum is 5",
        ),
        ({"load": Load(context_tokens=4)}, "a context of 4 tokens is too short"),
        (
            {"rolling": True, "projector": Path("p.gguf")},
            "cannot combine a rolling context with",
        ),
        ({"threads": 0}, "must be at least 1"),
        ({"load": Load(output_rows=7)}, "number of output rows"),
        ({"setup": replace(SERVER, mix="Q4_K_M")}, r"llama-quantize m.gguf OUTPUT.gguf Q4_K_M"),
        ({"port": 65_536}, "port 65,536 is not between 0 and 65,535"),
    ],
)
def test_what_makes_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        start(launch_of(Path("m.gguf"), **changes))


def test_an_8_bit_cache_and_a_drafter_are_what_was_billed(model: Path, tmp_path: Path) -> None:
    main = small_model(tmp_path / "main.gguf", layers=3, context_tokens=8192)
    load = Load(context_tokens=8192, sequences=2, unified=True, cache_k=Q8, cache_v=Q8)
    own = replace(load, cache_k=F16, cache_v=Q8)
    setup = replace(SERVER, draft_max=4)
    bill = bill_with_drafter(
        llamacpp.estimate(model_of(main), load, setup), model_of(model), own, setup
    )
    launch = launch_of(main, load=load, setup=setup, drafter=model, drafter_load=own, alias="two")
    with start(launch) as running:
        rows = compare_reported(bill, running)
        assert [row.part for row in rows if row.part != "compute" and not row.within] == []
        row = 128 // 32 * 34  # of 128 numbers, at 34 bytes for 32 of them
        assert bill.of(Component.KV_CACHE) == 8192 * (3 * (row + row) + 128 * 2 + row)
        request = {"prompt": "the quick", "n_predict": 16, "temperature": 0, "ignore_eos": True}
        _, answer = ask(running.address, "/completion", request)
        assert answer["tokens_predicted"] == 16
        assert answer["timings"]["draft_n"] > 0  # it was asked


def test_a_window_of_sliding_layers_is_what_was_billed(tmp_path: Path) -> None:
    path = small_model(
        tmp_path / "g.gguf",
        "gemma3",
        layers=4,
        window=256,
        window_period=2,
        context_tokens=4096,
    )
    load = Load(context_tokens=4096, sequences=1)
    bill = llamacpp.estimate(model_of(path), load, SERVER)
    with start(launch_of(path, load=load)) as running:
        parts = {row.part: row for row in compare_reported(bill, running)}
    for name in ("weights", "kv cache", "sliding kv cache", "output"):
        assert parts[name].within, parts[name]
    assert parts["sliding kv cache"].predicted_bytes > 0


def small_adapter(path: Path, model: Path) -> Path:
    """A LoRA of rank 1 that adds one direction to all that the first layer gives, and much of it."""
    name = "blk.0.ffn_down.weight"
    tensors = model_of(model).header.tensors or ()
    (shape,) = (tensor.shape for tensor in tensors if tensor.name == name)
    random = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 1.0)
    for end, size in (("lora_a", (1, shape[-1])), ("lora_b", (shape[0], 1))):
        writer.add_tensor(f"{name}.{end}", random.normal(0, 30, size).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_what_the_log_does_not_tell_is_not_compared() -> None:
    def line(part: str) -> MemoryLine:
        return MemoryLine(component=Component.WEIGHTS, size_bytes=1, pool=HOST, part=part)

    bill = MemoryEstimate(
        engine="llama.cpp",
        backend="cpu",
        lines=tuple(map(line, ("", "drafter", "adapter", "projector"))),
    )
    assert [item.part for item in logged_part(bill).lines] == ["", "drafter"]


def test_an_adapter_on_a_model_whose_template_is_broken(tmp_path: Path) -> None:
    broken = {"tokenizer.chat_template": "{% for one in messages %}{{ one.content "}
    path = small_model(tmp_path / "m.gguf", keys=broken)
    with pytest.raises(EngineError, match=r"chat template"):
        start(launch_of(path))
    adapter = small_adapter(tmp_path / "a.gguf", path)
    request = {"prompt": "the quick", "n_predict": 8, "temperature": 0, "ignore_eos": True}
    with start(launch_of(path, adapters=(adapter,), chat=False)) as running:
        _, loaded = ask(running.address, "/lora-adapters")
        assert [(item["path"], item["scale"]) for item in loaded] == [(str(adapter), 1.0)]
        _, with_it = ask(running.address, "/completion", request)
        without = {"lora": [{"id": 0, "scale": 0.0}]}
        _, plain = ask(running.address, "/completion", request | without)
    assert with_it["tokens_predicted"] == plain["tokens_predicted"] == 8
    assert with_it["content"] != plain["content"]


# --- an engine that does not come up


def test_a_projector_that_is_none(model: Path) -> None:
    with pytest.raises(EngineError, match=r"failed to load multimodal model|clip"):
        start(launch_of(model, projector=model))


def test_progress_is_told_when_there_is_some() -> None:
    def told(size_bytes: int, *held: int) -> list[str]:
        messages: list[str] = []
        progress = Progress(title="m", size_bytes=size_bytes, tell=messages.append)
        for resident_bytes in held:
            progress.show(Resident(when="now", resident_bytes=resident_bytes))
        progress.show(None)
        return messages

    assert told(4 * MIB, 36 * MIB, 37 * MIB, 36 * MIB, 39 * MIB) == [
        "loading m: 36.00 MiB in memory, file size 4.00 MiB"
    ]
    assert len(told(100 * MIB, 40 * MIB, 49 * MIB, 50 * MIB, 59 * MIB)) == 2  # a tenth
    assert len(told(100 * GIB, GIB, GIB + 900 * MIB, 2 * GIB, 3 * GIB)) == 3


def test_no_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    monkeypatch.setattr(binding, "has_xllamacpp", lambda: False)
    with pytest.raises(MissingExtraError, match=r"pip install 'edgekit-models\[llama\]'"):
        start(launch_of(model))


def test_a_file_that_the_engine_rejects(tmp_path: Path) -> None:
    broken = small_model(tmp_path / "broken.gguf", leave_out=("blk.0.ffn_up.weight",))
    before = engines()
    with pytest.raises(
        EngineError, match=r"exited \(code 1\): .*tensor 'blk.0.ffn_up.weight' not found"
    ):
        start(launch_of(broken))
    assert engines() == before


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no such file: .*nothing.gguf"):
        start(launch_of(tmp_path / "nothing.gguf"))


def test_a_window_that_cannot_roll_is_not_left_standing(tmp_path: Path) -> None:
    """Sliding layers hold too few cells to be turned: llama.cpp would go on without."""
    path = small_model(tmp_path / "g.gguf", "gemma3", window=256, context_tokens=4096)
    load = Load(context_tokens=4096, sequences=1)
    with pytest.raises(EngineError, match=r"this model's KV cache cannot roll.*--swa-full"):
        start(launch_of(path, load=load, rolling=True, sinks=4))
    with start(launch_of(path, load=replace(load, full_window=True), rolling=True)) as running:
        assert running.poll() is None


def test_a_drafter_of_another_language_is_not_dropped_silently(tmp_path: Path, model: Path) -> None:
    other = small_model(tmp_path / "other.gguf", "qwen2")
    with pytest.raises(EngineError, match="the draft model does not work with this model"):
        start(launch_of(model, drafter=other))


def test_layers_for_a_gpu_that_is_not_there(model: Path) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU: what is tested is its absence")
    with pytest.raises(
        EngineError, match="finds no GPU on this machine, but layers are meant to run on one"
    ):
        start(launch_of(model, setup=replace(SERVER, backend=Backend.CUDA)))


def test_a_slow_engine_is_ended(model: Path) -> None:
    before = engines()
    with pytest.raises(EngineError, match=r"did not start within 0.01 s: "):
        start(launch_of(model, timeout_s=0.01))
    assert engines() == before


def test_memory_that_is_gone_by_now(model: Path) -> None:
    """Checked again just before anything is loaded."""
    before = engines()

    def recheck() -> None:
        assert engines() == before
        raise MemoryPressureError("somebody took it")

    with pytest.raises(MemoryPressureError, match="somebody took it"):
        start(launch_of(model), recheck=recheck)
    assert engines() == before


# --- ports


def test_a_port_of_another_program() -> None:
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for host in ("127.0.0.1", "localhost", "0.0.0.0"):
            with pytest.raises(
                UsageError, match=rf"port {port} of {host} is already in use by process \d+"
            ):
                check_port(host, port)
    check_port("127.0.0.1", port)


def test_somebody_who_was_faster(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between our look and the engine's bind."""
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr("edgekit.engines.llamacpp.run.engine.check_port", lambda *_: None)
        with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 is already in use"):
            start(launch_of(model, port=port))


def test_a_port_whose_connections_fade_away_is_free() -> None:
    with closing(socket.socket()) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with closing(socket.create_connection(("127.0.0.1", port))):
            accepted, _ = other.accept()
            accepted.close()  # the side that closes first waits
    check_port("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no such host", "203.0.113.7", "x" * 70])
def test_an_address_of_somebody_else(host: str) -> None:
    with pytest.raises(UsageError, match=r"use 127.0.0.1"):
        check_port(host, 0)


def test_where_a_server_is_reached() -> None:
    assert [ports.connectable(host) for host in ("0.0.0.0", "::", "10.0.0.1")] == [
        "127.0.0.1",
        "::1",
        "10.0.0.1",
    ]
    assert ports.in_address("::1") == "[::1]"
