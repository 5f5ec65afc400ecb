"""llama.cpp's memory budgets on a machine, and the possible placements, most on the devices first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from edgekit.bill.types import Component, Load, MemoryEstimate, Placement, Start, Task, Usage
from edgekit.engines.choices import card_budget, devices_of, known_ram, names_of, ram_budget
from edgekit.engines.llamacpp.flags import keys_of
from edgekit.engines.llamacpp.setups import default_setup
from edgekit.engines.llamacpp.types import (
    ALL_LAYERS,
    Backend,
    Cpu,
    DeviceSlot,
    LlamaCppSetup,
    Overhead,
    Override,
    SplitMode,
    used_devices,
)
from edgekit.engines.llamacpp.weights import place
from edgekit.errors import HardwareError, UsageError
from edgekit.machine.devices import longest_buffer_bytes
from edgekit.machine.types import (
    Budget,
    Device,
    Machine,
    PoolKind,
    System,
    Vendor,
    pool_of,
    together_bytes,
)
from edgekit.model.types import Model
from edgekit.units import GIB

# Placement flags; a caller who gives one decides all of them.
PLACED = keys_of("backend", "placement", "devices", "servers")
# Flags that decide how much of the model goes to RAM: all but the split between cards.
_DECIDES_RAM_USE = PLACED - {"tensor_split"}
# Placement flags that refer to all devices of the machine, in llama.cpp's numbering.
_BY_NUMBER = keys_of("devices", "servers") | {"override_tensor"}
Cards = tuple[Device, ...]
# 1 GiB reserve, 0.6 GiB driver context, a compute buffer and one layer.
LEAST_CARD_BYTES = 5 * GIB // 2
ON_THE_CPU = "fully on the CPU"
RESERVE_BYTES = GIB
WINDOWS_RESERVE_BYTES = 2 * GIB  # the desktop compositor uses some
# Most reliable first.
VENDORS = (Vendor.NVIDIA, Vendor.APPLE, Vendor.AMD, Vendor.INTEL)
BACKENDS = {Vendor.NVIDIA: "cuda", Vendor.APPLE: "metal"}  # of others: Vulkan
VENDORS_OF: Mapping[Backend, frozenset[Vendor]] = {
    Backend.CUDA: frozenset({Vendor.NVIDIA}),
    Backend.HIP: frozenset({Vendor.AMD}),
    Backend.METAL: frozenset({Vendor.APPLE}),
    Backend.VULKAN: frozenset(Vendor) - {Vendor.APPLE},
    Backend.SYCL: frozenset({Vendor.INTEL}),
}
STEPS = 24  # bisections: accurate to a ten-millionth of a card
DIVIDED = ", divided "
MOST_TAKERS = 3  # every split costs a full graph
WORST_SHARE = 64.0  # of a card; a split that needs more is hopeless


def devices(machine: Machine) -> tuple[Device, ...]:
    """The machine's GPUs that llama.cpp would use."""
    return devices_of(machine, VENDORS)


def backend_name(card: Device) -> str:
    """The backend for the card."""
    return card.backend or BACKENDS.get(card.vendor, "vulkan")


def budgets(machine: Machine) -> tuple[Budget, ...]:
    """The budgets with all devices. Raises HardwareError without devices and known RAM."""
    cards = devices(machine)
    if not cards:
        known_ram(machine)
    return budgets_with(machine, cards)


def capacity_bytes(machine: Machine) -> int:
    """The upper limit for weights over all pools."""
    return together_bytes(budgets_with(machine, devices(machine)))


def budgets_with(machine: Machine, cards: tuple[Device, ...]) -> tuple[Budget, ...]:
    """One budget per card and one for the RAM, each with its reserve. RAM of unknown size has no budget."""
    host = machine.host
    reserve, because = RESERVE_BYTES, "1 GiB reserve"
    if machine.is_phone and host is not None and host.tightest is not None:
        reserve, because = 0, host.tightest.name  # the limit already excludes the system's share
    elif machine.system is System.WINDOWS:
        reserve, because = WINDOWS_RESERVE_BYTES, "2 GiB for Windows"
    pool_budgets = [
        card_budget(pool_of(index), card, reserve, because)
        for index, card in enumerate(cards)
        if not card.unified
    ]
    if host is not None:
        pool_budgets.append(ram_budget(host, cards, reserve, because))
    return tuple(pool_budgets)


