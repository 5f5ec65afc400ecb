"""The formula of the speed, and its constants.

A decoded token reads every weight that it uses and the cache once, so its time is bytes over bandwidth, plus unpacking
quantised weights, plus a fixed time per layer and per token. A prompt costs operations instead, and reads the weights
once per micro-batch.

The constants are fitted to measurements by tools/fit_speed.py and stored in speed.json: see docs/speed.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pkgutil import get_data  # importlib.resources takes 5 ms to import
from typing import Any

from edgekit.bill.types import Moment
from edgekit.engines.speed_places import GB, Place, SequenceRun
from edgekit.model.types import LatentAttention, ModelGeometry, Span, attention_of

MICRO = 1e-6
LEAST_SENT_TOKENS = 32  # ggml-cuda.cu: a smaller batch is computed where its weights are

# -- constants -------------------------------------------------------------------------------


class Constants(Mapping[str, float]):
    """Fitted constants by name: "weights.cuda", and "weights.cuda.sm_89" that it is multiplied by on such cards."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def product(self, name: str, *keys: str) -> float:
        """The constant times its factors for these keys, alone and together. A case without a factor has 1."""
        value = self[name]
        for key in keys:
            value *= self.get(f"{name}.{key}", 1.0)
        return value * self.get(".".join((name, *keys)), 1.0) if len(keys) > 1 else value


def _fitted_file() -> bytes:
    return get_data("edgekit.engines", "speed.json") or b""


@cache
def _fitted() -> Any:
    return json.loads(_fitted_file())


@cache
def constants() -> Constants:
    return Constants(_fitted()["constants"])


@cache
def measured_generations() -> dict[str, frozenset[str]]:
    """The generations of devices that the constants rest on, as `Place` names them, for "decode" and "prompt"."""
    return {word: frozenset(names) for word, names in _fitted()["measured"].items()}


@cache
def constants_digest() -> str:
    """Identifies the constants: a measured speed is compared with the one that the same constants predicted."""
    from hashlib import sha256  # takes 2 ms to import

    return sha256(_fitted_file()).hexdigest()[:12]


# -- decoding --------------------------------------------------------------------------------


def _weights_rate(run: SequenceRun, place: Place, values: Constants) -> float:
    """Bytes of weights per second."""
    share = values.product("weights", place.backend, place.architecture)
    share *= values.get(f"market_weights.{place.market}", 1.0)
    share *= values.product("format", run.weights, place.backend)
    return place.bandwidth * min(1.0, share)


def _unpack_s(run: SequenceRun, place: Place, size_bytes: float, values: Constants) -> float:
    """Seconds to unpack this many bytes of quantised weights."""
    if run.weights in {"f16", "bf16"} or place.vector_flops is None:
        return 0.0
    read_bytes = sum(pool.weights_bytes for pool in run.reads.pools) or 1.0
    elements = size_bytes / read_bytes * run.reads.weights.parameters * run.work_share
    return (
        elements
        * values.product("unpack_ops", place.backend, place.architecture)
        / place.vector_flops
    )


def decode_s(
    run: SequenceRun, places: tuple[Place, ...], moment: Moment, values: Constants
) -> float:
    """Seconds of a pass, which makes a token for each user and checks the drafted ones."""
    tokens = moment.users * (1 + moment.drafted_tokens)
    first = places[0].backend if places else "cpu"
    seconds = values.product("token_us", first) * MICRO + _reducing_s(run, values)
    if run.is_launched_one_by_one:
        seconds += len(run.reads.weights.layers) * values["launches_us"] * MICRO
    crossings = run.reads.crossings + run.pipeline_stages - 1
    seconds += crossings * values["crossing_us"] * MICRO
    at_once, in_turn = 0.0, 0.0
    for place in places:
        reads, rate = place.reads, _weights_rate(run, place, values)
        dense = reads.weights_bytes - reads.experts_bytes
        experts = reads.experts_read_by(tokens) if tokens > 1 else reads.experts_bytes
        time_s = (dense + experts / values.product("experts", place.backend)) / rate
        # Kernels read and compute at once: neither time adds fully to the other.
        time_s = math.hypot(time_s, _unpack_s(run, place, dense + experts, values))
        time_s += _attend_s(run, place, moment, values)
        time_s += (tokens - 1) * reads.weights_bytes / rate * values.product("users", place.backend)
        time_s += (
            reads.layers * values.product("layer_us", place.backend, place.architecture) * MICRO
        )
        if run.is_divided and not place.is_host:
            at_once = max(at_once, time_s)
        else:
            in_turn += time_s
    return seconds + (at_once + in_turn) * run.pipeline_stages


def _reducing_s(run: SequenceRun, values: Constants) -> float:
    """Seconds of a pass to add up what the cards have computed, twice per layer, if every layer is on several."""
    if run.tensor_ranks == 1 and not run.is_divided:
        return 0.0
    return 2 * len(run.reads.weights.layers) * values["reducing_us"] * MICRO


def _attend_s(run: SequenceRun, place: Place, moment: Moment, values: Constants) -> float:
    """Seconds to read the states and the cache of every user once, and to compute with them for every token."""
    reads, tokens = place.reads, moment.filled_tokens
    cached = reads.cache_bytes(tokens)
    rate = place.bandwidth * values.product("cache", place.backend, place.architecture)
    seconds = (reads.state_bytes + cached) / rate
    if cached and place.vector_flops is not None:
        share = cached / sum(pool.cache_bytes(tokens) for pool in run.reads.pools)
        flops = attention_flops(run.model.geometry, tokens) * share * run.work_share
        flops *= 1 + moment.drafted_tokens
        seconds += flops / (place.vector_flops * values.product("attend", place.backend))
    return moment.users * seconds


