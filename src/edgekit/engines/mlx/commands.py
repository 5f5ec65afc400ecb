"""The commands of a verdict: mlx_lm.convert where weights have to be quantised, then mlx_lm.server or mlx_lm.generate.

Flags as in mlx-lm 0.32.2.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgekit.bill.types import MemoryEstimate, Verdict
from edgekit.engines.commands import (
    HUB_PAGES,
    LM_STUDIO_CONTEXT,
    LM_STUDIO_PARALLEL,
    Command,
    LmStudioSetting,
    Startup,
    as_file,
    lm_studio_texts,
    parsed,
    repository_word,
)
from edgekit.engines.flags import flag_words
from edgekit.engines.mlx.estimate import NOT_QUANTISED
from edgekit.engines.mlx.flags import FLAGS
from edgekit.engines.mlx.quantization import (
    FOUR_BIT,
    PLAIN,
    Packing,
    PackingMode,
    Quantize,
    read_quantize,
)
from edgekit.engines.mlx.setups import DEFAULT_PREFILL_STEP, MlxSetup
from edgekit.engines.protocol import Offload
from edgekit.index.repositories import Form, repository_at
from edgekit.machine.types import System
from edgekit.sources.reference import HubModel
from edgekit.sources.types import Origin

if TYPE_CHECKING:
    from edgekit.model import OpenModel


PROGRAM = "mlx"
_QUANTISED_CACHE = (
    "kv_bits",
    "kv_group_size",
    "quantized_kv_start",
)  # flags of the server since 0.32
# The cache quantisations that LM Studio has.
_LM_STUDIO_BITS = frozenset({8, 6, 4, 3, 2})
_LM_STUDIO_GROUPS = frozenset({32, 64, 128})


def offload(verdict: Verdict) -> Offload:
    """Nothing on a Mac; on Linux the model runs on the CPU, which counts as the device there."""
    is_cpu = bool(verdict.way.cards) and verdict.machine.system is System.LINUX
    return Offload(place="on the CPU" if is_cpu else "")


def commands(startup: Startup) -> Iterator[Command]:
    """The conversion if weights have to be quantised, the command that runs the model, and LM Studio's settings.

    mlx_lm.server cannot limit its caches to a number of tokens: for that, mlx_lm.generate runs the model.
    """
    setup, model = MlxSetup.of(startup.setup), startup.repository_word
    packed = setup.quantize
    notes: list[str] = []  # of LM Studio's settings
    if packed is None and NOT_QUANTISED in startup.verdict.estimate.notes:
        packed = Quantize(packing=FOUR_BIT)
    if isinstance(packed, Quantize) and packed.rest:
        is_local = startup.files is not None and startup.files.origin is Origin.LOCAL
        repository = None if is_local else _published_repository(startup.label, packed)
        if repository is None:
            words = convert_words(model, packed, startup.label)
            notice = ["run this once, before the next command"]
            yield startup.command(PROGRAM, "mlx_lm.convert", words, notes=notice)
            repository = converted_name(startup.label, packed)
            notes = [f"load the folder that mlx_lm.convert writes: {repository}"]
        model = repository
    if setup.max_kv_size is None:
        yield _server(startup, model)
    else:
        yield _generate(startup, model)
    is_hub_id = isinstance(parsed(model, is_name=startup.files is None), HubModel)
    download = [f"{HUB_PAGES}{model}", "--mlx"] if is_hub_id and not notes else []
    settings = list(_settings(startup))
    yield from lm_studio_texts(startup, settings, model=model, download=download, notes=notes)


def _published_repository(label: str, packed: Quantize) -> str | None:
    """The repository of a catalog model with this quantisation, if all weights are in groups of 64."""
    bits = packed.packing.bits
    if packed != Quantize(packing=Packing(bits=bits, group_size=64)):
        return None
    repository = repository_at(label, Form.MLX, f"{bits}bit")
    return repository.name if repository is not None else None


def _server(startup: Startup, model: str) -> Command:
    """mlx_lm.server with the planned number of parallel requests. Free memory caches old prompts."""
    verdict = startup.verdict
    # server.py:886 trims old caches to this size, those in use included
    free_bytes = [use.budget.available_bytes - use.required_bytes for use in verdict.uses]
    words = server_words(
        MlxSetup.of(startup.setup),
        model,
        sequences=startup.load.sequences or 1,
        cache_bytes=verdict.estimate.kv_cache_bytes + max(0, min(free_bytes, default=0)),
    )
    length = f"{startup.context_tokens:,}"
    note = (
        f"accepts requests of any length; planned for up to {length} tokens each, prompt and answer"
    )
    serve = startup.command(PROGRAM, "mlx_lm.server", words, notes=[note])
    return replace(serve, served_name=model)


def server_words(setup: MlxSetup, model: str, *, sequences: int, cache_bytes: int) -> list[str]:
    """The command line of mlx_lm.server."""
    values: dict[str, Any] = {}
    if setup.prefill_step_size != DEFAULT_PREFILL_STEP:
        values["prefill_step_size"] = setup.prefill_step_size
    if setup.kv_bits is not None:
        values |= {key: getattr(setup, key) for key in _QUANTISED_CACHE}
    words = ["mlx_lm.server", "--model", model]
    words += ["--decode-concurrency", str(sequences), "--prompt-concurrency", str(sequences)]
    return [*words, "--prompt-cache-bytes", str(cache_bytes), *flag_words(FLAGS, values)]


def _generate(startup: Startup, model: str) -> Command:
    """mlx_lm.generate, which can quantise and limit the cache."""
    setup = MlxSetup.of(startup.setup)
    values: dict[str, Any] = {}
    if setup.kv_bits is not None:
        values |= {key: getattr(setup, key) for key in _QUANTISED_CACHE}
    if setup.max_kv_size is not None:
        values["max_kv_size"] = setup.max_kv_size
    if setup.max_tokens:
        values["max_tokens"] = setup.max_tokens
    words = ["mlx_lm.generate", "--model", model, "--prompt", "-", *flag_words(FLAGS, values)]
    notes = [
        "reads the prompt from standard input",
        "mlx_lm.server has no --max-kv-size: its caches would use more memory than planned",
    ]
    return startup.command(PROGRAM, "mlx_lm.generate", words, notes=notes)


def _settings(startup: Startup) -> Iterator[LmStudioSetting]:
    """The load settings of LM Studio."""
    setup = MlxSetup.of(startup.setup)
    yield LmStudioSetting("Context Length", LM_STUDIO_CONTEXT, startup.context_tokens)
    yield LmStudioSetting("", "llm.load.mlx.autoFit", False)
    yield LmStudioSetting(
        "Max Concurrent Predictions", LM_STUDIO_PARALLEL, startup.load.sequences or 1
    )
    if setup.kv_bits in _LM_STUDIO_BITS and setup.kv_group_size in _LM_STUDIO_GROUPS:
        value = {
            "enabled": True,
            "bits": setup.kv_bits,
            "groupSize": setup.kv_group_size,
            "quantizedStart": setup.quantized_kv_start,
        }
        shown = f"{setup.kv_bits} bit, groups of {setup.kv_group_size}, from token {setup.quantized_kv_start}"
        yield LmStudioSetting(
            "KV Cache Quantization", "llm.load.mlx.kvCacheQuantization", value, shown
        )


def settle(verdict: Verdict, given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of a verdict: `given` by the user, and those that the verdict adds."""
    setup = MlxSetup.of(verdict.way.setup)
    settled = {**given, "context": verdict.context_tokens}
    if setup.kv_bits is not None:
        settled |= {"kv_bits": setup.kv_bits, "quantized_kv_start": setup.quantized_kv_start}
    packed = verdict.variant.changes.get("quantize") if verdict.variant is not None else None
    if isinstance(packed, Quantize):
        settled["quantize"] = f"q{packed.packing.bits}"
    return settled


