"""What a larger GPU would give: how many of the most used models run fully on it, at each size of its memory.

A model counts at a size if a plan would have it fully on the GPU with the weights it starts from and a context of at
least 16K (SPEC A4, steps 1 to 4). What it needs does not depend on the card, so it is billed once and compared with
the memory of every size. The answers are stored on disk.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

from edgekit.app.candidates import OFFLINE, complete, key_of, read_stored, store, task_for
from edgekit.bill.types import Load, MemoryEstimate, Price, Setup, Task
from edgekit.engines import engine_named
from edgekit.errors import CancelledError, EdgekitError, HardwareError, RefusedError
from edgekit.index import checked_entries, read_index
from edgekit.index.quality import Quality
from edgekit.index.types import Entry, ModelPurpose
from edgekit.machine.devices import DeviceKind, KnownDevice, all_devices, device_like
from edgekit.machine.types import HOST, Device, Machine, Vendor
from edgekit.machine.what_if import machine_of
from edgekit.plan.choice import smallest_usual_loads
from edgekit.plan.fit import Fitting, price_of, whole_placements, with_lines
from edgekit.plan.recommend import entry_quality, is_notable, rank_of, suits_task
from edgekit.request import Request, Session
from edgekit.units import GIB

# Sizes of a GPU's memory, and of a Mac's, as sold. Those of which no device is known are left out.
GPU_SIZES_GB = (4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 141, 192)
MAC_SIZES_GB = (8, 16, 24, 32, 36, 48, 64, 96, 128, 192, 256, 512)
MOST_EXAMPLES = 3
MOST_GAINED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A size of GPU or unified memory, and a machine that has it."""

    size_gb: int  # as sold
    devices: tuple[str, ...]  # that have it, the most common today first
    machine: Machine = field(repr=False)  # whose memory is compared


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeStep:
    """What one size of memory gives."""

    size: Size
    count: int  # models that run fully on it
    gained: tuple[Entry, ...]  # the best that no smaller size holds
    is_now: bool  # the size of the machine's own memory

    @property
    def vram_bytes(self) -> int:
        return self.size.size_gb * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrades:
    """The steps from the smallest size to the largest."""

    task: ModelPurpose
    engine: str
    machine: Machine = field(repr=False)
    now_bytes: int  # that the GPUs may use now
    steps: tuple[UpgradeStep, ...]
    models: int  # of the list that suit the task
    notes: tuple[str, ...] = ()

    def quality(self, entry: Entry) -> Quality:
        return entry_quality(entry, self.task)


def upgrades(request: Request, session: Session = OFFLINE) -> Upgrades:
    """The number of models that run fully on the GPU at each size of memory. Raises UsageError, HardwareError."""
    request = complete(request)
    machine, engine = request.find_machine(), engine_named(request.engines[0])
    task = request.purpose or ModelPurpose.CHAT
    entries = checked_entries(read_index())
    sizes = tuple(_sizes_for(machine))
    places = _places(entries, sizes, request, session)
    suited = [entry for entry in entries if suits_task(entry, task)]
    now_gb, notes = _size_now(machine)
    own = max((size.size_gb for size in sizes if size.size_gb <= now_gb), default=None)
    steps = []
    for index, size in enumerate(sizes):
        held = [entry for entry in suited if places[entry.id] <= index]
        gained = [entry for entry in held if places[entry.id] == index]
        step = UpgradeStep(
            size=size,
            count=len(held),
            gained=tuple(_best(gained, task)),
            is_now=size.size_gb == own,
        )
        steps.append(step)
    budgets = engine.budgets(machine) if engine.devices(machine) else ()
    return Upgrades(
        task=task,
        engine=engine.name,
        machine=machine,
        now_bytes=sum(budget.available_bytes for budget in budgets if budget.pools != {HOST}),
        steps=tuple(steps),
        models=len(suited),
        notes=notes,
    )


