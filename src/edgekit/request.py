"""A request: everything that can be requested for a model, as one frozen value.

Command lines, REST queries, Python keywords and rows of a batch are parsed into it, each text once. What is not a value
(the network policy, confirming a download) is in a `Session`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from edgekit.bill.types import Job
from edgekit.engines import engine_name, engine_named, engine_names, every_engine, lender_of
from edgekit.engines.flags import (
    COMMON,
    CONTEXT,
    MOST_NUMBER,
    QUANT,
    Flag,
    Whole,
    given_flags,
    read,
    read_flags,
    read_number,
)
from edgekit.errors import CancelledError, UsageError
from edgekit.sources.filenames import close_names
from edgekit.units import MIB, format_bytes, parse_size

if TYPE_CHECKING:
    import argparse

    from edgekit.bill.spill import Purpose
    from edgekit.bill.types import Price
    from edgekit.engines.program import Installation
    from edgekit.engines.protocol import Engine
    from edgekit.index.types import ModelPurpose
    from edgekit.machine.types import Machine
    from edgekit.model import OpenModel
    from edgekit.sources.download import Download
    from edgekit.sources.types import Reach


ALL, AUTO = "all", "auto"
MOST_SHOWN = 100  # models of search and recommend: each is planned
# Other words for a task, and for the option that sets the context.
_PURPOSES = {
    "embed": "embedding",
    "embeddings": "embedding",
    "coding": "code",
    "reason": "reasoning",
}
_CONTEXT_WORDS = frozenset(
    {"context", "context_length", "context_size", "ctx", "ctx_size", "num_ctx"}
)

T = TypeVar("T")
Values = Mapping[str, Any]  # key of an engine's flag -> its parsed value
Pricing = Callable[["OpenModel", str, Values, "Reach"], "Price"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """How to answer a request: network policy, download confirmation and progress."""

    reach: Reach = field(repr=False)
    # None: nothing is downloaded.
    confirm: Callable[[Download], bool] | None = field(default=None, repr=False)
    # Prices a load together with its draft model, projector and adapters; None: they are opened for each answer.
    pricing: Pricing | None = field(default=None, repr=False)
    # The engine on this machine may be asked about models that its rules here do not know.
    may_ask: bool = False
    # The engine is started by EdgeKit, which loads no projector that was not requested.
    text_only: bool = False
    # The program that EdgeKit starts, which is asked before others; None: none was chosen.
    program: Installation | None = None
    # Called with the events of app/run.py while an engine starts.
    notify: Callable[[object], None] = field(default=lambda _event: None, repr=False)

    def tell(self, line: str) -> None:
        """Show progress. Raises CancelledError if the caller has gone."""
        if self.reach.cancelled is not None and self.reach.cancelled.is_set():
            raise CancelledError("cancelled")
        if self.reach.progress is not None:
            self.reach.progress(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is requested for a model. A field that was not given is None or empty."""

    engines: tuple[str, ...] = ()  # empty: the engine for the model's files
    flags: Mapping[str, Values] = field(default_factory=dict)  # engine -> its flags
    options: Values | None = None  # instead of flags: the engine's options by their names in Python
    backend: str | None = None  # only in rows of a batch
    context: int | None = None  # 0: the whole native context
    quant: str | None = None  # quantisation of the weights, for any engine
    machine: Machine | None = field(
        default=None, repr=False
    )  # instead of devices, ram, vram and cpu
    devices: tuple[str, ...] = ()
    ram: str | None = None
    vram: str | None = None
    cpu: str | None = None
    users: int | None = None  # users at the same time, each with a separate context
    sequences: int | None = None  # sequences at the same time, which share one context
    job: Job | None = None  # prompt and answer that the context is sized for
    min_context: int | None = None
    min_speed: float | None = None  # tokens per second, typical
    prompt_tokens: int | None = None  # of the prompt for which the time to the first token is given
    window_budget_bytes: int | None = None
    max_use: float | None = None  # share of the usable memory
    reserve_bytes: int | None = None
    nodes: int | None = None
    prefer_accurate_kv: bool = False
    keep_spare: bool = False  # do not spend spare memory on better weights or a longer context
    drafter: bool = True
    acceptance: float | None = None  # share of the drafted tokens that are accepted
    purpose: ModelPurpose | None = None  # None: chat
    ask_engine: bool = False  # the bill is that of the engine on this machine
    limit: int | None = None  # number of models to recommend
    all_sizes: bool = False  # several models of a family, not only the best
    # only for run and serve
    sinks: int = 0  # first tokens that a rolling context never drops
    rolling: bool = False
    force: bool = False  # start even if it does not fit
    threads: int | None = None
    budget_bytes: int | None = None  # memory limit of the whole process
    latency: Purpose | None = None  # sets the longest wait for cache pages on disk; None: text
    # Engine -> why the value of a flag that it shares with another engine is invalid for it.
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_argv(cls, arguments: argparse.Namespace, *, one_engine: bool = False) -> Request:
        """The request of a command line, with the options that its command has. Raises UsageError.

        `one_engine`: the command takes the name of one engine, not auto or all.
        """
        return _parsed(given_flags(arguments), vars(arguments), one_engine=one_engine)

    @classmethod
    def from_query(
        cls, fields: Mapping[str, Any], flags: frozenset[str], *, one_engine: bool = False
    ) -> Request:
        """The request in the fields of a REST query, of which `flags` are flags of engines. Raises UsageError."""
        owners = {COMMON: (CONTEXT, QUANT)} | {
            engine: engine_named(engine).flags for engine in engine_names()
        }
        given: dict[str, dict[str, Any]] = {}
        for owner, table in owners.items():
            for flag in table:
                value = fields.get(flag.key) if flag.key in flags and not flag.shared else None
                # A switch sets one value. The other counts as not given: there is no --no-cpu-moe.
                is_set = not isinstance(value, bool) if flag.metavar else value == flag.value
                if value is not None and is_set:
                    given.setdefault(owner, {})[flag.key] = value
        if "cpu" in flags:  # of an estimate: what a build is made for, not a machine
            fields = {name: value for name, value in fields.items() if name != "cpu"}
        return _parsed(given, fields, one_engine=one_engine)

    @classmethod
    def from_kwargs(
        cls,
        engine: str = AUTO,
        *,
        options: Values | None = None,
        quant: str | None = None,
        device: str | None = None,
        ram: str | None = None,
        vram: str | None = None,
        cpu: str | None = None,
        machine: Machine | None = None,
        job: tuple[int, int] | None = None,
        max_use: float | None = None,
        min_speed: float | None = None,
        reserve: int | None = None,
        **numbers: int | None,
    ) -> Request:
        """The request of a Python call. Raises UsageError if a keyword is of the wrong type."""
        if not isinstance(engine, str):
            raise UsageError(f"engine {engine!r:.60} is not a name such as 'llama.cpp'")
        if not isinstance(options, Mapping | None):
            raise UsageError(f"options {options!r:.60} are not a mapping of names to values")
        mix = (options or {}).get("quant") if quant is None else quant
        if not isinstance(mix, str | None):
            raise UsageError(f"quant {mix!r:.60} is not a name such as 'Q4_K_M'")
        hardware = {"device": device, "ram": ram, "vram": vram, "cpu": cpu}
        for name, value in hardware.items():
            if not isinstance(value, str | None):
                raise UsageError(
                    f"{name} {value!r:.60} is not a string such as 'RTX 4090' or '24G'"
                )
        if machine is not None and any(value is not None for value in hardware.values()):
            raise UsageError("give either a machine or device, ram, vram and cpu, not both")
        for name, number in {**numbers, "reserve": reserve}.items():
            _check_whole(name, number)
        if numbers.get("users") is not None and numbers.get("sequences") is not None:
            raise UsageError("users= and sequences= both say how many at a time: give one")
        share: object = max_use
        if share is not None and (isinstance(share, bool) or not isinstance(share, float | int)):
            raise UsageError(f"max_use {share!r:.60} is not a share such as 0.85")
        rate: object = min_speed
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, float | int)):
            raise UsageError(
                f"min_speed {rate!r:.60} is not a speed such as 20 (tokens per second)"
            )
        return cls(
            engines=() if engine.lower() == AUTO else (engine_name(engine),),
            options=options or {},
            quant=mix,
            machine=machine,
            devices=() if device is None else (device,),
            ram=ram,
            vram=vram,
            cpu=cpu,
            job=_python_job(job),
            max_use=max_use,
            min_speed=None if min_speed is None else read_min_speed(f"{min_speed}"),
            reserve_bytes=reserve,
            **cast("dict[str, Any]", numbers),
        )

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Request:
        """The request in a row of a batch, without its model. Raises UsageError."""
        engine, backend = row.get("engine"), row.get("backend")
        options = row.get("options") or {}
        if not isinstance(options, Mapping):
            raise UsageError("options must be an object")
        if not isinstance(engine, str | None) or not isinstance(backend, str | None):
            raise UsageError("engine and backend must be names")
        engines = () if engine is None else (engine_name(engine),)
        quant = row.get("quant")
        if quant is None and "quantization" not in options:
            quant = options.get("quant")
        if not isinstance(quant, str | None):
            raise UsageError(f"quant {quant!r:.60} is not a string")
        return cls(engines=engines, options=options, backend=backend, quant=quant)

    @property
    def engine(self) -> str | None:
        """The chosen engine; None if none or several were chosen."""
        return self.engines[0] if len(self.engines) == 1 else None

    @property
    def wanted_tokens(self) -> int | None:
        """The context that each user needs: as given (0: the native context), or sized for the job."""
        if self.job is None:
            return self.context
        from edgekit.plan.fit import job_window

        return job_window(self.job, native_tokens=sys.maxsize)[0]

    def values(self, engine: str, quant: str | None = None) -> dict[str, Any]:
        """The values of the engine's flags, including context and quantisation, in the order of its table.

        Raises UsageError for a quantisation or a value that the engine does not have.
        """
        if engine in self.unreadable:
            raise UsageError(self.unreadable[engine])
        values = {**self.flags.get(engine, {})}
        if self.context is not None:
            values[CONTEXT.key] = self.context
        return in_order(engine, with_quant(values, engine, quant))

    def with_flags(self, engine: str, flags: Values) -> Request:
        """The request for this engine, with these flags instead of the given ones."""
        return replace(self, engines=(engine,), flags={**self.flags, engine: dict(flags)})

    def find_machine(self) -> Machine:
        """The described machine, or this one. UsageError for an unknown name or size, or too large a reserve."""
        if self.machine is not None:
            return self.machine
        from edgekit.machine.what_if import requested_machine

        machine = requested_machine(
            devices=self.devices, ram=self.ram, vram=self.vram, cpu=self.cpu
        )
        sizes = [memory.total_bytes for memory in (machine.host, *machine.devices) if memory]
        if sizes and self.reserve_bytes and self.reserve_bytes > max(sizes):
            raise UsageError(
                f"--reserve is more than the largest memory here, {format_bytes(max(sizes))}"
            )
        return machine


