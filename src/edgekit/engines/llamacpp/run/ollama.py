"""Ollama as the program that runs a model: a server of our own, with the context, layers and caches of the plan.

A server that already runs keeps the settings that it was started with, so a second one is started on the same store.
Ollama runs a llama-server of its own and writes that server's log to its own, which is read like llama.cpp's.

API and variables: docs/api.md, envconfig/config.go, llm/llama_server.go of ollama @ fb30760.
"""

from __future__ import annotations

import hashlib
import http.client
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgekit.bill.types import Verdict
from edgekit.engines.chat import Fitted, GenerationResult, Message, Prompt, Sampling
from edgekit.engines.flags import companions_in
from edgekit.engines.llamacpp.commands import (
    ollama_settings,
    plan_problems,
)
from edgekit.engines.llamacpp.flags import FLAGS, words_ollama_lacks
from edgekit.engines.llamacpp.run.binding import child_environment
from edgekit.engines.llamacpp.run.engine import LoadingLog
from edgekit.engines.llamacpp.run.ollama_models import forget, left_behind, new_name, record
from edgekit.engines.llamacpp.run.program import ALONE, compare_reported, limited
from edgekit.engines.llamacpp.run.request_rules import GRAMMARS, STOP
from edgekit.engines.llamacpp.types import LlamaCppSetup, LoadFacts
from edgekit.engines.openai_client import OpenAiClient, encoded_image
from edgekit.engines.ports import connectable, free_port, in_address
from edgekit.engines.process import (
    GRACE_S,
    ON_REQUEST,
    ChildProcess,
    ServerLaunch,
    ServerProcess,
    health,
    start_server,
    watched,
)
from edgekit.engines.program import (
    ComparedRow,
    Ended,
    EngineProgram,
    EngineStart,
    Installation,
    LocalWeights,
    OwnModel,
    RunningEngine,
    RunOptions,
)
from edgekit.engines.request_rules import (
    COMPLETIONS,
    EMBEDDINGS,
    RESPONSES,
    ListLimit,
    NumberLimit,
    RequestLimits,
    RequestRules,
)
from edgekit.errors import EdgekitError, EngineError, UsageError
from edgekit.machine.types import Machine, PoolKind
from edgekit.model.types import embeds_in_one_batch
from edgekit.sources.locator import hub_model_of
from edgekit.sources.ollama import find_ollama, user_store
from edgekit.sources.reference import OllamaModel, parse_reference
from edgekit.sources.types import ModelFiles, Origin
from edgekit.units import format_bytes

