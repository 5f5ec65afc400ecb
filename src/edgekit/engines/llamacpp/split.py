"""A bill over several cards -> how to divide the layers among them (-ts) so that the fullest is as empty as can be."""

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
MOST_TAKERS = 3  # every split costs the graph of a whole model
WORST_SHARE = 64.0  # of a card; a split that needs more is hopeless


def rebalance(model: Model, placement: Placement, estimate: MemoryEstimate) -> Placement | None:
    """The same placement with -ts; None where there is no other split. `estimate` is the bill as it is split now.

    Blocks of multi-token prediction that are not loaded come between the last layer and the head, and are counted too.
    """
    idle_blocks = 0 if placement.setup.load_mtp else model.geometry.mtp_layers
    layers = _layer_bytes(estimate, idle_blocks)
    own = [frozenset({pool_of(place)}) for place in range(len(placement.cards))]
    cards = [budget for pools in own for budget in placement.budgets if budget.pools == pools]
    if len(cards) != len(placement.cards) or len(layers) < len(cards):
        return None
    counts = _balanced(layers, _fixed_bytes(estimate, len(cards)), cards)
    if counts is None or counts == placement.setup.tensor_split:
        return None
    return with_layers_on_cards(placement, counts)


def with_layers_on_cards(placement: Placement, counts: tuple[float, ...]) -> Placement:
    """The placement with this many layers on each card, and words that say so."""
    because = placement.because.partition(DIVIDED)[0]
    because += DIVIDED + ":".join(str(round(count)) for count in counts)
    setup = replace(placement.setup, tensor_split=counts)
    return replace(placement, setup=setup, because=because, may_resplit=False)


def neighbours(model: Model, placement: Placement, uses: Sequence[Usage]) -> Iterator[Placement]:
    """One layer moved off the fullest card, to each of those with most room left.

    None where the host is fullest, or cards have no memory of their own.
    """
    placement = pinned(model, placement)
    counts = placement.setup.tensor_split
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
        yield with_layers_on_cards(placement, tuple(moved))


def pinned(model: Model, placement: Placement) -> Placement:
    """The placement with its split as -ts: without it llama.cpp splits by what is free when it starts."""
    if (
        len(placement.cards) < 2
        or placement.setup.tensor_split
        or placement.setup.split_mode is not SplitMode.LAYER
    ):
        return placement
    placed = place(model, placement.setup)
    counts = [0.0] * len(placement.cards)
    for pool in (*placed.blocks, placed.output):
        if pool.kind is PoolKind.DEVICE:
            counts[pool.index] += 1
    return replace(
        placement, setup=replace(placement.setup, tensor_split=tuple(counts)), may_resplit=False
    )


def _layer_bytes(estimate: MemoryEstimate, idle_blocks: int) -> list[int]:
    """The size of every block on a device, in order, and of the head after the last."""
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
    """What a card holds regardless of its layers: buffers and the driver."""
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
