"""The protocol of an engine. Each engine is one folder: no other file compares with its name.

An engine is a record of facts that cost nothing to import, and rules. A rule is a function in a module of the engine's
folder: `@rule("speed")` on `Engine.speed` means the function `speed` in `engines/X/speed.py`, imported when it is first
called. If the folder has no such function, the body here is the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

from edgekit.engines.flags import Flag, Page, field_values, given_values, read_options
from edgekit.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import ModuleType

    from edgekit.bill.types import (
        CacheChoice,
        Drafter,
        Load,
        MemoryEstimate,
        MemoryLine,
        Moment,
        Placement,
        Setup,
        Speed,
        Start,
        Task,
        Usage,
        Variant,
        Verdict,
    )
    from edgekit.engines.commands import Command, Startup
    from edgekit.engines.program import EngineProgram, Installation
    from edgekit.formats.types import ModelHeader
    from edgekit.index.types import Size
    from edgekit.machine.types import Budget, Device, Machine, Pool
    from edgekit.model import OpenModel
    from edgekit.model.types import Model
    from edgekit.sources.types import ModelFiles

NONE: Mapping[str, str] = MappingProxyType({})
Function = TypeVar("Function", bound=Callable[..., Any])
ANSWER_S = 10.0  # for an installed program to answer; one that initialises a GPU from a slow disk needs seconds


class Rule:
    """A descriptor: reading it from an engine gives the function in the engine's folder, or the default."""

    def __init__(self, module: str, default: Callable[..., Any], *, is_needed: bool) -> None:
        self.module, self.default, self.is_needed = module, default, is_needed

    def __get__(self, engine: Engine | None, _: type[Engine]) -> Any:
        if engine is None:
            return self
        name = self.default.__name__
        function = getattr(engine.module(self.module), name, None)
        if function is None and self.is_needed:
            raise NotImplementedError(f"{engine.package}.{self.module} has no function {name}")
        return partial(self.default, engine) if function is None else function


def rule(module: str, *, is_needed: bool = False) -> Callable[[Function], Function]:
    """Decorates a method that calls the function of the same name in this module of the engine's folder.

    The method's body is the default. `is_needed`: there is no default, and every engine must have the function.
    """

    def decorate(default: Function) -> Function:
        return cast("Function", Rule(module, default, is_needed=is_needed))

    return decorate


class Floor(Protocol):
    """A lower bound of a bill that is much cheaper to compute than the bill."""

    def held_bytes(self, model: Model, load: Load, setup: Setup, /) -> Mapping[Pool, int]:
        """Weights, caches and states."""

    def cache_bytes(self, model: Model, load: Load, setup: Setup, /) -> int: ...

    def load_facts(self, model: Model, load: Load, setup: Setup, /) -> Iterable[tuple[str, object]]:
        """How the engine resolves the load, as the bill's facts. Raises RefusedError if the bill would."""


class Offload(NamedTuple):
    """Which parts of a model are not on the devices, as phrases for a headline."""

    place: str = ""  # the whole placement, if the engine has its own phrase for it
    layers: str = ""  # on the devices, if not all are: "40 of 81 layers"
    experts: str = ""  # in RAM: "the experts of 28 layers"
    cache: bool = False  # the cache is in RAM
    everything: bool = False  # no layer is on a device


PRESET_FILE = "models.ini"
MOST_IMAGE_TOKENS = 4096  # where nothing is known; most models scale a larger image down


class ProgramEntry(NamedTuple):
    """A program that EdgeKit starts for an engine."""

    name: str  # as --with takes it: "llama-server"
    place: str  # where its EngineProgram is: "module:ATTRIBUTE"
    verbs: tuple[str, ...]  # the commands that can use it: run, serve, verify, calibrate
    on_request: bool = False  # only used if --with names it


class Companions(NamedTuple):
    """Files that are loaded next to a model."""

    projector: ModelHeader | None = None
    adapters: tuple[ModelHeader, ...] = ()
    drafter: Drafter | None = None


