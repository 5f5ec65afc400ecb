"""Versions of llama.cpp: how they are named, whose rules apply, and which one is the default."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from tests.recorded import DATA, engine_models, gguf_files, gguf_header, header_bytes

from edgekit.app.candidates import key_of
from edgekit.bill.types import Component
from edgekit.cli import main
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.architectures import (
    Conversion,
    LlamaCppArchitecture,
    architecture_names,
    conversion_of,
    known_architecture,
)
from edgekit.engines.llamacpp.setups import read_row
from edgekit.engines.llamacpp.types import (
    NEWEST,
    OLDEST,
    VARIABLE,
    LlamaVersion,
    Rules,
    answered_version,
    is_newer,
    read_version,
    version_name,
    wheel_version,
)
from edgekit.errors import RefusedError, UsageError
from edgekit.formats import read_header
from edgekit.model import read_geometry
from edgekit.model.architectures import section_by_name
from edgekit.model.types import Model
from edgekit.request import Request
from edgekit.units import Basis


@pytest.mark.parametrize(
    ("text", "rules", "name"),
    [
        ("b9294", 9294, "b9294"),
        ("9294", 9294, "b9294"),
        ("0.5", Rules.V0_5, "0.5.0-dev (0c1e570)"),
        ("0.5.0-dev (0c1e570)", Rules.V0_5, "0.5.0-dev (0c1e570)"),
        ("0.6", NEWEST, "0.6.0-dev (b11549)"),
        ("0.6.0-dev (b11549)", NEWEST, "0.6.0-dev (b11549)"),
        ("b11549", NEWEST, "0.6.0-dev (b11549)"),
        ("v0.2.0", 10809, "0.2.0"),
        ("0.4.1", 11063, "0.4.1"),
        ("0.7", NEWEST, "0.7.0"),
        ("2026.9", 11063, "b11063"),
        ("2026.5.9294", 9294, "b9294"),
        ("2026.4.8672.1", 8672, "b8672"),
        ("2026.10.11549+cu128", NEWEST, "0.6.0-dev (b11549)"),
        ("2026.10.11549.post1", NEWEST, "0.6.0-dev (b11549)"),
        ("2027.1", NEWEST, "2027.1"),
        ("b12000", NEWEST, "b12000"),
        ("b11300", 11300, "b11300"),  # between two known builds: the rules that need more memory
        ("version: 9294 (ab12cd3)\nbuilt with GNU 13.2.0", 9294, "b9294"),
        ("B9294", 9294, "b9294"),
        ("version: 0.6.0-dev (build 11549, commit ab12cd3)", NEWEST, "0.6.0-dev (b11549)"),
        ("version: 0.5.0-dev (build 1, commit 0c1e570)", Rules.V0_5, "0.5.0-dev (0c1e570)"),
    ],
)
def test_read_version(text: str, rules: int, name: str) -> None:
    version = read_version(text)
    assert version.rules == rules
    assert version_name(*version) == name


@pytest.mark.parametrize(
    "text", ["7", "", "newest", "1.0", "b", "0c1e570", "2026.9.11063x", "2026.13"]
)
def test_read_version_refuses_other_text(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a llama\.cpp version"):
        read_version(text)


@pytest.mark.parametrize("text", ["b8607", "b100", "2026.3", "2025.12"])
def test_read_version_refuses_versions_before_april_2026(text: str) -> None:
    with pytest.raises(UsageError, match="too old"):
        read_version(text)


def test_builds_between_0_5_and_0_6_are_billed_as_0_6() -> None:
    assert all(read_version(f"b{build}").rules >= Rules.V0_6 for build in range(11064, 11549))


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("2026.10.11549 (llama.cpp 0.6.0-dev)", NEWEST),
        ("2026.5.9294", 9294),  # a wheel without a version string is identified by its build
        ("2026.9.10809 (llama.cpp 0.4.0-dev)", 10809),
        ("0.2.13 (llama.cpp 0.6.0-dev)", NEWEST),
        ("0.5.0-dev (build 1, commit 0c1e570)", Rules.V0_5),
        ("of unknown version", NEWEST),
    ],
)
def test_answered_version(text: str, rules: int) -> None:
    assert answered_version(text).rules == rules


def test_is_newer() -> None:
    newer = ("b11550", "0.7.0", "2026.11")
    assert [is_newer(read_version(text).version) for text in newer] == [True] * 3
    known = ("b11549", "0.6", "0.5", "2026.9", "b9294")
    assert [is_newer(read_version(text).version) for text in known] == [False] * 5


@pytest.mark.parametrize(
    "arguments", [["check", "qwen3-8b"], ["recommend"], ["check", "qwen3-8b", "qwen3-4b"]]
)
def test_invalid_variable_is_named_in_the_error(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "junk")
    assert main([*arguments, "--ram", "16G"]) == 2
    captured = capsys.readouterr()
    assert f"{VARIABLE}: 'junk' is not a llama.cpp version" in captured.out + captured.err


@pytest.mark.parametrize("command", ["check", "plan"])
def test_flag_llama_version_overrides_an_invalid_variable(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "junk")
    assert main([command, "qwen3-8b", "--ram", "16G", "-c", "8k", "--llama-version", "0.6"]) == 0
    assert "llama-server" in capsys.readouterr().out


def test_stored_recommendations_are_keyed_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(ram="16G", engines=("llama.cpp",))
    keys = set()
    for version in ("0.5", "0.6"):
        monkeypatch.setenv(VARIABLE, version)
        keys.add(key_of(request, request.find_machine(), ()))
    assert len(keys) == 2


def test_wheel_version_without_a_build_number_is_the_oldest() -> None:
    assert wheel_version("0.2.14") == wheel_version("nightly") == LlamaVersion(OLDEST)


def test_flag_llama_version(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("estimate", "sample:gemma-3-27b", "-c", "4k", "--json", "--llama-version")
    bills = {}
    for version in ("b9294", "0.5", "0.6", "2026.10"):
        assert main((*command, version)) == 0
        bills[version] = json.loads(capsys.readouterr().out)
    assert bills["b9294"]["engine_version"] == "b9294"
    assert bills["2026.10"] == bills["0.6"]
    # b9294 has 262,144 logits for each of 512 tokens, later builds only for four.
    difference = bills["b9294"]["total_bytes"] - bills["0.5"]["total_bytes"]
    assert difference > 300 * 2**20
    assert main((*command, "7")) == 2
    assert "'7' is not a llama.cpp version" in capsys.readouterr().err


def model_of(name: str) -> Model:
    head = header_bytes(f"{name}.head.gz", DATA / "headers_more")
    header = read_header(gguf_files(f"{name}.gguf", head, 2**40))
    return Model(header=header, geometry=read_geometry(header))


def test_architecture_is_refused_by_builds_before_it_was_added() -> None:
    model = model_of("hy-v3-trunk-small.Q4_K_M")
    assert llamacpp.estimate(model, *read_row({"n_ctx": 512, "llama_version": "b9993"}, None)).lines
    with pytest.raises(
        RefusedError, match=r"b9992 does not support architecture 'hy_v3': it was added in b9993"
    ):
        llamacpp.estimate(model, *read_row({"n_ctx": 512, "llama_version": "b9992"}, None))


def test_architecture_of_which_llama_cpp_has_only_the_name_is_refused() -> None:
    keys = {"general.architecture": "gptj", "gptj.block_count": 2, "gptj.embedding_length": 64}
    keys |= {"gptj.attention.head_count": 4, "gptj.context_length": 512, "gptj.vocab_size": 1000}
    keys |= {"general.file_type": 1}
    header = gguf_header(keys)
    model = Model(header=header, geometry=read_geometry(header))
    with pytest.raises(RefusedError, match="'gptj': it only has the name"):
        llamacpp.estimate(model, *read_row({"n_ctx": 512}, "cpu"))


def test_graph_of_an_earlier_build_than_it_was_compared_with_is_a_bound() -> None:
    model = model_of("muse-glimmer-small.Q4_K_M")
    compute = {}
    for build in ("b11063", "0.6"):
        bill = llamacpp.estimate(model, *read_row({"n_ctx": 512, "llama_version": build}, "cpu"))
        (compute[build],) = (line for line in bill.lines if line.component is Component.COMPUTE)
    assert compute["0.6"].basis is Basis.EXACT
    assert compute["b11063"].basis is Basis.MODELLED
    assert "not compared with builds before b11549" in compute["b11063"].because
    assert compute["b11063"].size_bytes > compute["0.6"].size_bytes


def test_first_build_of_an_architecture_is_a_known_build() -> None:
    builds = [known_architecture(name).first_build for name in architecture_names()]
    assert all(OLDEST < build <= NEWEST for build in builds if build)


def test_prediction_blocks_are_always_loaded_before_b10212() -> None:
    """For this header, llama.cpp b10068 loads 521 MiB more than b10566."""
    model = model_of("qwen35moe-mtp.Q4_K_M")
    weights_bytes = [
        llamacpp.estimate(model, *read_row({"n_ctx": 512, "llama_version": build}, None)).of(
            Component.WEIGHTS
        )
        for build in ("b10211", "b10212", "0.6")
    ]
    assert weights_bytes[0] - weights_bytes[1] == 546_695_168  # all tensors of blk.40
    assert weights_bytes[1] == weights_bytes[2]


def test_quantised_cache_with_a_fused_matrix_aborts_before_b9027() -> None:
    model = engine_models()["phi-3-medium-4k", "Q4_K_M"]
    options = {"n_ctx": 4096, "type_k": "q8_0", "type_v": "q8_0"}
    assert llamacpp.estimate(model, *read_row({**options, "llama_version": "b9027"}, "cpu")).lines
    with pytest.raises(RefusedError, match=r"llama\.cpp aborts: builds before b9027"):
        llamacpp.estimate(model, *read_row({**options, "llama_version": "b9026"}, "cpu"))


def test_records_of_architectures_and_conversions_are_complete() -> None:
    known, converted = section_by_name("llamacpp"), section_by_name("conversion", ("config",))
    for name in known:
        known_architecture(name)
    for model_type in converted:
        assert conversion_of(model_type).to
    used = {key for section in known.values() for key in section}
    assert used == {item.name for item in fields(LlamaCppArchitecture)}
    used = {key for section in converted.values() for key in section}
    assert used == {item.name for item in fields(Conversion)}
    # Each model_type converts to an architecture of llama.cpp, and an architecture's name to itself.
    targets = {section["to"] for section in converted.values() if "to" in section}
    assert targets <= architecture_names()
    assert {conversion_of(name).to for name in architecture_names()} <= architecture_names()
