"""llama.cpp for `run`, `serve`, `verify` and `calibrate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from edgekit.bill.cache_types import cache_type
from edgekit.bill.types import Load
from edgekit.bill.verdict import Verdict
from edgekit.engines.chat import Prompt
from edgekit.engines.flags import field_values
from edgekit.engines.llamacpp import flags as own_flags
from edgekit.engines.llamacpp.estimate import growth_limits
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.engines.llamacpp.verify.ways import VerifyMethod, choose_way
from edgekit.engines.llamacpp.versions import answered_version, installed_version, version_name
from edgekit.engines.program import (
    CalibrateRequest,
    EngineRun,
    EngineStart,
    RunOptions,
    Up,
    Verification,
)
from edgekit.errors import EngineError, MemoryPressureError
from edgekit.model.types import Model
from edgekit.sources.types import ModelFiles

# For one conversation: no slots for others, and no prompts of others cached.
_ALONE = {"parallel": "1", "cache_ram": "0", "ctx_checkpoints": "0"}
_LAST_MOMENT_S = 2.0  # a server that is gone closes its connections before its end is known


class LlamaCppProgram:
    loads_shards = True
    has_budget = False

    def settled(self, options: RunOptions) -> dict[str, Any]:
        """The bill is that of the llama.cpp that will be started, whichever version is named elsewhere."""
        found = installed_version()
        return {
            **({} if found is None else {"llama_version": version_name(*found)}),
            **({"ctx_shift": True} if options.rolling else {}),
            **(_ALONE if options.alone else {}),
        }

    def limited(self, verdict: Verdict) -> LlamaCppSetup:
        limits = field_values(own_flags.FLAGS, growth_limits(verdict), LlamaCppSetup)
        setup: LlamaCppSetup = verdict.way.setup
        return replace(setup, **limits)

    def open(self, _path: Path, _held: ExitStack, _budget_bytes: int | None) -> LlamaCppStarter:
        return LlamaCppStarter()

    def verifier(
        self, values: Mapping[str, Any], *, really: bool, timeout_s: float | None
    ) -> LlamaCppVerifier:
        load, setup = own_flags.setup(values)
        way = choose_way(setup.mode if "mode" in values else None, really=really)
        return LlamaCppVerifier(load=load, setup=setup, way=way, really=really, timeout_s=timeout_s)

    def calibrator(self) -> Callable[[CalibrateRequest], EngineRun]:
        from edgekit.engines.llamacpp.calibrate import measure

        return partial(measure, choose_way(really=True))


PROGRAM = LlamaCppProgram()


class LlamaCppStarter:
    def tokens_in(self, _prompt: Prompt) -> None:
        """Only the server can count them."""

    @contextmanager
    def start(self, given: EngineStart) -> Iterator[Up]:
        """Watched until the end of the block, and gone after it."""
        from edgekit.engines.llamacpp.run.client import Client, LlamaTalker
        from edgekit.engines.llamacpp.run.comparison import compare_reported
        from edgekit.engines.llamacpp.run.engine import start
        from edgekit.engines.llamacpp.run.watch import Watch

        running = start(_launch(given), tell=given.say, recheck=given.recheck)
        with Watch(running, warn=given.warn) as watch:
            try:
                talker = LlamaTalker(
                    client=Client(running.address, api_key=given.at.api_key),
                    window_tokens=_window_tokens(given.load, running.resolved),
                    sinks=given.sinks,
                )
                yield Up(
                    talker=talker,
                    version=running.version,
                    rules_version=version_name(*answered_version(running.version)),
                    rows=compare_reported(given.estimate, running),
                    server=running,
                    guard=watch,
                )
            except EngineError as error:
                ended = running.wait(_LAST_MOMENT_S)
                if ended is None:
                    raise
                kind = MemoryPressureError if watch.starved else EngineError
                raise kind(watch.reason or f"{ended.why}: {ended.last_words}") from error
            finally:
                running.stop()


def _launch(given: EngineStart) -> Any:
    from edgekit.engines.llamacpp.run.types import Launch

    weights, at = given.weights, given.at
    # The drafter's cache is f16 unless it was given, whatever the model's cache is.
    key, value = (cache_type(given.values.get(f"draft_type_{one}", "f16")) for one in "kv")
    return Launch(
        path=weights.model,
        load=given.load,
        setup=given.setup,
        sinks=given.sinks,
        rolling=given.rolling,
        drafter=weights.drafter,
        adapters=weights.adapters,
        projector=weights.projector,
        chat=at.chats,
        drafter_load=replace(given.load, cache_k=key, cache_v=value),
        host=at.host,
        port=at.port,
        api_key=at.api_key,
        alias=at.alias or given.label,
        threads=given.threads,
        environment=given.environment,
    )


def _window_tokens(load: Load, resolved: Mapping[str, str]) -> int:
    """Of one sequence, as the engine has it; never more than was planned."""
    found = resolved.get("n_ctx_seq") or resolved.get("n_ctx")
    planned = load.context_tokens or 0
    return min(int(found), planned) if found and found.isdigit() else planned


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppVerifier:
    load: Load
    setup: LlamaCppSetup
    way: VerifyMethod
    really: bool
    timeout_s: float | None

    def generated(self, model: Model, label: str, mix: str | None) -> ModelFiles:
        from edgekit.engines.llamacpp.conversion import convert
        from edgekit.engines.llamacpp.verify.hollow import generated_files

        made = model if mix is None else convert(model, mix).model
        return generated_files(made.header, label=label)

    def verify(self, files: ModelFiles) -> Verification:
        from edgekit.engines.llamacpp.verify.check import verify_model

        return verify_model(
            files,
            self.load,
            self.setup,
            way=self.way,
            timeout_s=self.timeout_s,
            really=self.really,
        )

    def asked(self, found: Verification) -> str:
        return own_flags.describe(self.load, found.estimate)
