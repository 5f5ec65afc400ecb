"""A model, a machine and an engine -> the ways to start it there, the one with most on the devices first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from edgekit.bill.task import Placement, Placements, Task
from edgekit.engines.budgets import (
    check_runs,
    devices_for,
    llamacpp_budgets,
    mlx_budgets,
    stream_budgets,
    vllm_budgets,
    vllm_share,
)
from edgekit.errors import HardwareError, UsageError
from edgekit.machine.apple import longest_buffer_bytes
from edgekit.machine.calibration import device_key
from edgekit.machine.types import Device, Machine, Vendor
from edgekit.model.types import Model
from edgekit.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from edgekit.engines.llamacpp.types import Overhead

# Fields of a setup that say what lies where; a caller who settles one settles all.
PLACED = frozenset({
    "backend", "n_gpu_layers", "n_cpu_moe", "cpu_moe", "tensor_split", "offload_kqv",
    "tensor_parallel_size", "pipeline_parallel_size",
    "split_mode", "main_gpu", "override_tensor", "rpc",
})  # fmt: skip
SHARED_OUT = PLACED - {"tensor_split"}  # a division alone leaves open how much goes to the host
# Of these, flags that count on every device of the machine, numbered as llama.cpp does.
BY_NUMBER = frozenset({"split_mode", "main_gpu", "override_tensor", "rpc"})
Cards = tuple[Device, ...]
LEAST_CAPABILITY = (7, 0)
LEAST_CARD_BYTES = (
    5 * GIB // 2
)  # a reserve of 1 GiB, a context of 0.6, a compute buffer and a layer
ON_THE_CPU = "fully on the CPU"
BACKENDS = {Vendor.NVIDIA: "cuda", Vendor.APPLE: "metal"}


def ways_of(question: Task) -> Placements:
    """Whole ones first; behind them what a way takes of the devices is never more than the one before it takes.

    Raises HardwareError where the engine cannot run there at all.
    """
    return tuple(_ways(question))


def whole_ways(question: Task) -> Placements:
    """Those with all of it on devices, or on the processor of a machine without any; the others are not made out."""
    return tuple(takewhile(lambda way: way.whole, _ways(question)))


def first_way(question: Task) -> Placement:
    return next(_ways(question))


def _ways(question: Task) -> Iterator[Placement]:
    check_runs(question.machine, question.engine)
    check_limits(question.engine, question.reserve_bytes, question.max_use)
    for way in _WAYS[question.engine](question):
        yield way if question.reserve_bytes is None else _with_reserve(way, question.reserve_bytes)


def check_limits(engine: str, reserve_bytes: int | None, max_use: float | None) -> None:
    """Raises UsageError for an engine that has neither a reserve nor a largest share."""
    limits = {"--reserve": reserve_bytes, "--max-use": max_use}
    given = [flag for flag, value in limits.items() if value is not None]
    if reserve_bytes is not None and engine == "stream":
        raise UsageError(
            "--reserve does not apply to the built-in engine, whose estimate covers the whole process"
        )
    if given and engine == "vllm":
        raise UsageError(
            f"{given[0]} does not apply to vLLM, which takes a fixed share: use --gpu-memory-utilization"
        )


def _with_reserve(way: Placement, reserve_bytes: int) -> Placement:
    """The placement with another reserve in every memory."""
    budgets = (
        replace(
            one,
            reserve_bytes=reserve_bytes,
            because="set with --reserve",
            has_default_reserve=False,
        )
        for one in way.budgets
    )
    return replace(way, budgets=tuple(budgets))


def engine_on(model: Model, machine: Machine) -> str:
    """The engine for a model's files on this machine; without its own hardware, llama.cpp after a conversion."""
    from edgekit.engines import engine_for

    wanted = engine_for(model)
    if wanted == "llama.cpp" or devices_for(machine, wanted):
        return wanted
    other = "mlx" if wanted == "vllm" else "vllm"
    return other if not model.header.mlx and devices_for(machine, other) else "llama.cpp"


