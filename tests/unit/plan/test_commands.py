"""A plan's ready commands: every flag where it belongs, and none that promises less memory than the plan's bill."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.plan.machines import host
from tests.unit.report.plans import cards, cpu, found, gguf, mac, planned, qwen

from edgekit.bill.types import Decision, Drafter, Lever, Load, cache_type
from edgekit.cli.parser import build_parser
from edgekit.engines import engine_named
from edgekit.engines.commands import Command, shell_text
from edgekit.engines.flags import COMMON, CONTEXT, given_flags, read_flags
from edgekit.engines.llamacpp.estimate import estimate
from edgekit.engines.llamacpp.flags import FLAGS
from edgekit.engines.llamacpp.setups import setup as llamacpp_setup
from edgekit.engines.llamacpp.types import Backend, LlamaCppSetup
from edgekit.engines.mlx.quantization import Packing, Quantize
from edgekit.machine.types import Device, Machine, System, Vendor
from edgekit.plan.commands import ready_commands
from edgekit.plan.plan import Plan
from edgekit.sources.types import Origin
from edgekit.units import GIB

Q8, Q4 = cache_type("q8_0"), cache_type("q4_0")
SMALL, MOE = "qwen3-0.6b", "qwen3-30b-a3b"


def ready(plan: Plan, **more: Any) -> dict[str, Command]:
    return {command.name: command for command in ready_commands(plan, **more)}


def words(plan: Plan, name: str = "llama-server", **more: Any) -> list[str]:
    return shlex.split(ready(plan, **more)[name].text)


def after(flag: str, line: list[str]) -> str:
    return line[line.index(flag) + 1]


# What runs what.


@pytest.mark.parametrize(
    ("plan", "names"),
    [
        (lambda: planned(gguf(SMALL), cpu(16)), ["llama-server", "llama-cli", "Ollama server", "Ollama Modelfile", "Ollama", "LM Studio settings", "LM Studio preset", "lms load"]),
        (lambda: planned(qwen(), cards(24), engine="vllm"), ["vllm serve"]),
        (lambda: planned(qwen(), mac(32), engine="mlx"), ["mlx_lm.convert", "mlx_lm.server", "LM Studio settings", "LM Studio preset", "lms load"]),
    ],
)  # fmt: skip
def test_only_what_runs_such_files(plan: Any, names: list[str]) -> None:
    assert list(ready(plan())) == names


# llama.cpp


def test_on_the_processor() -> None:
    line = words(planned(gguf(SMALL), cpu(16)))
    assert line[:5] == ["llama-server", "-m", "./model.gguf", "-c", "32768"]
    assert after("-dev", line) == "none"
    assert not {"-ngl", "-ctk", "-fa", "-np", "-ts"} & set(line)


def test_all_of_it_on_a_card() -> None:
    line = words(planned(gguf(SMALL), cards(24)))
    assert after("-ngl", line) == "all"
    assert "-dev" not in line


def test_some_layers_on_a_card() -> None:
    plan = planned(gguf("llama-3.1-70b"), cards(24, ram=64), load=Load(context_tokens=16_384))
    layers = LlamaCppSetup.of(plan.result.way.setup).n_gpu_layers
    assert 0 < layers < 80
    assert after("-ngl", words(plan)) == str(layers)


def test_experts_on_the_host() -> None:
    plan = planned(gguf(MOE), cards(12), load=Load(context_tokens=32_768))
    count = LlamaCppSetup.of(plan.result.way.setup).n_cpu_moe
    assert after("-ncmoe", words(plan)) == str(count) != "0"
    whole = planned(
        gguf(MOE), cards(12), cpu_moe=True, fixed_flags=("cpu_moe",), backend=Backend.CUDA
    )
    assert "-cmoe" in words(whole)


@pytest.mark.parametrize(
    ("load", "told"),
    [
        (Load(context_tokens=8192, cache_k=Q8, cache_v=Q8), ["-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on"]),
        (Load(context_tokens=8192, cache_k=Q8), ["-ctk", "q8_0"]),
        (Load(context_tokens=8192, flash_attention=False), ["-fa", "off"]),
        (Load(context_tokens=8192, sequences=4), ["-np", "4"]),
        (Load(context_tokens=8192, sequences=4, unified=True), ["-np", "4", "-kvu"]),
        (Load(context_tokens=8192, batch_tokens=512, microbatch_tokens=128), ["-b", "512", "-ub", "128"]),
    ],
)  # fmt: skip
def test_a_load_in_llama_cpps_words(load: Load, told: list[str]) -> None:
    line = words(planned(gguf(SMALL), cpu(16), load=load))
    at = line.index(told[0])
    assert line[at : at + len(told)] == told


def test_each_user_of_llama_cli_is_alone() -> None:
    plan = planned(gguf(SMALL), cpu(16), load=Load(context_tokens=32_768, sequences=4))
    line = words(plan, "llama-cli")
    assert (after("-c", line), after("-np", line)) == (str(32_768 // 4), "1")


def test_what_may_grow_is_held_within_the_host() -> None:
    plan = planned(gguf("gemma-3-27b"), cards(24, ram=16), load=Load(context_tokens=16_384))
    line = words(plan)
    assert int(after("-cram", line)) < 8192
    assert int(after("-ctxcp", line)) < 32


def test_a_division_keeps_the_order_it_was_made_for() -> None:
    plan = planned(
        gguf("mistral-small-24b"), cards(24, 12), tensor_split=(3.0, 1.0), fixed_flags=("tensor_split",), backend=Backend.CUDA
    )  # fmt: skip
    text = ready(plan)["llama-server"].text
    assert text.startswith("CUDA_DEVICE_ORDER=PCI_BUS_ID llama-server ")
    assert after("-ts", shlex.split(text)) == "3,1"
    assert "-nkvo" not in text


def test_a_card_that_is_left_out() -> None:
    text = ready(planned(gguf(SMALL), cards(2, 24)))["llama-server"].text
    assert text.startswith("CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1 llama-server ")


def test_a_card_of_another_maker_that_is_left_out() -> None:
    small, large = (
        Device(name=f"Radeon {size}", vendor=Vendor.AMD, index=at, total_bytes=size * GIB, free_bytes=size * GIB)
        for at, size in enumerate((2, 24))
    )  # fmt: skip
    machine = Machine(name="two", system=System.LINUX, host=host(64), devices=(small, large))
    found_one = ready(planned(gguf(SMALL), machine))["llama-server"]
    assert found_one.text.startswith("llama-server ")
    assert any("Radeon 24 only" in note and "-dev" in note for note in found_one.notes)


def test_the_cache_stays_on_the_host() -> None:
    plan = planned(gguf(SMALL), cards(24), offload_kqv=False, fixed_flags=("offload_kqv",), backend=Backend.CUDA)  # fmt: skip
    assert "-nkvo" in words(plan)


DRAFT = gguf(SMALL)


@pytest.mark.parametrize(
    ("drafter", "told"),
    [
        (Drafter(name="a/d at Q4_K_M", model=DRAFT, mix="Q4_K_M"), ["-md", "DRAFT.gguf", "-ngld", "all"]),
        (Drafter(name="qwen3-0.6b at Q8_0", model=DRAFT, mix="Q8_0"), ["-hfd", "Qwen/Qwen3-0.6B-GGUF:Q8_0", "-ngld", "all"]),
        (Drafter(name="its own"), ["--spec-type", "draft-mtp"]),
    ],
)  # fmt: skip
def test_draft_words_are_not_in_the_command(drafter: Drafter, told: list[str]) -> None:
    plan = planned(gguf("llama-3.1-8b"), cards(24), drafter=drafter)
    assert engine_named("llama.cpp").draft_words(plan.result, drafter) == told
    assert told[0] not in words(plan)


# Feeding it back: what was emitted, read by the flags of `estimate`, is the plan's own bill.

_NOT_BILLED = {"-ngld": 2, "--no-mmproj": 1}


@pytest.mark.parametrize(
    "plan",
    [
        lambda: planned(gguf(SMALL), cpu(8)),
        lambda: planned(gguf("llama-3.1-8b"), cards(12), load=Load(context_tokens=65_536, cache_k=Q8, cache_v=Q8)),
        lambda: planned(gguf("llama-3.1-70b"), cards(24), load=Load(context_tokens=16_384)),
        lambda: planned(gguf(MOE), cards(12), load=Load(context_tokens=16_384, sequences=2)),
        lambda: planned(gguf("mistral-small-24b"), cards(24, 12)),
        lambda: planned(gguf("gemma-3-27b"), mac(36)),
    ],
)  # fmt: skip
def test_the_emitted_flags_are_the_planned_bill(plan: Any) -> None:
    plan = plan()
    line = words(plan)
    values = _read(line[line.index("llama-server") + 3 :])
    load, setup = llamacpp_setup(values)
    setup = replace(setup, devices=plan.result.way.setup.devices)
    if "backend" not in values:
        setup = replace(setup, backend=plan.result.way.setup.backend)
    again = estimate(plan.variant.model, load, setup)
    assert again.total_bytes == plan.result.estimate.total_bytes
    assert {again.in_pools(use.budget.pools) for use in plan.result.uses} == {
        use.required_bytes + use.covered_bytes for use in plan.result.uses
    }


def _read(line: list[str]) -> dict[str, Any]:
    kept = []
    skip = 0
    for word in line:
        skip = skip or _NOT_BILLED.get(word, 0)
        if skip:
            skip -= 1
        else:
            kept.append(word)
    given = given_flags(build_parser().parse_args(["estimate", "MODEL", *kept]))
    flags = {**given.get(COMMON, {}), **given.get("llama.cpp", {})}
    return read_flags((CONTEXT, *FLAGS), flags)


# Where the model is.


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("./a b.gguf", ["-m", "./a b.gguf"]),
        ("/models/it's.gguf", ["-m", "/models/it's.gguf"]),
        ("org/name-GGUF:Q4_K_M", ["-hf", "org/name-GGUF:Q4_K_M", "--no-mmproj"]),
        ("org/name-GGUF/sub/file.gguf", ["-hf", "org/name-GGUF", "-hff", "sub/file.gguf", "--no-mmproj"]),
        ("https://example.com/x.gguf", ["-mu", "https://example.com/x.gguf"]),
    ],
)  # fmt: skip
def test_where_the_model_is(reference: str, told: list[str]) -> None:
    line = words(planned(gguf(SMALL), cpu(16), reference=reference))
    assert line[1 : 1 + len(told)] == told


def test_the_files_that_were_found_win_over_the_text() -> None:
    files = found("org/name-GGUF:Q4_K_M", Origin.HUB, reference="org/name-GGUF")
    plan = planned(gguf(SMALL), cpu(16), reference="org/name-GGUF")
    assert words(plan, files=files)[1:3] == ["-hf", "org/name-GGUF:Q4_K_M"]
    other = planned(gguf(SMALL), cpu(16), reference="org/name-GGUF:Q8_0")
    assert words(other, files=files)[1:3] == ["-hf", "org/name-GGUF:Q8_0"]


def test_model_words_without_a_known_repository_name_a_placeholder_and_the_search() -> None:
    plan = planned(gguf(SMALL), cpu(16), reference="", label="org/Some-Model", mix="Q5_K_M")
    one = ready(plan)["llama-server"]
    assert shlex.split(one.text)[1:3] == ["-m", "MODEL.gguf"]
    assert one.notes[0] == (
        "no known repository has Some-Model at Q5_K_M: search"
        " https://huggingface.co/models?library=gguf&search=Some-Model and replace MODEL.gguf with the file you find"
    )
    assert "FROM ./MODEL.gguf" in ready(plan)["Ollama Modelfile"].text


@pytest.mark.parametrize(
    ("label", "mix", "told"),
    [
        ("qwen3-8b", "Q4_K_M", ["-hf", "Qwen/Qwen3-8B-GGUF:Q4_K_M", "-c"]),  # the publisher's own
        ("Qwen/Qwen3-8B", "IQ4_XS", ["-hf", "unsloth/Qwen3-8B-GGUF:IQ4_XS", "-c"]),
        ("gpt-oss-120b", "MXFP4_MOE", ["-hf", "ggml-org/gpt-oss-120b-GGUF", "-c"]),  # its only file
        ("sample:gemma-3-27b", "Q4_K_M", ["-hf", "bartowski/google_gemma-3-27b-it-GGUF:Q4_K_M", "--no-mmproj"]),
        ("llama-3.3-70b", "Q4_K_M", ["-hf", "lmstudio-community/Llama-3.3-70B-Instruct-GGUF:Q4_K_M", "-c"]),
    ],
)  # fmt: skip
def test_model_words_of_the_catalog_name_a_repository(
    label: str, mix: str, told: list[str]
) -> None:
    plan = planned(gguf(SMALL), cpu(16), reference="", label=label, mix=mix)
    assert words(plan)[1:4] == told
    assert "no repository" not in " ".join(ready(plan)["llama-server"].notes)


def test_model_words_of_a_local_file_at_another_mix_say_how_it_is_made() -> None:
    files = found("model-f16.gguf", reference="./model-f16.gguf")
    plan = planned(gguf(SMALL), cpu(16), reference="", label="model-f16.gguf", mix="Q5_K_M")
    one = ready(plan, files=files)["llama-server"]
    assert shlex.split(one.text)[1:3] == ["-m", "model-f16-Q5_K_M.gguf"]
    answer = (
        "make model-f16-Q5_K_M.gguf first: llama-quantize ./model-f16.gguf model-f16-Q5_K_M.gguf"
    )
    assert one.notes[0] == f"{answer} Q5_K_M"


@pytest.mark.parametrize(
    "label", ["$(reboot)", "a b; c", "'\"", "`x`", "", "x\nSYSTEM y", "\x1b[2J"]
)
def test_hostile_names_stay_words(label: str) -> None:
    plan = planned(gguf(SMALL), cpu(16), reference=f"./{label}.gguf", label=label)
    made = ready(plan)
    shown = re.sub(r"[\n\x1b]", "\N{REPLACEMENT CHARACTER}", label)
    assert words(plan)[2] == f"./{shown}.gguf"
    assert "\n" not in made["llama-server"].text
    assert made["Ollama Modelfile"].text.splitlines()[0] == f"FROM ./{shown}.gguf"
    assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*", shlex.split(made["Ollama"].text)[2])


def test_windows_gets_powershell() -> None:
    plan = planned(gguf(SMALL), cards(2, 24, system=System.WINDOWS), reference="C:\\it's mine.gguf")
    text = ready(plan)["llama-server"].text
    assert text.startswith("$env:CUDA_DEVICE_ORDER='PCI_BUS_ID'; $env:CUDA_VISIBLE_DEVICES='1'; ")
    assert " -m 'C:\\it''s mine.gguf' -c 32768 " in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a", "3,1"], "a '3,1'"),
        (["a", "@b"], "a '@b'"),
        (["a", "-c", "1"], "a -c 1"),
        (["a", "$x"], "a '$x'"),
    ],
)
def test_powershells_own_signs_are_quoted(words: list[str], text: str) -> None:
    assert shell_text(words, {}, System.WINDOWS) == text


# vLLM


def test_vllm_serve() -> None:
    files = found("Qwen/Qwen3-8B", Origin.HUB)
    plan = planned(qwen(), cards(24), engine="vllm", reference="Qwen/Qwen3-8B", load=Load(context_tokens=8192))  # fmt: skip
    line = words(plan, "vllm serve", files=files)
    assert line[:5] == ["vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "8192"]
    assert "--distributed-executor-backend" not in line


def test_vllm_says_what_is_not_its_default() -> None:
    plan = planned(
        qwen(), cards(24, 24), engine="vllm", load=Load(context_tokens=8192), kv_cache_dtype="fp8",
        tensor_parallel_size=2, gpu_memory_utilization=0.8, enforce_eager=True, enable_prefix_caching=False,
        fixed_flags=("tensor_parallel_size", "gpu_memory_utilization"),
    )  # fmt: skip
    line = words(plan, "vllm serve")
    assert line[5:] == [
        "-tp", "2", "--kv-cache-dtype", "fp8", "--gpu-memory-utilization", "0.8",
        "--no-enable-prefix-caching", "--enforce-eager",
    ]  # fmt: skip


def test_vllm_on_the_larger_of_two_cards() -> None:
    text = ready(planned(qwen(), cards(8, 24), engine="vllm", load=Load(context_tokens=8192)))
    assert "CUDA_VISIBLE_DEVICES=1 " in text["vllm serve"].text


def test_vllm_on_two_machines() -> None:
    plan = planned(
        qwen(), cards(12, 12), engine="vllm", nodes=2, load=Load(context_tokens=8192), tensor_parallel_size=2,
        pipeline_parallel_size=2, fixed_flags=("tensor_parallel_size", "pipeline_parallel_size"),
    )  # fmt: skip
    made = ready(plan)
    assert [(item.name, item.text) for item in made.values()][:2] == [
        ("ray, on the first machine", "ray start --head --port=6379"),
        ("ray, on the other machine", "ray start --address=HEAD_IP:6379"),
    ]
    line = shlex.split(made["vllm serve"].text)
    assert (after("-tp", line), after("-pp", line)) == ("2", "2")
    assert after("--distributed-executor-backend", line) == "ray"
    assert not line[0].startswith("CUDA")


def test_all_machines_are_used_from_the_start() -> None:
    plan = planned(qwen(), cards(24), engine="vllm", nodes=2, load=Load(context_tokens=8192))
    assert next(iter(ready(plan))) == "ray, on the first machine"


def test_vllm_serves_as_many_as_there_are_users() -> None:
    plan = planned(qwen(), cards(24), engine="vllm", load=Load(context_tokens=8192))
    assert "--max-num-seqs" not in words(plan, "vllm serve")
    several = replace(plan, task=replace(plan.task, users=3))
    assert after("--max-num-seqs", words(several, "vllm serve")) == "3"


# MLX


def test_weights_are_packed_first() -> None:
    made = ready(planned(qwen(), mac(32), engine="mlx", reference="org/Own-8B", label="org/Own-8B"))
    assert shlex.split(made["mlx_lm.convert"].text) == [
        "mlx_lm.convert", "--hf-path", "org/Own-8B", "-q", "--q-bits", "4", "--q-group-size", "64",
        "--mlx-path", "Own-8B-4bit",
    ]  # fmt: skip
    assert shlex.split(made["mlx_lm.server"].text)[:3] == ["mlx_lm.server", "--model", "Own-8B-4bit"]  # fmt: skip


def test_mlx_takes_a_repository_that_is_packed_already() -> None:
    plan = planned(qwen(), mac(32), engine="mlx", reference="", label="qwen3-8b")
    made = ready(plan)
    assert "mlx_lm.convert" not in made
    output = shlex.split(made["mlx_lm.server"].text)[:3]
    assert output == ["mlx_lm.server", "--model", "Qwen/Qwen3-8B-MLX-4bit"]
    other = planned(qwen(), mac(32), engine="mlx", reference="", label="qwen3-8b", quantize=Quantize(packing=Packing(bits=4, group_size=32)))  # fmt: skip
    convert = shlex.split(ready(other)["mlx_lm.convert"].text)
    assert convert[:3] == ["mlx_lm.convert", "--hf-path", "Qwen/Qwen3-8B"]


def test_vllm_serves_the_version_that_answers() -> None:
    plan = planned(qwen(), cards(24), engine="vllm", reference="", label="llama-3.1-8b")
    assert words(plan, "vllm serve")[:3] == ["vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct"]


def test_as_it_was_planned_to_be_packed() -> None:
    how = Quantize(packing=Packing(bits=8, group_size=32))
    plan = planned(qwen(), mac(32), engine="mlx", quantize=how)
    assert "--q-bits 8 --q-group-size 32" in ready(plan)["mlx_lm.convert"].text


def test_the_server_holds_no_more_than_was_planned() -> None:
    load = Load(context_tokens=8192, sequences=2)
    plan = planned(qwen(), mac(32), engine="mlx", load=load)
    line = words(plan, "mlx_lm.server")
    assert (after("--decode-concurrency", line), after("--prompt-concurrency", line)) == ("2", "2")
    kept = int(after("--prompt-cache-bytes", line))
    tightest = plan.result.tightest
    most = tightest.budget.available_bytes
    assert kept == plan.result.estimate.kv_cache_bytes + most - tightest.required_bytes


def test_a_packed_cache_is_not_for_the_server() -> None:
    plan = planned(qwen(), mac(32), engine="mlx", kv_bits=8, quantized_kv_start=0)
    made = ready(plan)
    assert "mlx_lm.server" not in made
    assert "--kv-bits 8 --kv-group-size 64 --quantized-kv-start 0" in made["mlx_lm.generate"].text
    fields = {item["key"]: item["value"] for item in json.loads(made["LM Studio preset"].text)["load"]["fields"]}  # fmt: skip
    assert fields["llm.load.mlx.kvCacheQuantization"] == {"enabled": True, "bits": 8, "groupSize": 64, "quantizedStart": 0}  # fmt: skip


@pytest.mark.parametrize("decided", [True, False])
def test_the_limit_of_the_gpu_is_raised_first(*, decided: bool) -> None:
    """Where the plan says that it helps: 32 GiB less an eighth."""
    decision = Decision(lever=Lever.LIMIT, value="iogpu.wired_limit_mb=28672", because="longer")
    decisions = (decision,) if decided else ()
    made = ready_commands(planned(qwen(), mac(32, 21), engine="mlx", decisions=decisions))
    found = tuple(item for item in made if item.name == "GPU memory limit")
    assert found == (made[:1] if decided else ())
    for item in found:
        assert item.text == "sudo sysctl iogpu.wired_limit_mb=28672"
        assert item.program == "limit"
        assert item.notes[0] == "longer"


# Ollama


def test_a_modelfile() -> None:
    assert ready(planned(gguf(SMALL), cards(24)))["Ollama Modelfile"].text == (
        "FROM ./model.gguf\nPARAMETER num_ctx 32768\nPARAMETER num_gpu 29\n"
    )  # 28 blocks and the output


@pytest.mark.parametrize(
    ("reference", "label", "name"),
    [
        ("org/name-GGUF:Q4_K_M", "org/Some-Model", "hf.co/org/name-GGUF:Q4_K_M"),
        ("", "llama-3.1-8b", "llama3.1:8b"),
        ("", "qwen3-8b", "hf.co/Qwen/Qwen3-8B-GGUF:Q4_K_M"),  # Ollama's own tag is a larger file
    ],
)
def test_ollama_runs_a_name_without_a_modelfile(reference: str, label: str, name: str) -> None:
    made = ready(planned(gguf(SMALL), cards(24), reference=reference, label=label))
    assert made["Ollama"].text == f"ollama run {name}"
    assert "Ollama Modelfile" not in made


def test_ollama_needs_a_modelfile_where_its_default_is_another_placement() -> None:
    on_cpu = planned(gguf(SMALL), cards(24), reference="", label="llama-3.1-8b", n_gpu_layers=5, fixed_flags=("n_gpu_layers",), backend=Backend.CUDA)  # fmt: skip
    text = ready(on_cpu)["Ollama Modelfile"].text
    assert text == "FROM llama3.1:8b\nPARAMETER num_ctx 32768\nPARAMETER num_gpu 5\n"


def test_ollamas_server() -> None:
    load = Load(context_tokens=16_384, sequences=2, cache_k=Q8, cache_v=Q8)
    text = ready(planned(gguf(SMALL), cards(24), load=load))["Ollama server"].text
    assert text == (
        "OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_NUM_PARALLEL=2 OLLAMA_KV_CACHE_TYPE=q8_0 OLLAMA_FLASH_ATTENTION=1 ollama serve"
    )


@pytest.mark.parametrize(
    ("load", "setup", "told"),
    [
        (Load(context_tokens=8192, cache_k=Q8, cache_v=Q4), {}, "q4_0 here"),
        (Load(context_tokens=8192, cache_k=Q8), {}, "q8_0 here"),
        (Load(context_tokens=8192), {"offload_kqv": False}, "no --no-kv-offload"),
        (Load(context_tokens=8192), {}, "one request at a time: in Ollama each of 4"),
    ],
)
def test_what_ollama_cannot(load: Load, setup: dict[str, Any], told: str) -> None:
    more: dict[str, Any] = {"settled": tuple(setup), "backend": Backend.CUDA} if setup else {}
    plan = planned(gguf(SMALL), cards(24), load=load, **setup, **more)
    assert any(told in note for note in ready(plan)["Ollama server"].notes)


def test_ollama_leaves_experts_where_it_wants() -> None:
    plan = planned(gguf(MOE), cards(12), load=Load(context_tokens=16_384))
    made = ready(plan)
    assert "num_gpu" not in made["Ollama Modelfile"].text
    assert any("experts" in note for note in made["Ollama server"].notes)


def test_ollama_on_the_processor_and_with_limits() -> None:
    plan = planned(gguf("gemma-3-27b"), cpu(32), load=Load(context_tokens=16_384))
    made = ready(plan)
    assert "PARAMETER num_gpu 0\n" in made["Ollama Modelfile"].text
    assert "LLAMA_ARG_CTX_CHECKPOINTS=" in made["Ollama server"].text


# LM Studio


def settings(plan: Plan) -> dict[str, Any]:
    preset = json.loads(ready(plan)["LM Studio preset"].text)
    return {item["key"]: item["value"] for item in preset["load"]["fields"]}


def test_lm_studios_settings() -> None:
    plan = planned(gguf(MOE), cards(12), load=Load(context_tokens=16_384, cache_k=Q8, cache_v=Q8))
    kept = settings(plan)
    assert kept["llm.load.contextLength"] == 16_384
    assert kept["llm.load.llama.acceleration.offloadRatio"] == "max"
    assert kept["llm.load.numCpuExpertLayersRatio"] == 23 / 48  # a layer that -ot divides counts
    assert kept["llm.load.llama.kCacheQuantizationType"] == {"checked": True, "value": "q8_0"}
    assert kept["llm.load.llama.flashAttention"] is kept["llm.load.offloadKVCacheToGpu"] is True
    output = ready(plan)["LM Studio settings"].text
    assert "Context Length: 16384\n" in output
    assert "GPU Offload: 48 of 48 layers\n" in output
    assert "on the CPU: 23 of 48 layers\n" in output
    assert "K Cache Quantization Type: q8_0\n" in output


def test_lm_studio_with_some_layers_and_a_card_left_out() -> None:
    plan = planned(gguf("llama-3.1-70b"), cards(2, 24), load=Load(context_tokens=16_384))
    kept = settings(plan)
    assert kept["llm.load.llama.acceleration.offloadRatio"] == LlamaCppSetup.of(plan.result.way.setup).n_gpu_layers / 80  # fmt: skip
    assert kept["load.gpuSplitConfig"]["customRatio"] == [0.0, 1.0]


def test_lms_load() -> None:
    plan = planned(gguf(SMALL), cards(24), reference="org/name-GGUF:Q4_K_M", load=Load(context_tokens=8192, cache_k=Q8, cache_v=Q8))  # fmt: skip
    one = ready(plan)["lms load"]
    assert one.text == "lms load org/name-GGUF --context-length 8192 --gpu max --parallel 4"
    assert any("K Cache Quantization Type" in note for note in one.notes)
