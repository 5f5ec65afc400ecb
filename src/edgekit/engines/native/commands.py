"""edgekit run with the built-in engine, as it was estimated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgekit.bill.types import MemoryEstimate
from edgekit.bill.verdict import Verdict
from edgekit.engines.commands import own_word
from edgekit.engines.flags import flag_words
from edgekit.engines.native.flags import FLAGS
from edgekit.engines.native.setups import placement
from edgekit.engines.native.stream_plan import StreamSetup
from edgekit.engines.protocol import Offload
from edgekit.units import MIB

if TYPE_CHECKING:
    from edgekit.model import OpenModel

OWN_CACHE = "f16"  # needs no flag


def settle(verdict: Verdict, given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that start the engine as it was judged: those that were given, and what the verdict adds."""
    types = {"type_k": verdict.load.cache_k, "type_v": verdict.load.cache_v}
    return {
        **given,
        "context": verdict.context_tokens,
        **{key: kind.name for key, kind in types.items() if kind and kind.name != OWN_CACHE},
        **placement(StreamSetup.of(verdict.way.setup)),
    }


def estimate_words(
    values: Mapping[str, Any], estimate: MemoryEstimate, opened: OpenModel
) -> list[str]:
    """The command of an estimate."""
    context = values.get("context") or dict(estimate.facts)["window"]
    kept = values.get("keep")
    if isinstance(kept, int):
        values = {**values, "keep": f"{kept // MIB}M" if kept % MIB == 0 else kept}
    model = own_word(opened.files, opened.label, opened.mix)
    words = ["edgekit", "run", model, "--engine", "stream", "-c", str(context)]
    return [*words, *flag_words(FLAGS, values)]


def offload(verdict: Verdict) -> Offload:
    """In the engine's own words."""
    way = verdict.way
    place = "on the built-in engine"
    return Offload(place=place if way.whole else f"{place} ({way.because})")
