"""Saved conversations: `run --save` and `--resume`, and what `edgekit conversations` lists, shows and deletes.

Each exchange is one transaction: after a crash the conversation ends with the last complete answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from edgekit.engines.chat import ROLES, Image, Message
from edgekit.errors import NotFoundError, UsageError, quoted
from edgekit.sources.filenames import close_names
from edgekit.sources.user_database import UserDatabase
from edgekit.units import MIB, format_bytes

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

MAX_CONVERSATION_BYTES = 1024 * MIB  # what is read at once: a prompt has at most 64 MiB of text
MAX_MESSAGES = 100_000
MAX_LISTED = 10_000
NAME_CHARS = 80
_OWNER = "conversation INTEGER NOT NULL REFERENCES conversations (id) ON DELETE CASCADE"
_FILE = UserDatabase(
    name="conversations.db",
    purpose="conversations",
    contents="the file with your conversations",
    remedy="EdgeKit starts a new one",
    schema=1,
    tables={
        "conversations": (
            "id INTEGER PRIMARY KEY",
            "name TEXT NOT NULL UNIQUE",
            "begun TEXT NOT NULL",
            "changed TEXT NOT NULL",
        ),
        "messages": (
            _OWNER,
            "number INTEGER NOT NULL",
            "role TEXT NOT NULL",
            "content TEXT NOT NULL",
            "tool_calls TEXT NOT NULL",
            "model TEXT NOT NULL",
            "PRIMARY KEY (conversation, number)",
        ),
        "images": (
            _OWNER,
            "number INTEGER NOT NULL",  # of the message
            "place INTEGER NOT NULL",  # in the message
            "media_type TEXT NOT NULL",
            "data BLOB NOT NULL",
            "PRIMARY KEY (conversation, number, place)",
        ),
    },
    checks_whole_file=False,  # it may have gigabytes of images
)
_LIST = """SELECT c.name, c.begun, c.changed,
 (SELECT count(*) FROM messages m WHERE m.conversation = c.id),
 (SELECT m.model FROM messages m WHERE m.conversation = c.id ORDER BY m.number DESC LIMIT 1)
 FROM conversations c ORDER BY c.changed DESC, c.id DESC LIMIT ?"""
_SIZE = """SELECT (SELECT count(*) FROM messages WHERE conversation = ?1),
 (SELECT total(length(content) + length(tool_calls)) FROM messages WHERE conversation = ?1)
 + (SELECT total(length(data)) FROM images WHERE conversation = ?1)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRow:
    """A line of the list."""

    name: str
    model: str  # that gave the last answer
    begun: str  # ISO 8601, UTC
    changed: str
    message_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    name: str
    model: str  # that gave the last answer
    messages: tuple[Message, ...]


@dataclass(slots=True, kw_only=True)
class Transcript:
    """The messages of the current conversation, and how many of them are saved."""

    model: str = ""  # the reference that is saved with each message
    messages: tuple[Message, ...] = ()
    name: str | None = None  # None: it is not saved
    saved_count: int = 0

    def add(self, *messages: Message) -> None:
        """Add an exchange, and save what is not saved yet. Raises UsageError, SourceError or HeaderError."""
        self.messages = (*self.messages, *messages)
        self._save()

    def save_as(self, name: str) -> None:
        """Save all messages under this name from now on.

        Raises UsageError if there is such a conversation, and SourceError or HeaderError if it cannot be saved: the
        conversation then goes on under its old name.
        """
        check_name(name)
        require_new(name)
        saved_count = 0
        if any(message.role != "system" for message in self.messages):
            append(name, self.messages, after=0, model=self.model)
            saved_count = len(self.messages)
        self.name, self.saved_count = name, saved_count

    def _save(self) -> None:
        if self.name is not None:
            unsaved = self.messages[self.saved_count :]
            append(self.name, unsaved, after=self.saved_count, model=self.model)
            self.saved_count = len(self.messages)


def check_name(name: str) -> None:
    """Raises UsageError for a name that could not be typed or printed."""
    if not name.strip() or name != name.strip() or not name.isprintable() or name.startswith("-"):
        raise UsageError(
            f"a conversation needs a name of printable characters, such as trip-to-rome (got {quoted(name)})"
        )
    if len(name) > NAME_CHARS:
        raise UsageError(f"the name of a conversation has at most {NAME_CHARS} characters")


def require_new(name: str) -> None:
    """Raises UsageError if there is a conversation of this name."""
    if any(row.name == name for row in conversations()):
        raise UsageError(
            f"the conversation {name!r} already exists: continue it with --resume {name}, or delete it with "
            f"edgekit conversations delete {name}"
        )


