"""Names of models: ids, families, spellings and quantisations."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.recorded import DATA
from tests.thoroughness import sampled

from edgekit.errors import AmbiguousNameError, NotFoundError
from edgekit.index import read_index
from edgekit.index.ids import family_of, id_of
from edgekit.index.names import find_entry, find_model, spellings
from edgekit.index.records import is_id
from edgekit.index.references import entry_named
from edgekit.index.repositories import repositories_of
from edgekit.index.typed import without_command
from edgekit.index.types import Index
from edgekit.sources.quants import quants_in, split_quant


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("unsloth/Qwen3-8B-GGUF:Q4_K_M", "qwen3-8b"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("sample:gemma-3-27b", "gemma-3-27b"),
        ("model.Q8_0.gguf", "model"),
        ("/home/me/Llama-3.2-1B-Instruct-Q4_K_M.gguf", "llama-3.2-1b-instruct"),
        ("big-UD-IQ2_XXS-00001-of-00003.gguf", "big"),
        ("llama3.2:1b", "llama3.2:1b"),
        ("mlx-community/Qwen3-8B-4bit", "qwen3-8b-4bit"),
        ("a model (copy).gguf", "a-model-copy"),
        ("Q4_K_M.gguf", "model"),
        ("...", "model"),
    ],
)  # fmt: skip
def test_id_of(label: str, expected: str) -> None:
    assert id_of(label) == expected


@given(st.text(max_size=300) | st.text("ab.", min_size=195, max_size=205))
def test_id_of_any_label_is_an_id(label: str) -> None:
    assert is_id(id_of(label))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("qwen3-8b", "qwen3"),
        ("qwen3-vl-30b-a3b-instruct", "qwen3-vl"),
        ("llama-3.1-8b", "llama-3.1"),
        ("llama-4-scout", "llama-4"),
        ("gpt-oss-20b", "gpt-oss"),
        ("phi-3-mini-128k", "phi-3"),
        ("mistral-7b-v0.1", "mistral"),
        ("mixtral-8x7b", "mixtral"),
        ("deepseek-v3", "deepseek-v3"),
        ("gemma-4-e2b-it", "gemma-4"),
        ("command-r7b", "command-r7b"),
        ("8b", "8b"),
    ],
)
def test_family_of(name: str, family: str) -> None:
    assert family_of(name) == family


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("Gemma 3 27B", "gemma-3-27b"),
        ("gemma3:27b", "gemma-3-27b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("GEMMA_3_27B", "gemma-3-27b"),
        ("Llama 3.1 8B Instruct", "llama-3.1-8b"),
        ("Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("gpt oss 20b", "gpt-oss-20b"),
        ("qwen3-30b", "qwen3-30b-a3b"),
        ("phi4:latest", "phi-4"),
        ("Qwen3-8B", "qwen3-8b"),
        (" qwen/QWEN3-8b ", "qwen3-8b"),
        ("google/Gemma-3-27b-it", "gemma-3-27b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),  # the publisher's repository
    ],
)
def test_find_entry_knows_common_spellings(name: str, entry: str) -> None:
    assert find_entry(name).id == entry


def test_find_entry_accepts_capitals_and_underscores() -> None:
    """Of models with a spelling of their own: equal ones mean the most used."""
    index = read_index()
    spelt: Counter[str] = Counter()
    for entry in index.entries:
        names = (entry.id.partition("@")[0], entry.repository or entry.id)
        spelt.update({spellings(name)[0] for name in names})
    for entry in sampled(index.entries, each=20):
        is_plain = "@" not in entry.id and not quants_in(entry.id)
        if is_plain and spelt[spellings(entry.id)[0]] == 1:
            assert find_entry(entry.id.upper(), index).id == entry.id
            assert find_entry(entry.id.replace("-", "_"), index).id == entry.id


@pytest.mark.parametrize(
    "name",
    [
        "Qwen3-30B-A3B-Instruct-2508",  # another date
        "GLM-4.6-Air",  # there are GLM-4.5-Air and GLM-4.6
        "Qwen 3.7",
        "qwen3-8b-lora",
        "Qwen2.5-0.5B-Instruct-draft",
        "Qwen3 16B",
        "Claude Sonnet 4.5",
        "gpt-4o mini",
        "model.gguf",
        "",
        "/",
    ],
)
def test_find_entry_does_not_guess_another_model(name: str) -> None:
    with pytest.raises(NotFoundError):
        find_entry(name)


@pytest.mark.parametrize("name", ["", "\x00", "x" * 10_000])
def test_find_entry_of_an_impossible_name_is_not_found(name: str) -> None:
    with pytest.raises(NotFoundError, match="in the index"):
        find_entry(name)


@pytest.mark.parametrize(
    ("name", "similar"),
    [
        ("Qwen2.5-VL", {"qwen2.5-vl-7b-instruct", "qwen2.5-vl-72b-instruct"}),
        ("gemma 3n", {"gemma-3n-e4b-it", "gemma-3n-e2b-it"}),
        ("gemma 27b", {"gemma-3-27b", "gemma-2-27b-it"}),
        ("Mixtral", {"mixtral-8x7b", "mixtral-8x22b-instruct-v0.1"}),
    ],
)
def test_find_entry_of_a_family_names_its_sizes(name: str, similar: set[str]) -> None:
    with pytest.raises(AmbiguousNameError, match=r"matches several models: .*\(\d.*B\)") as caught:
        find_entry(name)
    assert similar <= set(caught.value.candidates)


@pytest.mark.parametrize(
    ("name", "similar"),
    [("qwen3-9b", {"qwen3-8b"}), ("Llama 3.2 8B", {"llama-3.1-8b"})],
)
def test_find_entry_suggests_similar_ids(name: str, similar: set[str]) -> None:
    with pytest.raises(NotFoundError) as caught:
        find_entry(name)
    assert similar <= set(caught.value.candidates)


def test_find_entry_suggests_the_nearest_size_first() -> None:
    with pytest.raises(NotFoundError) as caught:
        find_entry("gemma-3-28b")
    assert caught.value.candidates[0] == "gemma-3-27b"


@pytest.mark.parametrize(
    ("name", "entry", "note"),
    [
        ("lama 3.1 8b", "llama-3.1-8b", "understood 'lama 3.1 8b' as llama-3.1-8b (92 % alike)"),
        ("llama 70b", "llama-3.3-70b", "understood 'llama 70b' as llama-3.3-70b (95 % alike)"),
        ("qwen3-8b", "qwen3-8b", ""),
        ("somebody/Qwen3-8B-AWQ", "qwen3-8b", "taken to be Qwen/Qwen3-8B quantised by somebody"),
        ("Qwen3-8B-Uncensored", "qwen3-8b", "taken to be qwen3-8b, of the same shape (uncensored)"),
        ("Qwen3-8B-Q4_K_M.gguf", "qwen3-8b", "is not a file on this machine"),
    ],
)
def test_find_model_notes_what_a_name_was_taken_for(name: str, entry: str, note: str) -> None:
    match = find_model(name)
    assert match.entry.id == entry
    assert note in match.note if note else not match.note


def test_find_model_of_an_index_takes_no_similar_name() -> None:
    index = Index(entries=(find_entry("qwen3-8b"),))
    assert find_model("Qwen 3 8B", index).entry.id == "qwen3-8b"
    with pytest.raises(NotFoundError):
        find_model("qwn3-8b", index)


def _is_right(row: Mapping[str, Any]) -> bool:
    """Whether a typed name is understood as expected. Asking back is right where the name is ambiguous."""
    expected = row["expect"]
    try:
        match = entry_named(row["typed"], absolute=True)
    except AmbiguousNameError:
        return "ambiguous" in expected or row.get("ask_ok", False)
    if match is None:
        return "models" not in expected or row.get("ask_ok", False)
    names = {row.name.lower() for row in repositories_of(match.entry.id)}
    names.add((match.entry.repository or "").lower())
    is_model = bool(names.intersection(name.lower() for name in expected.get("models", ())))
    if "quant" not in expected:
        return is_model
    quants = {str(quant).lower() for quant in (expected["quant"], *row.get("quant_also", ()))}
    return is_model and str(match.quant).lower() in quants


def _is_wrong(row: Mapping[str, Any]) -> bool:
    """Whether another model is taken, or one of several."""
    try:
        return not _is_right(row) and entry_named(row["typed"], absolute=True) is not None
    except AmbiguousNameError:
        return False


@pytest.mark.parametrize(
    ("file_name", "count", "least_right", "wrong"),
    [
        # from public threads; those that are not right are not in the index, or answered with a question
        ("typed_names.jsonl.gz", 300, 270, {"DeepSeek-Coder-V2", "DeepSeek V4"}),
        # as they are typed in autumn 2026: commands, addresses, files, misspelt, closed models
        (
            "typed_names_2026.jsonl.gz", 591, 570,
            {"openhermes 2.5", "qwen3:30b-a3b-thinking-2507-q8_0"},
        ),
    ],
)  # fmt: skip
def test_names_as_people_type_them(
    file_name: str, count: int, least_right: int, wrong: set[str]
) -> None:
    with gzip.open(DATA / file_name, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert len(rows) == count
    assert [row["typed"] for row in rows if row.get("right") and not _is_right(row)] == []
    assert {row["typed"] for row in rows if _is_wrong(row)} <= wrong
    assert sum(map(_is_right, rows)) >= least_right


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("llama31 8b", "llama-3.1-8b"),
        ("qwen38b", "qwen3-8b"),
        ("gemma31b", "gemma-4-31b-it"),  # a size that a Gemma has
        ("LLAMA_3_1_8B_INSTRUCT", "llama-3.1-8b"),
        ("通义千问3 8B", "qwen3-8b"),
        ("Qwen3\u20138B\u200b", "qwen3-8b"),
        ("“gemma3:27b”,", "gemma-3-27b"),
        ("mixtral 8x22", "mixtral-8x22b-instruct-v0.1"),
        ("dolphin venice", "dolphin-mistral-24b-venice-edition"),
        ("jina v3", "jina-embeddings-v3"),
        ("docker model run ai/qwen3", "qwen3-8b"),
        ("https://lmstudio.ai/models/openai/gpt-oss-20b", "gpt-oss-20b"),
    ],
)
def test_entry_named_reads_names_as_people_write_them(name: str, entry: str) -> None:
    match = entry_named(name, absolute=True)
    assert match is not None
    assert match.entry.id == entry


@pytest.mark.parametrize(
    ("command", "model"),
    [
        ("llama-server --jinja -hf unsloth/Qwen3-8B-GGUF:Q4_K_M -c 0", "unsloth/Qwen3-8B-GGUF:Q4_K_M"),
        ("$ ollama run qwen3:8b 'why is the sky blue?'", "qwen3:8b"),
        ("sudo docker exec -it ollama ollama pull gemma3", "gemma3"),
        ("FROM hf.co/bartowski/Qwen2.5-7B-Instruct-GGUF", "hf.co/bartowski/Qwen2.5-7B-Instruct-GGUF"),
        ("vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2", "Qwen/Qwen3-8B"),
        ("mlx_lm.generate --model mlx-community/Qwen3-8B-4bit --prompt hi", "mlx-community/Qwen3-8B-4bit"),
        ("Gemma 3 27B", "Gemma 3 27B"),
        ("run for the hills", "run for the hills"),
        ("llama-server -hf -c 0", "llama-server -hf -c 0"),
    ],
)  # fmt: skip
def test_without_command_is_the_model_of_a_command(command: str, model: str) -> None:
    assert without_command(command) == model


def test_single_letter_names_no_model() -> None:
    assert entry_named("b.gguf", absolute=True) is None


def test_entry_named_takes_the_instruct_model_for_a_name_without_a_publisher() -> None:
    for name in ("gemma-4-31b", "Gemma 4 31B"):
        match = entry_named(name, absolute=True)
        assert match is not None
        assert match.entry.id == "gemma-4-31b-it"
        assert (
            match.note == "taken to be google/gemma-4-31B-it; google/gemma-4-31B is the base model"
        )
    for name in ("google/gemma-4-31B", "gemma-4-31b base", "Gemma 4 31B pretrained"):
        match = entry_named(name, absolute=True)
        assert match is not None
        assert match.entry.id == "gemma-4-31b"
    assert find_entry("gemma-4-31b").id == "gemma-4-31b"  # an id, as `index show` takes it


@pytest.mark.parametrize(
    "name", ["gpt-4o", "GPT 5 mini", "o3-mini", "Claude Sonnet 4.5", "google/gemini-2.5-pro", "grok 4", "grok-2 mini", "qwen3-max"]
)  # fmt: skip
def test_find_entry_says_that_a_model_is_closed(name: str) -> None:
    with pytest.raises(NotFoundError, match=r"closed model: .* does not publish its weights"):
        find_entry(name)
    assert entry_named(name, absolute=True) is None


@pytest.mark.parametrize(
    "name",
    [
        "gpt-oss-20b",
        "gpt2",
        "grok-1",
        "Qwen3.5-27B-Claude-4.6-Opus-Reasoning-Distilled",
    ],
)
def test_open_models_with_names_like_closed_ones_are_found(name: str) -> None:
    assert entry_named(name, absolute=True) is not None


@pytest.mark.parametrize(
    "name",
    [
        "a" * 1_000_000,
        "qwen3" + "-" * 1_000_000 + "8b",
        "../../../etc/shadow",
        "qwen3\x00-8b",
        "\x1b[31mqwen3-8b",
        "qwen3\ud800",
        "gpt-4" + "1" * 390 + "!",
        "fp8" + "-dynamic" * 50 + "x",
        "x" + " by a" * 90,
        "qwen3' OR 1=1 --",
    ],
)
def test_entry_named_of_hostile_names_finds_nothing(name: str) -> None:
    assert entry_named(name, absolute=True) is None


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("qwen3-8b:Q8_0", ("qwen3-8b", "Q8_0")),
        ("Qwen3 8B q4_k_m", ("Qwen3 8B", "q4_k_m")),
        ("gemma3:27b-it-q4_K_M", ("gemma3:27b-it", "q4_K_M")),
        ("qwen3-8b:4bit", ("qwen3-8b", "4bit")),
        ("llama3.1:8b", ("llama3.1:8b", None)),
        ("qwen3-8b", ("qwen3-8b", None)),
        ("qwen3-8b:UD-Q4_K_XL", ("qwen3-8b", "UD-Q4_K_XL")),
        ("Q4_K_M", ("Q4_K_M", None)),
    ],
)
def test_split_quant(text: str, parts: tuple[str, str | None]) -> None:
    assert split_quant(text) == parts


@pytest.mark.parametrize(
    "name", ["mistral large", "Mistral-Large", "MISTRAL_LARGE", "mistral-large"]
)
def test_find_model_of_any_spelling_is_the_model_that_ollama_has(name: str) -> None:
    assert find_entry(name).id == "mistral-large-instruct-2411"


def test_find_model_asks_which_family_a_distillation_is_built_on() -> None:
    with pytest.raises(AmbiguousNameError) as caught:
        find_entry("r1 8b")
    assert {"deepseek-r1-distill-llama-8b", "deepseek-r1-0528-qwen3-8b"} <= set(
        caught.value.candidates
    )


def test_find_model_of_a_version_that_does_not_exist_suggests_the_nearest_versions() -> None:
    with pytest.raises(NotFoundError) as caught:
        find_entry("gemma 5")
    assert all(name.startswith("gemma-") for name in caught.value.candidates)
    assert "gemma-4-31b-it" in caught.value.candidates[:3]


def test_find_model_takes_no_model_for_a_family_and_the_word_base() -> None:
    with pytest.raises(NotFoundError):
        find_entry("bert base")


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("olmo 3 32b", "olmo-3-32b-think"),
        ("apertus 70b", "apertus-70b-instruct-2509"),
        ("yi 6b", "yi-6b-chat"),
        ("yi 6b base", "yi-6b"),
        ("01-ai/Yi-6B", "yi-6b"),
    ],
)
def test_find_model_takes_the_instruct_model_unless_the_base_is_named(
    name: str, entry: str
) -> None:
    assert find_entry(name).id == entry


def test_find_model_imports_no_file_formats_or_network() -> None:
    code = "import sys; from edgekit.index.names import find_model; find_model('qwen3-8b'); print(*sys.modules)"
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(completed.stdout.split())
    assert loaded.isdisjoint(
        {
            "edgekit.formats",
            "edgekit.index.likeness",
            "edgekit.sources.filenames",
            "edgekit.sources.local",
            "hashlib",
            "tempfile",
        }
    )
