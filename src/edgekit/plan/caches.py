"""An engine and where it computes -> the cache types it can be asked for, the most accurate first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edgekit.engine.llamacpp.types import LlamaCppSetup, Mode
from edgekit.memory.cache_types import cache_type
from edgekit.plan.types import Question

# Of the keys a little more is needed than of the values. With other pairs than equal ones CUDA and Metal as they are
# released have no flash attention kernel, and would compute on the processor: fattn.cu @ 0c1e570.
EQUAL_PAIRS = (("f16", "f16"), ("q8_0", "q8_0"), ("q4_0", "q4_0"))
CPU_PAIRS = (("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "q5_1"), ("q8_0", "q4_0"), ("q4_0", "q4_0"))
MLX_BITS = (None, 8, 4)
VLLM_TYPES = ("auto", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChoice:
    """One way to keep the cache. `place` 0 is the engine's own, 1 the next smaller one."""

    name: str  # "f16", "q8_0", "q8_0 + q4_0", "fp8", "8 bit"
    place: int
    flags: str  # how the engine is told
    load: Mapping[str, Any] = field(default_factory=dict)
    setup: Mapping[str, Any] = field(default_factory=dict)

    def of(self, question: Question) -> Question:
        """The question, asked with this cache."""
        changed = replace(question, load=replace(question.load, **self.load))
        return with_setup(changed, **self.setup) if self.setup else changed


AS_ASKED = CacheChoice(name="as asked", place=0, flags="")


def cache_choices(question: Question, *, on_the_cpu: bool) -> tuple[CacheChoice, ...]:
    """All there are, the most accurate first; what the caller settled is the only one."""
    return tuple(_CHOICES[question.engine](question, on_the_cpu))


def _llamacpp(question: Question, on_the_cpu: bool) -> Iterator[CacheChoice]:  # noqa: FBT001 - a table calls it
    load = question.load
    if load.cache_k is not None and load.cache_v is not None:
        yield replace(AS_ASKED, name=pair_name(load.cache_k.name, load.cache_v.name))
        return
    pairs = [
        (load.cache_k.name if load.cache_k else key, load.cache_v.name if load.cache_v else value)
        for key, value in (CPU_PAIRS if on_the_cpu else EQUAL_PAIRS)
    ]
    for place, (key, value) in enumerate(dict.fromkeys(pairs)):
        kept = {} if (key, value) == ("f16", "f16") else {"cache_k": key, "cache_v": value}
        yield CacheChoice(
            name=pair_name(key, value),
            place=place,
            flags=f"-ctk {key} -ctv {value}",
            load={side: cache_type(name) for side, name in kept.items()},
        )


def pair_name(key: str, value: str) -> str:
    """'q8_0', or 'q8_0 + q4_0' of keys and values apart."""
    return key if key == value else f"{key} + {value}"


def _vllm(question: Question, _: bool) -> Iterator[CacheChoice]:  # noqa: FBT001 - a table calls it
    if "kv_cache_dtype" in question.start.settled:
        yield replace(AS_ASKED, name=question.start.setup.kv_cache_dtype)
        return
    for place, name in enumerate(VLLM_TYPES):
        setup = {} if name == "auto" else {"kv_cache_dtype": name}
        yield CacheChoice(name=name, place=place, flags=f"--kv-cache-dtype {name}", setup=setup)


def _mlx(question: Question, _: bool) -> Iterator[CacheChoice]:  # noqa: FBT001 - a table calls it
    if "kv_bits" in question.start.settled:
        yield replace(AS_ASKED, name=f"{question.start.setup.kv_bits} bit")
        return
    for place, bits in enumerate(MLX_BITS):
        setup = {} if bits is None else {"kv_bits": bits, "quantized_kv_start": 0}
        flags = "" if bits is None else f"--kv-bits {bits} --quantized-kv-start 0"
        yield CacheChoice(name=f"{bits or 16} bit", place=place, flags=flags, setup=setup)


_CHOICES = {"llama.cpp": _llamacpp, "vllm": _vllm, "mlx": _mlx}


def with_setup(question: Question, **changes: Any) -> Question:
    """The question, asked of an engine that is started otherwise in these fields."""
    start = question.start
    setup = start.setup if start.setup is not None else plain_setup(question.engine)
    return replace(question, start=replace(start, setup=replace(setup, **changes)))


def plain_setup(engine: str) -> Any:
    """As it starts when nothing is said."""
    if engine == "llama.cpp":
        return LlamaCppSetup(mode=Mode.SERVER)
    from edgekit.engine.mlx.types import MlxSetup
    from edgekit.engine.vllm.types import VllmSetup

    return VllmSetup() if engine == "vllm" else MlxSetup()
