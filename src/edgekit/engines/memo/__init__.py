"""The engine of elizaOS's context-scaling memo: five tiers of one model series with compressed cache layouts.

It is a what-if: every figure is ASSUMED. It is not in the list of engines, because it only answers for its tiers.
"""

from __future__ import annotations

from edgekit.engines.memo import flags
from edgekit.engines.protocol import Engine


class Memo(Engine):
    """The facts of the engine; its rules are in the modules of this folder."""

    name = "memo"
    title = "what-if engine for tiers"
    aliases = ("what-if",)
    page = flags.PAGE
    table = flags.TABLE
    rules_module = "rules"
    can_plan = False
    most_users = 1024
    flags = flags.FLAGS


ENGINE = Memo()
