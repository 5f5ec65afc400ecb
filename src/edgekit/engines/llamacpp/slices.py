"""-sm tensor: which slice of a weight or a cache each device holds; -sm row: which rows of a matrix.

Follows llama_meta_device_get_split_state of llama-model.cpp @ b11549. Tensors that are not sliced are complete on every
device.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import lcm, prod

from edgekit.engines.llamacpp.architectures import known_architecture
from edgekit.formats.types import Tensor
from edgekit.model.types import (
    Attention,
    CachedLayer,
    LayerKind,
    Model,
    Recurrent,
    Span,
    attention_of,
)

LANES = 128  # kernels need slices that are multiples of this

# Name of a weight in a block -> the axis it is sliced along, and the rule for the slice sizes.
_RULES = tuple(
    (re.compile(rf"blk\.\d*\.{pattern}"), axis, kind)
    for pattern, axis, kind in (
        (r"attn_(q|k|v|v_exps)\.weight", 1, "attention"),
        (r"attn_(q|k|v)\.bias", 0, "attention"),
        (r"attn_qkv\.weight", 1, "attention"),
        (r"attn_qkv\.bias", 0, "attention"),
        (r"attn_(q|k)_norm\.weight", 1, "norm"),
        (r"attn_sinks\.weight", 0, "attention"),
        (r"attn_output\.weight", 0, "attention"),
        (r"attn_gate\.weight", 1, "attention"),
        (r"(ssm_dt\.bias|ssm_a)", 0, "recurrence"),
        (r"ssm_(alpha|beta|ba)\.weight", 1, "recurrence"),
        (r"ssm_conv1d\.weight", 1, "recurrence"),
        (r"ssm_out\.weight", 0, "recurrence"),
        (r"ffn_(up|gate|gate_up)(_exps)?\.weight", 1, "ffn"),
        (r"ffn_(up|gate)(_exps)?\.bias", 0, "ffn"),
        (r"ffn_down(_exps)?\.weight", 0, "ffn"),
    )
)


@dataclass(frozen=True, slots=True)
class _Part:
    """`times` runs of `elements`, each divided at multiples of `grain`."""

    elements: int
    times: int
    grain: int


class Slicer:
    """Divides a model's tensors and caches among devices. `split`: the devices' shares; empty if they are equal."""

    def __init__(self, model: Model, devices: int, split: tuple[float, ...]) -> None:
        self.devices = devices
        self.split = (*split[:devices], *[0.0] * (devices - len(split))) if split else ()
        self.architecture = model.geometry.architecture
        self.mixers = [layer.mixer for layer in model.geometry.layers]
        self.tensors = {tensor.name: tensor for tensor in model.header.tensors or ()}
        # For each layer, the number of earlier layers of its kind: the division starts one device later each time.
        self.earlier_layers: list[int] = []
        counts = Counter[tuple[bool, bool]]()
        for mixer in self.mixers:
            sliding = any(stream.span is not Span.ALL for stream in mixer.streams)
            kind = isinstance(mixer, Recurrent), sliding
            self.earlier_layers.append(counts[kind])
            counts[kind] += 1

    def weights(self, tensor: Tensor, block: int | None) -> list[Tensor]:
        """The slice of a weight on each device."""
        axis, parts = self._parts(tensor, block)
        if axis is None:
            return [tensor] * self.devices
        sizes = self._divide(parts, self._first_device(block))
        return [_slice_of(tensor, axis, size) for size in sizes]

    def rows(self, tensor: Tensor) -> list[Tensor]:
        """-sm row: the rows of a matrix on each device; empty for tensors that are not divided."""
        if len(tensor.shape) != 2 or tensor.name.endswith((".ssm_a", ".ssm_conv1d.weight")):
            return []
        sizes = self._divide([_Part(tensor.shape[0], 1, LANES)], first_device=0)
        return [_slice_of(tensor, 1, size) for size in sizes]

    def cache_slices(self, mixer: LayerKind, block: int) -> list[LayerKind]:
        """The caches and states of a layer on each device."""
        facts = known_architecture(self.architecture)
        if facts.mirrored_caches:
            return [mixer] * self.devices
        first_device, attention = self._first_device(block), attention_of(mixer)
        streams, states = [], []
        for stream in mixer.streams:
            sizes = [stream.elements] * self.devices
            if stream.name in {"k", "v"} and isinstance(attention, Attention):
                _, keys, values = self._grains(attention, block)
                grain = keys if stream.name == "k" else values
                sizes = self._divide([_Part(stream.elements, 1, grain)], first_device)
            streams.append([replace(stream, elements=size) for size in sizes])
        for state in mixer.states:
            sizes = [state.elements] * self.devices
            if isinstance(mixer, Recurrent) and not facts.mirrored_states:
                is_conv = state.name == "conv"
                taps = max(1, mixer.conv_kernel - 1) if is_conv else mixer.state_size
                parts = [replace(part, elements=part.elements * taps, grain=part.grain * taps)
                         for part in self._delta_parts(mixer, block, has_qkv=is_conv)]  # fmt: skip
                sizes = self._divide(parts, first_device)
            states.append([replace(state, elements=size) for size in sizes])
        return [
            CachedLayer(
                tuple(slices[device] for slices in streams),
                tuple(slices[device] for slices in states),
            )
            for device in range(self.devices)
        ]

    def _parts(self, tensor: Tensor, block: int | None) -> tuple[int | None, list[_Part]]:
        """The axis that a tensor is divided along, and its parts on that axis; no axis if it is not divided."""
        if tensor.name in {"output.weight", "output.bias"} and self.architecture != "deepseek4":
            axis = 1 if tensor.name.endswith("weight") else 0
            return axis, [_Part(_axis_length(tensor, axis), 1, 1)]
        matches = ((axis, kind) for rule, axis, kind in _RULES if rule.fullmatch(tensor.name))
        axis, kind = next(matches, (0, ""))
        if block is None or not kind or self.architecture == "hrm_text":
            return None, []
        if kind == "norm" and len(tensor.shape) < 2:
            return None, []
        length = _axis_length(tensor, axis)
        mixer = self.mixers[min(block, len(self.mixers) - 1)]
        name = tensor.name.split(".", 2)[2]
        if kind == "ffn":
            down = self._find_tensor(block, "ffn_down.weight", "ffn_down_exps.weight")
            grain = lcm(down.type.block_elements if down else 1, LANES)
            fused = name.startswith("ffn_gate_up") or (
                name.startswith("ffn_up") and down is not None and length == 2 * down.shape[-1]
            )
            return axis, [_Part(length // 2, 2, grain) if fused else _Part(length, 1, grain)]
        if isinstance(mixer, Recurrent):
            has_qkv = name.startswith(("attn_qkv", "ssm_conv"))
            parts = self._delta_parts(mixer, block, has_qkv=has_qkv)
            if name.startswith(
                ("ssm_dt", "ssm_a", "ssm_beta", "ssm_ba")
            ):  # per head, not per channel
                values = 2 if name.startswith("ssm_ba") else 1  # beta and alpha, fused
                parts = [replace(part, elements=values * part.elements // mixer.state_size,
                                 grain=values * part.grain // mixer.state_size)
                         for part in parts]  # fmt: skip
            return axis, parts
        attention = attention_of(mixer)
        if not isinstance(attention, Attention):
            return None, []
        return axis, self._attention_parts(attention, block, length, name)

    def _attention_parts(
        self, attention: Attention, block: int, length: int, name: str
    ) -> list[_Part]:
        """The parts of a weight of attention. `length`: of the axis that is divided; `name`: without block number."""
        query_grain, key_grain, value_grain = self._grains(attention, block)
        heads_grain = query_grain // attention.key_dim
        query_width = attention.heads * attention.key_dim
        has_gate = known_architecture(
            self.architecture
        ).delta_net  # attn_q and attn_qkv then hold a gate for each query
        if has_gate and name.startswith(("attn_q.", "attn_qkv")):
            query_width, query_grain = 2 * query_width, 2 * query_grain
        if name.startswith("attn_qkv"):
            return [
                _Part(query_width, 1, query_grain),
                _Part(attention.kv_heads * attention.key_dim, 1, key_grain),
                _Part(attention.kv_heads * attention.value_dim, 1, value_grain),
            ]
        grains = {
            "attn_k": key_grain,
            "attn_v": value_grain,
            "attn_v_exps": value_grain,
            "attn_sinks": heads_grain,
            "attn_output": heads_grain * attention.value_dim,
            "attn_gate": heads_grain if length == attention.heads else query_grain,
            "attn_q_norm": 1,
            "attn_k_norm": 1,
        }
        return [_Part(length, 1, grains.get(name.split(".", 1)[0], query_grain))]

    def _grains(self, attention: Attention, block: int) -> tuple[int, int, int]:
        """What slices of Q, K and V are multiples of: whole heads, and whole blocks of the output matrix."""
        out = self._find_tensor(block, "attn_output.weight", "ssm_out.weight")
        heads_per_kv_head = attention.heads // max(1, attention.kv_heads)
        # Of all queries that share one KV head.
        kv_head_width = heads_per_kv_head * attention.key_dim
        block_grain = out.type.block_elements if out else 1
        while block_grain < LANES and block_grain * self.devices < kv_head_width:
            block_grain *= 2
        query_grain = lcm(kv_head_width, block_grain)
        key_grain = query_grain // max(1, heads_per_kv_head)
        return query_grain, key_grain, key_grain // attention.key_dim * attention.value_dim

    def _delta_parts(self, mixer: Recurrent, block: int, *, has_qkv: bool) -> list[_Part]:
        """The parts of a gated delta net's tensor: Q, K and V, or only V without `has_qkv`."""
        out = self._find_tensor(block, "ssm_out.weight")
        width = max(1, mixer.state_size)
        grain = lcm(out.type.block_elements if out else 1, LANES, width)
        keys, values = width * mixer.groups, width * mixer.heads
        if self.architecture == "qwen3next":
            value_part = _Part(values, 1, grain)
            return [_Part(keys, 2, grain), value_part] if has_qkv else [value_part]
        value_runs = mixer.heads // max(1, mixer.groups)  # V is a multiple of the width of K
        return [_Part(keys, value_runs + 2 if has_qkv else value_runs, grain)]

    def _find_tensor(self, block: int, *names: str) -> Tensor | None:
        """The first of these tensors that the block has."""
        tensors = (self.tensors.get(f"blk.{block}.{name}") for name in names)
        return next((tensor for tensor in tensors if tensor is not None), None)

    def _first_device(self, block: int | None) -> int:
        """The device that a block's division starts with."""
        if block is None:
            return len(self.mixers) % self.devices
        layer = min(block, len(self.earlier_layers) - 1)
        return self.earlier_layers[layer] % self.devices

    def _divide(self, parts: Iterable[_Part], first_device: int) -> list[int]:
        """The number of elements on each device. The last device takes the remainders; because the first one rotates
        layer by layer, so does the last.
        """
        sizes = [0] * self.devices
        order = [(first_device + index) % self.devices for index in range(self.devices)]
        shares = [self.split[device] for device in order] if self.split else [1.0] * self.devices
        for part in parts:
            start = 0
            for index, device in enumerate(order):
                end = part.elements
                if index < self.devices - 1:
                    end = int(part.elements * sum(shares[: index + 1]) / sum(shares))
                    end -= end % part.grain
                sizes[device] += (end - start) * part.times
                start = end
        return sizes


def _axis_length(tensor: Tensor, axis: int) -> int:
    """The length of a ggml axis; axes count from the innermost dimension."""
    return tensor.shape[-1 - axis] if axis < len(tensor.shape) else 1


def _slice_of(tensor: Tensor, axis: int, length: int) -> Tensor:
    """The tensor with this length along a ggml axis."""
    shape = list(tensor.shape)
    shape[-1 - axis] = length
    size = prod(shape) // tensor.type.block_elements * tensor.type.block_bytes
    return replace(tensor, shape=tuple(shape), size_bytes=size)
