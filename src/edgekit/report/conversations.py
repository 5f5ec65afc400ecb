"""Saved conversations as text and JSON (docs/run.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgekit.errors import printable
from edgekit.report.json import SCHEMA, Json, fields
from edgekit.report.run import tool_calls_text
from edgekit.report.text import PLAIN, Screen, table
from edgekit.units import format_bytes

if TYPE_CHECKING:
    from edgekit.app.conversations import Conversation, ConversationRow
    from edgekit.engines.chat import Image, Message

_HEAD = ("name", "messages", "last used (UTC)", "model")


def conversations_text(rows: Sequence[ConversationRow]) -> str:
    if not rows:
        return "No conversations yet: edgekit run MODEL --save NAME saves one\n"
    cells = [
        (
            printable(row.name),
            f"{row.message_count:,}",
            printable(row.changed[:16].replace("T", " ")),
            printable(row.model),
        )
        for row in rows
    ]
    return "\n".join(table(_HEAD, cells)) + "\n"


def conversation_text(conversation: Conversation, screen: Screen = PLAIN) -> str:
    """The messages one after the other, each below its role."""
    title = (conversation.name, conversation.model)
    parts = [f"  {screen.glyphs.separator}  ".join(map(printable, title))]
    for message in conversation.messages:
        images = ", ".join(map(_image_words, message.images))
        head = f"[{message.role}]" + (f" {images}" if images else "")
        lines = [printable(line) for line in message.content.split("\n")]
        text = "\n".join(lines).strip("\n")
        calls = tool_calls_text(message.tool_calls).rstrip("\n")
        parts.append("\n".join(filter(None, (head, text, calls))))
    return "\n\n".join(parts) + "\n"


def _image_words(image: Image) -> str:
    return f"{printable(image.media_type)}, {format_bytes(len(image.data))}"


def conversations_json(rows: Sequence[ConversationRow]) -> Json:
    names = "name model begun changed message_count"
    return {"schema": SCHEMA, "conversations": [fields(row, names) for row in rows]}


def conversation_json(conversation: Conversation) -> Json:
    messages = [_message_json(message) for message in conversation.messages]
    return {"schema": SCHEMA, **fields(conversation, "name model"), "messages": messages}


def _message_json(message: Message) -> Json:
    """Images are described, not repeated."""
    return {
        **fields(message, "role content"),
        "images": [
            {
                "media_type": image.media_type,
                "size_bytes": len(image.data),
                "sha256": hashlib.sha256(image.data).hexdigest(),
            }
            for image in message.images
        ],
        "tool_calls": [dict(call) for call in message.tool_calls],
    }
