"""`edgekit run` with stop texts, images, tools and saved conversations, on the real engines."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.projectors import IMAGE_TOKENS, png, write_projector
from tests.runnable import CHATML, write_chatting

from edgekit.app.conversations import load
from edgekit.cli import main
from edgekit.engines.llamacpp.companions import image_tokens
from edgekit.errors import SourceError
from edgekit.formats import read_header
from edgekit.sources.local import locate_path

pytest.importorskip("xllamacpp")
ENGINES = ("llama.cpp", "stream")
GREEDY = ("--temp", 0)
WIDTH = 256
WITH_TOOLS = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}" + CHATML
)
TOOLS = json.dumps(
    [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
)
RunCli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vision model with its projector, and an image."""
    folder = tmp_path_factory.mktemp("vision")
    write_chatting(folder / "model.gguf", tied=False, keys={"tokenizer.chat_template": WITH_TOOLS})
    write_projector(folder / "mmproj-model.gguf", WIDTH)
    (folder / "photo.png").write_bytes(png())
    return folder


@pytest.fixture
def model(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path / "data"))
    return folder / "model.gguf"


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str], model: Path) -> RunCli:
    def run(*argv: object, file: Path | None = model) -> tuple[int, str, str]:
        code = main(("run", *([] if file is None else [str(file)]), *map(str, argv)))
        out, err = capsys.readouterr()
        return code, out, err

    return run


def answer(run_cli: RunCli, *argv: object) -> dict[str, object]:
    code, out, err = run_cli(*argv, *GREEDY, "--json")
    assert code == 0, err
    result: dict[str, object] = json.loads(out)
    return result


# --- --stop


@pytest.mark.parametrize("engine", ENGINES)
def test_answer_ends_before_a_stop_text(run_cli: RunCli, engine: str) -> None:
    argv = ("-p", "Once upon a time", "--raw", "-n", 12, "--engine", engine)
    whole = str(answer(run_cli, *argv)["text"])
    stop = whole[4:6]
    cut = answer(run_cli, *argv, "--stop", "never in it", "--stop", stop)
    assert cut["text"] == whole[: whole.index(stop)]
    assert cut["finish"] == "stop"


@pytest.mark.parametrize("stops", [("",), ("x" * 257,), ("x",) * 17], ids=["empty", "long", "many"])
def test_stop_texts_are_limited(run_cli: RunCli, stops: tuple[str, ...]) -> None:
    code, _, err = run_cli("-p", "a", *(f"--stop={stop}" for stop in stops))
    assert code == 2
    assert "takes up to 16 texts of 1 to 256 characters" in err


# --- --image


def test_image_is_read_with_the_projector_next_to_the_model(run_cli: RunCli, folder: Path) -> None:
    argv = ("-p", "What is this?", "-n", 4)
    with_image = answer(run_cli, *argv, "--image", folder / "photo.png")
    two = answer(run_cli, *argv, *("--image", folder / "photo.png") * 2)
    # an image becomes its tokens and two that mark its beginning and its end
    more = int(str(two["prompt_tokens"])) - int(str(with_image["prompt_tokens"]))
    assert more >= IMAGE_TOKENS
    header = read_header(locate_path(folder / "mmproj-model.gguf"))
    assert more <= image_tokens(header)
    assert int(str(with_image["context_tokens"])) >= image_tokens(header) + 4 + 64


def test_projector_of_an_image_is_in_the_bill(run_cli: RunCli, folder: Path) -> None:
    plain = answer(run_cli, "-p", "a", "-n", 2, "-c", 1024)
    with_image = answer(run_cli, "-p", "a", "-n", 2, "-c", 1024, "--image", folder / "photo.png")
    plans = [json.dumps(result["plan"]) for result in (plain, with_image)]
    assert ["projector" in plan for plan in plans] == [False, True]


def test_image_needs_a_model_and_an_engine_that_see(
    run_cli: RunCli, folder: Path, tmp_path: Path
) -> None:
    image = ("-p", "a", "--image", folder / "photo.png")
    alone = shutil.copy(folder / "model.gguf", tmp_path / "alone.gguf")
    code, _, err = run_cli(*image, file=alone)
    assert code == 2
    assert "no image projector (an mmproj file) next to it" in err
    assert "--mmproj FILE" in err
    assert run_cli(*image, "--mmproj", folder / "mmproj-model.gguf", "-n", 2, file=alone)[0] == 0
    code, _, err = run_cli(*image, "--engine", "stream")
    assert code == 2
    assert "--image needs --engine llama.cpp" in err
    code, _, err = run_cli(*image, "--raw")
    assert code == 2
    assert "--raw" in err


