"""TABLE of NVIDIA cards as vLLM's choices depend on them: memory and compute capability. To add one: one row."""

from __future__ import annotations

from typing import NamedTuple

from edgekit.errors import UsageError
from edgekit.units import GIB


class Card(NamedTuple):
    name: str
    memory_gib: int
    capability: tuple[int, int]  # developer.nvidia.com/cuda-gpus

    @property
    def memory_bytes(self) -> int:
        return self.memory_gib * GIB


TABLE = (
    Card("V100 16GB", 16, (7, 0)),
    Card("V100 32GB", 32, (7, 0)),
    Card("T4", 16, (7, 5)),
    Card("A100 40GB", 40, (8, 0)),
    Card("A100 80GB", 80, (8, 0)),
    Card("A10", 24, (8, 6)),
    Card("A10G", 24, (8, 6)),
    Card("A40", 48, (8, 6)),
    Card("RTX A6000", 48, (8, 6)),
    Card("RTX 3060", 12, (8, 6)),
    Card("RTX 3080", 10, (8, 6)),
    Card("RTX 3090", 24, (8, 6)),
    Card("L4", 24, (8, 9)),
    Card("L40", 48, (8, 9)),
    Card("L40S", 48, (8, 9)),
    Card("RTX 6000 Ada", 48, (8, 9)),
    Card("RTX 4060 Ti 16GB", 16, (8, 9)),
    Card("RTX 4070", 12, (8, 9)),
    Card("RTX 4080", 16, (8, 9)),
    Card("RTX 4090", 24, (8, 9)),
    Card("H100 80GB", 80, (9, 0)),
    Card("H100 NVL", 94, (9, 0)),
    Card("H20", 96, (9, 0)),
    Card("GH200", 96, (9, 0)),
    Card("H200", 141, (9, 0)),
    Card("B200", 180, (10, 0)),
    Card("B300", 270, (10, 3)),
    Card("RTX 5070 Ti", 16, (12, 0)),
    Card("RTX 5080", 16, (12, 0)),
    Card("RTX 5090", 32, (12, 0)),
    Card("RTX PRO 6000", 96, (12, 0)),
)
_NOISE = ("nvidia", "geforce", "tesla", "rtx", " ", "-", "_")


def card_named(name: str) -> Card:
    """The card that is meant: 'H100', 'rtx4090', 'NVIDIA A100 80GB'. Raises UsageError with the names there are."""
    wanted = _bare(name)
    exact = [card for card in TABLE if _bare(card.name) == wanted]
    near = exact or [card for card in TABLE if wanted and _bare(card.name).startswith(wanted)]
    if not near:
        raise UsageError(
            f"unknown GPU {name[:40]!r}; there are {', '.join(card.name for card in TABLE)}; "
            "or give --gpu-memory alone"
        )
    return near[0]  # of several sizes the smallest: an answer that holds for all of them


def _bare(name: str) -> str:
    bare = name.lower()
    for noise in _NOISE:
        bare = bare.replace(noise, "")
    return bare
