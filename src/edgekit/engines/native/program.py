"""The built-in engine for `run`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from edgekit import __version__
from edgekit.engines.chat import Prompt
from edgekit.engines.native.stream_plan import StreamSetup
from edgekit.engines.program import (
    EngineProgram,
    EngineStart,
    Installation,
    RunningEngine,
    RunOptions,
)
from edgekit.errors import MissingExtraError, UsageError
from edgekit.machine.monitor import Monitor

if TYPE_CHECKING:
    from edgekit.bill.types import Verdict
    from edgekit.engines.native.text import FileText


# For each byte of a prompt: at most one token, as two Python objects, and its text.
TOKENIZING_BYTES = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeProgram(EngineProgram):
    name: str = "stream"
    install: str = "pip install 'edgekit-models[embed]'"
    loads_shards: bool = False
    has_budget: bool = True
    has_keys: bool = False

    def find(self) -> Installation:
        """It is part of EdgeKit; `open` says if a package that it needs is missing."""
        return Installation(program=self.name, origin="built in", path="", version=__version__)

    def flags_for(self, options: RunOptions, _installation: Installation) -> dict[str, Any]:
        values = {
            "sinks": options.sinks,
            "threads": options.threads,
            "rolling": options.rolling or None,
        }
        return {name: value for name, value in values.items() if value is not None}

    def request_limits(self, _verdict: Verdict, _weights: object) -> NoReturn:
        raise UsageError("the built-in engine has no server")

    def open(self, path: Path, held: ExitStack, budget_bytes: int | None) -> NativeStarter:
        try:
            import tokenizers  # noqa: F401 - here the message can say what to install

            from edgekit.engines.native.text import open_text
        except ModuleNotFoundError as error:
            if error.name not in {"numpy", "tokenizers"}:
                raise
            raise MissingExtraError(
                f"the built-in engine needs {error.name}: pip install 'edgekit-models[embed]'"
            ) from error
        return NativeStarter(
            path=path,
            held=held,
            monitor=Monitor(budget_bytes=budget_bytes, own_process=budget_bytes is not None),
            text=held.enter_context(open_text(path)),
        )


PROGRAM = NativeProgram()


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeStarter:
    path: Path
    held: ExitStack
    monitor: Monitor
    text: FileText

    def tokens_in(self, prompt: Prompt) -> int:
        from edgekit.engines.native.text import prompt_tokens

        size = prompt.size_bytes * TOKENIZING_BYTES
        self.held.enter_context(self.monitor.try_allocate(size, "the prompt, cut into tokens,"))
        return len(prompt_tokens(self.text, prompt))

    @contextmanager
    def start(self, given: EngineStart) -> Iterator[RunningEngine]:
        from edgekit.engines.native.generator import open_stream
        from edgekit.engines.native.text import StreamTextGenerator

        given.recheck()
        with open_stream(
            self.path,
            load=given.load,
            setup=StreamSetup.of(given.setup),
            monitor=self.monitor,
            purpose=given.purpose,
        ) as engine:
            given.say(f"the cache has {engine.cache_bytes:,} bytes, as estimated")
            yield RunningEngine(generator=StreamTextGenerator(engine=engine, text=self.text))
