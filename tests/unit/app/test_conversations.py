"""Saved conversations: what is read back, two writers, a process that dies, and damaged files."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S

from edgekit.app.conversations import (
    NAME_CHARS,
    Transcript,
    append,
    check_name,
    conversations,
    delete,
    load,
)
from edgekit.engines.chat import Image, Message
from edgekit.errors import HeaderError, NotFoundError, SourceError, UsageError

SYSTEM = Message(role="system", content="Be short.")
QUESTION = Message(
    role="user",
    content="What is this? \N{GRINNING FACE}\n",
    images=(
        Image(data=b"\x89PNG first", media_type="image/png"),
        Image(data=b"\xff\xd8 second", media_type="image/jpeg"),
    ),
)
CALL = {"name": "weather", "arguments": '{"city": "Rome"}'}
ANSWER = Message(role="assistant", content="", tool_calls=(CALL,))


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the conversations of the test are."""
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "conversations.db"


def test_conversation_is_read_back_with_images_and_tool_calls() -> None:
    append("trip", (SYSTEM, QUESTION, ANSWER), after=0, model="a.gguf")
    saved = load("trip")
    assert saved.messages == (SYSTEM, QUESTION, ANSWER)
    assert saved.model == "a.gguf"


def test_model_is_the_one_of_the_last_answer() -> None:
    append("trip", (QUESTION, ANSWER), after=0, model="a.gguf")
    append("trip", (QUESTION, ANSWER), after=2, model="b.gguf")
    assert load("trip").model == "b.gguf"
    (row,) = conversations()
    assert (row.name, row.model, row.message_count) == ("trip", "b.gguf", 4)


def test_delete_removes_the_messages_and_their_bytes(file: Path) -> None:
    append("trip", (QUESTION, ANSWER), after=0, model="a")
    append("other", (QUESTION,), after=0, model="a")
    assert delete("trip")
    assert delete("other")
    assert not delete("trip")
    assert conversations() == ()
    with sqlite3.connect(file) as database:
        assert database.execute("SELECT count(*) FROM messages").fetchone() == (0,)
    database.close()
    assert b"PNG first" not in file.read_bytes()


def test_file_can_only_be_read_by_its_owner(file: Path) -> None:
    append("trip", (QUESTION,), after=0, model="a")
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    append("trip", (ANSWER,), after=1, model="a")
    assert file.stat().st_mode & 0o777 == 0o600


def test_nothing_is_written_to_read(file: Path) -> None:
    assert conversations() == ()
    assert not delete("trip")
    with pytest.raises(NotFoundError, match="there is no conversation 'trip'"):
        load("trip")
    assert not file.exists()


def test_unknown_name_suggests_a_similar_one() -> None:
    append("rome-trip", (QUESTION,), after=0, model="a")
    with pytest.raises(NotFoundError, match="Did you mean: rome-trip"):
        load("rome-tripp")


def test_second_writer_of_a_conversation_is_told_and_changes_nothing() -> None:
    append("trip", (QUESTION, ANSWER), after=0, model="a")
    first, second = (
        Transcript(name="trip", messages=load("trip").messages, saved_count=2) for _ in range(2)
    )
    first.add(QUESTION, ANSWER)
    with pytest.raises(UsageError, match="another process has changed the conversation 'trip'"):
        second.add(QUESTION, ANSWER)
    assert len(load("trip").messages) == 4
    second.save_as("mine")
    assert load("mine").messages == second.messages


def test_new_conversation_does_not_overwrite_one() -> None:
    append("trip", (QUESTION,), after=0, model="a")
    with pytest.raises(UsageError, match="--resume trip"):
        Transcript().save_as("trip")
    with pytest.raises(UsageError, match="another process"):
        append("trip", (ANSWER,), after=0, model="a")
    assert load("trip").messages == (QUESTION,)


def test_save_as_of_an_empty_chat_saves_with_the_first_exchange() -> None:
    transcript = Transcript(messages=(SYSTEM,))
    transcript.save_as("later")
    assert conversations() == ()
    transcript.add(QUESTION, ANSWER)
    assert load("later").messages == (SYSTEM, QUESTION, ANSWER)


