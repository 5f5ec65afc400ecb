"""A small engine in one folder: the tests add it to the list with one line."""

from __future__ import annotations

from tests.data.dummy_engine import flags

from edgekit.engines.flags import CacheFlags, Page
from edgekit.engines.protocol import Engine


class Dummy(Engine):
    """Weights as they are stored and a cache of 16 bits, all in RAM."""

    name = "dummy"
    title = "Dummy"
    aliases = ("dumdum",)
    loads_gguf = True
    table = flags.TABLE
    page = Page("Dummy", "dummy-server", CacheFlags((), "f16"))
    for_programs = ("dummy-server",)
    flags = flags.FLAGS


ENGINE = Dummy()
