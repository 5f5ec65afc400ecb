"""The built-in engine, which reads weights from the file as it needs them."""

from __future__ import annotations

from edgekit.engines.native import flags
from edgekit.engines.protocol import Engine, ProgramEntry


class Native(Engine):
    """Its speed is unknown: it may have to read weights from a disk."""

    name = "stream"
    title = flags.TITLE
    aliases = ("edgekit", "built-in", "builtin", "streaming")
    loads_gguf = True  # but it is only chosen by its name
    page = flags.PAGE
    table = flags.TABLE
    rules_module = "rules"
    programs = (ProgramEntry("stream", "edgekit.engines.native.program:PROGRAM", ("run",)),)
    streams_weights = True
    cache_flags = "-ctk and -ctv"
    can_plan = False
    most_users = 1
    flags = flags.FLAGS


ENGINE = Native()