def _best(entries: Iterable[Entry], task: ModelPurpose) -> Iterator[Entry]:
    """The best models by rank, one of each family."""
    families: set[str] = set()
    ranked = sorted(entries, key=lambda entry: (is_notable(entry, task), rank_of(entry, task)))
    for entry in reversed(ranked):
        if entry.family not in families:
            families.add(entry.family)
            yield entry
        if len(families) == MOST_GAINED:
            return


# --- sizes


def _sizes_for(machine: Machine) -> Iterator[Size]:
    """The sizes that could replace the machine's memory: of Macs, of boards or APUs, else of cards.

    The machine's own size is one of them.
    """
    gpus = machine.devices
    own = _known(gpus[0]) if gpus else None
    kind = own.kind if own is not None and gpus[0].unified else DeviceKind.GPU
    vendor = gpus[0].vendor if gpus else Vendor.NVIDIA
    known = [device for device in all_devices() if device.kind is kind and device.has_gpu]
    if kind is not DeviceKind.GPU:
        known = [device for device in known if device.vendor is vendor]
    sizes = {DeviceKind.GPU: GPU_SIZES_GB, DeviceKind.MAC: MAC_SIZES_GB}.get(kind)
    sizes = sizes or tuple(device.size_gb for device in known)
    if own is not None and len(gpus) == 1:
        sizes = (*sizes, own.size_gb)
    for size_gb in sorted(set(sizes)):
        examples = [device for device in known if device.size_gb == size_gb]
        examples.sort(key=lambda device: _order(device, vendor), reverse=True)
        if own is not None and len(gpus) == 1 and own.size_gb == size_gb:
            examples = [own, *(device for device in examples if device.name != own.name)]
        if not examples:
            continue
        shown = examples[:MOST_EXAMPLES]
        same = next((device for device in shown if device.vendor is vendor), shown[0])
        yield Size(
            size_gb=size_gb,
            devices=tuple(device.name for device in shown),
            machine=machine_of(same if same.vendor is vendor else _as_of(vendor, same)),
        )


def _as_of(vendor: Vendor, device: KnownDevice) -> KnownDevice:
    """The largest card of the vendor, with the memory of this device: the vendor has none of that size."""
    own = (other for other in all_devices() if other.vendor is vendor and not other.unified)
    largest = max(own, key=lambda other: other.memory_bytes, default=device)
    return replace(
        largest,
        name=f"{device.size_gb} GB GPU",
        size_gb=device.size_gb,
        memory_bytes=device.memory_bytes,
        usable_bytes=device.usable_bytes,
    )


_AT_HOME = ("RTX", "RX", "Arc")  # cards for a desktop computer, not for a server


def _order(device: KnownDevice, vendor: Vendor) -> tuple[bool, bool, bool, bool, str, str]:
    """A sort key: common devices before others, then those for desktops, of the same maker, the newest."""
    is_desktop = "Laptop" not in device.name
    is_at_home = device.name.startswith(_AT_HOME)
    same_maker = device.vendor is vendor
    return device.usual, is_desktop, is_at_home, same_maker, device.released, device.name


def _known(device: Device) -> KnownDevice | None:
    return device_like(device.name, memory_bytes=device.total_bytes)


def _size_now(machine: Machine) -> tuple[float, tuple[str, ...]]:
    """The memory of the machine's GPUs in GB as sold, and what to know about it."""
    sizes = []
    for device in machine.devices:
        known = _known(device)
        sizes.append(math.ceil(device.total_bytes / GIB) if known is None else known.size_gb)
        if device.unified:
            break
    notes: tuple[str, ...] = ()
    if len(sizes) > 1:
        notes = (f"{len(sizes)} GPUs are counted like one card with the memory of all of them",)
    return sum(sizes), notes


# --- what models need