def in_order(engine: str, values: Values) -> dict[str, Any]:
    """The values in the order of the engine's table, which is the order they are shown in."""
    keys = dict.fromkeys(flag.key for flag in (CONTEXT, *engine_named(engine).flags))
    return {key: values[key] for key in keys if key in values}


def with_quant(values: Values, engine: str, quant: str | None) -> Values:
    """The engine's values with the quantisation added. Raises UsageError if the engine does not have it."""
    if quant is None:
        return values
    value = read_quant(engine, quant)
    key = engine_named(engine).quant_key
    if str(values.get(key, value)).upper() != value.upper():
        raise UsageError(f"{values[key]} and {quant} are two different quantisations: give one")
    return {**values, key: value}


def _parsed(
    given: Mapping[str, Mapping[str, Any]], fields: Mapping[str, Any], *, one_engine: bool
) -> Request:
    """Parse the flags of engines, and the other fields of argv or a query. Raises UsageError."""

    def parsed(name: str, parse: Callable[[str], T]) -> T | None:
        text = fields.get(name)
        return None if text is None else parse(text)

    def number(name: str, least: int, most: int = MOST_NUMBER) -> int | None:
        return read_number(f"--{name.replace('_', '-')}", fields.get(name), least, most)

    engine: str = AUTO if fields.get("engine") is None else fields["engine"]
    word = engine.lower()
    must_be_a_name = one_engine and fields.get("engine") is not None
    named = None if word in {AUTO, ALL} and not must_be_a_name else engine_name(engine)
    by_engine = with_one_quant(given, named)
    common = by_engine.pop(COMMON, {})
    engines = engine_names() if word == ALL else chosen_engines(by_engine, named)
    context: int | None = read_flags((CONTEXT,), common).get(CONTEXT.key)
    flags: dict[str, Values] = {}
    unreadable: dict[str, str] = {}
    for owner in engine_names():
        try:
            flags[owner] = read_flags(engine_named(owner).flags, given_to(owner, by_engine))
        except UsageError as error:
            may_be_chosen = engines == (owner,) or (len(engines) != 1 and owner in by_engine)
            if may_be_chosen:
                raise
            unreadable[owner] = str(error)
    quant = common.get(QUANT.key)
    if len(engines) == 1 and engine_named(engines[0]).quant_key:
        with_quant({}, engines[0], quant)
    if fields.get("job") is not None and context is not None:
        raise UsageError("give a context or a job, not both: the job sets the context")
    return Request(
        engines=engines,
        flags=flags,
        context=context,
        quant=None if quant is None else str(quant),
        devices=tuple(fields.get("device") or ()),
        ram=fields.get("ram"),
        vram=fields.get("vram"),
        cpu=fields.get("cpu"),
        users=number("users", 1),
        job=parsed("job", _job),
        min_context=number("min_context", 0),
        min_speed=parsed("min_speed", read_min_speed),
        prompt_tokens=read_number("--prompt", fields.get("prompt_tokens"), 1),
        ask_engine=bool(fields.get("ask_engine")),
        window_budget_bytes=parsed(
            "window_budget", lambda text: read("--window-budget", parse_size, text)
        ),
        max_use=parsed("max_use", read_max_use),
        reserve_bytes=parsed("reserve", read_reserve),
        nodes=number("nodes", 1),
        prefer_accurate_kv=bool(fields.get("prefer_accurate_kv")),
        drafter=not fields.get("no_drafter"),
        acceptance=parsed("acceptance", read_acceptance),
        purpose=parsed("task", _purpose),
        limit=number("limit", 1, MOST_SHOWN),
        all_sizes=bool(fields.get("all_sizes")),
        latency=parsed("latency", _latency),
        unreadable=unreadable,
    )