WRITER = """
import sys
from edgekit.app.conversations import append
from edgekit.engines.chat import Message
message = (Message(role="user", content="x" * 1000),)
for number in range(int(sys.argv[2])):
    append(sys.argv[1], message, after=number, model="a")
    print(number, flush=True)
"""


def writer(name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)


def test_two_processes_write_at_the_same_time() -> None:
    writers = [writer(name, 20) for name in ("one", "two")]
    for process in writers:
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    assert [len(load(name).messages) for name in ("one", "two")] == [20, 20]


def test_killed_writer_leaves_whole_exchanges() -> None:
    with writer("one", 100_000) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "5":
                process.send_signal(signal.SIGKILL)
                break
        process.wait(PATIENCE_S)
    saved = load("one").messages
    assert len(saved) >= 6
    append("one", (ANSWER,), after=len(saved), model="a")
    assert len(load("one").messages) == len(saved) + 1


def test_damaged_file_is_an_error_and_stays_as_it_is(file: Path) -> None:
    append("trip", (QUESTION,), after=0, model="a")
    file.write_bytes(b"not a database, but as long as the header of one: " * 40)
    before = file.read_bytes()
    for action in (conversations, lambda: append("a", (QUESTION,), after=0, model="a")):
        with pytest.raises(HeaderError, match=r"is damaged .*: move the file away"):
            action()
    assert file.read_bytes() == before


def test_database_of_another_program_and_a_newer_one_are_refused(file: Path) -> None:
    file.parent.mkdir()
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA user_version = 1")
    database.close()
    with pytest.raises(HeaderError, match="no table of conversations"):
        conversations()
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA user_version = 2")
    database.close()
    with pytest.raises(HeaderError, match="newer EdgeKit"):
        conversations()


def test_pipe_is_not_opened(file: Path) -> None:
    file.parent.mkdir()
    os.mkfifo(file)
    with pytest.raises(SourceError, match="not a regular file"):
        conversations()


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("role", "'wizard'", "message 0 has no role"),
        ("content", "x'ff00'", "is not text"),
        ("tool_calls", "'['", "a tool call is not JSON"),
        ("tool_calls", "'[{}]'", "a tool call has no name"),
        ("tool_calls", "'[' || replace(hex(zeroblob(50000)), '0', '[')", "a tool call is not JSON"),
    ],
)
def test_changed_row_is_damage(file: Path, column: str, value: str, problem: str) -> None:
    append("trip", (QUESTION,), after=0, model="a")
    with sqlite3.connect(file) as database:
        database.execute(f"UPDATE messages SET {column} = {value}")
    database.close()
    with pytest.raises(HeaderError, match=problem):
        load("trip")


def test_conversation_too_large_to_read_is_refused(file: Path) -> None:
    append("trip", (QUESTION,), after=0, model="a")
    with sqlite3.connect(file) as database:
        database.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100001) "
            "INSERT INTO messages SELECT 1, i, 'user', '', '[]', 'a' FROM n"
        )
    database.close()
    with pytest.raises(UsageError, match="100,002 messages"):
        load("trip")


@pytest.mark.parametrize("name", ["", " ", " a", "-x", "a\nb", "a\x1b[0m", "x" * (NAME_CHARS + 1)])
def test_name_that_could_not_be_typed_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)


def test_failed_save_leaves_the_old_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transcript = Transcript(model="a", name="old")
    transcript.add(QUESTION, ANSWER)
    monkeypatch.setenv("EDGEKIT_DATA", str(file))  # a file, in which no folder can be made
    with pytest.raises(SourceError):
        transcript.save_as("new")
    monkeypatch.setenv("EDGEKIT_DATA", str(file.parent))
    transcript.add(QUESTION, ANSWER)
    assert [row.name for row in conversations()] == ["old"]
    assert len(load("old").messages) == 4
