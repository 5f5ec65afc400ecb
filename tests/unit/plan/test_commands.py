"""plan/commands.py: the commands of a plan for every program, with flags that have the plan's bill."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.plan.machines import host
from tests.unit.report.plans import cards, cpu, gguf, mac, model_files, planned, qwen

from edgekit.bill.types import Decision, Drafter, Lever, Load, cache_type
from edgekit.cli import main
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


def arguments_of(plan: Plan, name: str = "llama-server", **more: Any) -> list[str]:
    return shlex.split(ready(plan, **more)[name].text)


def after(flag: str, line: list[str]) -> str:
    return line[line.index(flag) + 1]


@pytest.mark.parametrize(
    ("plan", "names"),
    [
        (lambda: planned(gguf(SMALL), cpu(16)), ["llama-server", "llama-cli", "Ollama server", "Ollama Modelfile", "Ollama", "LM Studio settings", "LM Studio preset", "lms load"]),
        (lambda: planned(qwen(), cards(24), engine="vllm"), ["vllm serve"]),
        (lambda: planned(qwen(), mac(32), engine="mlx"), ["mlx_lm.convert", "mlx_lm.server", "LM Studio settings", "LM Studio preset", "lms load"]),
    ],
)  # fmt: skip
def test_ready_commands_of_each_engine(plan: Any, names: list[str]) -> None:
    assert list(ready(plan())) == names


# llama.cpp


def test_llama_server_on_the_cpu() -> None:
    line = arguments_of(planned(gguf(SMALL), cpu(16)))
    assert line[:5] == ["llama-server", "-m", "./model.gguf", "-c", "32768"]
    assert after("-dev", line) == "none"
    assert not {"-ngl", "-ctk", "-fa", "-np", "-ts"} & set(line)


def test_llama_server_fully_on_the_gpu() -> None:
    line = arguments_of(planned(gguf(SMALL), cards(24)))
    assert after("-ngl", line) == "all"
    assert "-dev" not in line


def test_llama_server_with_some_layers_on_the_gpu() -> None:
    plan = planned(gguf("llama-3.1-70b"), cards(24, ram=64), load=Load(context_tokens=16_384))
    layers = LlamaCppSetup.of(plan.result.way.setup).n_gpu_layers
    assert 0 < layers < 80
    assert after("-ngl", arguments_of(plan)) == str(layers)


def test_llama_server_with_experts_in_ram() -> None:
    plan = planned(gguf(MOE), cards(12), load=Load(context_tokens=32_768))
    count = LlamaCppSetup.of(plan.result.way.setup).n_cpu_moe
    assert after("-ncmoe", arguments_of(plan)) == str(count) != "0"
    all_experts = planned(
        gguf(MOE), cards(12), cpu_moe=True, fixed_flags=("cpu_moe",), backend=Backend.CUDA
    )
    assert "-cmoe" in arguments_of(all_experts)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (Load(context_tokens=8192, cache_k=Q8, cache_v=Q8), ["-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on"]),
        (Load(context_tokens=8192, cache_k=Q8), ["-ctk", "q8_0"]),
        (Load(context_tokens=8192, flash_attention=False), ["-fa", "off"]),
        (Load(context_tokens=8192, sequences=4), ["-np", "4"]),
        (Load(context_tokens=8192, sequences=4, unified=True), ["-np", "4", "-kvu"]),
        (Load(context_tokens=8192, batch_tokens=512, microbatch_tokens=128), ["-b", "512", "-ub", "128"]),
    ],
)  # fmt: skip
def test_llama_server_flags_of_a_load(load: Load, expected: list[str]) -> None:
    line = arguments_of(planned(gguf(SMALL), cpu(16), load=load))
    at = line.index(expected[0])
    assert line[at : at + len(expected)] == expected


def test_llama_cli_has_one_sequence_and_the_context_of_one_user() -> None:
    plan = planned(gguf(SMALL), cpu(16), load=Load(context_tokens=32_768, sequences=4))
    line = arguments_of(plan, "llama-cli")
    assert (after("-c", line), after("-np", line)) == (str(32_768 // 4), "1")


def test_llama_server_limits_prompt_cache_and_checkpoints_to_the_ram() -> None:
    plan = planned(gguf("gemma-3-27b"), cards(24, ram=16), load=Load(context_tokens=16_384))
    line = arguments_of(plan)
    assert int(after("-cram", line)) < 8192
    assert int(after("-ctxcp", line)) < 32


def test_llama_server_with_a_split_pins_the_order_of_the_cards() -> None:
    plan = planned(
        gguf("mistral-small-24b"), cards(24, 12), tensor_split=(3.0, 1.0), fixed_flags=("tensor_split",), backend=Backend.CUDA
    )  # fmt: skip
    text = ready(plan)["llama-server"].text
    assert text.startswith("CUDA_DEVICE_ORDER=PCI_BUS_ID llama-server ")
    assert after("-ts", shlex.split(text)) == "3,1"
    assert "-nkvo" not in text


def test_llama_server_hides_an_unused_nvidia_card() -> None:
    text = ready(planned(gguf(SMALL), cards(2, 24)))["llama-server"].text
    assert text.startswith("CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1 llama-server ")


def test_llama_server_notes_an_unused_amd_card() -> None:
    small, large = (
        Device(name=f"Radeon {size}", vendor=Vendor.AMD, index=at, total_bytes=size * GIB, free_bytes=size * GIB)
        for at, size in enumerate((2, 24))
    )  # fmt: skip
    machine = Machine(name="two", system=System.LINUX, host=host(64), devices=(small, large))
    command = ready(planned(gguf(SMALL), machine))["llama-server"]
    assert command.text.startswith("llama-server ")
    assert any("Radeon 24 only" in note and "-dev" in note for note in command.notes)


def test_llama_server_with_the_cache_in_ram() -> None:
    plan = planned(gguf(SMALL), cards(24), offload_kqv=False, fixed_flags=("offload_kqv",), backend=Backend.CUDA)  # fmt: skip
    assert "-nkvo" in arguments_of(plan)


DRAFT = gguf(SMALL)


@pytest.mark.parametrize(
    ("drafter", "expected"),
    [
        (Drafter(name="a/d at Q4_K_M", model=DRAFT, mix="Q4_K_M"), ["-md", "DRAFT.gguf", "-ngld", "all"]),
        (Drafter(name="qwen3-0.6b at Q8_0", model=DRAFT, mix="Q8_0"), ["-hfd", "Qwen/Qwen3-0.6B-GGUF:Q8_0", "-ngld", "all"]),
        (Drafter(name="its own"), ["--spec-type", "draft-mtp"]),
    ],
)  # fmt: skip
def test_draft_words_are_separate_from_the_command(drafter: Drafter, expected: list[str]) -> None:
    plan = planned(gguf("llama-3.1-8b"), cards(24), drafter=drafter)
    assert engine_named("llama.cpp").draft_words(plan.result, drafter) == expected
    assert expected[0] not in arguments_of(plan)


# The emitted flags, read back as flags of `estimate`, must have the plan's bill.

NOT_BILLED = {"-ngld": 2, "--no-mmproj": 1}


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
def test_llama_server_flags_have_the_planned_bill(plan: Any) -> None:
    plan = plan()
    line = arguments_of(plan)
    values = read_setup_flags(line[line.index("llama-server") + 3 :])
    load, setup = llamacpp_setup(values)
    setup = replace(setup, devices=plan.result.way.setup.devices)
    if "backend" not in values:
        setup = replace(setup, backend=plan.result.way.setup.backend)
    estimated = estimate(plan.variant.model, load, setup)
    assert estimated.total_bytes == plan.result.estimate.total_bytes
    assert {estimated.in_pools(use.budget.pools) for use in plan.result.uses} == {
        use.required_bytes + use.covered_bytes for use in plan.result.uses
    }


def read_setup_flags(line: list[str]) -> dict[str, Any]:
    billed = []
    skip = 0
    for word in line:
        skip = skip or NOT_BILLED.get(word, 0)
        if skip:
            skip -= 1
        else:
            billed.append(word)
    given = given_flags(build_parser().parse_args(["estimate", "MODEL", *billed]))
    flags = {**given.get(COMMON, {}), **given.get("llama.cpp", {})}
    return read_flags((CONTEXT, *FLAGS), flags)


# The model's file or repository.


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("./a b.gguf", ["-m", "./a b.gguf"]),
        ("/models/it's.gguf", ["-m", "/models/it's.gguf"]),
        ("org/name-GGUF:Q4_K_M", ["-hf", "org/name-GGUF:Q4_K_M", "--no-mmproj"]),
        ("org/name-GGUF/sub/file.gguf", ["-hf", "org/name-GGUF", "-hff", "sub/file.gguf", "--no-mmproj"]),
        ("https://example.com/x.gguf", ["-mu", "https://example.com/x.gguf"]),
    ],
)  # fmt: skip
def test_model_words_of_a_reference(reference: str, expected: list[str]) -> None:
    line = arguments_of(planned(gguf(SMALL), cpu(16), reference=reference))
    assert line[1 : 1 + len(expected)] == expected


def test_model_words_take_the_tag_of_the_files_if_the_reference_has_none() -> None:
    files = model_files("org/name-GGUF:Q4_K_M", Origin.HUB, reference="org/name-GGUF")
    plan = planned(gguf(SMALL), cpu(16), reference="org/name-GGUF")
    assert arguments_of(plan, files=files)[1:3] == ["-hf", "org/name-GGUF:Q4_K_M"]
    other = planned(gguf(SMALL), cpu(16), reference="org/name-GGUF:Q8_0")
    assert arguments_of(other, files=files)[1:3] == ["-hf", "org/name-GGUF:Q8_0"]


def test_model_words_without_a_known_repository_name_a_placeholder_and_the_search() -> None:
    plan = planned(gguf(SMALL), cpu(16), reference="", label="org/Some-Model", mix="Q5_K_M")
    command = ready(plan)["llama-server"]
    assert shlex.split(command.text)[1:3] == ["-m", "MODEL.gguf"]
    assert command.notes[0] == (
        "no known repository has Some-Model at Q5_K_M: search"
        " https://huggingface.co/models?library=gguf&search=Some-Model and replace MODEL.gguf with the file you find"
    )
    assert "FROM ./MODEL.gguf" in ready(plan)["Ollama Modelfile"].text


@pytest.mark.parametrize(
    ("label", "mix", "expected"),
    [
        ("qwen3-8b", "Q4_K_M", ["-hf", "Qwen/Qwen3-8B-GGUF:Q4_K_M", "-c"]),  # the publisher's own
        ("Qwen/Qwen3-8B", "IQ4_XS", ["-hf", "unsloth/Qwen3-8B-GGUF:IQ4_XS", "-c"]),
        ("gpt-oss-120b", "MXFP4_MOE", ["-hf", "ggml-org/gpt-oss-120b-GGUF", "-c"]),  # its only file
        ("sample:gemma-3-27b", "Q4_K_M", ["-hf", "bartowski/google_gemma-3-27b-it-GGUF:Q4_K_M", "--no-mmproj"]),
        ("llama-3.3-70b", "Q4_K_M", ["-hf", "lmstudio-community/Llama-3.3-70B-Instruct-GGUF:Q4_K_M", "-c"]),
    ],
)  # fmt: skip
def test_model_words_of_the_catalog_name_a_repository(
    label: str, mix: str, expected: list[str]
) -> None:
    plan = planned(gguf(SMALL), cpu(16), reference="", label=label, mix=mix)
    assert arguments_of(plan)[1:4] == expected
    assert "no repository" not in " ".join(ready(plan)["llama-server"].notes)


def test_model_words_of_a_local_file_at_another_mix_say_how_it_is_made() -> None:
    files = model_files("model-f16.gguf", reference="./model-f16.gguf")
    plan = planned(gguf(SMALL), cpu(16), reference="", label="model-f16.gguf", mix="Q5_K_M")
    command = ready(plan, files=files)["llama-server"]
    assert shlex.split(command.text)[1:3] == ["-m", "model-f16-Q5_K_M.gguf"]
    note = "make model-f16-Q5_K_M.gguf first: llama-quantize ./model-f16.gguf model-f16-Q5_K_M.gguf"
    assert command.notes[0] == f"{note} Q5_K_M"


@pytest.mark.parametrize(
    "label", ["$(reboot)", "a b; c", "'\"", "`x`", "", "x\nSYSTEM y", "\x1b[2J"]
)
def test_hostile_names_stay_single_words(label: str) -> None:
    plan = planned(gguf(SMALL), cpu(16), reference=f"./{label}.gguf", label=label)
    commands = ready(plan)
    escaped = re.sub(r"[\n\x1b]", "\N{REPLACEMENT CHARACTER}", label)
    assert arguments_of(plan)[2] == f"./{escaped}.gguf"
    assert "\n" not in commands["llama-server"].text
    assert commands["Ollama Modelfile"].text.splitlines()[0] == f"FROM ./{escaped}.gguf"
    assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*", shlex.split(commands["Ollama"].text)[2])


def test_commands_for_windows_are_powershell() -> None:
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
def test_shell_text_quotes_for_powershell(words: list[str], text: str) -> None:
    assert shell_text(words, {}, System.WINDOWS) == text


# vLLM


def test_vllm_serve() -> None:
    files = model_files("Qwen/Qwen3-8B", Origin.HUB)
    plan = planned(qwen(), cards(24), engine="vllm", reference="Qwen/Qwen3-8B", load=Load(context_tokens=8192))  # fmt: skip
    line = arguments_of(plan, "vllm serve", files=files)
    assert line[:5] == ["vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "8192"]
    assert "--distributed-executor-backend" not in line


def test_vllm_serve_has_a_flag_for_each_value_that_is_not_the_default() -> None:
    plan = planned(
        qwen(), cards(24, 24), engine="vllm", load=Load(context_tokens=8192), kv_cache_dtype="fp8",
        tensor_parallel_size=2, gpu_memory_utilization=0.8, enforce_eager=True, enable_prefix_caching=False,
        fixed_flags=("tensor_parallel_size", "gpu_memory_utilization"),
    )  # fmt: skip
    line = arguments_of(plan, "vllm serve")
    assert line[5:] == [
        "-tp", "2", "--kv-cache-dtype", "fp8", "--gpu-memory-utilization", "0.8",
        "--no-enable-prefix-caching", "--enforce-eager",
    ]  # fmt: skip


def test_vllm_serve_on_the_larger_of_two_cards() -> None:
    text = ready(planned(qwen(), cards(8, 24), engine="vllm", load=Load(context_tokens=8192)))
    assert "CUDA_VISIBLE_DEVICES=1 " in text["vllm serve"].text


def test_vllm_serve_on_two_machines_starts_ray() -> None:
    plan = planned(
        qwen(), cards(12, 12), engine="vllm", nodes=2, load=Load(context_tokens=8192), tensor_parallel_size=2,
        pipeline_parallel_size=2, fixed_flags=("tensor_parallel_size", "pipeline_parallel_size"),
    )  # fmt: skip
    commands = ready(plan)
    assert [(item.name, item.text) for item in commands.values()][:2] == [
        ("ray, on the first machine", "ray start --head --port=6379"),
        ("ray, on the other machine", "ray start --address=HEAD_IP:6379"),
    ]
    line = shlex.split(commands["vllm serve"].text)
    assert (after("-tp", line), after("-pp", line)) == ("2", "2")
    assert after("--distributed-executor-backend", line) == "ray"
    assert not line[0].startswith("CUDA")


def test_vllm_serve_with_only_nodes_given_starts_ray() -> None:
    plan = planned(qwen(), cards(24), engine="vllm", nodes=2, load=Load(context_tokens=8192))
    assert next(iter(ready(plan))) == "ray, on the first machine"


def test_vllm_serve_limits_sequences_to_the_users() -> None:
    plan = planned(qwen(), cards(24), engine="vllm", load=Load(context_tokens=8192))
    assert "--max-num-seqs" not in arguments_of(plan, "vllm serve")
    several = replace(plan, task=replace(plan.task, users=3))
    assert after("--max-num-seqs", arguments_of(several, "vllm serve")) == "3"


# MLX


def test_mlx_converts_the_weights_first() -> None:
    commands = ready(
        planned(qwen(), mac(32), engine="mlx", reference="org/Own-8B", label="org/Own-8B")
    )
    assert shlex.split(commands["mlx_lm.convert"].text) == [
        "mlx_lm.convert", "--hf-path", "org/Own-8B", "-q", "--q-bits", "4", "--q-group-size", "64",
        "--mlx-path", "Own-8B-4bit",
    ]  # fmt: skip
    assert shlex.split(commands["mlx_lm.server"].text)[:3] == ["mlx_lm.server", "--model", "Own-8B-4bit"]  # fmt: skip


def test_mlx_uses_a_known_quantised_repository() -> None:
    plan = planned(qwen(), mac(32), engine="mlx", reference="", label="qwen3-8b")
    commands = ready(plan)
    assert "mlx_lm.convert" not in commands
    output = shlex.split(commands["mlx_lm.server"].text)[:3]
    assert output == ["mlx_lm.server", "--model", "Qwen/Qwen3-8B-MLX-4bit"]
    other = planned(qwen(), mac(32), engine="mlx", reference="", label="qwen3-8b", quantize=Quantize(packing=Packing(bits=4, group_size=32)))  # fmt: skip
    convert = shlex.split(ready(other)["mlx_lm.convert"].text)
    assert convert[:3] == ["mlx_lm.convert", "--hf-path", "Qwen/Qwen3-8B"]


def test_vllm_serve_of_a_catalog_model_takes_the_instruct_repository() -> None:
    plan = planned(qwen(), cards(24), engine="vllm", reference="", label="llama-3.1-8b")
    assert arguments_of(plan, "vllm serve")[:3] == [
        "vllm",
        "serve",
        "meta-llama/Llama-3.1-8B-Instruct",
    ]


def test_mlx_convert_uses_the_planned_quantisation() -> None:
    quantize = Quantize(packing=Packing(bits=8, group_size=32))
    plan = planned(qwen(), mac(32), engine="mlx", quantize=quantize)
    assert "--q-bits 8 --q-group-size 32" in ready(plan)["mlx_lm.convert"].text


def test_mlx_server_limits_its_prompt_cache_to_the_plan() -> None:
    load = Load(context_tokens=8192, sequences=2)
    plan = planned(qwen(), mac(32), engine="mlx", load=load)
    line = arguments_of(plan, "mlx_lm.server")
    assert (after("--decode-concurrency", line), after("--prompt-concurrency", line)) == ("2", "2")
    size_bytes = int(after("--prompt-cache-bytes", line))
    tightest = plan.result.tightest
    available_bytes = tightest.budget.available_bytes
    assert (
        size_bytes
        == plan.result.estimate.kv_cache_bytes + available_bytes - tightest.required_bytes
    )


def test_mlx_server_quantises_its_cache() -> None:
    plan = planned(qwen(), mac(32), engine="mlx", kv_bits=8, quantized_kv_start=0)
    commands = ready(plan)
    assert "--kv-bits 8 --kv-group-size 64 --quantized-kv-start 0" in commands["mlx_lm.server"].text
    fields = {item["key"]: item["value"] for item in json.loads(commands["LM Studio preset"].text)["load"]["fields"]}  # fmt: skip
    assert fields["llm.load.mlx.kvCacheQuantization"] == {"enabled": True, "bits": 8, "groupSize": 64, "quantizedStart": 0}  # fmt: skip


@pytest.mark.parametrize("is_decided", [True, False])
def test_gpu_limit_command_comes_first_if_the_plan_decided_it(*, is_decided: bool) -> None:
    """28,672 MiB are 32 GiB less an eighth."""
    decision = Decision(lever=Lever.LIMIT, value="iogpu.wired_limit_mb=28672", because="longer")
    decisions = (decision,) if is_decided else ()
    commands = ready_commands(planned(qwen(), mac(32, 21), engine="mlx", decisions=decisions))
    limits = tuple(item for item in commands if item.name == "GPU memory limit")
    assert limits == (commands[:1] if is_decided else ())
    for item in limits:
        assert item.text == "sudo sysctl iogpu.wired_limit_mb=28672"
        assert item.program == "limit"
        assert item.notes[0] == "longer"


# Ollama


def test_ollama_modelfile() -> None:
    assert ready(planned(gguf(SMALL), cards(24)))["Ollama Modelfile"].text == (
        "FROM ./model.gguf\nPARAMETER num_ctx 32768\nPARAMETER num_gpu 29\n"
    )  # 28 blocks and the output


@pytest.mark.parametrize(
    ("reference", "label", "name"),
    [
        ("org/name-GGUF:Q4_K_M", "org/Some-Model", "hf.co/org/name-GGUF:Q4_K_M"),
        ("", "deepseek-r1-distill-qwen-32b", "deepseek-r1:32b"),
        ("", "qwen3-8b", "hf.co/Qwen/Qwen3-8B-GGUF:Q4_K_M"),  # Ollama's own tag is a larger file
    ],
)
def test_ollama_runs_a_name_without_a_modelfile(reference: str, label: str, name: str) -> None:
    commands = ready(planned(gguf(SMALL), cards(24), reference=reference, label=label))
    assert commands["Ollama"].text == f"ollama run {name}"
    assert "Ollama Modelfile" not in commands


def test_ollama_needs_a_modelfile_if_the_placement_is_not_its_default() -> None:
    plan = planned(gguf(SMALL), cards(24), reference="", label="deepseek-r1-distill-qwen-32b", n_gpu_layers=5, fixed_flags=("n_gpu_layers",), backend=Backend.CUDA)  # fmt: skip
    text = ready(plan)["Ollama Modelfile"].text
    assert text == "FROM deepseek-r1:32b\nPARAMETER num_ctx 32768\nPARAMETER num_gpu 5\n"


def test_ollama_server() -> None:
    load = Load(context_tokens=16_384, sequences=2, cache_k=Q8, cache_v=Q8)
    text = ready(planned(gguf(SMALL), cards(24), load=load))["Ollama server"].text
    assert text == (
        "OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_NUM_PARALLEL=2 OLLAMA_KV_CACHE_TYPE=q8_0 OLLAMA_FLASH_ATTENTION=1 ollama serve"
    )


@pytest.mark.parametrize(
    ("load", "setup", "message"),
    [
        (Load(context_tokens=8192, cache_k=Q8, cache_v=Q4), {}, "q4_0 here"),
        (Load(context_tokens=8192, cache_k=Q8), {}, "q8_0 here"),
        (Load(context_tokens=8192), {"offload_kqv": False}, "no --no-kv-offload"),
        (Load(context_tokens=8192), {}, "one request at a time: in Ollama each of 4"),
    ],
)
def test_ollama_server_notes_what_ollama_cannot_do(
    load: Load, setup: dict[str, Any], message: str
) -> None:
    more: dict[str, Any] = {"fixed_flags": tuple(setup), "backend": Backend.CUDA} if setup else {}
    plan = planned(gguf(SMALL), cards(24), load=load, **setup, **more)
    assert any(message in note for note in ready(plan)["Ollama server"].notes)


def test_ollama_notes_that_it_places_experts_itself() -> None:
    plan = planned(gguf(MOE), cards(12), load=Load(context_tokens=16_384))
    commands = ready(plan)
    assert "num_gpu" not in commands["Ollama Modelfile"].text
    assert any("experts" in note for note in commands["Ollama server"].notes)


def test_ollama_on_the_cpu_with_a_limit_of_checkpoints() -> None:
    plan = planned(gguf("gemma-3-27b"), cpu(32), load=Load(context_tokens=16_384))
    commands = ready(plan)
    assert "PARAMETER num_gpu 0\n" in commands["Ollama Modelfile"].text
    assert "LLAMA_ARG_CTX_CHECKPOINTS=" in commands["Ollama server"].text


# LM Studio


def lm_studio_preset(plan: Plan) -> dict[str, Any]:
    preset = json.loads(ready(plan)["LM Studio preset"].text)
    return {item["key"]: item["value"] for item in preset["load"]["fields"]}


def test_lm_studio_settings_and_preset() -> None:
    plan = planned(gguf(MOE), cards(12), load=Load(context_tokens=16_384, cache_k=Q8, cache_v=Q8))
    preset = lm_studio_preset(plan)
    assert preset["llm.load.contextLength"] == 16_384
    assert preset["llm.load.llama.acceleration.offloadRatio"] == "max"
    assert preset["llm.load.numCpuExpertLayersRatio"] == 23 / 48  # a layer that -ot divides counts
    assert preset["llm.load.llama.kCacheQuantizationType"] == {"checked": True, "value": "q8_0"}
    assert preset["llm.load.llama.flashAttention"] is preset["llm.load.offloadKVCacheToGpu"] is True
    output = ready(plan)["LM Studio settings"].text
    assert "Context Length: 16384\n" in output
    assert "GPU Offload: 48 of 48 layers\n" in output
    assert "on the CPU: 23 of 48 layers\n" in output
    assert "K Cache Quantization Type: q8_0\n" in output


def test_lm_studio_with_some_layers_on_the_gpu_and_an_unused_card() -> None:
    plan = planned(gguf("llama-3.1-70b"), cards(2, 24), load=Load(context_tokens=16_384))
    preset = lm_studio_preset(plan)
    assert preset["llm.load.llama.acceleration.offloadRatio"] == LlamaCppSetup.of(plan.result.way.setup).n_gpu_layers / 80  # fmt: skip
    assert preset["load.gpuSplitConfig"]["customRatio"] == [0.0, 1.0]


def test_lms_get_downloads_the_repository_of_a_model_of_the_index() -> None:
    commands = ready(planned(gguf(SMALL), cards(24), reference="", label="qwen3-8b"))
    url = "https://huggingface.co/Qwen/Qwen3-8B-GGUF@Q4_K_M"
    assert commands["lms get"].text == f"lms get {url} --gguf"


def test_lms_get_of_an_mlx_repository(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["plan", "qwen3-8b", "--engine", "mlx", "--device", "m4-max-64", "--for", "lm-studio"]
    assert main(argv) == 0
    (line,) = re.findall(r"^lms get .*$", capsys.readouterr().out, re.MULTILINE)
    assert re.fullmatch(r"lms get https://huggingface\.co/[\w-]+/Qwen3-8B-[\w-]+ --mlx", line)


def test_lms_get_is_not_needed_for_a_file() -> None:
    assert "lms get" not in ready(planned(gguf(SMALL), cpu(16)))


def test_lms_load() -> None:
    plan = planned(gguf(SMALL), cards(24), reference="org/name-GGUF:Q4_K_M", load=Load(context_tokens=8192, cache_k=Q8, cache_v=Q8))  # fmt: skip
    command = ready(plan)["lms load"]
    assert command.text == "lms load org/name-GGUF --context-length 8192 --gpu max --parallel 4"
    assert any("K Cache Quantization Type" in note for note in command.notes)