def test_image_for_a_model_of_the_index_that_sees_nothing(run_cli: RunCli, folder: Path) -> None:
    argv = ("-p", "a", "--image", folder / "photo.png", "--offline")
    code, _, err = run_cli(*argv, file=Path("llama-3.1-8b"))
    assert code == 2
    assert "search --task vision" in err


def test_damaged_image_is_an_error_of_the_engine(run_cli: RunCli, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(png()[:40])
    code, out, err = run_cli("-p", "a", "--image", damaged, "-q")
    assert (code, out) == (5, "")
    assert "llama.cpp refused the request" in err
    assert "Traceback" not in err


# --- --tools


def test_tools_reach_the_chat_template_and_have_room(run_cli: RunCli) -> None:
    plain = answer(run_cli, "-p", "Is it raining?", "-n", 3)
    with_tools = answer(run_cli, "-p", "Is it raining?", "-n", 3, "--tools", TOOLS)
    assert int(str(with_tools["prompt_tokens"])) > int(str(plain["prompt_tokens"]))
    assert with_tools["tool_calls"] == []
    assert int(str(with_tools["context_tokens"])) > int(str(with_tools["prompt_tokens"])) + 3


def test_tools_need_an_engine_that_calls_them(run_cli: RunCli) -> None:
    code, _, err = run_cli("-p", "a", "--tools", TOOLS, "--engine", "stream")
    assert code == 2
    assert "--tools needs --engine llama.cpp" in err


# --- conversations


@pytest.mark.parametrize("engine", ENGINES)
def test_conversation_is_continued(run_cli: RunCli, engine: str) -> None:
    argv = ("-n", 4, "--engine", engine)
    first = answer(run_cli, "-p", "Hello", "--system", "Be short.", "--save", "talk", *argv)
    assert [message.role for message in load("talk").messages] == ["system", "user", "assistant"]
    second = answer(run_cli, "-p", "Again", "--resume", "talk", *argv)
    assert int(str(second["prompt_tokens"])) > int(str(first["prompt_tokens"]))
    messages = load("talk").messages
    assert [message.content for message in messages[1:]] == [
        "Hello",
        first["text"],
        "Again",
        second["text"],
    ]


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_answer_is_printed_even_if_it_cannot_be_saved(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, as_json: bool
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path / "file"))  # no folder can be made in it
    argv = ("-p", "Hello", "-n", 4, *GREEDY)
    _, answer_alone, _ = run_cli(*argv)
    code, out, err = run_cli(*argv, "--save", "talk", *(["--json"] if as_json else []))
    assert (json.loads(out)["text"] + "\n" if as_json else out) == answer_alone
    assert "not saved: " in err
    assert code == SourceError.exit_code