def placements(task: Task) -> Iterator[Placement]:
    """The possible placements: first the full model on the devices (or on the CPU if there are none), then with less
    and less device memory. Raises HardwareError for a backend without a device, and for a machine with nothing to run
    on.
    """
    machine, start = task.machine, task.start
    setup = LlamaCppSetup.of(start.setup or default_setup())
    cards, *fewer = _card_sets(devices(machine))
    has_backend = "backend" in start.fixed_flags
    if has_backend and not (
        setup.backend is Backend.CPU
        or any(card.vendor in VENDORS_OF[setup.backend] for card in cards)
    ):
        raise HardwareError(f"{machine.name} has no device for the backend {setup.backend.value}")
    if start.fixed_flags & _BY_NUMBER and (devices(machine) or setup.servers):
        yield _requested_placement(machine, setup, has_backend=has_backend)
        return
    if not cards or (has_backend and setup.backend is Backend.CPU):
        yield replace(_cpu_placement(machine, setup), whole=True)
        return
    if not has_backend:
        setup = replace(setup, backend=Backend(backend_name(cards[0])))
    for used_cards in (cards,) if setup.tensor_split else (cards, *fewer):
        part = "as requested,"
        if setup.n_gpu_layers == ALL_LAYERS and not (setup.cpu_moe or setup.n_cpu_moe):
            part = "fully" if setup.offload_kqv else "all but the cache"
        because = f"{part} on {names_of(used_cards)}{_visible_cards_hint(machine, used_cards)}"
        with_devices = replace(setup, devices=_device_slots(used_cards, setup.tensor_split))
        yield replace(_device_placement(machine, used_cards, with_devices, because), whole=True)
    if start.fixed_flags & _DECIDES_RAM_USE or machine.host is None:
        return
    setup = replace(setup, devices=_device_slots(cards, setup.tensor_split))
    where = f"on {names_of(cards)}{_visible_cards_hint(machine, cards)}"
    placement = _device_placement(machine, cards, setup, where)
    for smaller_setup, part in _smaller_setups(
        task.model, cards, LlamaCppSetup.of(placement.setup)
    ):
        because = part if part == ON_THE_CPU else f"{part} {where}"
        has_all = smaller_setup.n_gpu_layers == ALL_LAYERS
        yield replace(placement, setup=smaller_setup, because=because, all_layers=has_all)
    yield _cpu_placement(machine, setup)


def _requested_placement(machine: Machine, setup: LlamaCppSetup, *, has_backend: bool) -> Placement:
    """The placement on the requested devices: RPC servers come first, and every card is used."""
    cards = devices(machine)
    if has_backend and setup.backend is Backend.CPU:
        cards = ()
    if not has_backend or setup.backend is Backend.CPU:
        # the device of a server is assumed to be an NVIDIA card
        setup = replace(setup, backend=Backend(backend_name(cards[0]) if cards else "cuda"))
    card_of_slot: dict[DeviceSlot, Device] = {}
    for slot in setup.servers:
        name, _, endpoint = slot.rpc.removesuffix("]").partition("[")
        free_bytes = slot.free_bytes or 0
        device_note = f", device {name.removeprefix('RPC')}" if name != "RPC0" else ""
        card_of_slot[slot] = Device(
            name=f"RPC server {endpoint}{device_note}",
            vendor=Vendor.OTHER,
            total_bytes=free_bytes,
            free_bytes=free_bytes,
            because="--rpc",
        )
    for number, card in enumerate(cards):
        longest = longest_buffer_bytes(card)
        slot = DeviceSlot(free_bytes=card.free_bytes, max_buffer_bytes=longest, number=number)
        card_of_slot[slot] = card
    if len(setup.tensor_split) > len(card_of_slot):
        raise UsageError(
            f"--tensor-split has {len(setup.tensor_split)} shares, but there are {len(card_of_slot)} devices"
        )
    slots = used_devices(tuple(card_of_slot), setup.split_mode, setup.main_gpu)
    used = tuple(card_of_slot[slot] for slot in slots)
    because = f"as requested, on {names_of(used)}"
    placement = _device_placement(machine, used, replace(setup, devices=slots), because)
    return replace(placement, whole=True, may_resplit=False)


