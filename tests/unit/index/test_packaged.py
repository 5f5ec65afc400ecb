"""The packaged index: what every entry must have, and the facts of a few well-known models."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from tests.thoroughness import sampled

from edgekit.bill.types import Load
from edgekit.engines import engine_named, engine_names
from edgekit.engines.entries import open_entry
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.engines.mlx.setups import MlxSetup
from edgekit.engines.native.stream_plan import StreamSetup
from edgekit.engines.vllm.types import VllmSetup
from edgekit.errors import EdgekitError, RefusedError, UnknownArchitectureError
from edgekit.index import index_entries, read_index
from edgekit.index.database import PACKAGED, index_file
from edgekit.index.names import find_entry
from edgekit.index.types import Entry, ModelPurpose
from edgekit.units import Basis

ROOT = Path(__file__).parents[3]
ENTRIES = index_entries()
EXACT = [entry for entry in ENTRIES if entry.basis is Basis.EXACT]
ASSUMED = [entry for entry in ENTRIES if entry.basis is Basis.ASSUMED and entry.forms]
SETUPS = {
    "llama.cpp": LlamaCppSetup(mix="Q4_K_M"),
    "vllm": VllmSetup(),
    "mlx": MlxSetup(),
    "stream": StreamSetup(),
}


def test_packaged_index_is_large_and_its_file_small() -> None:
    assert len(ENTRIES) >= 2_000
    assert len(EXACT) >= 560
    assert len({entry.id for entry in ENTRIES}) == len(ENTRIES)
    assert PACKAGED.stat().st_size < 8_000_000


def test_docs_state_how_many_geometries_are_known() -> None:
    page = " ".join((ROOT / "docs" / "index.md").read_text(encoding="utf-8").split())
    partial = sum(bool(entry.forms) for entry in ENTRIES) - len(EXACT)
    assert f"That holds for {len(EXACT)} of {len(ENTRIES):,} models." in page
    assert f"For {partial} it is put together from partial numbers" in page


def test_repositories_of_models_are_unique() -> None:
    known = Counter(entry.repository.lower() for entry in ENTRIES if entry.repository)
    assert [name for name, count in known.items() if count > 1] == []


@pytest.mark.parametrize(
    "repository",
    ["pytorch/issues", "nvidia/cuda", "openai/gsm8k", "HuggingFaceH4/ultrachat_200k", "Qwen/Qwen-Image-Edit-2511"],
)  # fmt: skip
def test_datasets_pages_and_image_generators_are_not_models(repository: str) -> None:
    assert repository not in {entry.repository for entry in ENTRIES}


def test_every_fact_of_an_entry_has_a_source() -> None:
    facts = ("repository", "parameters", "active_parameters", "native_context", "vocabulary")
    others = ("kinds", "licence", "released", "sizes", "family", "publisher")
    for entry in ENTRIES:
        known = {fact for fact in (*facts, *others) if getattr(entry, fact)}
        assert known <= entry.sources.keys(), entry.id
        assert not entry.is_users
        assert not entry.speeds  # none was measured yet


def test_sources_from_elsewhere_have_a_licence_and_a_date() -> None:
    for source in index_file().sources().values():
        if "/" in source.text and source.licence is not None:
            assert source.licence != "none stated"
            assert source.date


def test_sizes_go_down_and_are_exact_only_from_a_header() -> None:
    for entry in EXACT:
        sizes = [size.tensor_bytes for size in entry.sizes]
        assert sizes == sorted(sizes, reverse=True), entry.id
        basis = Basis.EXACT if "gguf" in entry.forms else Basis.MODELLED
        if entry.id == "gpt-oss-20b":  # makers do not agree on what is next to its MXFP4 experts
            assert [size.mix for size in entry.sizes if size.basis is basis] == ["MXFP4_MOE"]
            continue
        assert {size.basis for size in entry.sizes} == {basis}, entry.id


# What checkpoints have besides the tensors that engines load: attention masks of 2048 x 2048 and rotary frequencies in
# GPT-NeoX, masks of 1024 x 1024 in GPT-2, the pooler of BERT, encoders of images and sound.
GEMMA_3N_ENCODERS = 983_281_504
INTERN_VIT_300M = 304_012_288


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("pythia-70m-deduped", 6 * (2048**2 + 8)),
        ("pythia-160m", 12 * (2048**2 + 8)),
        ("pythia-410m", 24 * (2048**2 + 8)),
        ("pythia-1b", 16 * (2048**2 + 32)),
        ("pythia-6.9b", 32 * (2048**2 + 16)),
        ("pythia-12b", 36 * (2048**2 + 16)),
        ("gpt-neox-20b", 44 * (2048**2 + 12)),
        ("gpt2-large", 36 * 1024**2),
        ("gpt2-xl", 48 * 1024**2),
        ("multilingual-e5-large-instruct", 1024 * 1024 + 1024),
        ("gemma-3n-e2b-it", GEMMA_3N_ENCODERS),
        ("gemma-3n-e4b-it", GEMMA_3N_ENCODERS),
        # with the projector: a norm of 4 x 1024, two matrices with biases
        ("internvl2-2b", INTERN_VIT_300M + 2 * 4096 + 4096 * 2048 + 2048 + 2048**2 + 2048),
        ("internvl2-4b", INTERN_VIT_300M + 2 * 4096 + 4096 * 3072 + 3072 + 3072**2 + 3072),
        ("qwen2-0.5b-instruct", 0),
        ("qwen3-embedding-0.6b", 0),
        ("deepseek-r1-distill-qwen-1.5b", 0),
        ("granite-3.1-8b-instruct", 0),
        ("lfm2.5-1.2b-instruct", 0),
    ],
)
def test_publishers_count_is_the_tensors_and_the_buffers(name: str, extra: int) -> None:
    entry = find_entry(name)
    assert entry is not None
    assert entry.basis is Basis.EXACT
    assert entry.parameters is not None
    assert entry.parameters - (entry.active_parameters or 0) == extra


def test_sizes_of_an_entry_without_its_own_geometry_are_assumed() -> None:
    assert ASSUMED
    for entry in ENTRIES:
        if entry.basis is Basis.ASSUMED:
            assert {size.basis for size in entry.sizes} <= {Basis.ASSUMED}, entry.id


def test_bill_of_an_entry_without_its_own_geometry_is_assumed() -> None:
    for entry in sampled(ASSUMED, each=60):
        model = open_entry(entry, "llama.cpp").model
        assert model.geometry.basis is Basis.ASSUMED
        load = Load(context_tokens=min(entry.native_context or 2048, 2048))
        with suppress(RefusedError):  # an architecture that llama.cpp does not have
            lines = engine_named("llama.cpp").estimate(model, load, SETUPS["llama.cpp"]).lines
            assert any(line.basis is Basis.ASSUMED for line in lines), entry.id


@pytest.mark.parametrize("entry", sampled(EXACT, each=12), ids=lambda entry: entry.id)
def test_every_entry_has_a_bill_or_no_engine_runs_it(entry: Entry) -> None:
    """Of the second kind is Llama 3.2 Vision, which vLLM has dropped and the others never had."""
    load = Load(context_tokens=min(entry.native_context or 2048, 2048))
    bills, refusals = [], []
    for engine in engine_names():
        try:
            model = open_entry(entry, engine).model
            bills.append(engine_named(engine).estimate(model, load, SETUPS[engine]).total_bytes)
        except (RefusedError, UnknownArchitectureError):
            refusals.append(engine)
        except EdgekitError:
            continue
    assert bills or len(refusals) >= 2, entry.id  # llama.cpp and vLLM at least
    assert min(bills, default=1) > 0


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "qwen3-8b",
            ("Qwen/Qwen3-8B", "qwen3", 8_190_735_360, 8_190_735_360, 40_960, 151_936),
        ),
        # inactive for a token: 48 layers x (128 - 8) experts x 3 x 2048 x 768
        (
            "qwen3-30b-a3b",
            (
                "Qwen/Qwen3-30B-A3B",
                "qwen3",
                30_532_122_624,
                30_532_122_624 - 48 * 120 * 3 * 2048 * 768,
                40_960,
                151_936,
            ),
        ),
        # latent attention; 46 of 47 layers with 64 experts, of which a token uses 4; all count its prediction layer
        (
            "glm-4.7-flash",
            (
                "zai-org/GLM-4.7-Flash",
                "glm-4.7",
                31_221_488_576,
                29_943_393_920 - 46 * 60 * 3 * 2048 * 1536,
                202_752,
                154_880,
            ),
        ),
        (
            "llama-2-7b",
            (
                "meta-llama/Llama-2-7b-chat-hf",
                "llama-2",
                6_738_415_616,
                6_738_415_616,
                4_096,
                32_000,
            ),
        ),
    ],
)
def test_facts_of_well_known_models(name: str, facts: tuple[object, ...]) -> None:
    entry = find_entry(name)
    assert facts == (
        entry.repository,
        entry.family,
        entry.parameters,
        entry.active_parameters,
        entry.native_context,
        entry.vocabulary,
    )


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("llama-3.1-8b", (ModelPurpose.CHAT,)),
        ("qwen3-8b", (ModelPurpose.CHAT, ModelPurpose.REASONING)),
        ("qwen3-coder-480b-a35b-instruct", (ModelPurpose.CHAT, ModelPurpose.CODE)),
        ("qwen3-vl-4b-instruct", (ModelPurpose.CHAT, ModelPurpose.VISION)),
        ("starcoder2-3b", (ModelPurpose.CODE,)),
        ("nomic-embed-text-v1.5", (ModelPurpose.EMBEDDING,)),
        ("nomic-embed-code", (ModelPurpose.CODE, ModelPurpose.EMBEDDING)),
        ("qwen3-embedding-8b", (ModelPurpose.EMBEDDING,)),
        ("mamba-2.8b", ()),
    ],
)
def test_purposes_of_well_known_models(name: str, kinds: tuple[ModelPurpose, ...]) -> None:
    assert find_entry(name).kinds == kinds


def test_read_index_imports_no_formats_or_engines() -> None:
    code = (
        "import sys; from edgekit.index import read_index; read_index();"
        "print([m for m in sys.modules if m.startswith(('edgekit.formats', 'edgekit.engines'))])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert result.stdout.strip() == b"[]"


def test_packaged_index_has_no_problems() -> None:
    assert read_index().problems == ()
