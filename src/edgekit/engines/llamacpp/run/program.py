"""llama.cpp for `run`, `serve`, `verify` and `calibrate`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from edgekit.bill.types import Component, Load, MemoryEstimate, Verdict, cache_type
from edgekit.engines.chat import Fitted, GenerationResult, Prompt, Sampling
from edgekit.engines.flags import field_values
from edgekit.engines.llamacpp.conversion import convert
from edgekit.engines.llamacpp.estimate import growth_limits
from edgekit.engines.llamacpp.flags import FLAGS
from edgekit.engines.llamacpp.run.binding import (
    INSTALL_XLLAMACPP,
    XLLAMACPP_NAME,
    VerifyMethod,
    choose_method,
    has_xllamacpp,
    xllamacpp_version,
)
from edgekit.engines.llamacpp.run.calibrate import measure
from edgekit.engines.llamacpp.run.cards import backend_problem, usable_machine, visible_cards
from edgekit.engines.llamacpp.run.engine import start
from edgekit.engines.llamacpp.run.engine_log import LoggedAllocations
from edgekit.engines.llamacpp.run.generated import generated_files
from edgekit.engines.llamacpp.run.launch import Launch
from edgekit.engines.llamacpp.run.request_rules import request_rules
from edgekit.engines.llamacpp.run.verification import compare, verify_model
from edgekit.engines.llamacpp.setups import describe
from edgekit.engines.llamacpp.setups import setup as read_setup
from edgekit.engines.llamacpp.types import (
    LlamaCppSetup,
    LoadFacts,
    answered_version,
    installed_version,
    version_name,
)
from edgekit.engines.openai_client import OPENAI_NAMES, OpenAiClient, message_json, numbers_in
from edgekit.engines.process import watched
from edgekit.engines.program import (
    NOTHING,
    CalibrateRequest,
    ComparedRow,
    EngineProgram,
    EngineRun,
    EngineStart,
    Installation,
    LocalWeights,
    MeasuredBytes,
    RunningEngine,
    RunOptions,
    Verification,
)
from edgekit.engines.request_rules import RequestLimits
from edgekit.errors import EngineError, TextError, UsageError
from edgekit.machine.types import Machine, PoolKind
from edgekit.model.types import Model
from edgekit.sources.types import ModelFiles

# For a single conversation: one slot and no prompt cache.
_SAVING = {"cache_ram": "0", "ctx_checkpoints": "0"}
ALONE = {"parallel": "1", **_SAVING}
_SAMPLING_NAMES = {
    **OPENAI_NAMES,
    "repeat_penalty": "repeat_penalty",
    "repeat_last": "repeat_last_n",
}
_MAPPED = "_Mapped"  # how the names of buffers end that are ranges of a mapped file
_UNLOGGED_PARTS = frozenset({"adapter", "projector"})  # loaded later, and logged differently


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppProgram(EngineProgram):
    def find(self) -> Installation | None:
        """The wheel is found by its package; llama-server has to be searched for and asked."""
        if self.name != XLLAMACPP_NAME or not has_xllamacpp():
            return None
        return Installation(
            program=self.name, origin="Python package", path="", version=xllamacpp_version()
        )

    def on_machine(self, machine: Machine, installation: Installation) -> Machine:
        return usable_machine(machine, installation)

    def flags_for(self, options: RunOptions, installation: Installation) -> dict[str, Any]:
        """The flags for these options. The bill follows the installed llama.cpp, regardless of other settings."""
        version = installation.rules_version
        if not version and self.name == XLLAMACPP_NAME:
            installed = installed_version()
            version = "" if installed is None else version_name(*installed)
        return {
            **({"llama_version": version} if version else {}),
            **({"ctx_shift": True} if options.rolling else {}),
            **(_SAVING if options.saves else {}),
            **(ALONE if options.alone else {}),
        }

    def request_limits(self, verdict: Verdict, weights: LocalWeights) -> RequestLimits:
        facts = LoadFacts.of(verdict.estimate)
        geometry = None if verdict.variant is None else verdict.variant.model.geometry
        ranks = geometry is not None and geometry.ranks
        rules = request_rules(
            window_tokens=facts.n_ctx_seq,
            slots=facts.n_seq_max,
            reads_images=weights.projector is not None,
            writes=geometry is None or not (geometry.embeds or geometry.ranks),
            embeds=ranks or LlamaCppSetup.of(verdict.way.setup).embeddings,
            ranks=ranks,
        )
        return RequestLimits(rules=rules, window_tokens=facts.n_ctx_seq)

    def with_limits(self, verdict: Verdict, installation: Installation) -> LlamaCppSetup:
        if problem := backend_problem(verdict, installation):
            raise UsageError(problem)
        return limited(verdict)

    def open(self, _path: Path, _held: ExitStack, _budget_bytes: int | None) -> LlamaCppStarter:
        return LlamaCppStarter()

    def verifier(
        self, values: Mapping[str, Any], *, really: bool, timeout_s: float | None
    ) -> LlamaCppVerifier:
        load, setup = read_setup(values)
        method = choose_method(setup.mode if "mode" in values else None, really=really)
        return LlamaCppVerifier(
            load=load, setup=setup, method=method, really=really, timeout_s=timeout_s
        )

    def calibrator(self) -> Callable[[CalibrateRequest], EngineRun]:
        return partial(measure, choose_method(really=True))


WHEEL = LlamaCppProgram(name=XLLAMACPP_NAME, install=INSTALL_XLLAMACPP)
SERVER = LlamaCppProgram(
    name="llama-server",
    install="install llama.cpp (brew, winget or its releases page), so that llama-server is on the PATH",
)


def limited(verdict: Verdict) -> LlamaCppSetup:
    """The verdict's setup, with its prompt caches limited to what fits."""
    limits = field_values(FLAGS, growth_limits(verdict), LlamaCppSetup)
    return replace(LlamaCppSetup.of(verdict.way.setup), **limits)


