"""Shared by engines: memory budgets, pairs of cache types, and the accuracy of quantisations."""

from __future__ import annotations

import math
from collections.abc import Iterator

from edgekit.bill.types import CacheChoice, Load, Variant, cache_type
from edgekit.errors import HardwareError
from edgekit.formats.mixes import mix_by_name
from edgekit.machine.types import (
    HOST,
    Budget,
    Device,
    HostMemory,
    Machine,
    Pool,
    Vendor,
    pool_of,
)
from edgekit.model.types import Model
from edgekit.sources.filenames import quant_tag
from edgekit.sources.types import ModelFiles

F16_PAIR, Q8_PAIR = ("f16", "f16"), ("q8_0", "q8_0")
Pairs = tuple[tuple[str, str], ...]
USUAL_ACCURACY = 500  # in hundredths of a bit per weight: Q4_K_M, MLX 4-bit
AS_NAMED = "as stored"


def pair_name(key: str, value: str) -> str:
    """'q8_0', or 'q8_0 + q4_0' where K and V differ."""
    return key if key == value else f"{key} + {value}"


def pair_cache_name(load: Load) -> str:
    """The name of this load's cache types, as choices have it."""
    keys, values = (kind.name if kind else "f16" for kind in (load.cache_k, load.cache_v))
    return pair_name(keys, values)


def given_pair(load: Load) -> CacheChoice | None:
    """The load's pair if it gives both types; None if it leaves one open."""
    if load.cache_k is None or load.cache_v is None:
        return None
    name = pair_cache_name(load)
    return CacheChoice(name=name, place=0, flags="", is_given=True, is_eight_bit=name == "q8_0")


def pair_choices(load: Load, pairs: Pairs) -> Iterator[CacheChoice]:
    """The pairs that agree with the types that the load gives."""
    both = given_pair(load)
    if both is not None:
        yield both
        return
    keys, values = load.cache_k, load.cache_v
    if load.flash_attention is False:  # V is quantised only with flash attention
        pairs = (F16_PAIR,)
    own = [(keys.name if keys else key, values.name if values else value) for key, value in pairs]
    is_given = (keys or values) is not None
    for place, (key, value) in enumerate(dict.fromkeys(own)):
        changed = {} if (key, value) == F16_PAIR else {"cache_k": key, "cache_v": value}
        yield CacheChoice(
            name=pair_name(key, value),
            place=place,
            flags=f"-ctk {key} -ctv {value}",
            is_given=is_given and len(set(own)) == 1,
            is_eight_bit=key == value == "q8_0",
            load={side: cache_type(name) for side, name in changed.items()},
        )


def as_named(model: Model, name: str = AS_NAMED, reference: str = "") -> tuple[Variant, ...]:
    """The given file or repository as the only variant."""
    return (Variant(name=name, model=model, accuracy=USUAL_ACCURACY, reference=reference),)


def stored_quant(files: ModelFiles) -> str:
    """The quantisation that the name of a file or repository states."""
    return quant_tag(files.label.rpartition(":")[2]) or quant_tag(files.label) or AS_NAMED


def accuracy_of(mix: str) -> int | None:
    """Accuracy by the bits in a quantisation's name, whose order is the same for all models. None: unknown."""
    known = mix_by_name(mix)
    return round(known.bits_per_weight * 100) if known is not None else None


def stored_accuracy(model: Model) -> int:
    """Accuracy by the actual bits of a file's weights; the usual one if its directory was not read."""
    weights = [tensor for tensor in model.header.tensors or () if len(tensor.shape) > 1]
    elements = sum(math.prod(tensor.shape) for tensor in weights)
    size = sum(tensor.size_bytes for tensor in weights)
    return round(size * 800 / elements) if elements else USUAL_ACCURACY


def usual_variant(variants: tuple[Variant, ...]) -> Variant:
    """The most common variant: about 4.5 bits, or the nearest to it."""
    good = [one for one in variants if one.is_good] or list(variants)
    return next((one for one in good if one.accuracy <= USUAL_ACCURACY), good[-1])


def devices_of(machine: Machine, vendors: tuple[Vendor, ...]) -> tuple[Device, ...]:
    """The devices of the first of these vendors that the machine has: an engine uses one vendor at a time."""
    for vendor in vendors:
        found = tuple(one for one in machine.devices if one.vendor is vendor)
        if found:
            return found
    return ()


def names_of(cards: tuple[Device, ...]) -> str:
    """'2x RTX 4090 + RTX 3060'."""
    counts: dict[str, int] = {}
    for card in cards:
        counts[card.name] = counts.get(card.name, 0) + 1
    return " + ".join(f"{count}x {name}" if count > 1 else name for name, count in counts.items())


def known_ram(machine: Machine) -> HostMemory:
    """The machine's RAM. Raises HardwareError if its size is unknown."""
    if machine.host is None:
        raise HardwareError("RAM unknown: add --ram 32G")
    return machine.host


def card_budget(pool: Pool, device: Device, reserve_bytes: int, because: str) -> Budget:
    return Budget(
        name=device.name,
        pools=frozenset({pool}),
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        reserve_bytes=reserve_bytes,
        because=because,
    )


def ram_budget(
    host: HostMemory, devices: tuple[Device, ...], reserve_bytes: int, because: str
) -> Budget:
    """The RAM, with the pools of the GPUs that share it."""
    shared = {pool_of(place): one for place, one in enumerate(devices) if one.unified}
    limits = [one.limit_bytes for one in shared.values() if one.limit_bytes is not None]
    own_bytes = sum(one.own_bytes for one in shared.values())
    return Budget(
        name="unified memory" if shared else "RAM",
        pools=frozenset({*shared, HOST}),
        total_bytes=host.whole_bytes + own_bytes,
        free_bytes=host.usable_bytes + own_bytes,
        reserve_bytes=reserve_bytes,
        because=because,
        limit_bytes=sum(limits) if limits and len(limits) == len(shared) else None,
        limit_because=next((one.limit_because for one in shared.values()), ""),
        gpu_only_bytes=own_bytes,
    )