NAME = "ollama"
_INSTALL = "install Ollama (ollama.com/download), so that ollama is on the PATH"
_LOG_S = 10.0  # for the log of a model that has answered to arrive
_DELETE_S = 3.0  # for the answer to a request to delete a model
_CHUNK_BYTES = 2**20
_LINE_BYTES = 2**20  # one line of an answer's stream
_NANOSECONDS = 1e9
# Fields of Sampling -> Ollama's options
_OPTIONS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "repeat_penalty": "repeat_penalty",
    "repeat_last": "repeat_last_n",
}
# Settings of the user that the plan does not know; empty: Ollama's default.
_DEFAULTS = dict.fromkeys(
    ("OLLAMA_KV_CACHE_TYPE", "OLLAMA_FLASH_ATTENTION", "OLLAMA_SCHED_SPREAD"), ""
)
_TOO_LONG = r"exceeds? the (?:available )?context"


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaProgram(EngineProgram):
    name: str = NAME
    install: str = _INSTALL
    loads_shards: bool = False
    has_keys: bool = False

    def on_machine(self, machine: Machine, installation: Installation) -> Machine:
        """Without the GPUs, if Ollama has no libraries for them."""
        has_gpu = set(installation.backends) - {"CPU"}
        return machine if has_gpu or not installation.backends else replace(machine, devices=())

    def own_model(
        self, reference: str, files: ModelFiles | None, values: Mapping[str, Any]
    ) -> OwnModel | None:
        """The model in the store of an Ollama that the user starts. None for one that only the service's store has."""
        # A model of Ollama brings its projector, which cannot be left out.
        model = None if values.get("no_mmproj") else _own_name(reference, files)
        own: OwnModel | None = None
        if model is not None:
            store, is_here = user_store(), False
            with suppress(EdgekitError):  # damaged or incomplete
                is_here = find_ollama(model, stores=(store,)) is not None
            if is_here or files is None or files.origin is not Origin.OLLAMA_STORE:
                own = OwnModel(name=model.label, store=store, is_here=is_here)
        companions = companions_in(FLAGS, values)
        if own is not None and companions.get("projector") == "auto":
            del companions["projector"]
        if companions:
            raise UsageError(
                "Ollama takes draft models, adapters and projectors from its own models only: leave them out, or use"
                " --with llama-server"
            )
        if words := words_ollama_lacks(values):
            raise UsageError(
                f"Ollama has no equivalent of {' '.join(words)}: leave it out, or use --with llama-server"
            )
        return own

    def flags_for(self, options: RunOptions, installation: Installation) -> dict[str, Any]:
        """One conversation at a time, as Ollama does unless more users are asked for."""
        if options.rolling:
            raise UsageError("Ollama does not support --rolling: leave it out")
        version = installation.rules_version
        return {**({"llama_version": version} if version else {}), **ALONE}

    def request_limits(self, verdict: Verdict, _weights: LocalWeights) -> RequestLimits:
        """Ollama's OpenAI API silently drops what does not fit; no field turns that off (openai/openai.go)."""
        window_tokens, variant = verdict.context_tokens // verdict.streams, verdict.variant
        geometry = None if variant is None else variant.model.geometry
        if geometry is not None and geometry.embeds and embeds_in_one_batch(geometry):
            window_tokens = min(window_tokens, LoadFacts.of(verdict.estimate).n_ubatch)
        length = NumberLimit(
            most=window_tokens, reason="the context that the server was planned for"
        )
        rules = RequestRules(
            endpoints=(*COMPLETIONS, EMBEDDINGS, RESPONSES),
            numbers=dict.fromkeys(
                ("max_tokens", "max_completion_tokens", "max_output_tokens"), length
            ),
            lists={
                "stop": STOP,
                "tools": ListLimit(most=1024, reason="they are part of the prompt"),
            },
            grammars=GRAMMARS,
            truncates=True,
            ignores_case=True,  # as all readers of JSON in Go
        )
        return RequestLimits(rules=rules, window_tokens=window_tokens)

    def with_limits(self, verdict: Verdict, _installation: Installation) -> LlamaCppSetup:
        for problem in plan_problems(verdict):
            raise UsageError(f"{problem}; use --with llama-server")
        return limited(verdict)

    def open(self, _path: Path, _held: ExitStack, _budget_bytes: int | None) -> OllamaStarter:
        return OllamaStarter()


PROGRAM = OllamaProgram()


def _own_name(reference: str, files: ModelFiles | None) -> OllamaModel | None:
    """The model as Ollama names it: of its registry, or hf.co/org/name:quant.

    None for what it cannot name: a file, a revision, a model in several files, and one without a quantisation in its
    name, of which Ollama would choose the file.
    """
    if files is not None and files.origin in {Origin.OLLAMA, Origin.OLLAMA_STORE}:
        name = files.label
    elif files is None or (files.origin is Origin.HUB and len(files.weights) == 1):
        hub = hub_model_of(reference)
        quant = files.label.partition(":")[2] if files is not None else hub and hub.quant
        if hub is None or not quant or hub.revision or hub.filename:
            return None
        name = f"hf.co/{hub.repo}:{quant}"
    else:
        return None
    try:
        parsed = parse_reference(f"ollama:{name}")
    except UsageError:  # the hub has longer names
        return None
    return parsed if isinstance(parsed, OllamaModel) else None


class OllamaStarter:
    def tokens_in(self, _prompt: Prompt) -> None:
        """None: only the server can count tokens."""

    @contextmanager
    def start(self, request: EngineStart) -> Iterator[RunningEngine]:
        """Runs Ollama's server with the model loaded, watched, until the end of the block."""
        running = start(request)
        with watched(running, warn=request.warn) as watch:
            yield RunningEngine(
                generator=running.client,
                version=running.version,
                program="Ollama",
                rules_version=request.installation.rules_version,
                rows=_compare(request, running),
                server=running,
                model=running.client.model,
                guard=watch,
            )


class OllamaProcess(ServerProcess):
    """The process of `ollama serve`."""

    log: LoadingLog
    client: OllamaClient

    def stop(self, why: str = "", *, grace_s: float = GRACE_S) -> Ended:
        """Deletes the model that was made for it, and asks it to end.

        If it must end at once, as when memory runs out, a later start deletes the model.
        """
        is_ordinary = why in {"", ON_REQUEST}
        if is_ordinary and self.poll() is None and self.client.model:
            with suppress(EngineError):  # a later start deletes it
                self.client.delete(self.client.model, timeout_s=_DELETE_S)
        return super().stop(why, grace_s=grace_s)


