"""The packaged catalog: what every entry must have, and the facts of a few well-known models."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest
from tests.thoroughness import sampled

from edgekit.bill.types import Load
from edgekit.engines import engine_named, engine_names
from edgekit.engines.entries import open_entry
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.engines.mlx.setups import MlxSetup
from edgekit.engines.native.stream_plan import StreamSetup
from edgekit.engines.vllm.types import VllmSetup
from edgekit.errors import EdgekitError, NotFoundError
from edgekit.index import read_catalog
from edgekit.index.names import find_entry
from edgekit.index.store import PATH, packaged_entries
from edgekit.index.types import Entry, ModelPurpose
from edgekit.units import Basis

ENTRIES = [item for item in packaged_entries() if isinstance(item, Entry)]
SETUPS = {
    "llama.cpp": LlamaCppSetup(mix="Q4_K_M"),
    "vllm": VllmSetup(),
    "mlx": MlxSetup(),
    "stream": StreamSetup(),
}
every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)


def test_packaged_entries_are_readable_sorted_and_small() -> None:
    lines = PATH.read_text(encoding="utf-8").splitlines()
    assert len(ENTRIES) == len(lines) > 100
    assert all(a.id < b.id for a, b in pairwise(ENTRIES))
    assert PATH.stat().st_size < 400_000


@every_entry
def test_every_fact_of_an_entry_has_a_source(entry: Entry) -> None:
    facts = ("repository", "parameters", "active_parameters", "native_context", "vocabulary")
    others = ("kinds", "licence", "released", "sizes", "family")
    known = {fact for fact in (*facts, *others) if getattr(entry, fact)}
    assert known <= entry.sources.keys()
    assert not entry.is_users
    assert not entry.speeds  # none was measured yet


@every_entry
def test_sizes_go_down_and_are_exact_only_from_a_header(entry: Entry) -> None:
    sizes = [size.tensor_bytes for size in entry.sizes]
    assert sizes == sorted(sizes, reverse=True)
    assert {size.basis for size in entry.sizes} == {Basis.EXACT if entry.keys else Basis.MODELLED}
    at_f16 = entry.size("F16")
    assert at_f16 is not None
    assert entry.parameters is not None
    assert (
        2 * entry.parameters <= at_f16.tensor_bytes <= 2.1 * entry.parameters
    )  # some tensors stay at F32


@pytest.mark.parametrize("entry", sampled(ENTRIES, each=3), ids=lambda entry: entry.id)
def test_every_entry_has_a_bill_by_at_least_one_engine(entry: Entry) -> None:
    load, bills = Load(context_tokens=min(entry.native_context or 2048, 2048)), []
    for engine in engine_names():
        try:
            model = open_entry(entry, engine).model
            bills.append(engine_named(engine).estimate(model, load, SETUPS[engine]).total_bytes)
        except EdgekitError:
            continue
    assert bills
    assert min(bills) > 0


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
        (
            "llama-2-7b",
            ("meta-llama/Llama-2-7b-hf", "llama-2", 6_738_415_616, 6_738_415_616, 4_096, 32_000),
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


@pytest.mark.parametrize("doubted", ["glm-4-32b-0414", "falcon-h1-1.5b", "gemma-3n-e4b"])
def test_models_with_a_doubtful_header_are_not_packaged(doubted: str) -> None:
    with pytest.raises(NotFoundError):
        find_entry(doubted)


def test_read_catalog_imports_no_formats_engines_or_database() -> None:
    code = (
        "import sys; from edgekit.index import read_catalog; read_catalog();"
        "print([m for m in sys.modules if m == 'sqlite3' or m.startswith(('edgekit.formats', 'edgekit.engines'))])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert result.stdout.strip() == b"[]"


def test_packaged_catalog_has_no_problems() -> None:
    assert read_catalog().problems == ()
