"""What can go wrong before an engine answers, and how it is started."""

from __future__ import annotations

import socket
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import psutil
import pytest
from tests.runtime_engines import SERVER, ask, launch_of, model_of, small_model

from edgekit.bill.types import Load, cache_type
from edgekit.engines.llamacpp.run import binding
from edgekit.engines.llamacpp.run.engine import Progress, start
from edgekit.engines.llamacpp.types import Backend
from edgekit.engines.program import Resident
from edgekit.errors import (
    EngineError,
    MemoryPressureError,
    MissingExtraError,
    NotFoundError,
    UsageError,
)
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


def test_somebody_who_was_faster(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between our look and the engine's bind."""
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr("edgekit.engines.llamacpp.run.engine.check_port", lambda *_: None)
        with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 is already in use"):
            start(launch_of(model, port=port))