def _share(text: str) -> float:
    """'85%' or '0.85'; not a number if it is neither."""
    text = text.strip()
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return math.nan


def read_acceptance(text: str) -> float:
    """'70%' or '0.7' of the tokens that a draft model proposes."""
    share = _share(text)
    if not 0 <= share <= 1:
        raise UsageError(
            f"--acceptance takes a share from 0 to 100%, for example 70% or 0.7 (got {text.strip()[:40]!r})"
        )
    return share


def read_max_use(text: str) -> float:
    """'85%' or '0.85' of the usable memory."""
    share, text = _share(text), text.strip()
    if not 0 < share <= 1:
        raise UsageError(
            f"--max-use takes a share above 0 and up to 100%, for example 85% or 0.85 (got {text[:40]!r})"
        )
    return share


MOST_TOKENS_PER_S = 1e9  # more than any machine; so that every figure of it can be printed


def read_min_speed(text: str) -> float:
    """'20' tokens per second."""
    try:
        speed = float(text.strip())
    except ValueError:
        speed = math.nan
    if not 0 < speed <= MOST_TOKENS_PER_S:
        raise UsageError(
            f"--min-speed takes tokens per second above 0 and up to {MOST_TOKENS_PER_S:,.0f}, for example 20 "
            f"(got {text.strip()[:40]!r})"
        )
    return speed


