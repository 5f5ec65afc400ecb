"""What can go wrong until a started engine is ready."""

from __future__ import annotations

import socket
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import psutil
import pytest
from tests.runtime_engines import COMPLETION, SERVER, ask, launch_of, model_of, small_model

from edgekit.bill.types import Load
from edgekit.engines.llamacpp.run import binding
from edgekit.engines.llamacpp.run.engine import start
from edgekit.engines.llamacpp.types import Backend
from edgekit.engines.process import Progress
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
    """Child processes of this one that have not ended."""
    return {child.pid for child in psutil.Process().children()}


def small_adapter(path: Path, model: Path) -> Path:
    """A LoRA of rank 1 that changes the output of the first layer strongly."""
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


def test_start_with_a_broken_chat_template_works_only_without_chat(tmp_path: Path) -> None:
    broken = {"tokenizer.chat_template": "{% for message in messages %}{{ message.content "}
    path = small_model(tmp_path / "m.gguf", keys=broken)
    with pytest.raises(EngineError, match=r"chat template"):
        start(launch_of(path))
    with start(launch_of(path, chat=False)) as running:
        assert ask(running.address, "/completion", COMPLETION)[0] == 200


def test_adapter_is_applied(model: Path, tmp_path: Path) -> None:
    adapter = small_adapter(tmp_path / "a.gguf", model)
    request = {"prompt": "the quick", "n_predict": 8, "temperature": 0, "ignore_eos": True}
    with start(launch_of(model, adapters=(adapter,))) as running:
        _, loaded = ask(running.address, "/lora-adapters")
        assert [(item["path"], item["scale"]) for item in loaded] == [(str(adapter), 1.0)]
        _, adapted = ask(running.address, "/completion", request)
        without = {"lora": [{"id": 0, "scale": 0.0}]}
        _, plain = ask(running.address, "/completion", request | without)
    assert adapted["tokens_predicted"] == plain["tokens_predicted"] == 8
    assert adapted["content"] != plain["content"]


def test_start_with_a_projector_file_that_is_not_one(model: Path) -> None:
    with pytest.raises(EngineError, match=r"failed to load multimodal model|clip"):
        start(launch_of(model, projector=model))


def test_progress_is_shown_in_steps_of_a_tenth_or_1_gib() -> None:
    def shown(size_bytes: int, *resident: int) -> list[str]:
        messages: list[str] = []
        progress = Progress(title="m", size_bytes=size_bytes, tell=messages.append)
        for resident_bytes in resident:
            progress.show(Resident(when="now", resident_bytes=resident_bytes))
        progress.show(None)
        return messages

    assert shown(4 * MIB, 36 * MIB, 37 * MIB, 36 * MIB, 39 * MIB) == [
        "loading m: 36.00 MiB in memory, file size 4.00 MiB"
    ]
    assert len(shown(100 * MIB, 40 * MIB, 49 * MIB, 50 * MIB, 59 * MIB)) == 2  # steps of a tenth
    assert len(shown(100 * GIB, GIB, GIB + 900 * MIB, 2 * GIB, 3 * GIB)) == 3  # steps of 1 GiB


def test_start_without_xllamacpp_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    monkeypatch.setattr(binding, "has_xllamacpp", lambda: False)
    with pytest.raises(MissingExtraError, match=r"pip install 'edgekit-models\[llama\]'"):
        start(launch_of(model))


def test_start_with_a_missing_tensor_quotes_the_engine_and_leaves_no_process(
    tmp_path: Path,
) -> None:
    broken = small_model(tmp_path / "broken.gguf", leave_out=("blk.0.ffn_up.weight",))
    before = engines()
    with pytest.raises(
        EngineError, match=r"exited \(code 1\): .*tensor 'blk.0.ffn_up.weight' not found"
    ) as caught:
        start(launch_of(broken))
    assert caught.value.reason == "llama.cpp exited (code 1)"  # without the log
    assert engines() == before


def test_start_with_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no such file: .*nothing.gguf"):
        start(launch_of(tmp_path / "nothing.gguf"))


def test_start_with_rolling_context_needs_the_full_window_of_sliding_layers(tmp_path: Path) -> None:
    """llama.cpp cannot shift the small cache of sliding layers: it only warns and turns context shift off."""
    path = small_model(tmp_path / "g.gguf", "gemma3", window=256, context_tokens=4096)
    load = Load(context_tokens=4096, sequences=1)
    with pytest.raises(EngineError, match=r"this model's KV cache cannot roll.*--swa-full"):
        start(launch_of(path, load=load, rolling=True, sinks=4))
    with start(launch_of(path, load=replace(load, full_window=True), rolling=True)) as running:
        assert running.poll() is None


def test_start_with_a_draft_model_of_another_vocabulary(tmp_path: Path, model: Path) -> None:
    other = small_model(tmp_path / "other.gguf", "qwen2")
    with pytest.raises(EngineError, match="the draft model does not work with this model"):
        start(launch_of(model, drafter=other))


def test_start_with_layers_on_a_missing_gpu(model: Path) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU: what is tested is its absence")
    with pytest.raises(
        EngineError, match="finds no GPU on this machine, but layers are meant to run on one"
    ):
        start(launch_of(model, setup=replace(SERVER, backend=Backend.CUDA)))


def test_start_that_takes_too_long_ends_the_engine(model: Path) -> None:
    before = engines()
    with pytest.raises(EngineError, match=r"did not start within 0.01 s: "):
        start(launch_of(model, timeout_s=0.01))
    assert engines() == before


def test_start_rechecks_memory_before_it_starts_a_process(model: Path) -> None:
    before = engines()

    def recheck() -> None:
        assert engines() == before
        raise MemoryPressureError("another program took it")

    with pytest.raises(MemoryPressureError, match="another program took it"):
        start(launch_of(model), recheck=recheck)
    assert engines() == before


def test_start_on_a_port_taken_after_it_was_checked(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr("edgekit.engines.process.check_port", lambda *_: None)
        with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 is already in use"):
            start(launch_of(model, port=port))