class Engine:
    """Base class of the engines. A subclass only has facts; `ENGINE` in its package is the instance."""

    name: str  # as users type it, and in JSON
    title: str  # in headings
    aliases: tuple[str, ...] = ()  # other spellings, in lower case
    loads_gguf: bool = False
    # Formats that it loads without conversion: "gguf", "safetensors", "config", "mlx". If no engine is named, the
    # first one that loads the file is chosen.
    made_for: frozenset[str] = frozenset()
    rules_module: str = ""  # the one module with all its rules; "": a module for each kind of rule

    def __init__(self) -> None:
        self.package = type(self).__module__  # its folder
        self._modules: dict[str, ModuleType | None] = {}

    def module(self, name: str) -> ModuleType | None:
        """The module of its folder with the rules of this kind; None if there is none."""
        if name not in self._modules:
            path = f"{self.package}.{self.rules_module or name}"
            try:
                self._modules[name] = import_module(path)
            except ModuleNotFoundError as error:
                if error.name != path:
                    raise
                self._modules[name] = None
        return self._modules[name]

    # --- flags

    flags: tuple[Flag, ...]
    table: tuple[Flag, ...]  # the context, the flags, and options that only rows of a batch have
    unused_options: frozenset[str] = frozenset()  # options of a row that no bill depends on

    # Links state the placement, because a check may choose another one than the plan did.
    pins_placement: bool = False
    on_gpu: Mapping[str, str] = NONE  # flags that put weights and cache on a GPU, without a machine
    one_sequence: Mapping[str, str] = NONE  # flags for a single sequence, unless it is the default
    page: Page  # its texts on the web page
    quant_key: str = ""  # key of the flag for the quantisation of the weights; "": there is none
    companions: frozenset[str] = frozenset()  # flags of files that are loaded with the model

    @rule("setups")
    def read_quant(self, _name: str, /) -> str | None:
        """The engine's own name for the quantisation of `--quant NAME`; None if it has none."""
        return None

    @rule("setups")
    def quant_names(self) -> tuple[str, ...]:
        """The names that `--quant` accepts, for the message about an unknown one."""
        return ()

    @rule("setups", is_needed=True)
    def default_setup(self) -> Setup:
        """The setup without any flags."""
        raise NotImplementedError

    @rule("setups")
    def setup(self, values: Mapping[str, Any], /) -> tuple[Load, Setup]:
        """The load and the setup for these values of its flags. Raises UsageError."""
        from edgekit.bill.types import Load

        load = field_values(self.table, values, Load)
        load["context_tokens"] = load.get("context_tokens") or None  # 0 is the native context
        kind = type(self.default_setup())
        return Load(**load), kind(**field_values(self.table, values, kind))

    @rule("setups")
    def values(self, load: Load, setup: Setup, /) -> dict[str, Any]:
        """The inverse of `setup`: the flags that give the same bill, without those for companion files."""
        return given_values(self.table, load, setup)

    @rule("setups")
    def placement(self, _setup: Setup, /) -> dict[str, Any]:
        """The placement of the model as values of flags."""
        return {}

    @rule("commands")
    def placement_flags(
        self, _model: Model, _placement: Placement, _cards: tuple[Device, ...], /
    ) -> dict[str, Any]:
        """Like `placement`, on a machine with these cards, if `pins_placement` is set. Unused cards get no share."""
        return {}

    @rule("setups")
    def read_row(self, options: Mapping[str, Any], _backend: str | None, /) -> tuple[Load, Setup]:
        """Reads a row of a batch, which has the engine's own parameters. Raises UsageError."""
        from dataclasses import replace

        values = read_options(self.table, options)
        load, setup = self.setup(values)
        return replace(load, context_tokens=values.get("context")), setup

    @rule("setups")
    def read_keywords(self, options: Mapping[str, Any], /) -> tuple[Load, Setup]:
        """Reads keywords of the Python API, which are named as in a row. Raises UsageError."""
        return self.read_row(options, None)

    @rule("setups", is_needed=True)
    def describe(self, load: Load, estimate: MemoryEstimate, /) -> str:
        """The requested load as the engine resolved it, as a phrase."""
        raise NotImplementedError

    # --- the bill

    def is_made_for(self, model: Model) -> bool:
        """Whether the engine loads the model's format without conversion."""
        header = model.header
        return ("mlx" if header.mlx else header.container.value) in self.made_for

    @rule("estimate")
    def version(self, _setup: Setup, /) -> str:
        """The engine's version whose rules a bill for this setup follows."""
        return str(cast("Any", self.module("estimate")).VERSION)

    @rule("estimate", is_needed=True)
    def estimate(self, model: Model, load: Load, setup: Setup, /) -> MemoryEstimate:
        """The bill. Raises RefusedError if the engine would not start."""
        raise NotImplementedError

    @rule("companions")
    def estimate_with(
        self,
        _companions: Companions,
        model: Model,
        load: Load,
        setup: Setup,
        _values: Mapping[str, Any],
        /,
    ) -> MemoryEstimate:
        """The bill with the companions. `values` are the flags that were given."""
        return self.estimate(model, load, setup)

    @rule("commands")
    def unplaced_commands(
        self, _label: str, _mix: str, _verdict: Verdict, /
    ) -> tuple[Command, ...]:
        """Commands for a model of the index whose layers are not known: the engine places them itself."""
        return ()

    @rule("commands")
    def loads_projector(self, _files: ModelFiles, _values: Mapping[str, Any], /) -> bool:
        """Whether the engine, started as its command says, loads the repository's projector unasked."""
        return False

    @rule("companions")
    def known_projector(
        self, _opened: OpenModel, _values: Mapping[str, Any], /
    ) -> ModelHeader | None:
        """The projector that the engine, started as its command says, loads for a model whose files are not open; None
        if it loads none, or its size is not known.
        """
        return None

    @rule("companions")
    def image_tokens(self, _projector: ModelHeader | None, /) -> int:
        """The most tokens of the context that one image takes. `_projector`: if one is loaded."""
        return MOST_IMAGE_TOKENS

    @rule("companions")
    def projector_lines(
        self, _header: ModelHeader, _load: Load, _setup: Setup, /
    ) -> tuple[MemoryLine, ...]:
        """The bill of a projector: its weights, and the buffers for one image."""
        return ()

    @rule("asked")
    def ask(
        self,
        _model: Model,
        _files: ModelFiles | None,
        _load: Load,
        _setup: Setup,
        _own: MemoryEstimate | None,
        /,
        *,
        program: Installation | None = None,  # noqa: ARG002 - for engines that can be asked
    ) -> MemoryEstimate:
        """The bill by a dry run of the engine on this machine, with the parts that it does not report from `own`, which
        is the bill by its rules; None: they do not know the model. Without `files`, only the geometry is known.
        The build of `program` is asked, if it can be.

        Raises EngineError if it is not installed or cannot answer, UsageError if it cannot be asked at all.
        """
        raise UsageError(
            f"--ask-engine: {self.name} reports its memory only after it has loaded a model: use --engine llama.cpp"
        )

    # --- programs

    run_flags: Mapping[str, Any] = MappingProxyType({})  # of files that are run as they are
    image_types: frozenset[str] = frozenset()  # of images in prompts: "image/png"; empty: text only
    shares_memory: bool = (
        True  # takes no more than the model needs, so others can be loaded next to it
    )
    calls_tools: bool = False  # takes tools with a prompt, and answers with calls of them
    verified_flags: tuple[Flag, ...] = ()  # flags that `verify` takes
    programs: tuple[ProgramEntry, ...] = ()  # that EdgeKit starts, in order of preference

    @property
    def starts_for(self) -> tuple[str, ...]:
        """The commands that EdgeKit can start it for: run, serve, verify, calibrate."""
        return tuple(dict.fromkeys(verb for entry in self.programs for verb in entry.verbs))

    def program(self, verb: str, name: str = "") -> EngineProgram:
        """The program of this name, or the preferred one for the command.

        Raises UsageError if EdgeKit does not start the engine, or not for this command.
        """
        if not self.programs:
            raise UsageError(
                f"edgekit does not start {self.name} itself: "
                f"edgekit plan MODEL --engine {self.name} prints its command"
            )
        if verb not in self.starts_for:
            raise UsageError(
                f"--engine {self.name} cannot {verb}; use edgekit {self.starts_for[0]} --engine {self.name}"
            )
        entries = [entry for entry in self.programs if verb in entry.verbs]
        entry = next((entry for entry in entries if entry.name == name), None)
        if name and entry is None:
            able = ", ".join(entry.name for entry in entries)
            raise UsageError(
                f"--with {name} cannot {verb} a model of --engine {self.name}: {able} can"
            )
        module, _, attribute = (entry or entries[0]).place.partition(":")
        program: EngineProgram = getattr(import_module(module), attribute)
        return program

    @rule("installed")
    def installations(self, _timeout_s: float = ANSWER_S, /) -> tuple[Installation, ...]:
        """The programs on this machine that run the engine, the best first. Starts them to ask for their version, all
        at once, and waits for their answers at most for this time.
        """
        return ()

    # --- speed

    @rule("speed")
    def speed(
        self,
        _task: Task,
        _placement: Placement,
        _bill: MemoryEstimate,
        _moment: Moment,
        /,
    ) -> Speed | None:
        """The speed, with the task's drafter if the moment has drafted tokens; None if unknown."""
        return None

    @rule("speed")
    def fastest_tokens_per_s(
        self, _read_bytes: float, _held_bytes: int, _machine: Machine, /
    ) -> float | None:
        """An upper bound for models of `held_bytes` that read `read_bytes` per token. None if unknown."""
        return None

    @property
    def floor(self) -> Floor | None:
        """The engine's lower bound of a bill; None if the bill itself is cheap to compute."""
        module = self.module("estimate")
        return cast("Floor", module) if hasattr(module, "held_bytes") else None

    @rule("estimate")
    def config_probes(self) -> Iterator[tuple[Load, Setup]]:
        """Loads and setups whose bills read different parts of a config.json; empty if the engine reads no config."""
        yield from ()

    # --- the machine

    @rule("placements")
    def devices(self, _machine: Machine, /) -> tuple[Device, ...]:
        """The devices that it would use together; empty if it only uses the CPU."""
        return ()

    @rule("placements")
    def check_runs(self, _machine: Machine, /) -> None:
        """Raises HardwareError if the machine has nothing that the engine runs on."""
        return

    @rule("placements", is_needed=True)
    def budgets(self, machine: Machine, /) -> tuple[Budget, ...]:
        """The memory that it may use for any model. Raises HardwareError if that is unknown."""
        raise NotImplementedError

    @rule("placements")
    def capacity_bytes(self, machine: Machine, /) -> int:
        """The most that weights may take, in all memories together."""
        from edgekit.machine.types import together_bytes

        return together_bytes(self.budgets(machine))

    @rule("placements")
    def check_limits(self, _reserve_bytes: int | None, _max_use: float | None, /) -> None:
        """Raises UsageError for --reserve or --max-use if they do not apply to the engine."""
        return

    # --- placements

    has_ranks: bool = False  # divides every layer among cards, and a model among machines
    streams_weights: bool = False  # reads weights from the file; they need not fit in memory

    @property
    def placed(self) -> frozenset[str]:
        """Fields of the setup that place the model."""
        fields: frozenset[str] = getattr(self.module("placements"), "PLACED", frozenset())
        return fields

    @rule("placements", is_needed=True)
    def placements(self, task: Task, /) -> Iterator[Placement]:
        """The placements to try: all on devices first, then each with no more on the devices than the previous one."""
        raise NotImplementedError

    @rule("placements")
    def finer_placements(self, _model: Model, _placement: Placement, /) -> Iterator[Placement]:
        """Placements between this one and the one before it."""
        yield from ()

    @rule("placements")
    def rebalance(
        self, _model: Model, _placement: Placement, _estimate: MemoryEstimate, /
    ) -> Placement | None:
        """The split of layers that leaves the most memory free on the fullest card; None: no better split.

        `estimate` is the bill of this placement. Only called if `may_resplit`.
        """
        return None

    @rule("placements")
    def neighbours(
        self, _model: Model, _placement: Placement, _uses: Sequence[Usage], /
    ) -> Iterator[Placement]:
        """Placements with one layer moved off the fullest card."""
        yield from ()

    @rule("rules")
    def fill(self, _model: Model, placement: Placement, _spare_bytes: int, /) -> Placement:
        """The placement with as many more weights in memory as fit into the spare bytes. Only called if `may_fill`."""
        return placement

    @rule("placements")
    def pinned(self, _model: Model, placement: Placement, /) -> Placement:
        """The placement with the billed split as a flag, because the engine might choose another split at startup."""
        return placement

    # --- the cache

    cache_flags: str = ""  # flags that set the cache type
    cache_fields: tuple[str, ...] = ()  # of the setup that these flags set; others are in the load

    @rule("choices", is_needed=True)
    def cache_choices(
        self, task: Task, placement: Placement | None = None, /
    ) -> Iterable[CacheChoice]:
        """Cache types, the most accurate first; only the requested one if there is one. `placement`: if known."""
        raise NotImplementedError

    @rule("choices", is_needed=True)
    def cache_name(self, load: Load, setup: Setup, /) -> str:
        """The name of the cache of this load and setup, as in `cache_choices`."""
        raise NotImplementedError

    # --- the weights

    wires_memory: bool = False  # a rule of thumb adds 15 % to its overhead
    chooses_repositories: bool = False  # its variants are repositories, loaded as they are
    has_rule_of_thumb: bool = False  # its memory can be guessed from a model's name

    @rule("choices")
    def variants(self, model: Model, _label: str = "", /) -> tuple[Variant, ...]:
        """Quantisations to choose among, the most accurate first. `label`: the model's name in the catalog."""
        from edgekit.engines.choices import as_named

        return as_named(model)

    @rule("choices")
    def checkpoint(self, _model: Model, _label: str, _quant: str, _typed: str, /) -> Variant | None:
        """The published repository of a model of the index at this quantisation, which `_typed` may name.

        None if the engine quantises while loading, or none is known.
        """
        return None

    @rule("choices")
    def file_variants(self, opened: OpenModel, /) -> tuple[Variant, ...]:
        """The GGUF files of the hub repository that the opened file is in, the most accurate first."""
        return self.variants(opened.model)

    @rule("choices")
    def published_at(self, _label: str, _quant: str, /) -> str:
        """The known repository of a model of the index at this quantisation, named as in `variants`; "": none."""
        return ""

    @rule("choices")
    def at_quant(self, model: Model, _quant: str, /) -> Model:
        """The model as the file that the engine would load at this quantisation."""
        return model

    @rule("choices")
    def quant_shown(self, setup: Setup, /) -> str:
        """The quantisation that a setup requests, as reports name it: Q4_K_M, 4 bit, fp8. "": none."""
        return getattr(setup, self.quant_key, None) or ""

    @rule("choices")
    def weights_name(self, setup: Setup, name: str, /) -> str:
        """The quantisation that a verdict names: as the setup requests, else `name`, the quantisation of the file."""
        return self.quant_shown(setup) or name

    @rule("choices")
    def sizes(self, _model: Model, _quants: tuple[str, ...] = (), /) -> Iterator[Size]:
        """The sizes of the weights at the usual quantisations and at `quants`, for the catalog."""
        yield from ()

    @rule("choices")
    def smaller_weights(
        self, _task: Task, _capacity_bytes: int, /
    ) -> Iterator[tuple[Variant, str]]:
        """Smaller quantisations than the checked one, the largest first, each with the flags that select it."""
        yield from ()

    @rule("choices")
    def download_bytes(
        self, model: Model, _setup: Setup, _estimate: MemoryEstimate, /
    ) -> int | None:
        """The size of the download; None if unknown."""
        return model.header.file_bytes or model.header.tensor_bytes

    @rule("estimate")
    def estimate_bounds(
        self, _model: Model, _load: Load, _setup: Setup, /
    ) -> tuple[MemoryEstimate, MemoryEstimate] | None:
        """A lower and an upper bound of the bill, much faster than the bill; None: there are none."""
        return None

    @rule("estimate")
    def divided(self, line: MemoryLine, _model: Model, _setup: Setup, /) -> Iterable[MemoryLine]:
        """A line of a rule of thumb, divided among the pools as the setup places the model."""
        return (line,)

    # --- users and uses

    can_plan: bool = True  # plan and recommend have something to choose
    most_users: int = 65_536
    default_users: str = "one request at a time"  # if the number of users is not given
    drafts: bool = False  # a drafter can be proposed next to a model

    @rule("placements")
    def load_for_users(self, load: Load, users: int, _native_tokens: int, /) -> Load:
        """The load with a context of its length for each user. A length of 0 means the native context."""
        from dataclasses import replace

        return replace(load, sequences=users)

    @rule("placements")
    def busy_users(self, load: Load, _setup: Setup, /) -> int:
        """How many users the caller wants to be answered at the same time; 1 if that was not given."""
        return load.sequences or 1

    no_embeddings: str = ""  # why it does not return embeddings

    @rule("placements")
    def embedding_start(self, start: Start, /) -> Start:
        """The start, changed so that the engine returns embeddings. Raises RefusedError if it cannot."""
        if self.no_embeddings:
            raise RefusedError(self.no_embeddings)
        return start

    @rule("companions")
    def draft_tokens(self, _setup: Setup, /) -> int:
        """How many tokens are drafted at a time; 0 without a drafter."""
        return 0

    @rule("companions")
    def with_drafter(self, task: Task, _drafter: Model | None, _mix: str | None, /) -> Task:
        """The task with a drafter next to the model; None: the model's own prediction layers."""
        return task

    # --- commands

    for_programs: tuple[str, ...] = ()  # programs of its commands, as --for names them

    @rule("commands")
    def settle(self, verdict: Verdict, given: Mapping[str, Any], /) -> dict[str, Any]:
        """The flags that start the engine as it was checked: those of the user, and those that the verdict adds."""
        return {**given, "context": verdict.context_tokens}

    @rule("commands")
    def commands(self, _startup: Startup, /) -> Iterable[Command]:
        """The commands that start it as it was checked, in order. Empty: only an estimate has a command."""
        return ()

    @rule("placements")
    def outside_bytes(self, _placement: Placement, /) -> int:
        """What the process takes of each device in addition to `taken`."""
        return 0

    @rule("commands")
    def least_shares(self, _verdict: Verdict, /) -> tuple[Mapping[str, Any], ...]:
        """Flags with which an engine that takes a fixed share of a device takes little more than this load needs, the
        smallest share first. Empty: it takes what it needs.
        """
        return ()

    @rule("router")
    def router_preset(
        self, _commands: Mapping[str, Command], _most_at_once: int, /
    ) -> tuple[str, tuple[str, ...]]:
        """The presets of the engine's own router for these servers by name, and the words that start it with the
        presets in PRESET_FILE. Raises UsageError.
        """
        raise UsageError(
            f"{self.name} has no router that loads and unloads models: use --for llama-swap"
        )

    @rule("commands")
    def taken(self, verdict: Verdict, /) -> MemoryEstimate:
        """The bill with all memory that the engine takes at startup, which may be more than its load needs."""
        return verdict.estimate

    @rule("placements")
    def values_for_users(
        self, values: Mapping[str, Any], _users: int, _load: Load, /
    ) -> dict[str, Any]:
        """The flags that give every user their own context. Raises UsageError."""
        return dict(values)

    @rule("commands")
    def values_on_cards(self, _cards: Sequence[Device], _named: Sequence[str], /) -> dict[str, Any]:
        """The flags for these cards. `named`: their names in the table of devices, if they are in it."""
        return {}

    @rule("commands")
    def machine_flags(self, _placement: Placement, /) -> dict[str, Any]:
        """The cards of a placement as flags, so that an estimate without the machine has the same bill."""
        return {}

    @rule("commands")
    def draft_words(self, _verdict: Verdict, _drafter: Drafter, /) -> list[str]:
        """The flags that add a proposed draft model."""
        return []

    @rule("commands")
    def estimate_command(
        self,
        _values: Mapping[str, Any],
        _setup: Setup,
        _estimate: MemoryEstimate,
        _opened: OpenModel,
        /,
    ) -> tuple[list[str], list[str]]:
        """The words of the command for an estimate, and notes on it. Without words, no program runs the engine."""
        return [], []

    # --- reports

    @rule("commands")
    def offload(self, _verdict: Verdict, /) -> Offload:
        """Which parts of the model are not on the devices."""
        return Offload()

    @rule("estimate")
    def later_bytes(self, _verdict: Verdict, /) -> int:
        """How much RAM use may grow after the start, with the limits that its command sets."""
        return 0

    @rule("estimate")
    def later_rows(self, _verdict: Verdict, /) -> Iterable[str]:
        """Sentences about memory that the engine may take after the start."""
        return []

    @rule("estimate")
    def answer_facts(self, _estimate: MemoryEstimate, /) -> Mapping[str, Any]:
        """Additional keys of the JSON answer."""
        return {}