def read_reserve(text: str) -> int:
    """Memory to leave free on every GPU and in RAM: '512M', '0'."""
    try:
        size = 0 if text.strip() == "0" else parse_size(text)
    except UsageError:
        size = -1
    if size < MIB and size != 0:
        raise UsageError(
            f"--reserve takes a size like 512M or 2G, or 0 (got {text.strip()[:40]!r})"
        )
    return size


def _purpose(word: str) -> ModelPurpose:
    from edgekit.index.types import ModelPurpose

    name = word.lower()
    try:
        return ModelPurpose(_PURPOSES.get(name, name))
    except ValueError as error:
        names = ", ".join(
            "embed" if kind is ModelPurpose.EMBEDDING else kind.value for kind in ModelPurpose
        )
        raise UsageError(f"--task must be one of {names} (got {word[:40]!r})") from error


def _latency(word: str) -> Purpose:
    from edgekit.bill.spill import Purpose

    try:
        return Purpose(word.lower())
    except ValueError as error:
        raise UsageError(f"--latency must be voice or text (got {word!r:.40})") from error


def _job(text: str) -> Job:
    """Parse --job: '6000+800' tokens of prompt and answer."""
    prompt, plus, new = text.partition("+")
    if not plus:
        raise UsageError(
            f"--job takes prompt tokens + new tokens, for example 6000+800 (got {text[:40]!r})"
        )
    return Job(prompt_tokens=read("--job", Whole(), prompt), new_tokens=read("--job", Whole(), new))