def start(request: EngineStart) -> OllamaProcess:
    """Starts `ollama serve` until it has loaded the model."""
    at, weights = request.address, request.weights
    settings = ollama_settings(request.verdict)
    launch = ServerLaunch(
        program="Ollama",
        title=at.alias or request.label,
        host=at.host,
        port=at.port or free_port(at.host),
        files=() if weights.name else (weights.model,),
        environment=request.environment,
        uses_nvidia=LlamaCppSetup.of(request.setup).uses_nvidia,
        ram_bytes=request.estimate.in_pool(PoolKind.HOST),
    )
    # Without num_batch, Ollama chooses a larger one for a long context.
    parameters = settings.parameters | {"num_batch": LoadFacts.of(request.estimate).n_ubatch}
    if request.threads is not None:
        parameters["num_thread"] = request.threads
    environment = child_environment(
        {
            **request.environment,
            **_DEFAULTS,
            **settings.environment,
            "OLLAMA_HOST": f"{in_address(launch.host)}:{launch.port}",
            "OLLAMA_KEEP_ALIVE": "-1",
            "OLLAMA_MAX_LOADED_MODELS": "1",
            "OLLAMA_NOPRUNE": "1",  # a server that runs already may be downloading into the store
        }
    )
    log = LoadingLog()

    def create() -> OllamaProcess:
        process = OllamaProcess(
            launch,
            log,
            lambda on_line: ChildProcess(
                [request.installation.path, "serve"],
                environment=environment,
                on_line=on_line,
                has_messages=False,
            ),
        )
        process.log, process.version = log, request.installation.version
        process.address = f"http://{in_address(connectable(launch.host))}:{launch.port}"
        process.client = OllamaClient(process.address, window_tokens=settings.parameters["num_ctx"])
        return process

    def is_ready(process: OllamaProcess, timeout_s: float) -> bool:
        """Loads the model as soon as the server answers."""
        if health(process.address, "/api/version") != http.client.OK:
            process.wait(timeout_s)
            return False
        _load(process.client, request, parameters)
        return True

    return start_server(launch, create, is_ready, tell=request.say, begun=request.begun)


def _load(client: OllamaClient, request: EngineStart, parameters: Mapping[str, int | bool]) -> None:
    """Makes a model with the plan's parameters and loads it, if it still fits after the download."""
    for name in left_behind(user_store()):
        client.delete(name)
    source = _at_ollama(client, request)
    request.recheck()
    client.create(new_name(request.label), {**source, "parameters": parameters})
    client.load()


def _at_ollama(client: OllamaClient, request: EngineStart) -> dict[str, Any]:
    """What a model is created from: one of Ollama's own, downloaded if need be, or a file that Ollama copies."""
    name, file = request.weights.name, request.weights.model
    if name:
        if not client.has(name):
            client.pull(name, request.say)
        return {"from": name}
    digest = _digest(file)
    if not client.has_blob(digest):
        request.say(
            f"Ollama copies {file.name} ({format_bytes(file.stat().st_size)}) into its own store"
        )
        client.push_blob(digest, file)
    return {"files": {file.name: digest}}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _compare(request: EngineStart, running: OllamaProcess) -> tuple[ComparedRow, ...]:
    """The bill compared with the log of Ollama's llama-server; empty if its log was not recognised."""
    if not running.has_log(_LOG_S):
        return ()
    try:
        allocations = running.log.engine.allocations()
    except EngineError:  # an Ollama whose log has another format runs all the same
        return ()
    return compare_reported(request.estimate, allocations, running.files.size_bytes)