def conversations() -> tuple[ConversationRow, ...]:
    """All of them, the last used first. Raises SourceError or HeaderError."""
    path = _FILE.path
    if path is None:
        return ()
    with _FILE.reading(path) as database:
        rows = [] if database is None else database.execute(_LIST, (MAX_LISTED,)).fetchall()
    return tuple(
        ConversationRow(
            name=_text(path, name),
            begun=_text(path, begun),
            changed=_text(path, changed),
            message_count=count,
            model=_text(path, model or ""),
        )
        for name, begun, changed, count, model in rows
    )


def load(name: str) -> Conversation:
    """A saved conversation. Raises NotFoundError, SourceError or HeaderError."""
    path = _FILE.path
    if path is not None:
        with _FILE.reading(path) as database:
            key = None if database is None else _key(database, name)
            if database is not None and key is not None:
                return _read(database, key, name, path)
    known = [row.name for row in conversations()]
    raise NotFoundError(
        f"there is no conversation {name!r} (edgekit conversations list)",
        candidates=close_names(name, known),
    )


def append(name: str, messages: tuple[Message, ...], *, after: int, model: str) -> None:
    """Save messages after the first `after` ones; with 0 the conversation is new.

    Raises UsageError if another process has changed the conversation in the meantime.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with _FILE.writing() as database:
        key = _key(database, name)
        if key is None and after == 0:
            insert = "INSERT INTO conversations (name, begun, changed) VALUES (?, ?, ?)"
            key = database.execute(insert, (name, now, now)).lastrowid
        count = "SELECT count(*) FROM messages WHERE conversation = ?"
        if key is None or database.execute(count, (key,)).fetchone() != (after,):
            raise UsageError(
                f"another process has changed the conversation {name!r}: save this one under another name (--save, "
                "or /save in a chat)"
            )
        for number, message in enumerate(messages, after):
            calls = json.dumps([dict(call) for call in message.tool_calls])
            row = (key, number, message.role, message.content, calls, model)
            database.execute("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)", row)
            for place, image in enumerate(message.images):
                pixels = (key, number, place, image.media_type, image.data)
                database.execute("INSERT INTO images VALUES (?, ?, ?, ?, ?)", pixels)
        database.execute("UPDATE conversations SET changed = ? WHERE id = ?", (now, key))


def delete(name: str) -> bool:
    """Delete a conversation. Returns whether it existed."""
    if _FILE.path is None:
        return False
    with _FILE.writing() as database:
        statement = "DELETE FROM conversations WHERE name = ?"
        return database.execute(statement, (name,)).rowcount > 0


def _key(database: sqlite3.Connection, name: str) -> int | None:
    row = database.execute("SELECT id FROM conversations WHERE name = ?", (name,)).fetchone()
    return None if row is None else int(row[0])


def _read(database: sqlite3.Connection, key: int, name: str, path: Path) -> Conversation:
    count, size = database.execute(_SIZE, (key,)).fetchone()
    if count > MAX_MESSAGES or size > MAX_CONVERSATION_BYTES:
        raise UsageError(
            f"the conversation {name!r} has {count:,} messages and {format_bytes(int(size))}, too much to continue"
        )
    images: dict[int, list[Image]] = {}
    query = (
        "SELECT number, media_type, data FROM images WHERE conversation = ? ORDER BY number, place"
    )
    for number, media_type, data in database.execute(query, (key,)):
        if not isinstance(data, bytes):
            raise _FILE.damaged(path, "an image is not a BLOB")
        image = Image(data=data, media_type=_text(path, media_type))
        images.setdefault(number, []).append(image)
    messages, last_model = [], ""
    query = "SELECT number, role, content, tool_calls, model FROM messages WHERE conversation = ? ORDER BY number"
    for number, role, content, calls, model in database.execute(query, (key,)):
        last_model = _text(path, model)
        if role not in ROLES:
            raise _FILE.damaged(path, f"message {number} has no role")
        messages.append(
            Message(
                role=role,
                content=_text(path, content),
                images=tuple(images.get(number, ())),
                tool_calls=_calls(path, calls),
            )
        )
    return Conversation(name=name, model=last_model, messages=tuple(messages))


def _calls(path: Path, text: object) -> tuple[Mapping[str, str], ...]:
    """The tool calls of a message: '[{"name": "f", "arguments": "{}"}]'."""
    try:
        calls: Any = json.loads(_text(path, text))
    except (ValueError, RecursionError) as error:
        raise _FILE.damaged(path, "a tool call is not JSON") from error
    names = {"name", "arguments"}
    if not isinstance(calls, list) or not all(
        isinstance(call, dict)
        and call.keys() == names
        and all(isinstance(value, str) for value in call.values())
        for call in calls
    ):
        raise _FILE.damaged(path, "a tool call has no name")
    return tuple(calls)


def _text(path: Path, value: object) -> str:
    if not isinstance(value, str):
        raise _FILE.damaged(path, f"{quoted(value)} is not text")
    return value