def _llamacpp_ways(question: Task) -> Iterator[Placement]:
    from edgekit.engines.llamacpp.types import Backend, default_setup

    machine, start = question.machine, question.start
    setup = start.setup or default_setup()
    cards, *fewer = _card_sets(devices_for(machine, "llama.cpp"))
    if "backend" in start.settled:
        _check_backend(machine, cards, setup.backend)
    if start.settled & BY_NUMBER and (devices_for(machine, "llama.cpp") or setup.servers):
        yield _by_number(machine, setup, has_backend="backend" in start.settled)
        return
    if not cards or ("backend" in start.settled and setup.backend is Backend.CPU):
        yield replace(_on_the_cpu(machine, setup), whole=True)
        return
    if "backend" not in start.settled:
        setup = replace(setup, backend=Backend(BACKENDS.get(cards[0].vendor, "vulkan")))
    for some in (cards,) if setup.tensor_split else (cards, *fewer):
        own = replace(setup, devices=_as_devices(some, setup.tensor_split))
        told = _all_told(setup, some) + _left_out(machine, some)
        yield replace(_on_devices(machine, some, own, told), whole=True)
    if start.settled & SHARED_OUT or machine.host is None:
        return
    setup = replace(setup, devices=_as_devices(cards, setup.tensor_split))
    where = f"on {_names(cards)}{_left_out(machine, cards)}"
    way = _on_devices(machine, cards, setup, where)
    for changes, told in _less_and_less(question.model, cards, setup):
        because = told if told == ON_THE_CPU else f"{told} {where}"
        yield replace(way, setup=replace(way.setup, **changes), because=because)
    yield _on_the_cpu(machine, setup)


def _by_number(machine: Machine, setup: Any, *, has_backend: bool) -> Placement:
    """On the devices that were asked for: those of RPC servers come first, and no card is left out."""
    from edgekit.engines.llamacpp.types import Backend, DeviceSlot, used_devices

    cards = devices_for(machine, "llama.cpp")
    if has_backend and setup.backend is Backend.CPU:
        cards = ()
    if (
        not has_backend or setup.backend is Backend.CPU
    ):  # a server's device is taken for an NVIDIA card
        own = BACKENDS.get(cards[0].vendor, "vulkan") if cards else "cuda"
        setup = replace(setup, backend=Backend(own))
    every = {
        **{one: _server(one) for one in setup.servers},
        **{
            DeviceSlot(
                free_bytes=card.free_bytes,
                max_buffer_bytes=longest_buffer_bytes(card),
                number=place,
            ): card
            for place, card in enumerate(cards)
        },
    }
    if len(setup.tensor_split) > len(every):
        raise UsageError(
            f"--tensor-split has {len(setup.tensor_split)} shares, but there are {len(every)} devices"
        )
    devices = used_devices(tuple(every), setup.split_mode, setup.main_gpu)
    used = tuple(every[one] for one in devices)
    way = _on_devices(
        machine, used, replace(setup, devices=devices), f"as requested, on {_names(used)}"
    )
    return replace(way, whole=True, may_resplit=False)


def _server(device: Any) -> Device:
    """A device of an RPC server, with the memory that was stated."""
    number, _, endpoint = device.rpc.removesuffix("]").partition("[")
    more = f", device {number.removeprefix('RPC')}" if number != "RPC0" else ""
    return Device(
        name=f"RPC server {endpoint}{more}",
        vendor=Vendor.OTHER,
        total_bytes=device.free_bytes,
        free_bytes=device.free_bytes,
        because="--rpc",
    )


