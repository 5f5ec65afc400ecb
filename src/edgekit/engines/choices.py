"""Shared by engines: memory budgets, pairs of cache types, and the accuracy of quantisations."""

from __future__ import annotations

import math
from collections.abc import Iterator

from edgekit.bill.types import CacheChoice, Load, Variant, cache_type
from edgekit.errors import HardwareError
from edgekit.formats.mixes import mix_by_name, plain_mix
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
    """The choice for the types of K and V in the load; None unless it states both."""
    if load.cache_k is None or load.cache_v is None:
        return None
    name = pair_cache_name(load)
    return CacheChoice(name=name, place=0, flags="", is_given=True, is_eight_bit=name == "q8_0")


def pair_choices(load: Load, pairs: Pairs) -> Iterator[CacheChoice]:
    """A choice for each pair, with the types that the load states instead of the pair's own."""
    given = given_pair(load)
    if given is not None:
        yield given
        return
    keys, values = load.cache_k, load.cache_v
    if load.flash_attention is False:  # V is quantised only with flash attention
        pairs = (F16_PAIR,)
    allowed = [
        (keys.name if keys else key, values.name if values else value) for key, value in pairs
    ]
    is_given = (keys or values) is not None
    for place, (key, value) in enumerate(dict.fromkeys(allowed)):
        changed = {} if (key, value) == F16_PAIR else {"cache_k": key, "cache_v": value}
        yield CacheChoice(
            name=pair_name(key, value),
            place=place,
            flags=f"-ctk {key} -ctv {value}",
            is_given=is_given and len(set(allowed)) == 1,
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
    """The accuracy of a quantisation by its name, in hundredths of a bit per weight. None: unknown."""
    known_mix = mix_by_name(plain_mix(mix))
    return round(known_mix.bits_per_weight * 100) if known_mix is not None else None


def stored_accuracy(model: Model) -> int:
    """The accuracy of a file by the actual bits of its weights; the usual accuracy if its tensors were not read."""
    weights = [tensor for tensor in model.header.tensors or () if len(tensor.shape) > 1]
    elements = sum(math.prod(tensor.shape) for tensor in weights)
    size = sum(tensor.size_bytes for tensor in weights)
    return round(size * 800 / elements) if elements else USUAL_ACCURACY


def usual_variant(variants: tuple[Variant, ...]) -> Variant:
    """The most common variant: about 4.5 bits, or the nearest to it."""
    good = [variant for variant in variants if variant.is_good] or list(variants)
    return next((variant for variant in good if variant.accuracy <= USUAL_ACCURACY), good[-1])


def devices_of(machine: Machine, vendors: tuple[Vendor, ...]) -> tuple[Device, ...]:
    """The devices of the first of these vendors that the machine has: an engine uses one vendor at a time."""
    for vendor in vendors:
        devices = tuple(device for device in machine.devices if device.vendor is vendor)
        if devices:
            return devices
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
        raise HardwareError("RAM unknown: add --ram 32G", about="ram")
    return machine.host


def card_budget(pool: Pool, device: Device, reserve_bytes: int, because: str) -> Budget:
    """The memory of one card."""
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
    shared = {pool_of(index): device for index, device in enumerate(devices) if device.unified}
    limits = [device.limit_bytes for device in shared.values() if device.limit_bytes is not None]
    gpu_only_bytes = sum(device.own_bytes for device in shared.values())
    return Budget(
        name="unified memory" if shared else "RAM",
        pools=frozenset({*shared, HOST}),
        total_bytes=host.limited_total_bytes + gpu_only_bytes,
        free_bytes=host.usable_bytes + gpu_only_bytes,
        reserve_bytes=reserve_bytes,
        because=because,
        limit_bytes=sum(limits) if limits and len(limits) == len(shared) else None,
        limit_because=next((device.limit_because for device in shared.values()), ""),
        gpu_only_bytes=gpu_only_bytes,
    )
