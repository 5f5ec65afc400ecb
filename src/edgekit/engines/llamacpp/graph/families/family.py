"""How the graph of an architecture is built."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from edgekit.engines.llamacpp.graph.llama.build import Build
from edgekit.engines.llamacpp.graph.llama.hparams import Hparams


class GraphFamily(Protocol):
    def more(self, hparams: Hparams, il: int) -> Hashable:
        """What layer `il` depends on besides the facts of every layer."""

    def build(self, build: Build) -> None:
        """Makes the whole graph."""