def estimate_command(
    values: Mapping[str, Any], _setup: MlxSetup, estimate: MemoryEstimate, opened: OpenModel
) -> tuple[list[str], list[str]]:
    """The command of an estimate, and the conversion to run first if the estimate is not for the stored weights."""
    new_tokens = dict(estimate.facts)["new_tokens"]
    flags = {**values, "max_tokens": new_tokens} if new_tokens else values
    stored = repository_word(opened.files, opened.repository)
    packed = _estimated_quantisation(values, estimate)
    model, notes = stored, []
    if packed is not None:
        is_local = opened.files is not None and not opened.files.origin.is_remote
        published = None if is_local else _published_repository(opened.label, packed)
        model = published or converted_name(opened.label, packed)
        if published is None:
            conversion = shlex.join(convert_words(stored, packed, opened.label))
            notes = [f"run this first: {conversion}"]
    return ["mlx_lm.generate", "--model", model, *flag_words(FLAGS, flags)], notes


def _estimated_quantisation(values: Mapping[str, Any], estimate: MemoryEstimate) -> Quantize | None:
    """How the weights are quantised in the estimate; None if they are used as stored."""
    name = values.get("quantize")
    if name is None:
        return Quantize() if NOT_QUANTISED in estimate.notes else None
    packed = read_quantize(name)
    return packed if isinstance(packed, Quantize) and packed != PLAIN else None


def converted_name(label: str, packed: Quantize) -> str:
    """The folder that mlx_lm.convert writes: the model's name and the quantisation."""
    packing = packed.packing
    quantisation = packing.mode.value
    if packed.recipe is not None:
        quantisation = packed.recipe.value
    elif packing.mode is PackingMode.AFFINE:
        quantisation = f"{packing.bits}bit"
    model = label.rsplit("/", maxsplit=1)[-1].partition(":")[0]
    return as_file(f"{model}-{quantisation}")


def convert_words(repository: str, packed: Quantize, label: str) -> list[str]:
    """The command that quantises the weights of a repository."""
    words = ["mlx_lm.convert", "--hf-path", repository, "-q"]
    packing = packed.packing
    if packed.recipe is not None:
        words += ["--quant-predicate", packed.recipe.value]
    elif packing.mode is not PackingMode.AFFINE:
        words += ["--q-mode", packing.mode.value]
    else:
        words += ["--q-bits", str(packing.bits), "--q-group-size", str(packing.group_size)]
    return [*words, "--mlx-path", converted_name(label, packed)]