class LlamaCppStarter:
    def tokens_in(self, _prompt: Prompt) -> None:
        """None: only the server can count tokens."""

    @contextmanager
    def start(self, request: EngineStart) -> Iterator[RunningEngine]:
        """Runs the engine, watched, until the end of the block."""
        running = start(
            _launch(request), tell=request.say, recheck=request.recheck, begun=request.begun
        )
        with watched(running, warn=request.warn) as watch:
            resolved = running.allocations.resolved
            reported = resolved.get("n_ctx_seq") or resolved.get("n_ctx")
            # the context of one sequence: as planned, or what the engine reports if that is less
            window_tokens = request.load.context_tokens or 0
            if reported and reported.isdigit():
                window_tokens = min(int(reported), window_tokens)
            generator = LlamaTextGenerator(
                running.address,
                api_key=request.address.api_key,
                window_tokens=window_tokens,
                sinks=request.sinks,
            )
            yield RunningEngine(
                generator=generator,
                version=running.version,
                rules_version=version_name(*answered_version(running.version)),
                rows=compare_reported(
                    request.estimate, running.allocations, running.files.size_bytes
                ),
                server=running,
                model=running.launch.at.alias,
                guard=watch,
            )


def _launch(request: EngineStart) -> Launch:
    """The launch that a request describes."""
    # The default type of the drafter's cache is f16, even if the model's cache has another type.
    cache_k, cache_v = (
        cache_type(request.values.get(f"draft_type_{side}", "f16")) for side in "kv"
    )
    setup, verdict = LlamaCppSetup.of(request.setup), request.verdict
    cards = visible_cards(verdict.way, verdict.machine, setup.backend, request.installation)
    return Launch(
        weights=request.weights,
        at=replace(request.address, alias=request.address.alias or request.label),
        load=request.load,
        setup=setup,
        sinks=request.sinks,
        reranks=verdict.variant is not None and verdict.variant.model.geometry.ranks,
        rolling=request.rolling,
        drafter_load=replace(request.load, cache_k=cache_k, cache_v=cache_v),
        threads=request.threads,
        environment={**request.environment, **cards},
        ram_bytes=request.estimate.in_pool(PoolKind.HOST),
        program=None if request.installation.program == XLLAMACPP_NAME else request.installation,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppVerifier:
    load: Load
    setup: LlamaCppSetup
    method: VerifyMethod
    really: bool
    timeout_s: float | None

    def generate_files(self, model: Model, label: str, mix: str | None) -> ModelFiles:
        converted = model if mix is None else convert(model, mix).model
        return generated_files(converted.header, label=label)

    def verify(self, files: ModelFiles) -> Verification:
        return verify_model(
            files,
            self.load,
            self.setup,
            method=self.method,
            timeout_s=self.timeout_s,
            really=self.really,
        )

    def describe_flags(self, verification: Verification) -> str:
        return describe(self.load, verification.estimate)


class LlamaTextGenerator(OpenAiClient):
    """Counts a prompt's tokens before it is read, and sends text as tokens."""

    def __init__(
        self, address: str, *, api_key: str | None, window_tokens: int, sinks: int = 0
    ) -> None:
        super().__init__(
            address,
            program="llama.cpp",
            window_tokens=window_tokens,
            api_key=api_key,
            sampling_names=_SAMPLING_NAMES,
        )
        self._sinks = sinks

    def tokens(self, prompt: Prompt) -> list[int] | None:
        """The prompt's tokens; None for images and tools, which only the chat endpoint reads.

        If the chat template already writes BOS, the engine does not add a second one.
        """
        if not prompt.is_text:
            return None
        text = prompt.text
        if not prompt.is_plain:
            messages = [message_json(message) for message in prompt.messages]
            text = str(self.call("/apply-template", {"messages": messages}).get("prompt", ""))
        body = {"content": text, "add_special": True, "parse_special": True}
        tokens = self.call("/tokenize", body).get("tokens")
        if not isinstance(tokens, list):
            raise EngineError("llama.cpp did not report how it tokenizes the prompt")
        if not tokens:
            raise TextError("the prompt has no tokens")
        return [int(token) for token in tokens]

    def write(
        self, fitted: Fitted, sampling: Sampling, *, into: GenerationResult
    ) -> Generator[str, None, None]:
        """Generates text piece by piece; counts and timings go to `into`."""
        if fitted.tokens is None:
            yield from super().write(fitted, sampling, into=into)
            return
        body = {
            **self.sampling_body(sampling),
            "prompt": list(fitted.tokens),
            "n_keep": self._sinks,
        }
        if fitted.max_tokens is not None:
            body["n_predict"] = fitted.max_tokens
        ended = False
        for event in self.events("/completion", body):
            timings = event.get("timings")
            if isinstance(timings, dict):
                into.timings = numbers_in(timings)
            if event.get("stop"):
                ended = True
                into.finish = "length" if event.get("stop_type") == "limit" else "stop"
                into.prompt_tokens = int(event.get("tokens_evaluated", 0))
                into.new_tokens = int(event.get("tokens_predicted", 0))
            yield str(event.get("content", ""))
        if not ended:  # a broken stream ends like a complete one
            raise EngineError("llama.cpp stopped in the middle of an answer")


def compare_reported(
    estimate: MemoryEstimate, allocations: LoggedAllocations, files_bytes: int
) -> tuple[ComparedRow, ...]:
    """Compares the bill with the engine's report, with `verify`'s bounds and those of modelled lines.

    `files_bytes`: of the model's files.
    """
    estimate = logged_part(estimate)
    slack: Counter[str] = Counter()  # bytes, by component
    for line in estimate.lines:
        if line.within is not None and line.reserved:
            slack[line.component.value] += int(line.size_bytes * line.within)
    parts = allocations.parts | {Component.WEIGHTS: _reported_weights(allocations, files_bytes)}
    return tuple(
        replace(row, allowed_bytes=row.allowed_bytes + slack[row.part])
        for row in compare(estimate, parts)
    )


def logged_part(estimate: MemoryEstimate) -> MemoryEstimate:
    """The bill without the parts that the engine's log does not list."""
    lines = tuple(line for line in estimate.lines if line.part not in _UNLOGGED_PARTS)
    return replace(estimate, lines=lines)


def _reported_weights(allocations: LoggedAllocations, files_bytes: int) -> MeasuredBytes:
    """The size of the weights as the engine reports it, with bounds.

    For a mapped file the engine reports a range from its first tensor to its last. If other tensors went to a device
    or were repacked, the range is only an upper bound. On Metal both CPU and GPU map the file, and their ranges may
    overlap.
    """
    weights = allocations.weights
    mapped = [size for name, size in weights if name.endswith(_MAPPED)]
    copied = [size for name, size in weights if not name.endswith(_MAPPED)]
    if mapped and not copied:
        low = max(size.low_bytes for size in mapped)
        return replace(allocations.parts[Component.WEIGHTS], low_bytes=low)
    if not mapped:
        return allocations.parts[Component.WEIGHTS]
    copied_total = sum(copied, NOTHING)
    mapped_bytes = min(sum(mapped, NOTHING).high_bytes, files_bytes)
    return replace(copied_total, high_bytes=copied_total.high_bytes + mapped_bytes)
