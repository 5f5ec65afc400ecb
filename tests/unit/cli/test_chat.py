"""A chat on the terminal: the reasoning of the model, and conversations that cannot be saved."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.openai_server import chunk, openai_server

from edgekit.app.conversations import Transcript, load
from edgekit.cli.chat import Writer, chat
from edgekit.engines.chat import GenerationResult, Image, Message, Prompt, Sampling
from edgekit.engines.openai_client import OpenAiClient
from edgekit.request import Request

ANSWER = [
    chunk({"reasoning_content": "Sky? "}),
    chunk({"reasoning_content": "Blue."}),
    chunk({"content": "It is "}),
    chunk({"content": "blue."}, "stop"),
]


@pytest.fixture
def requests() -> list[dict[str, Any]]:
    """The bodies of the requests that the engine received."""
    return []


@pytest.fixture
def writer(requests: list[dict[str, Any]]) -> Iterator[Writer]:
    """An engine that thinks before it answers."""
    with openai_server(ANSWER, requests, refused="image_url") as address:
        yield Writer(
            generator=OpenAiClient(address, program="a server", window_tokens=100),
            request=Request(),
            sampling=Sampling(),
            takes_images=True,
            say=lambda sentence: print(sentence, file=sys.stderr),
            show_reasoning=lambda text: print(text, end="", file=sys.stderr),
        )


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_reasoning_is_shown_on_standard_error(
    writer: Writer, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = Prompt(messages=(Message(role="user", content="Colour?"),))
    shown = list[str]()
    writer.print_answer(writer.fitted(prompt, 8), GenerationResult(), shown)
    out, err = capsys.readouterr()
    assert out == "It is blue.\n"
    assert err == "Thinking...\nSky? Blue.\n...done thinking.\n\n"
    assert "".join(shown) == "It is blue."


def test_reasoning_is_neither_saved_nor_sent_back(
    writer: Writer, requests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_lines(monkeypatch, "Colour?", "Sure?", "/exit")
    chat(writer, Transcript(name="sky"), (), None)
    contents = ["Colour?", "It is blue.", "Sure?", "It is blue."]
    assert [message["content"] for message in requests[1]["messages"]] == contents[:3]
    assert [message.content for message in load("sky").messages] == contents


def test_chat_goes_on_if_it_cannot_be_saved(
    writer: Writer,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data.write_bytes(b"")  # a file, in which no folder can be made
    type_lines(monkeypatch, "Colour?", "/save sky", "Sure?", "/exit")
    transcript = Transcript()
    chat(writer, transcript, (), None)
    assert "not saved: " in capsys.readouterr().err
    assert len(transcript.messages) == 4
    assert transcript.name is None


def test_chat_goes_on_without_a_message_that_the_engine_refuses(
    writer: Writer,
    requests: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    type_lines(monkeypatch, "Colour?", "Sure?", "/exit")
    transcript = Transcript()
    chat(writer, transcript, (Image(data=b"abc", media_type="image/png"),), None)
    err = capsys.readouterr().err
    assert "a server refused the request (HTTP 400): Failed to load image or audio file" in err
    assert [message["content"] for message in requests[1]["messages"]] == ["Sure?"]
    contents = [message.content for message in transcript.messages]
    assert contents == ["Sure?", "It is blue."]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("/sav trip", "unknown command /sav: /image FILE adds"),
        ("/help", "/save NAME saves the conversation"),
        ("/save", "give a name: /save NAME"),
        ("/image", "name a file: /image FILE"),
    ],
)
def test_mistyped_commands_are_not_sent_to_the_model(
    writer: Writer,
    requests: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    line: str,
    answer: str,
) -> None:
    type_lines(monkeypatch, line)
    chat(writer, Transcript(), (), None)
    assert answer in capsys.readouterr().err
    assert not requests


def test_paths_at_the_start_of_a_message_are_no_commands(
    writer: Writer, requests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_lines(monkeypatch, "/etc/hosts is what?")
    chat(writer, Transcript(), (), None)
    assert requests[0]["messages"][-1]["content"] == "/etc/hosts is what?"
