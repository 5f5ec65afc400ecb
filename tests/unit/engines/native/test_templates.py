"""Chat formats compared with llama.cpp: each by its name, and the templates in model files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tests.embed_models import write_model
from tests.embed_vocabularies import byte_bpe, sentencepiece
from tests.served_oracle import llamacpp_prompts, llamacpp_replies

from edgekit.engines.chat import Message
from edgekit.engines.native.file import Limits, WeightFile, scan_header
from edgekit.engines.native.templates import (
    FORMATS,
    TEMPLATE_BYTES,
    ChatFormat,
    chat_format,
    format_of,
)
from edgekit.engines.native.tokenizer.build import build_tokenizer
from edgekit.engines.native.tokenizer.vocabulary import read_vocabulary
from edgekit.errors import UsageError

Chat = Sequence[tuple[str, str]]
CHATS: tuple[Chat, ...] = (
    (("user", "Hello there"),),
    (("system", "Be brief."), ("user", "Hello there")),
    (("user", "Hi"), ("assistant", "Hello!"), ("user", "And now?")),
    (("system", "Be\n\nbrief."), ("user", "Hi"), ("assistant", "Hello!"), ("user", "Bye")),
    (("user", "  Hi \n"), ("assistant", " \tHello! \n"), ("user", "\nBye? ")),
    (("system", " one "), ("system", " two "), ("user", "Hi"), ("user", "again")),
    (("user", "Hi"), ("assistant", "Yes"), ("system", "Now in French."), ("user", "Bye")),
    (("assistant", "Ask me."), ("user", "Why?")),
    (("user", "\u00e9\u4e2d\U0001f600 {{ x }} {% y %} <|im_end|>"),),
)
TINY: dict[str, Any] = {"kind": "F16", "layers": 1, "width": 64, "inner": 64, "heads": 1, "kv_heads": 1}  # fmt: skip

# Templates like those of real models; llama.cpp runs them.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
WITH_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a small machine.<|im_end|>\\n' }}{% endif %}" + CHATML
)
WITH_THOUGHTS = (
    "{% for message in messages %}{% set text = message['content'] %}{% if message['role'] == 'assistant' and '</think>' in text %}"
    "{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + text + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
)
LLAMA31 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content']|trim %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\\n\\n' }}{{ 'Cutting Knowledge Date: December 2023\\n' }}"
    "{{ 'Today Date: 26 Jul 2024\\n\\n' }}{{ system }}{{ '<|eot_id|>' }}"
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
    "{{ message['content']|trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "default system message": WITH_SYSTEM,
    "thinking": WITH_THOUGHTS,
    "llama 3.1": LLAMA31,
}


def messages(chat: Chat) -> list[Message]:
    return [Message(role=role, content=content) for role, content in chat]


def as_json(chats: Sequence[Chat]) -> list[list[dict[str, str]]]:
    return [[{"role": role, "content": content} for role, content in chat] for chat in chats]


@pytest.fixture(scope="module")
def by_name(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    pytest.importorskip("xllamacpp")
    path = write_model(tmp_path_factory.mktemp("names") / "model.gguf", "llama", **TINY)
    return llamacpp_prompts(path, list(FORMATS), as_json(CHATS))


@pytest.mark.parametrize("name", FORMATS)
def test_chat_format_equals_llamacpp(name: str, by_name: dict[str, list[str]]) -> None:
    assert [ChatFormat(name=name).text(messages(chat)) for chat in CHATS] == by_name[name]


@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_template_of_the_file_equals_llamacpp(name: str, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    path = write_model(
        tmp_path / "model.gguf", "llama", keys={"tokenizer.chat_template": TEMPLATES[name]}, **TINY
    )
    chats = (*CHATS[:4], (("user", "Hi"), ("assistant", "<think>\nhm\n</think>\n\nYes"), ("user", "Bye")))  # fmt: skip
    expected = llamacpp_prompts(path, [""], as_json(chats))[""]
    with WeightFile(path, Limits()) as file:
        result = chat_format(file, scan_header(file), ())
    assert result is not None
    assert [result.text(messages(chat)) for chat in chats] == expected


# --- recognising a format


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<|im_start|>' }}...{{ '<|im_end|>' }}", "chatml"),
        ("<|start_header_id|> <|end_header_id|> <|eot_id|>", "llama3"),
        ("<start_of_turn>model <end_of_turn>", "gemma"),
        ("<|user|> <|assistant|> <|end|>", "phi3"),
        ("[INST] {{ content }} [/INST]", "llama2"),
        ("[INST] <<SYS>>", "llama2-sys"),
        ("{{ bos_token + '[INST] ' }} <<SYS>>", "llama2-sys-bos"),
        ("[INST] <<SYS>> {{ content.strip() }}", "llama2-sys-strip"),
        ("{{ ' [INST] ' + system_message }}", "mistral-v1"),
        ("[AVAILABLE_TOOLS] ' [INST]'", "mistral-v1"),
        ("[AVAILABLE_TOOLS] '[INST] '", "mistral-v3"),
        ('[AVAILABLE_TOOLS]{{"[INST]"}}', "mistral-v3-tekken"),
        ("'[SYSTEM_PROMPT] ' '[INST] '", "mistral-v7"),
        ("'[SYSTEM_PROMPT]' '[INST]'", "mistral-v7-tekken"),
    ],
)
def test_format_of_a_template(template: str, name: str) -> None:
    result = format_of(template)
    assert result is not None
    assert result.name == name


@pytest.mark.parametrize(
    "template",
    [
        "",
        "{{ messages[0]['content'] }}",
        "<|im_start|>user<|im_sep|>hi<|im_end|>",  # Phi 4
        "<|im_start|>User: hi<end_of_utterance><|im_end|>",  # SmolVLM
        "<|turn>user hi<turn|>",  # Gemma 4
        "<\uff5cUser\uff5c>hi<\uff5cAssistant\uff5c>",  # DeepSeek
        "<|start|>user<|message|>hi<|end|>",  # gpt-oss
    ],
)
def test_format_of_an_unknown_template_is_none(template: str) -> None:
    assert format_of(template) is None


def test_chat_format_contains_the_date_if_the_template_uses_it() -> None:
    template = LLAMA31.replace("26 Jul 2024", "' + strftime_now('%d %b %Y') + '")
    result = format_of(template, today="16 Nov 2026")
    assert result is not None
    assert result.text([Message(role="user", content="Hi")]).startswith(
        "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        "Today Date: 16 Nov 2026\n\n<|eot_id|><|start_header_id|>user"
    )


# --- files


def find_format(path: Path, **keys: Any) -> ChatFormat | None:
    write_model(path, "qwen2", vocabulary=keys.pop("vocabulary", None), keys=keys, **TINY)
    with WeightFile(path, Limits()) as file:
        header = scan_header(file)
        return chat_format(file, header, read_vocabulary(file, header).named)


def test_chat_format_of_a_template_of_30_kib(tmp_path: Path) -> None:
    """A FileHeader stores strings of up to 2 KiB; the longest template in llama.cpp has 16 KiB."""
    template = "{# " + "x" * 30_000 + " #}" + CHATML
    assert find_format(tmp_path / "m.gguf", **{"tokenizer.chat_template": template}) == ChatFormat(name="chatml")  # fmt: skip


def test_chat_format_of_a_template_over_the_limit_is_none(tmp_path: Path) -> None:
    template = CHATML + "{#" + "x" * TEMPLATE_BYTES + "#}"
    assert find_format(tmp_path / "m.gguf", **{"tokenizer.chat_template": template}) is None


def test_chat_format_of_a_template_that_is_not_a_string_is_none(tmp_path: Path) -> None:
    result = find_format(tmp_path / "m.gguf", vocabulary=sentencepiece(), **{"tokenizer.chat_template": 7})  # fmt: skip
    assert result is None


def test_chat_format_without_a_template_follows_from_the_vocabulary(tmp_path: Path) -> None:
    assert find_format(tmp_path / "im_end.gguf") == ChatFormat(name="chatml")
    assert find_format(tmp_path / "none.gguf", vocabulary=sentencepiece()) is None


@pytest.mark.parametrize("bos_from", ["vocabulary", "template"])
def test_chat_tokens_equal_llamacpp(bos_from: str, tmp_path: Path) -> None:
    """The BOS token comes from the template if the vocabulary adds none, and never twice."""
    pytest.importorskip("xllamacpp")
    path = write_model(
        tmp_path / "model.gguf",
        "qwen2",
        vocabulary=byte_bpe(bos=bos_from == "vocabulary"),
        keys={"tokenizer.chat_template": "{{ bos_token }}" + CHATML},
        **TINY,
    )
    with WeightFile(path, Limits()) as file:
        header = scan_header(file)
        tokenizer = build_tokenizer(read_vocabulary(file, header))
        result = chat_format(file, header, ())
    assert result is not None
    chats = (*CHATS[:2], CHATS[-1])
    bos = "" if tokenizer.before else "<|endoftext|>"
    texts = [bos + result.text(messages(chat)) for chat in chats]
    prompts = [("/apply-template", {"messages": chat}) for chat in as_json(chats)]
    tokens = [("/tokenize", {"content": text, "add_special": True}) for text in texts]
    replies = llamacpp_replies(path, [*prompts, *tokens])
    assert [reply["prompt"] for reply in replies[: len(chats)]] == texts
    actual = [result.tokens(tokenizer, messages(chat)) for chat in chats]
    assert actual == [reply["tokens"] for reply in replies[len(chats) :]]


# --- bad input


def test_chat_format_refuses_an_empty_list_of_messages() -> None:
    with pytest.raises(UsageError, match="no message to answer"):
        ChatFormat(name="chatml").text([])


def test_chat_format_refuses_an_unknown_role() -> None:
    with pytest.raises(UsageError, match="'tool': choose one of system, user, assistant"):
        ChatFormat(name="chatml").text([Message(role="tool", content="x")])


def test_every_chat_format_has_marks() -> None:
    from edgekit.engines.native import templates

    rows = templates._DATA["marks"]
    named = {row["format"] for row in rows} | set(templates._DATA["end_tokens"].values())
    assert named == set(FORMATS)
    assert all(chain.from_iterable(row["has"] for row in rows))