def _card_sets(cards: Cards) -> list[Cards]:
    """All that hold a layer beside their own buffers; then without those that are small beside the largest: what such
    a card costs the others in buffers may be more than it gives.
    """
    by_size = sorted(cards, key=lambda card: -card.free_bytes)
    largest = by_size[0].free_bytes if by_size else 0
    found: list[Cards] = []
    for least in (LEAST_CARD_BYTES, largest // 4):
        used = [card for card in by_size if card.free_bytes >= least] or by_size[:1]
        some = tuple(card for card in cards if card in used)
        if some not in found:
            found.append(some)
    return found


def _left_out(machine: Machine, used: tuple[Device, ...]) -> str:
    """How llama.cpp is told to leave a card alone."""
    known = devices_for(machine, "llama.cpp")
    if len(known) == len(used) or known[0].vendor is not Vendor.NVIDIA:
        return ""
    return f" alone (CUDA_VISIBLE_DEVICES={','.join(str(card.index) for card in used)})"


def _check_backend(machine: Machine, cards: tuple[Device, ...], backend: Any) -> None:
    """Raises HardwareError for one that the machine has no device for. Vulkan runs on all but Apple's."""
    from edgekit.engines.llamacpp.types import Backend

    vendors = {card.vendor for card in cards}
    runs = {
        Backend.CPU: True,
        Backend.CUDA: Vendor.NVIDIA in vendors,
        Backend.METAL: Vendor.APPLE in vendors,
        Backend.VULKAN: bool(vendors - {Vendor.APPLE}),
    }
    if not runs[backend]:
        raise HardwareError(f"{machine.name} has no device for the backend {backend.value}")


def _as_devices(cards: tuple[Device, ...], split: tuple[float, ...]) -> tuple[Any, ...]:
    from edgekit.engines.llamacpp.types import DeviceSlot

    if len(split) > len(cards):
        raise UsageError(
            f"--tensor-split has {len(split)} shares, but the machine has {len(cards)} GPUs"
        )
    buffers = [longest_buffer_bytes(card) for card in cards]
    if len(cards) == 1:  # nothing to divide: the bill does not depend on the free memory
        return (DeviceSlot(max_buffer_bytes=buffers[0]),)
    return tuple(
        DeviceSlot(free_bytes=card.free_bytes, max_buffer_bytes=longest)
        for card, longest in zip(cards, buffers, strict=True)
    )


def _less_and_less(model: Model, cards: Cards, setup: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Experts leave the devices first, block by block: they are large, and few of them work on a token.

    Metal maps the file from the first to the last tensor it computes, so a part on the CPU leaves as much on the GPU.
    """
    layers = len(model.geometry.layers)
    if cards[0].vendor is Vendor.APPLE and setup.use_mmap:
        yield {"n_gpu_layers": 0}, ON_THE_CPU
        return
    experts: dict[str, Any] = {}
    told = ""
    if any(layer.experts for layer in model.geometry.layers):
        for count in range(1, layers):
            yield {"n_cpu_moe": count}, f"all but the experts of {count} of {layers} layers"
        experts, told = {"cpu_moe": True}, ", no experts,"
        yield experts, "all but the experts"
    for count in range(layers, 0, -1):
        yield {"n_gpu_layers": count, **experts}, f"{count} of {layers + 1} layers{told}"
    yield {"n_gpu_layers": 0, **experts}, ON_THE_CPU


def finer_ways(model: Model, way: Placement) -> Iterator[Placement]:
    """With more of one layer's experts on the devices than this way and less than the one before it: with -ot, which
    leaves experts of the first layers on the host, or of the last as llama.cpp's own --fit does (fit.cpp @ b11549).
    """
    from edgekit.engines.llamacpp.types import ALL_LAYERS, LlamaCppSetup

    setup, layers = way.setup, len(model.geometry.layers)
    if not isinstance(setup, LlamaCppSetup) or setup.n_gpu_layers != ALL_LAYERS:
        return
    count = (layers if setup.cpu_moe else setup.n_cpu_moe) - 1
    bare = replace(setup, cpu_moe=False, n_cpu_moe=0)
    where = way.because.partition(" on ")[2]
    for changes, told in _by_tensor(count, layers) if count >= 0 else ():
        yield replace(
            way, setup=replace(bare, **changes), because=f"{told} on {where}", by_tensor=True
        )


def _by_tensor(count: int, layers: int) -> Iterator[tuple[dict[str, Any], str]]:
    """The experts of so many layers on the host, and a part of those of one more."""
    from edgekit.engines.llamacpp.types import Override

    def moved(layer: str, *tensors: str) -> tuple[Override, ...]:
        names = (f"blk.{layer}.ffn_{one}_exps" for one in tensors)
        return tuple(Override(pattern=name, buffer="CPU") for name in names)

    last = moved(f"({_numbers(layers - count, layers)})", "(gate|up|gate_up|down)") if count else ()
    layered = f"{count} of {layers} layers"
    if count:
        yield {"overrides": last}, f"all but the experts of the last {layered}"
    for share, tensors in (("a third", ("down",)), ("two thirds", ("gate", "down"))):
        told = f"all but {share} of the experts of one layer"
        if count:
            told = f"all but the experts of {{}}{layered} and {share} of the experts of one more"
        moved_last = (*moved(str(layers - count - 1), *tensors), *last)
        yield {"overrides": moved_last}, told.format("the last ")
        yield {"n_cpu_moe": count, "overrides": moved(str(count), *tensors)}, told.format("")


def _numbers(first: int, end: int) -> str:
    """A pattern for the numbers from `first` up to `end`: '2[8-9]|3[0-9]|4[0-7]'."""
    tens = ((max(ten, first), min(ten + 9, end - 1)) for ten in range(first // 10 * 10, end, 10))
    return "|".join(
        str(low) if low == high else f"{low // 10 or ''}[{low % 10}-{high % 10}]"
        for low, high in tens
    )


def _on_devices(machine: Machine, cards: tuple[Device, ...], setup: Any, because: str) -> Placement:
    return Placement(
        setup=replace(setup, **_of_the_machine(machine, cards)),
        budgets=llamacpp_budgets(machine, cards),
        because=because,
        cards=cards,
        may_resplit=len(cards) > 1 and not setup.tensor_split,
    )


def _all_told(setup: Any, cards: tuple[Device, ...]) -> str:
    from edgekit.engines.llamacpp.types import ALL_LAYERS

    if setup.n_gpu_layers != ALL_LAYERS or setup.cpu_moe or setup.n_cpu_moe:
        return f"as requested, on {_names(cards)}"
    return f"{'fully' if setup.offload_kqv else 'all but the cache'} on {_names(cards)}"


def _on_the_cpu(machine: Machine, setup: Any) -> Placement:
    from edgekit.engines.llamacpp.types import Backend

    if machine.host is None:
        raise HardwareError("RAM unknown: add --ram 32G")
    alone = replace(setup, backend=Backend.CPU, **_of_the_machine(machine))
    return Placement(setup=alone, budgets=llamacpp_budgets(machine, ()), because=ON_THE_CPU)


def _of_the_machine(machine: Machine, cards: Cards = ()) -> dict[str, Any]:
    from edgekit.engines.llamacpp.types import Cpu

    return {
        "cpu": Cpu.ARM if machine.arm else Cpu.X86,
        "overhead": measured_overhead(machine, cards),
    }


def measured_overhead(machine: Machine, cards: Cards = ()) -> Overhead | None:
    """What llama.cpp held beside its bill when it was measured here; None where it was not, or elsewhere.

    Cards that were not measured take at least what the processor alone does.
    """
    if machine.measured is None or machine.what_if:
        return None
    from edgekit.engines.llamacpp.types import Overhead

    for device in dict.fromkeys((device_key(machine, cards), device_key(machine))):
        found = machine.measured.engine("llama.cpp", device)
        if found is not None and found.overhead_bytes:
            alone = " on the CPU only" if cards and device == device_key(machine) else ""
            told = f"measured on this machine{alone} with {found.through} {found.version}, {found.date}"
            return Overhead(size_bytes=found.overhead_bytes, because=told)
    return None


def _names(cards: tuple[Device, ...]) -> str:
    counts: dict[str, int] = {}
    for card in cards:
        counts[card.name] = counts.get(card.name, 0) + 1
    return " + ".join(f"{count}x {name}" if count > 1 else name for name, count in counts.items())


def _vllm_ways(question: Task) -> Iterator[Placement]:
    from edgekit.engines.vllm.types import Gpu, VllmSetup

    machine, start = question.machine, question.start
    setup = start.setup or VllmSetup()
    one_node = _new_enough(devices_for(machine, "vllm"))
    cards = one_node * question.nodes
    largest = sorted(cards, key=lambda card: -card.free_bytes)
    if setup.world_size > len(cards):
        raise HardwareError(
            f"vLLM should use {setup.world_size} GPUs, but {machine.name} has {len(cards)}"
        )
    if start.settled & PLACED:
        sizes = [(setup.tensor_parallel_size, setup.pipeline_parallel_size)]
    else:
        sizes = list(_shapes(len(one_node), question.nodes))[::-1]  # all cards from the start
    lower = "gpu_memory_utilization" not in start.settled
    for ranks, stages in sizes:
        own = tuple(largest[: ranks * stages])
        shared = replace(setup, tensor_parallel_size=ranks, pipeline_parallel_size=stages)
        yield _vllm_way(_startable(shared, own) if lower else shared, own, Gpu)


def _new_enough(cards: tuple[Device, ...]) -> tuple[Device, ...]:
    found = tuple(
        card for card in cards if (card.capability or LEAST_CAPABILITY) >= LEAST_CAPABILITY
    )
    if not found:
        raise HardwareError(f"vLLM needs a Volta GPU or newer, and {_names(cards)} is older")
    return found


def _startable(setup: Any, cards: tuple[Device, ...]) -> Any:
    """Its share of a card that is in use already, or shared with NCCL, is lowered until it starts."""
    share = vllm_share(cards, setup.gpu_memory_utilization, eager=setup.enforce_eager)
    return replace(setup, gpu_memory_utilization=share)


def _shapes(cards: int, nodes: int) -> Iterator[tuple[int, int]]:
    """Ranks x stages: heads are divided inside of a machine, layers between machines, for that needs less traffic."""
    powers = tuple(_powers(cards))
    yield from ((size, 1) for size in powers)
    if cards not in powers:
        yield 1, cards  # three cards share layers, not heads
    for count in range(2, nodes + 1):
        yield powers[-1], count
        if cards not in powers:
            yield 1, cards * count


def _powers(most: int) -> Iterator[int]:
    size = 1
    while size <= most:
        yield size
        size *= 2


def _vllm_way(setup: Any, cards: tuple[Device, ...], gpu: Callable[..., Any]) -> Placement:
    """The card's memory is the budget's business: the bill is that of the requests, not of the whole pool."""
    one = min(cards, key=lambda card: card.total_bytes)
    known = {"capability": one.capability} if one.capability is not None else {}
    card = gpu(name=one.name, memory_bytes=None, total_bytes=one.total_bytes, **known)
    return Placement(
        setup=replace(setup, gpu=card),
        budgets=vllm_budgets(cards, setup.gpu_memory_utilization, eager=setup.enforce_eager),
        because=f"{'on' if len(cards) == 1 else 'shared by'} {_names(cards)}{_shape(setup)}{_lowered(setup)}",
        cards=cards,
    )


def _shape(setup: Any) -> str:
    """', tensor parallel 8 x pipeline parallel 2'; nothing for one card."""
    ranks, stages = setup.tensor_parallel_size, setup.pipeline_parallel_size
    told = [f"tensor parallel {ranks}"] if ranks > 1 else []
    told += [f"pipeline parallel {stages}"] if stages > 1 else []
    return f", {' x '.join(told)}" if told else ""


def _lowered(setup: Any) -> str:
    from edgekit.engines.vllm.types import DEFAULT_UTILIZATION

    share = setup.gpu_memory_utilization
    return f", {share:g} of its memory" if share != DEFAULT_UTILIZATION else ""


def _mlx_ways(question: Task) -> Iterator[Placement]:
    from edgekit.engines.mlx.types import MlxSetup

    cards = devices_for(question.machine, "mlx")
    yield Placement(
        setup=question.start.setup or MlxSetup(),
        budgets=mlx_budgets(question.machine, cards),
        cards=cards[:1],
        because=f"in the unified memory of {cards[0].name}",
    )


def _stream_ways(question: Task) -> Iterator[Placement]:
    """Weights that stay in memory need no reading: all of them first, then fewer, then none."""
    from edgekit.embed.tokenizer.cost import vocabulary_bytes
    from edgekit.engines.native.estimate import matrix_bytes, stream_model
    from edgekit.engines.native.setup import StreamSetup
    from edgekit.engines.native.threads import usual_threads

    machine, start = question.machine, question.start
    setup = start.setup or StreamSetup()
    threads = setup.threads or usual_threads(machine.cores if machine.what_if else None)
    tokens = stream_model(question.model).dimensions.vocabulary
    vocabulary = vocabulary_bytes(question.model.header, tokens)
    budgets = stream_budgets(machine, vocabulary_bytes=vocabulary, threads=threads)
    whole_bytes = matrix_bytes(question.model)
    for keep_bytes in _kept_sizes(whole_bytes, setup, settled="keep" in start.settled):
        yield Placement(
            setup=replace(setup, threads=threads, keep_bytes=keep_bytes),
            budgets=budgets,
            because=_kept_told(keep_bytes, whole_bytes),
            whole=keep_bytes is None,
        )


def _kept_sizes(whole_bytes: int, setup: Any, *, settled: bool) -> Iterator[int | None]:
    if settled:
        yield setup.keep_bytes
        return
    yield None
    yield from (whole_bytes * quarters // 4 // MIB * MIB for quarters in (3, 2, 1, 0))


def _kept_told(keep_bytes: int | None, whole_bytes: int) -> str:
    if keep_bytes is None or keep_bytes >= whole_bytes:
        return "all weights in memory"
    if not keep_bytes:
        return "weights read from the file for every token"
    return f"up to {format_bytes(keep_bytes)} of weights in memory, the rest read for every token"


_WAYS: dict[str, Callable[[Task], Iterator[Placement]]] = {
    "llama.cpp": _llamacpp_ways,
    "vllm": _vllm_ways,
    "mlx": _mlx_ways,
    "stream": _stream_ways,
}
