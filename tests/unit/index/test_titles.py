"""`index.titles`: names of models as people write them."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from edgekit.index import index_entries, most_used
from edgekit.index.names import find_entry
from edgekit.index.titles import publisher_of, title_of, titles
from edgekit.index.types import Entry


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("gemma-3-27b", "Gemma 3 27B"),
        ("gemma-3-27b-pt", "Gemma 3 27B PT"),
        ("qwen3.6-35b-a3b", "Qwen3.6 35B-A3B"),
        ("llama-3.1-8b", "Llama 3.1 8B Instruct"),  # the base model is Llama 3.1 8B
        ("llama-3.1-8b-base", "Llama 3.1 8B"),
        ("llama-3-8b", "Llama 3 8B Instruct"),
        ("llama-3.3-70b", "Llama 3.3 70B"),
        ("llama-2-13b-chat-hf", "Llama 2 13B Chat"),
        ("llama-4-scout", "Llama 4 Scout 17B-16E Instruct"),
        ("gpt-oss-20b", "gpt-oss 20B"),
        ("deepseek-v3", "DeepSeek V3"),
        ("deepseek-v3.2", "DeepSeek V3.2"),
        ("deepseek-r1-0528", "DeepSeek R1 0528"),
        ("mistral-small-3.2-24b", "Mistral Small 3.2 24B"),
        ("mistral-nemo-instruct-2407", "Mistral Nemo"),
        ("mixtral-8x7b", "Mixtral 8x7B Instruct v0.1"),
        ("qwen3-4b-instruct-2507", "Qwen3 4B Instruct 2507"),
        ("qwen3-4b-thinking-2507", "Qwen3 4B Thinking 2507"),
        ("qwen3-coder-30b-a3b-instruct", "Qwen3 Coder 30B-A3B"),
        ("glm-4.7-flash", "GLM-4.7 Flash"),
        ("phi-4", "Phi-4"),
        ("phi-4-mini-instruct", "Phi-4 Mini"),
        ("minicpm-v-4.6", "MiniCPM-V 4.6"),
        ("nemotron-3-nano-30b-a3b", "Nemotron 3 Nano 30B-A3B"),
        ("smollm2-135m-instruct", "SmolLM2 135M Instruct"),
        ("kimi-k2.5", "Kimi K2.5"),
        ("bge-large-en-v1.5", "BGE Large EN v1.5"),
        ("nomic-embed-text-v1.5", "Nomic Embed Text v1.5"),
    ],
)
def test_title_is_what_people_write(name: str, title: str) -> None:
    assert title_of(find_entry(name)) == title


def test_every_title_means_one_model() -> None:
    counts = Counter(title_of(entry).lower() for entry in index_entries())
    assert [title for title, count in counts.items() if count > 1] == []


def test_titles_of_the_most_used_models_have_no_slugs() -> None:
    for entry in most_used(index_entries())[:160]:
        title = title_of(entry)
        assert "_" not in title, title
        assert "/" not in title, title
        assert "(" not in title, title
        assert not re.search(r"\d[bm]\b", title), title  # 27B, not 27b
        assert title[0].isupper() or title.startswith(("gpt-oss", "all-")), title


def test_same_name_from_two_publishers_has_the_account_in_brackets() -> None:
    models = [
        Entry(id=f"tiny@{owner}", repository=f"{owner}/Tiny-7B", family="tiny", architecture="", uses=uses)
        for owner, uses in (("less", 1.0), ("most", 2.0), ("least", 0.0))
    ]  # fmt: skip
    assert titles(models) == {
        "tiny@most": "Tiny 7B",
        "tiny@less": "Tiny 7B (less)",
        "tiny@least": "Tiny 7B (least)",
    }


@pytest.mark.parametrize("name", ["-", "---", "_", "7b", "it", "instruct-chat", "GLM-", "x" * 300])
def test_odd_names_have_a_title(name: str) -> None:
    entry = Entry(id="odd", repository=f"somebody/{name}", family="", architecture="")
    (title,) = titles([entry]).values()
    assert title.strip() == title != ""
    assert len(title) <= 100


def test_title_of_a_users_model_is_its_id() -> None:
    assert title_of(Entry(id="mine", reference="/m.gguf", family="", architecture="")) == "mine"


@pytest.mark.parametrize(
    ("publisher", "name"),
    [
        ("Alibaba (Qwen)", "Alibaba"),
        ("Z.ai (Zhipu)", "Z.ai"),
        ("Google", "Google"),
        ("facebook", "Meta"),
        ("huihui-ai", "huihui-ai"),
        (None, None),
    ],
)
def test_publisher_has_no_brand_in_brackets(publisher: str | None, name: str | None) -> None:
    entry = Entry(id="model", publisher=publisher, family="", architecture="")
    assert publisher_of(entry) == name
