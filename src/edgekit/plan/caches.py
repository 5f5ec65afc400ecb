"""An engine and where it computes -> the cache types it can be asked for, the most accurate first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from edgekit.bill.cache_types import cache_type
from edgekit.bill.task import CacheChoice, Start, Task
from edgekit.bill.types import Load
from edgekit.engines.budgets import devices_for
from edgekit.engines.llamacpp.types import default_setup
from edgekit.errors import RefusedError
from edgekit.plan.placement import first_way

# Of the keys a little more is needed than of the values. With other pairs than equal ones CUDA and Metal as they are
# released have no flash attention kernel, and would compute on the processor: fattn.cu @ 0c1e570.
EQUAL_PAIRS = (("f16", "f16"), ("q8_0", "q8_0"), ("q4_0", "q4_0"))
CPU_PAIRS = (("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "q5_1"), ("q8_0", "q4_0"), ("q4_0", "q4_0"))
STREAM_PAIRS = (("f16", "f16"), ("q8_0", "q8_0"))
MLX_BITS = (None, 8, 4)
VLLM_TYPES = ("auto", "fp8")
FP8_CAPABILITY = (8, 9)  # Ada and later compute in fp8


def with_cache(task: Task, choice: CacheChoice) -> Task:
    """The task with this cache."""
    changed = replace(task, load=replace(task.load, **choice.load))
    if not choice.setup:
        return changed
    changed = with_setup(changed, **choice.setup)
    settled = changed.start.settled | choice.setup.keys()
    return replace(changed, start=replace(changed.start, settled=settled))


def cache_choices(question: Task) -> tuple[CacheChoice, ...]:
    """All there are, the most accurate first; what the caller settled is the only one."""
    return tuple(_CHOICES[question.engine](question))


def cache_name(engine: str, load: Load, setup: Any) -> str:
    """The cache that the engine keeps with this load and setup, by the name that choices have."""
    if engine == "vllm":
        return str(setup.kv_cache_dtype)
    if engine == "mlx":
        return f"{setup.kv_bits or 16} bit"
    keys, values = (kind.name if kind else "f16" for kind in (load.cache_k, load.cache_v))
    return pair_name(keys, values)


def _settled(name: str) -> CacheChoice:
    return CacheChoice(name=name, place=0, flags="", asked=True)


def _pairs(question: Task) -> Iterator[CacheChoice]:
    keys, values = question.load.cache_k, question.load.cache_v
    if keys is not None and values is not None:
        yield _settled(pair_name(keys.name, values.name))
        return
    on_the_cpu = not first_way(question).cards
    given = keys or values
    pairs: tuple[tuple[str, str], ...]
    if question.load.flash_attention is False:  # llama.cpp quantises V only with flash attention
        pairs = EQUAL_PAIRS[:1]
    elif question.engine == "stream":
        pairs = STREAM_PAIRS
    elif given is not None and not on_the_cpu:
        pairs = ((given.name, given.name),)
    else:
        pairs = CPU_PAIRS if on_the_cpu else EQUAL_PAIRS
    own = [(keys.name if keys else key, values.name if values else value) for key, value in pairs]
    for place, (key, value) in enumerate(dict.fromkeys(own)):
        kept = {} if (key, value) == ("f16", "f16") else {"cache_k": key, "cache_v": value}
        yield CacheChoice(
            name=pair_name(key, value),
            place=place,
            flags=f"-ctk {key} -ctv {value}",
            asked=given is not None and len(set(own)) == 1,
            load={side: cache_type(name) for side, name in kept.items()},
        )


def pair_name(key: str, value: str) -> str:
    """'q8_0', or 'q8_0 + q4_0' of keys and values apart."""
    return key if key == value else f"{key} + {value}"


def _vllm(question: Task) -> Iterator[CacheChoice]:
    if "kv_cache_dtype" in question.start.settled:
        yield _settled(question.start.setup.kv_cache_dtype)
        return
    capability = min(
        (card.capability for card in devices_for(question.machine, "vllm") if card.capability),
        default=FP8_CAPABILITY,
    )
    types = VLLM_TYPES if capability >= FP8_CAPABILITY else VLLM_TYPES[:1]
    for place, name in enumerate(types):
        setup = {} if name == "auto" else {"kv_cache_dtype": name}
        yield CacheChoice(name=name, place=place, flags=f"--kv-cache-dtype {name}", setup=setup)


def _mlx(question: Task) -> Iterator[CacheChoice]:
    if "kv_bits" in question.start.settled:
        yield _settled(f"{question.start.setup.kv_bits} bit")
        return
    for place, bits in enumerate(MLX_BITS):
        setup = {} if bits is None else {"kv_bits": bits, "quantized_kv_start": 0}
        flags = "" if bits is None else f"--kv-bits {bits} --quantized-kv-start 0"
        yield CacheChoice(name=f"{bits or 16} bit", place=place, flags=flags, setup=setup)


_CHOICES = {"llama.cpp": _pairs, "vllm": _vllm, "mlx": _mlx, "stream": _pairs}


def with_setup(question: Task, **changes: Any) -> Task:
    """The question, asked of an engine that is started otherwise in these fields."""
    start = question.start
    setup = start.setup if start.setup is not None else plain_setup(question.engine)
    return replace(question, start=replace(start, setup=replace(setup, **changes)))


def plain_setup(engine: str) -> Any:
    """As it starts when nothing is said."""
    if engine == "llama.cpp":
        return default_setup()
    from edgekit.engines.mlx.types import MlxSetup
    from edgekit.engines.native.setup import StreamSetup
    from edgekit.engines.vllm.types import VllmSetup

    others = {"vllm": VllmSetup, "mlx": MlxSetup, "stream": StreamSetup}
    return others[engine]()


def embedding_start(start: Start, engine: str) -> Start:
    """Started to return embeddings, where the engine has to be told. Raises RefusedError where it returns none."""
    if engine == "mlx":
        raise RefusedError("mlx-lm does not return embeddings; llama.cpp and vLLM do")
    if engine != "llama.cpp" or "embeddings" in start.settled:
        return start
    setup = start.setup if start.setup is not None else plain_setup(engine)
    settled = start.settled | {"embeddings"}
    return Start(setup=replace(setup, embeddings=True), settled=settled)