def _python_job(job: tuple[int, int] | None) -> Job | None:
    """The job of Python's keyword: (prompt tokens, new tokens). Raises UsageError."""
    if job is None:
        return None
    try:
        prompt, new = job
    except (TypeError, ValueError) as error:
        raise UsageError(f"job {job!r:.60} is not (prompt tokens, new tokens)") from error
    _check_whole("prompt tokens", prompt)
    _check_whole("new tokens", new)
    return Job(prompt_tokens=prompt, new_tokens=new)


def _check_whole(name: str, value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise UsageError(f"{name} {value!r:.60} is not a whole number")


def chosen_engines(given: Mapping[str, Values], named: str | None) -> tuple[str, ...]:
    """The named engine, else the first that has all flags that were given; empty if there are none.

    Raises UsageError if the named engine, or every engine, lacks one of the flags.
    """
    candidates = (named,) if named else tuple(given)
    able = [engine for engine in candidates if not _foreign(engine, given)]
    if given and not able:
        wrong: list[str] = []
        for engine, keys in (_foreign(named, given) if named else given).items():
            names = {
                flag.key: "/".join(flag.names) for flag in reversed(engine_named(engine).flags)
            }
            words = ", ".join(names[key] for key in keys)
            wrong.append(f"{words} {'is a flag' if len(keys) == 1 else 'are flags'} of {engine}")
        advice = f"the engine here is {named}" if named else "choose one with --engine"
        raise UsageError(f"{'; '.join(wrong)}; {advice}")
    return (named,) if named else tuple(able[:1])


def with_one_quant(
    flags: Mapping[str, Mapping[str, Any]], engine: str | None
) -> dict[str, dict[str, Any]]:
    """The flags of each engine, with every quantisation that is not for its own engine moved to `--quant`.

    `-q` is a flag of vLLM, but `-q Q8_0` names a GGUF. Raises UsageError for two different quantisations.
    """
    given = {owner: dict(values) for owner, values in flags.items()}
    quant = given.get(COMMON, {}).get("quant")
    quants = set() if quant is None else {quant}
    for rules in every_engine():
        owner, key = rules.name, rules.quant_key
        name = given.get(owner, {}).get(key)
        if name is None:
            continue
        if engine in {None, owner} and takes(owner, name):
            given[owner][key] = read_quant(owner, name)
            if quants and engine is None:  # has to be the same as in --quant
                quants.add(name)
        else:
            del given[owner][key]
            if not given[owner]:
                del given[owner]
            quants.add(name)
    if len({str(name).upper() for name in quants}) > 1:
        raise UsageError(
            f"{' and '.join(sorted(map(str, quants)))} are two different quantisations: give one"
        )
    if quants:
        given[COMMON] = {**given.get(COMMON, {}), "quant": quants.pop()}
    return given


def given_to(engine: str, given: Mapping[str, Values]) -> dict[str, Any]:
    """The given flags of this engine, including those that it shares with another."""
    values: dict[str, Any] = {}
    for flag in _borrowed(engine):
        lender_values = given.get(lender_of(flag), {})
        if flag.key in lender_values:
            values[flag.key] = lender_values[flag.key]
    return {**values, **given.get(engine, {})}


def _borrowed(engine: str) -> Iterator[Flag]:
    """The flags that this engine shares with another engine, which owns them (`lender_of`)."""
    return (flag for flag in engine_named(engine).flags if flag.shared)


def _foreign(engine: str, given: Mapping[str, Values]) -> dict[str, Values]:
    """Other engine -> its flags that were given and that `engine` does not share."""
    borrowed = {(lender_of(flag), flag.key) for flag in _borrowed(engine)}
    foreign: dict[str, Values] = {}
    for other, values in given.items():
        rest = {key: text for key, text in values.items() if (other, key) not in borrowed}
        if rest and other != engine:
            foreign[other] = rest
    return foreign


def read_quant(engine: str, name: str) -> str:
    """The name as the engine's own option has it: 'q4_k' -> 'Q4_K_M' for llama.cpp, '4bit' -> 'q4' for MLX.

    Raises UsageError with the names that the engine has.
    """
    rules = engine_named(engine)
    value = rules.read_quant(name)
    if value is not None:
        return value
    able = [other.name for other in every_engine() if takes(other.name, name)]
    hint = f" ({name[:40]} is for {' and '.join(able)})" if able else ""
    raise UsageError(
        f"{rules.title} has no quantisation {name[:40]!r}{hint}; it has {', '.join(rules.quant_names())}"
    )


def takes(engine: str, name: str) -> bool:
    """Whether the engine has a quantisation of this name."""
    rules = engine_named(engine)
    return bool(rules.quant_key) and rules.read_quant(name) is not None


def options_with_quant(
    engine: str, options: Mapping[str, Any], quant: str | None
) -> Mapping[str, Any]:
    """Options of a row with the quantisation as the engine's own option, in place of `quant`. Raises UsageError."""
    rules = engine_named(engine)
    option = option_of(rules, rules.quant_key)
    if "quant" in options and option not in options:  # recorded rows of MLX have both
        options = {key: value for key, value in options.items() if key != "quant"}
    if quant is None:
        return options
    value = read_quant(engine, quant)
    if options.get(option, value) != value:
        raise UsageError(f"{quant[:40]} and {option} {options[option]!r:.40} differ: give one")
    return {**options, option: value}


class RowOptions(Mapping[str, Any]):
    """A mapping that records which options were read, so that unread ones can be reported."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._read: set[str] = set()  # names that were looked up, even if they were not given

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The options that nothing has read."""
        return tuple(name for name in self._values if name not in self._read)

    def require_known(self, engine: str) -> None:
        """Call after reading: UsageError for an option that the engine lacks, with the nearest one."""
        unused = engine_named(engine).unused_options
        unknown = [name for name in self.ignored if name not in unused]
        if unknown:
            name = str(unknown[0])[:60]
            raise UsageError(
                f"{engine} has no option {name!r}{did_you_mean(name, self._read, engine)}"
            )


def option_of(engine: Engine, key: str) -> str:
    """What a row of a batch calls the flag with this key."""
    return next((flag.option or key for flag in engine.table if flag.key == key), key)


def context_option(engine: str) -> str:
    """What a row of a batch calls the engine's context."""
    return option_of(engine_named(engine), "context")


def did_you_mean(name: str, options: Iterable[str], engine: str) -> str:
    """': did you mean n_ctx?'; empty if nothing is similar."""
    similar = close_names(name, sorted(options), limit=1)
    words_for_context = _CONTEXT_WORDS | {context_option(known.name) for known in every_engine()}
    if name.lower() in words_for_context:
        similar = (context_option(engine),)
    return f": did you mean {similar[0]}?" if similar else ""
