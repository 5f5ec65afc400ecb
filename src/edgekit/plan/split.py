"""A bill over several cards -> how to divide the layers among them so that the fullest is as empty as can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from edgekit.bill.task import Placement
from edgekit.bill.types import Component, MemoryEstimate
from edgekit.bill.verdict import Usage
from edgekit.engines.llamacpp.placement import place
from edgekit.engines.llamacpp.types import SplitMode
from edgekit.machine.types import Budget, PoolKind, pool_of
from edgekit.model.types import Model

STEPS = 24  # of halving: to a ten-millionth of a card
DIVIDED = ", divided "
MOST_TAKERS = 3  # every division costs the graph of a whole model
WORST_SHARE = 64.0  # of a card; a division that needs more is none


def resplit(way: Placement, estimate: MemoryEstimate, idle_blocks: int = 0) -> Placement | None:
    """The same way with -ts; None where there is no other division. `estimate` is the bill as it is divided now.

    Blocks for further tokens that are not loaded stand between the last layer and the head, and are counted too.
    """
    layers = _layer_bytes(estimate, idle_blocks)
    cards = [budget for place in range(len(way.cards)) for budget in _card(way, place)]
    if len(cards) != len(way.cards) or len(layers) < len(cards):
        return None
    counts = _balanced(layers, _fixed_bytes(estimate, len(cards)), cards)
    if counts is None or counts == way.setup.tensor_split:
        return None
    return divided(way, counts)


def divided(way: Placement, counts: tuple[float, ...]) -> Placement:
    """The way with so many layers on each card, and words that say so."""
    told = way.because.partition(DIVIDED)[0]
    told += DIVIDED + ":".join(str(round(count)) for count in counts)
    setup = replace(way.setup, tensor_split=counts)
    return replace(way, setup=setup, because=told, may_resplit=False)


def neighbours(way: Placement, uses: Sequence[Usage]) -> Iterator[Placement]:
    """One layer moved off the fullest card, to each of those with most room left.

    None where the host is fullest, or cards have no memory of their own.
    """
    counts = way.setup.tensor_split
    full = {use.budget.pools: use.utilization for use in uses}
    own = [frozenset({pool_of(place)}) for place in range(len(counts))]
    if not full.keys() >= set(own):
        return
    shares = [full[pools] for pools in own]
    fullest = shares.index(max(shares))
    if counts[fullest] <= 1 or shares[fullest] < max(full.values()):
        return
    others = sorted(
        (place for place in range(len(counts)) if place != fullest), key=shares.__getitem__
    )
    for taker in others[:MOST_TAKERS]:
        moved = list(counts)
        moved[fullest] -= 1
        moved[taker] += 1
        yield divided(way, tuple(moved))


def pinned(way: Placement, model: Model) -> Placement:
    """The way with the division said that it is billed with: the engine would divide by what is free when it starts."""
    if len(way.cards) < 2 or way.setup.tensor_split or way.setup.split_mode is not SplitMode.LAYER:
        return way
    placed = place(model, way.setup)
    counts = [0.0] * len(way.cards)
    for pool in (*placed.blocks, placed.output):
        if pool.kind is PoolKind.DEVICE:
            counts[pool.index] += 1
    return replace(way, setup=replace(way.setup, tensor_split=tuple(counts)), may_resplit=False)


def _card(way: Placement, place: int) -> tuple[Budget, ...]:
    pool = frozenset({pool_of(place)})
    return tuple(budget for budget in way.budgets if budget.pools == pool)


def _layer_bytes(estimate: MemoryEstimate, idle_blocks: int) -> list[int]:
    """Of every block on a device, in order, and of the head behind the last."""
    sizes: dict[int, int] = {}
    head = 0
    for line in estimate.lines:
        if line.pool.kind is not PoolKind.DEVICE or not line.reserved:
            continue
        if line.layer is not None:
            sizes[line.layer] = sizes.get(line.layer, 0) + line.size_bytes
        elif line.component is Component.WEIGHTS:
            head += line.size_bytes
    return [*(sizes[layer] for layer in sorted(sizes)), *[0] * idle_blocks, head]


def _fixed_bytes(estimate: MemoryEstimate, cards: int) -> list[int]:
    """What a card holds however many layers it has: buffers and the driver's own."""
    fixed = [0] * cards
    for line in estimate.lines:
        if line.pool.kind is PoolKind.DEVICE and line.layer is None and line.reserved:
            fixed[line.pool.index] += line.size_bytes * (line.component is not Component.WEIGHTS)
    return fixed


def _balanced(layers: list[int], fixed: list[int], cards: list[Budget]) -> tuple[float, ...] | None:
    """Filling every card to the same share, the smallest that holds all layers."""
    low, high = 0.0, WORST_SHARE
    if _filled(layers, fixed, cards, high) is None:
        return None
    for _ in range(STEPS):
        middle = (low + high) / 2
        if _filled(layers, fixed, cards, middle) is None:
            low = middle
        else:
            high = middle
    ends = _filled(layers, fixed, cards, high)
    return None if ends is None else tuple(float(b - a) for a, b in pairwise((0, *ends)))


def _filled(
    layers: list[int], fixed: list[int], cards: list[Budget], share: float
) -> list[int] | None:
    """Where each card's layers end when each is filled to that share; None where some are left over."""
    place, ends = 0, []
    for base, card in zip(fixed, cards, strict=True):
        room = card.available_bytes * share - base
        while place < len(layers) and layers[place] <= room:
            room -= layers[place]
            place += 1
        ends.append(place)
    return ends if place == len(layers) else None
