"""Caches whose K and V each have a type of ggml's, for the engines that take -ctk and -ctv."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.bill.cache_types import cache_type
from edgekit.bill.types import CacheChoice, Load

F16_PAIR, Q8_PAIR = ("f16", "f16"), ("q8_0", "q8_0")
Pairs = tuple[tuple[str, str], ...]


def pair_name(key: str, value: str) -> str:
    """'q8_0', or 'q8_0 + q4_0' where K and V differ."""
    return key if key == value else f"{key} + {value}"


def cache_name(load: Load) -> str:
    """The cache of this load, by the name that choices have."""
    keys, values = (kind.name if kind else "f16" for kind in (load.cache_k, load.cache_v))
    return pair_name(keys, values)


def given_pair(load: Load) -> CacheChoice | None:
    """The choice of a load that gives both types; None where it leaves one open."""
    if load.cache_k is None or load.cache_v is None:
        return None
    name = cache_name(load)
    return CacheChoice(name=name, place=0, flags="", asked=True, is_eight_bit=name == "q8_0")


def pair_choices(load: Load, pairs: Pairs) -> Iterator[CacheChoice]:
    """These pairs, with the type that the load gives for one of the two; only its own where it gives both."""
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
            asked=is_given and len(set(own)) == 1,
            is_eight_bit=key == value == "q8_0",
            load={side: cache_type(name) for side, name in changed.items()},
        )