def _places(
    entries: Sequence[Entry], sizes: Sequence[Size], request: Request, session: Session
) -> Mapping[str, int]:
    """Model id -> index of the smallest size that holds it; len(sizes): none does.

    RAM is ignored, so that the stored answers apply to every machine with such a GPU.
    """
    plain = Request(
        engines=request.engines,
        max_use=request.max_use,
        reserve_bytes=request.reserve_bytes,
        drafter=False,
    )
    machines = [size.machine for size in sizes]
    plain = replace(plain, machine=machines[-1])
    question = ("upgrades", [machine.devices for machine in machines])
    key = key_of(plain, machines[-1], entries, question)
    stored = read_stored(key)
    places = stored.get("places") if isinstance(stored, dict) else None
    if (
        isinstance(places, dict)
        and places.keys() == {entry.id for entry in entries}
        and all(isinstance(place, int) for place in places.values())
    ):
        return places
    made: dict[str, int] = {}
    by_geometry: dict[object, int] = {}
    for entry in entries:
        session.tell(f"checking {entry.id}")
        alike = (entry.geometry or entry.id, entry.basis, entry.native_context, entry.kinds)
        if alike not in by_geometry:
            by_geometry[alike] = _place(entry, machines, plain, session)
        made[entry.id] = by_geometry[alike]
    store(key, {"places": made})
    return made


def _place(entry: Entry, machines: Sequence[Machine], request: Request, session: Session) -> int:
    """The index of the first machine that holds the model; len(machines) if none does."""
    try:
        task = task_for(entry, request, session)
        loads, tokens = smallest_usual_loads(task)
    except CancelledError:
        raise
    except EdgekitError:  # not supported by the engine, or a damaged entry of the user's
        return len(machines)
    for load in loads:
        prices = _Prices.of(load, tokens, machines[-1])
        if prices is None:  # the bill is quick: each machine has its own choice of caches
            return bisect_left(machines, True, key=partial(_holds_any, task))
        start = bisect_left(machines, True, key=partial(_holds, load, tokens, prices.lower))
        for place, machine in enumerate(machines[start:], start):
            if _holds(load, tokens, prices.upper, machine) or _holds(
                load, tokens, prices.exact, machine
            ):
                return place
    return len(machines)


def _holds_any(task: Task, machine: Machine) -> bool:
    """Whether the machine holds the task with one of the usual caches."""
    try:
        loads, tokens = smallest_usual_loads(replace(task, machine=machine))
    except (HardwareError, RefusedError):  # the engine does not run on such a card
        return False
    return any(_holds(load, tokens, cache(price_of(load)), machine) for load in loads)


def _holds(task: Task, tokens: int, price: Price, machine: Machine) -> bool:
    """Whether the machine holds this load, fully on its GPU, at this price."""
    on_machine = replace(task, machine=machine, bill=price)
    placements = whole_placements(on_machine)
    return any(Fitting(on_machine, placement).fits(tokens) for placement in placements)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prices:
    """A lower and an upper bound of a task's bill, and the bill: each is computed once for machines of equal setups."""

    lower: Price
    upper: Price
    exact: Price

    @classmethod
    def of(cls, task: Task, tokens: int, largest: Machine) -> _Prices | None:
        """None if the engine has no bounds, because its bills are quick.

        The lower bound is that of the largest machine: on a smaller one, Metal maps a long file in overlapping pieces.
        """
        engine, lines = engine_named(task.engine), task.companion_lines
        largest_setup = whole_placements(replace(task, machine=largest))[0].setup
        bounds = cache(partial(engine.estimate_bounds, task.model))
        try:
            if task.bill is not None or bounds(task.load_of(tokens), largest_setup) is None:
                return None
        except RefusedError:
            return None

        def lower(load: Load, _setup: Setup) -> MemoryEstimate:
            both = bounds(load, largest_setup)
            return engine.estimate(task.model, load, largest_setup) if both is None else both[0]

        def upper(load: Load, setup: Setup) -> MemoryEstimate:
            both = bounds(load, setup)
            return engine.estimate(task.model, load, setup) if both is None else both[1]

        def whole(price: Price) -> Price:
            return cache(price if lines is None else with_lines(price, lines))

        return cls(lower=whole(lower), upper=whole(upper), exact=cache(price_of(task)))