def _card_sets(cards: Cards) -> list[Cards]:
    """The sets of cards to try: all cards that can hold a layer and their buffers, then only those with at least a
    quarter of the largest card's memory. A small card may cost more in buffers than it adds.
    """
    by_size = sorted(cards, key=lambda card: -card.free_bytes)
    largest = by_size[0].free_bytes if by_size else 0
    card_sets: list[Cards] = []
    for least_bytes in (LEAST_CARD_BYTES, largest // 4):
        used = [card for card in by_size if card.free_bytes >= least_bytes] or by_size[:1]
        card_set = tuple(card for card in cards if card in used)
        if card_set not in card_sets:
            card_sets.append(card_set)
    return card_sets


def _visible_cards_hint(machine: Machine, used: Cards) -> str:
    """A hint to the environment variable that hides unused NVIDIA cards from llama.cpp; empty if all are used."""
    all_cards = devices(machine)
    if len(all_cards) == len(used) or backend_name(all_cards[0]) != "cuda":
        return ""
    return f" alone (CUDA_VISIBLE_DEVICES={','.join(str(card.index) for card in used)})"


def _device_slots(cards: Cards, split: tuple[float, ...]) -> tuple[DeviceSlot, ...]:
    if len(split) > len(cards):
        raise UsageError(
            f"--tensor-split has {len(split)} shares, but the machine has {len(cards)} GPUs"
        )
    # With one card nothing is divided: the bill does not depend on the free memory.
    return tuple(
        DeviceSlot(
            free_bytes=card.free_bytes if len(cards) > 1 else None,
            max_buffer_bytes=longest_buffer_bytes(card),
        )
        for card in cards
    )


def _smaller_setups(
    model: Model, cards: Cards, setup: LlamaCppSetup
) -> Iterator[tuple[LlamaCppSetup, str]]:
    """Setups with less and less on the devices, each with a description.

    Experts leave the devices first, block by block: they are large, and a token uses few of them. Metal maps the file
    from its first to its last tensor, so moving a part to the CPU frees nothing.
    """
    layers = len(model.geometry.layers)
    if cards[0].vendor is Vendor.APPLE and setup.use_mmap:
        yield replace(setup, n_gpu_layers=0), ON_THE_CPU
        return
    without = ""
    if any(layer.experts for layer in model.geometry.layers):
        for count in range(1, layers):
            part = f"all but the experts of {count} of {layers} layers"
            yield replace(setup, n_cpu_moe=count), part
        setup, without = replace(setup, cpu_moe=True), ", no experts,"
        yield setup, "all but the experts"
    for count in range(layers, 0, -1):
        yield replace(setup, n_gpu_layers=count), f"{count} of {layers + 1} layers{without}"
    yield replace(setup, n_gpu_layers=0), ON_THE_CPU


def finer_placements(model: Model, placement: Placement) -> Iterator[Placement]:
    """Placements with slightly more on the devices than this one: a part of one layer's experts moves there.

    -ot keeps the experts of the first layers in RAM, or of the last as llama.cpp's --fit does (fit.cpp @ b11549).
    """
    setup = LlamaCppSetup.of(placement.setup)
    layers = len(model.geometry.layers)
    # Layers whose experts stay in RAM as a whole: one fewer than in `placement`, because that one is divided.
    layers_in_ram = (layers if setup.cpu_moe else setup.n_cpu_moe) - 1
    if setup.n_gpu_layers != ALL_LAYERS or layers_in_ram < 0:
        return
    all_on_gpu = replace(setup, cpu_moe=False, n_cpu_moe=0)
    where = placement.because.partition(" on ")[2]

    def keep_on_cpu(layer: str, *tensors: str) -> tuple[Override, ...]:
        names = (f"blk.{layer}.ffn_{part}_exps" for part in tensors)
        return tuple(Override(pattern=name, buffer="CPU") for name in names)

    def all_but(in_ram: str, overrides: tuple[Override, ...], n_cpu_moe: int = 0) -> Placement:
        return replace(
            placement,
            setup=replace(all_on_gpu, n_cpu_moe=n_cpu_moe, overrides=overrides),
            because=f"all but {in_ram} on {where}",
            by_tensor=True,
            is_short_command=n_cpu_moe > 0,
        )

    last_layers: tuple[Override, ...] = ()
    count_text = f"{layers_in_ram} of {layers} layers"
    if layers_in_ram:
        last_layers = keep_on_cpu(
            f"({_number_pattern(layers - layers_in_ram, layers)})", "(gate|up|gate_up|down)"
        )
        yield all_but(f"the experts of the last {count_text}", last_layers)
    for share, tensors in (("a third", ("down",)), ("two thirds", ("gate", "down"))):
        with_last = with_first = f"{share} of the experts of one layer"
        if layers_in_ram:
            one_more = f"{share} of the experts of one more"
            with_last = f"the experts of the last {count_text} and {one_more}"
            with_first = f"the experts of {count_text} and {one_more}"
        layer_before_last = keep_on_cpu(str(layers - layers_in_ram - 1), *tensors)
        yield all_but(with_last, (*layer_before_last, *last_layers))
        yield all_but(with_first, keep_on_cpu(str(layers_in_ram), *tensors), layers_in_ram)


def _number_pattern(first: int, end: int) -> str:
    """A regex for the numbers from `first` to `end` - 1, decade by decade: '2[8-9]|3[0-9]|4[0-7]'."""
    alternatives: list[str] = []
    for decade in range(first // 10, (end - 1) // 10 + 1):
        low, high = max(first, 10 * decade), min(end - 1, 10 * decade + 9)
        digits = f"{decade or ''}[{low % 10}-{high % 10}]"
        alternatives.append(str(low) if low == high else digits)
    return "|".join(alternatives)


def _device_placement(
    machine: Machine, cards: Cards, setup: LlamaCppSetup, because: str
) -> Placement:
    return Placement(
        setup=_with_machine_facts(setup, machine, cards),
        budgets=budgets_with(machine, cards),
        because=because,
        cards=cards,
        may_resplit=len(cards) > 1 and not setup.tensor_split,
        all_layers=setup.n_gpu_layers == ALL_LAYERS,
        by_number=setup.split_mode is SplitMode.NONE,
    )


def _cpu_placement(machine: Machine, setup: LlamaCppSetup) -> Placement:
    known_ram(machine)
    alone = _with_machine_facts(replace(setup, backend=Backend.CPU), machine, ())
    return Placement(setup=alone, budgets=budgets_with(machine, ()), because=ON_THE_CPU)


def _with_machine_facts(setup: LlamaCppSetup, machine: Machine, cards: Cards) -> LlamaCppSetup:
    """The setup with the machine's CPU family and its measured overhead."""
    cpu = Cpu.ARM if machine.arm else Cpu.X86
    return replace(setup, cpu=cpu, overhead=measured_overhead(machine, cards))


def measured_overhead(machine: Machine, cards: Cards = ()) -> Overhead | None:
    """Measured RAM of llama.cpp on this machine beyond its bill; None if not measured. If the cards were not measured,
    the measurement on the CPU counts.
    """
    if machine.measured is None or machine.what_if:
        return None
    from edgekit.machine.calibration import device_key

    cpu_key = device_key(machine)
    for device in (device_key(machine, cards), cpu_key):
        measurement = machine.measured.engine("llama.cpp", device)
        if measurement is not None and measurement.overhead_bytes:
            cpu_note = " on the CPU only" if cards and device == cpu_key else ""
            program = f"{measurement.through} {measurement.version}"
            because = f"measured on this machine{cpu_note} with {program}, {measurement.date}"
            return Overhead(size_bytes=measurement.overhead_bytes, because=because)
    return None


def rebalance(model: Model, placement: Placement, estimate: MemoryEstimate) -> Placement | None:
    """The placement with a better -ts; None if there is none. `estimate`: the bill with the current split.

    Multi-token prediction blocks come between the last layer and the head; they count even if not loaded.
    """
    setup = LlamaCppSetup.of(placement.setup)
    card_pools = [frozenset({pool_of(index)}) for index in range(len(placement.cards))]
    cards = [
        budget for pools in card_pools for budget in placement.budgets if budget.pools == pools
    ]
    if len(cards) != len(placement.cards):
        return None
    blocks: dict[int, int] = {}
    head, fixed = 0, [0] * len(cards)  # fixed: buffers and the driver, whatever the card's layers
    for line in estimate.lines:
        if line.pool.kind is not PoolKind.DEVICE or not line.reserved:
            continue
        if line.layer is not None:
            blocks[line.layer] = blocks.get(line.layer, 0) + line.size_bytes
        elif line.component is Component.WEIGHTS:
            head += line.size_bytes
        else:
            fixed[line.pool.index] += line.size_bytes
    idle_blocks = 0 if setup.load_mtp else model.geometry.mtp_layers
    layers = [*(blocks[layer] for layer in sorted(blocks)), *[0] * idle_blocks, head]
    if len(layers) < len(cards):
        return None
    counts = _balance(layers, fixed, cards)
    if counts is None or counts == setup.tensor_split:
        return None
    return with_layers_on_cards(placement, counts)


def with_layers_on_cards(placement: Placement, counts: tuple[float, ...]) -> Placement:
    """The placement with this many layers on each card, and its description."""
    because = placement.because.partition(DIVIDED)[0]
    because += DIVIDED + ":".join(str(round(count)) for count in counts)
    setup = placement.setup.changed(tensor_split=counts)
    return replace(placement, setup=setup, because=because, may_resplit=False)


def neighbours(model: Model, placement: Placement, uses: Sequence[Usage]) -> Iterator[Placement]:
    """Placements with one layer moved from the fullest card to one of the emptiest. None if the RAM is fuller than the
    cards, or if cards share it.
    """
    placement = pinned(model, placement)
    counts = LlamaCppSetup.of(placement.setup).tensor_split
    utilization_by_pools = {use.budget.pools: use.utilization for use in uses}
    card_pools = [frozenset({pool_of(index)}) for index in range(len(counts))]
    if not utilization_by_pools.keys() >= set(card_pools):
        return
    shares = [utilization_by_pools[pools] for pools in card_pools]
    fullest = shares.index(max(shares))
    if counts[fullest] <= 1 or shares[fullest] < max(utilization_by_pools.values()):
        return
    emptiest_first = sorted(
        (index for index in range(len(counts)) if index != fullest), key=shares.__getitem__
    )
    for taker in emptiest_first[:MOST_TAKERS]:
        moved = list(counts)
        moved[fullest] -= 1
        moved[taker] += 1
        yield with_layers_on_cards(placement, tuple(moved))


def pinned(model: Model, placement: Placement) -> Placement:
    """The placement with its split as -ts: otherwise llama.cpp splits by free memory at the start."""
    setup = LlamaCppSetup.of(placement.setup)
    is_by_layer = setup.split_mode is SplitMode.LAYER
    if len(placement.cards) < 2 or setup.tensor_split or not is_by_layer:
        return placement
    placed = place(model, setup)
    counts = [0.0] * len(placement.cards)
    for pool in (*placed.blocks, placed.output):
        if pool.kind is PoolKind.DEVICE:
            counts[pool.index] += 1
    if not any(counts):  # the cards only compute, or hold no whole layer: there is nothing to split
        return placement
    setup = replace(setup, tensor_split=tuple(counts))
    return replace(placement, setup=setup, may_resplit=False)


def _balance(layers: list[int], fixed: list[int], cards: list[Budget]) -> tuple[float, ...] | None:
    """The number of layers on each card if all cards are filled to the same share of their memory, found by bisection;
    None if the cards are far too small.
    """
    low, high = 0.0, WORST_SHARE
    ends = _fill(layers, fixed, cards, high)
    if ends is None:
        return None
    for _ in range(STEPS):
        middle = (low + high) / 2
        filled = _fill(layers, fixed, cards, middle)
        if filled is None:
            low = middle
        else:
            high, ends = middle, filled
    return tuple(float(end - start) for start, end in pairwise((0, *ends)))


def _fill(
    layers: list[int], fixed: list[int], cards: list[Budget], share: float
) -> list[int] | None:
    """Fills each card to that share of its memory, and returns the index after each card's last layer; None if layers
    remain.
    """
    next_layer, ends = 0, []
    for fixed_bytes, card in zip(fixed, cards, strict=True):
        free_bytes = card.available_bytes * share - fixed_bytes
        while next_layer < len(layers) and layers[next_layer] <= free_bytes:
            free_bytes -= layers[next_layer]
            next_layer += 1
        ends.append(next_layer)
    return ends if next_layer == len(layers) else None


def load_for_users(load: Load, users: int, native_tokens: int) -> Load:
    """The load with a separate context for each user, as long as the load's. A context of 0 means the native length."""
    tokens = native_tokens if load.context_tokens == 0 else load.context_tokens
    total_tokens = None if tokens is None else tokens * users
    return replace(load, sequences=users, unified=False, context_tokens=total_tokens)


def values_for_users(values: Mapping[str, Any], users: int, load: Load) -> dict[str, Any]:
    """The flags that give every user a separate context. Raises UsageError."""
    if "parallel" in values or values.get("unified"):
        raise UsageError("--users N means -np N with a context for each user: give one of them")
    flags = {**values, "parallel": users, "unified": False}
    total_tokens = load.context_tokens
    return flags if total_tokens is None else {**flags, "context": total_tokens}


def embedding_start(start: Start) -> Start:
    """The setup for embeddings."""
    if "embeddings" in start.fixed_flags:
        return start
    setup = start.setup or default_setup()
    settled = start.fixed_flags | {"embeddings"}
    return replace(start, setup=replace(setup, embeddings=True), fixed_flags=settled)