class OllamaClient(OpenAiClient):
    """Ollama's own API, which refuses a prompt that is longer than the window; its OpenAI API shortens it."""

    def __init__(self, address: str, *, window_tokens: int) -> None:
        super().__init__(address, program="Ollama", window_tokens=window_tokens, too_long=_TOO_LONG)
        self.model = ""  # that was made with the plan's parameters

    def has(self, name: str) -> bool:
        return self.status("POST", "/api/show", {"model": name}) == http.client.OK

    def has_blob(self, digest: str) -> bool:
        return self.status("HEAD", f"/api/blobs/{digest}", None) == http.client.OK

    def push_blob(self, digest: str, path: Path) -> None:
        with path.open("rb") as file:
            pieces = iter(lambda: file.read(_CHUNK_BYTES), b"")
            if self.status("POST", f"/api/blobs/{digest}", pieces) != http.client.CREATED:
                raise EngineError(f"Ollama refused the file {path}")

    def pull(self, name: str, say: Callable[[str], None]) -> None:
        """Downloads a model, and says how far it is at every tenth."""
        said: set[tuple[str, int]] = set()
        for event in self._lines("/api/pull", {"model": name}):
            total, done = event.get("total"), event.get("completed")
            if not (isinstance(total, int) and isinstance(done, int) and total > 0):
                continue
            step = (str(event.get("digest")), done * 10 // total)
            if step not in said:
                said.add(step)
                say(f"Ollama downloads {name}: {format_bytes(done)} of {format_bytes(total)}")

    def create(self, model: str, body: Mapping[str, Any]) -> None:
        """Makes the model that `load` and `write` ask."""
        record(model, user_store())
        self.model = model
        for _ in self._lines("/api/create", {"model": model, **body}):
            pass

    def load(self) -> None:
        """Loads the model, and keeps it loaded."""
        for _ in self._lines("/api/generate", {"model": self.model, "keep_alive": -1}):
            pass

    def delete(self, model: str, *, timeout_s: float | None = None) -> None:
        status = self.status("DELETE", "/api/delete", {"model": model}, timeout_s=timeout_s)
        if status in {http.client.OK, http.client.NOT_FOUND}:
            forget(model)

    def write(
        self, fitted: Fitted, sampling: Sampling, *, into: GenerationResult
    ) -> Generator[str, None, None]:
        """Generates text piece by piece; reasoning, counts, tool calls and timings go to `into`."""
        prompt = fitted.prompt
        options = {
            name: list(value) if isinstance(value, tuple) else value
            for field, name in _OPTIONS.items()
            if (value := getattr(sampling, field)) not in {None, ()}
        }
        if fitted.max_tokens is not None:
            options["num_predict"] = fitted.max_tokens
        body: dict[str, Any] = {"model": self.model, "options": options, "truncate": False}
        body |= {"keep_alive": -1}
        if prompt.is_plain:
            body |= {"prompt": prompt.text, "raw": True}
            path = "/api/generate"
        else:
            body["messages"] = [_message(message) for message in prompt.messages]
            if prompt.tools:
                body["tools"] = list(prompt.tools)
            path = "/api/chat"
        for event in self._lines(path, body):
            message = event.get("message")
            message = message if isinstance(message, dict) else {"content": event.get("response")}
            for call in message.get("tool_calls") or ():
                function = call.get("function", {})
                arguments = json.dumps(function.get("arguments", {}))
                into.tool_calls.append({"name": str(function.get("name")), "arguments": arguments})
            reasoning, text = message.get("thinking"), message.get("content")
            if isinstance(reasoning, str) and reasoning:
                into.reasoning.append(reasoning)
                yield ""
            if isinstance(text, str) and text:
                yield text
            if event.get("done"):
                into.finish = "length" if event.get("done_reason") == "length" else "stop"
                into.prompt_tokens = int(event.get("prompt_eval_count") or 0)
                into.new_tokens = int(event.get("eval_count") or 0)
                into.timings = _timings(event)
        if not into.finish:
            raise EngineError("Ollama stopped in the middle of an answer")

    def status(self, method: str, path: str, body: Any, *, timeout_s: float | None = None) -> int:
        """The HTTP status of a request whose answer does not matter."""
        connection = http.client.HTTPConnection(self._host, timeout=timeout_s)
        try:
            data = body if body is None or not isinstance(body, dict) else json.dumps(body)
            connection.request(method, path, data, encode_chunked=isinstance(data, Iterator))
            return connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"Ollama no longer answers: {error}") from error
        finally:
            connection.close()

    def _lines(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The lines of JSON of an answer. Raises what Ollama reports in one of them."""
        with self._reply(path, body) as reply:
            while line := reply.readline(_LINE_BYTES):
                event = self._object(line)
                if "error" in event:
                    raise self._refusal(event)
                yield event


def _message(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.images:
        body["images"] = [encoded_image(image) for image in message.images]
    if message.tool_calls:
        body["tool_calls"] = [
            {"function": {"name": call["name"], "arguments": _object(call["arguments"])}}
            for call in message.tool_calls
        ]
    return body


def _object(text: str) -> dict[str, Any]:
    """The arguments of an earlier call; empty if the model did not write an object."""
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    return {}


def _timings(event: Mapping[str, Any]) -> dict[str, float]:
    """Durations are in nanoseconds."""
    timings = {}
    for count, duration, name in (
        ("prompt_eval_count", "prompt_eval_duration", "prompt_per_second"),
        ("eval_count", "eval_duration", "predicted_per_second"),
    ):
        tokens, spent = event.get(count), event.get(duration)
        if isinstance(tokens, int) and isinstance(spent, int) and spent > 0:
            timings[name] = tokens * _NANOSECONDS / spent
    return timings