def test_resume_without_a_model_uses_its_own_from_any_folder(
    run_cli: RunCli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert run_cli("-p", "Hello", "--save", "talk", "-n", 2, file=Path("model.gguf"))[0] == 0
    monkeypatch.chdir(tmp_path)
    code, _, err = run_cli("-p", "Again", "--resume", "talk", "-n", 2, file=None)
    assert code == 0, err
    assert load("talk").model == str(folder / "model.gguf")


def test_resume_with_another_model_says_so(run_cli: RunCli, model: Path, tmp_path: Path) -> None:
    run_cli("-p", "Hello", "--save", "talk", "-n", 2)
    other = shutil.copy(model, tmp_path / "other.gguf")
    code, _, err = run_cli("-p", "Again", "--resume", "talk", "-n", 2, file=other)
    assert code == 0
    assert f"the last answer of this conversation was from {model}" in err
    assert load("talk").model == str(other)


def test_image_of_a_resumed_conversation_is_read_again(run_cli: RunCli, folder: Path) -> None:
    argv = ("-n", 2, "--save", "talk", "--image", folder / "photo.png")
    first = answer(run_cli, "-p", "What is this?", *argv)
    second = answer(run_cli, "-p", "And its colour?", "--resume", "talk", "-n", 2)
    assert int(str(second["prompt_tokens"])) > int(str(first["prompt_tokens"]))
    assert load("talk").messages[0].images[0].data == png()
    code, _, err = run_cli("-p", "Again", "--resume", "talk", "--engine", "stream")
    assert code == 2
    assert "this conversation has images: stream takes text only, use --engine llama.cpp" in err


def test_resume_and_save_continue_a_copy(run_cli: RunCli) -> None:
    run_cli("-p", "Hello", "--save", "one", "-n", 2)
    run_cli("-p", "Again", "--resume", "one", "--save", "two", "-n", 2)
    assert [len(load(name).messages) for name in ("one", "two")] == [2, 4]


@pytest.mark.parametrize("engine", ENGINES)
def test_conversation_longer_than_the_window_is_refused_or_rolls(
    run_cli: RunCli, engine: str
) -> None:
    argv = ("-n", 2, "--engine", engine)
    run_cli("-p", "word " * 300, "--save", "talk", *argv)
    code, out, err = run_cli("-p", "Again", "--resume", "talk", "-c", 256, *argv)
    assert (code, out) == (3, "")
    assert "--rolling" in err
    code, _, err = run_cli("-p", "Again", "--resume", "talk", "-c", 256, "--rolling", *argv)
    assert code == 0, err
    assert len(load("talk").messages) == 4


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--resume", "none"), "there is no conversation 'none'"),
        (("--save", "-x"), "needs a name"),
        (("--save", "a", "--raw"), "--raw"),
    ],
)
def test_wrong_use_of_conversations(
    run_cli: RunCli, argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with_equals = (f"{argv[0]}={argv[1]}", *argv[2:])
    code, _, err = run_cli("-p", "a", *with_equals)
    assert code in {2, 4}
    assert message in err


def test_system_prompt_of_a_resumed_conversation_stays(run_cli: RunCli) -> None:
    run_cli("-p", "Hello", "--save", "talk", "-n", 2)
    code, _, err = run_cli("-p", "a", "--resume", "talk", "--system", "Be rude.")
    assert code == 2
    assert "--system begins a conversation" in err


def test_run_without_a_model_or_a_conversation(run_cli: RunCli) -> None:
    code, _, err = run_cli("-p", "a", file=None)
    assert code == 2
    assert "name a model" in err


def test_list_show_and_delete(run_cli: RunCli, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conversations", "list"]) == 0
    assert "No conversations yet" in capsys.readouterr().out
    run_cli("-p", "Hello\x1b[31m", "--save", "talk", "-n", 2)
    assert main(["conversations", "list"]) == 0
    assert "talk" in capsys.readouterr().out
    assert main(["conversations", "show", "talk"]) == 0
    shown = capsys.readouterr().out
    assert "[user]\nHello\N{REPLACEMENT CHARACTER}[31m\n" in shown
    assert main(["conversations", "show", "talk", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["messages"][0]["content"] == "Hello\x1b[31m"
    assert main(["conversations", "delete", "talk", "none"]) == 4
    assert load("talk").messages
    assert main(["conversations", "delete", "talk"]) == 0
    assert main(["conversations", "show", "talk"]) == 4


def test_chat_saves_adds_an_image_and_forgets(
    run_cli: RunCli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(
        [
            "/save talk",
            "Hello",
            "/image none.png",
            f"/image {folder / 'photo.png'}",
            "Look",
            "/reset",
            "Not saved",
            "/save talk",
            "/exit",
        ]
    )

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    code, _, err = run_cli("--mmproj", "auto", "-n", 2, "-c", 1024)
    assert code == 0, err
    messages = load("talk").messages
    assert [message.content for message in messages if message.role == "user"] == ["Hello", "Look"]
    assert [len(message.images) for message in messages] == [0, 0, 1, 0]
    for expected in (
        "no such file or folder: none.png",
        "saved messages are kept",
        "--resume talk",
    ):
        assert expected in err


def test_chat_without_a_projector_refuses_an_image(
    run_cli: RunCli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter([f"/image {folder / 'photo.png'}", "/exit"])
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    code, _, err = run_cli("-c", 512)
    assert code == 0
    assert "this chat takes text only" in err