# -- prompts ---------------------------------------------------------------------------------


def prompt_token_s(
    run: SequenceRun, places: tuple[Place, ...], moment: Moment, values: Constants
) -> float | None:
    """Seconds per token of a prompt of `prompt_tokens` after `filled_tokens` others; None if a peak is unknown."""
    if (
        not run.reads.weights.parameters
        or not places
        or any(not place.prompt_peak for place in places)
    ):
        return None
    batch = max(1, min(run.batch_tokens, moment.prompt_tokens))
    # On average a prompt token attends to half of the prompt.
    attended = moment.filled_tokens + moment.prompt_tokens // 2
    on_cards = [place for place in places if not place.is_host]
    at_once, in_turn = 0.0, 0.0
    for place in places:
        # Weights on the host are sent to a card, which is faster with a large batch.
        is_sent = bool(on_cards) and place.is_host and batch >= LEAST_SENT_TOKENS
        worker = on_cards[0] if is_sent else place
        seconds = _multiply_s(run, place, worker, batch, values)
        seconds += _attend_prompt_s(run, place, worker, attended, values)
        seconds += _once_s(run, place, worker, batch, values) / batch
        if run.is_divided and not place.is_host:
            at_once = max(at_once, seconds)
        else:
            in_turn += seconds
    total_s = (at_once + in_turn) * run.pipeline_stages + _reducing_s(run, values) / batch
    if run.is_pipelined:
        micro_batches = max(1.0, min(run.logical_tokens, moment.prompt_tokens) / batch)
        total_s /= _pipelined(sum(place.reads.is_read for place in on_cards), micro_batches)
    # A token of a short prompt takes no longer than a decoded one.
    return min(total_s, decode_s(run, places, Moment(attended), values))


def _multiply_s(
    run: SequenceRun, place: Place, worker: Place, batch: int, values: Constants
) -> float:
    """Seconds per token to multiply with the weights of a place, on the device that does it."""
    reads = place.reads
    read_bytes = sum(pool.weights_bytes for pool in run.reads.pools) or 1.0
    flops = 2.0 * run.reads.weights.parameters * run.work_share * reads.weights_bytes / read_bytes
    if not worker.is_host:
        # Cards compute blocks of tokens, and few tokens of a batch use the same expert.
        per_expert = batch * reads.experts_bytes / (reads.held_experts_bytes or 1.0)
        wasted = values.product("expert_tokens", worker.backend) / max(per_expert, 1e-6)
        flops *= 1.0 + wasted * reads.experts_bytes / (reads.weights_bytes or 1.0)
    # Narrow matrices leave a part of the processor idle.
    flops *= 1.0 + values["prompt_width"] / max(run.model.geometry.hidden, 1)
    share = values.product("prompt", worker.backend, worker.architecture)
    share *= values.get(f"market_prompt.{worker.market}", 1.0)
    share *= values.product("prompt_format", run.weights, worker.backend)
    return flops / (worker.prompt_peak * share)


def _attend_prompt_s(
    run: SequenceRun, place: Place, worker: Place, attended: int, values: Constants
) -> float:
    """Seconds per token to compute with the cache of a place, and to read it once for several tokens."""
    cached = place.reads.cache_bytes(attended)
    if not cached:
        return 0.0
    share = cached / sum(pool.cache_bytes(attended) for pool in run.reads.pools)
    flops = attention_flops(run.model.geometry, attended) * run.work_share * share
    rate = worker.prompt_peak * values.product("attention", worker.backend, worker.architecture)
    cache_rate = worker.bandwidth * values.product("cache", worker.backend, worker.architecture)
    return flops / rate + cached / values.product("prompt_tile", worker.backend) / cache_rate


def _once_s(run: SequenceRun, place: Place, worker: Place, batch: int, values: Constants) -> float:
    """Seconds per micro-batch: the weights are read once, and sent if another device computes."""
    reads = place.reads
    size = reads.held_bytes - reads.held_experts_bytes + reads.experts_read_by(batch)
    seconds = size / _weights_rate(run, worker, values)
    if worker is not place and not worker.unified:
        seconds += size / (values["link_gb_per_s"] * GB)
    return seconds + reads.layers * values.product("prompt_layer_us", worker.backend) * MICRO


def _pipelined(cards: int, micro_batches: float) -> float:
    """How much faster cards are that work on the micro-batches of a batch in turn, like a pipeline."""
    return max(1.0, cards * micro_batches / (micro_batches + cards - 1)) if cards > 1 else 1.0


def attention_flops(geometry: ModelGeometry, tokens: int) -> float:
    """Operations of one token that attends to `tokens` others: scores and values of every head."""
    total = 0.0
    for layer in geometry.layers:
        attention = attention_of(layer.mixer)
        if attention is None:
            continue
        span = attention.span_tokens if attention.span is not Span.ALL else tokens
        width = attention.key_dim + attention.value_dim
        if isinstance(attention, LatentAttention) and attention.absorbed:
            width = 2 * attention.latent_dim + attention.rope_dim
        total += 2.0 * attention.heads * width * min(tokens, span or tokens)
    return total
