"""inspect_model: roles of tensors, active weights, tied embeddings, and the size of caches."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.calls import calls_of
from tests.hub.hub_files import tensors_header
from tests.recorded import gguf_files, header_bytes, model_header, models

from edgekit.formats.dtype import by_name
from edgekit.formats.types import Depth, Tensor
from edgekit.model import Role, read_geometry, roles_of
from edgekit.model.inspect import _with_recurrence, inspect_model
from edgekit.report.inspection import inspection_text
from edgekit.units import Basis

MOE = {
    "model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "head_dim": 4,
    "num_key_value_heads": 1, "num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 4, "vocab_size": 10,
    "max_position_embeddings": 64, "intermediate_size": 16,
}  # fmt: skip


def tensor(name: str) -> Tensor:
    return Tensor(name=name, type=by_name("F16"), shape=(2,), size_bytes=4, offset=0)


def write_model(folder: Path, config: dict[str, Any], shapes: dict[str, list[int]]) -> str:
    tensors = {}
    for name, shape in shapes.items():
        elements = 1
        for dimension in shape:
            elements *= dimension
        tensors[name] = ("F16", shape, 2 * elements)
    header = tensors_header(tensors)
    (folder / "config.json").write_text(json.dumps(config))
    weights = sum(size for _, _, size in tensors.values())
    (folder / "model.safetensors").write_bytes(header + bytes(weights))
    return str(folder)


@pytest.mark.parametrize(
    ("names", "role"),
    [
        (["blk.0.ffn_up_exps.weight", "model.layers.1.mlp.experts.7.up_proj.weight", "model.layers.0.mlp.switch_mlp.up_proj.weight",
          "model.layers.0.block_sparse_moe.experts.1.w1.weight", "model.layers.0.block_sparse_moe.input_linear.weight",
          "model.layers.3.mlp.experts.gate_up_proj_blocks"], Role.EXPERTS),
        (["blk.0.ffn_gate_inp.weight", "model.layers.1.mlp.gate.weight", "model.layers.0.block_sparse_moe.gate.weight",
          "model.layers.0.mlp.router.weight"], Role.ROUTER),
        (["output.weight", "lm_head.weight", "thinker.lm_head.weight", "embed_out.weight", "head.weight",
          "transformer.output_layer.weight"], Role.OUTPUT),
        (["token_embd.weight", "model.embed_tokens.weight", "transformer.wte.weight", "per_layer_token_embd.weight"],
         Role.EMBEDDING),
        (["blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight", "h.1.attn.c_attn.weight",
          "transformer.h.0.self_attention.query_key_value.weight", "encoder.layer.1.attention.self.query.weight"],
         Role.ATTENTION),
        (["blk.0.ffn_up.weight", "model.layers.0.mlp.down_proj.weight", "blk.1.ffn_up_shexp.weight",
          "model.layers.0.mlp.shared_expert.up_proj.weight", "encoder.layer.0.intermediate.dense.weight"], Role.FEED_FORWARD),
        (["blk.0.attn_norm.weight", "model.norm.weight", "model.layers.0.input_layernorm.weight", "h.0.ln_1.weight"],
         Role.NORM),
        (["blk.0.ssm_in.weight", "model.layers.0.linear_attn.in_proj_qkvz.weight", "backbone.layers.0.mixer.in_proj.weight",
          "model.layers.0.mamba.A_log", "blk.3.shortconv.conv.weight"], Role.RECURRENT),
        (["visual.blocks.0.attn.qkv.weight", "vision_tower.vision_model.encoder.layers.30.mlp.fc1.weight",
          "v.blk.0.attn_q.weight", "vpm.encoder.layers.40.self_attn.q_proj.weight"], Role.TOWER),
    ],
)  # fmt: skip
def test_roles_of_tensor_names(names: list[str], role: Role) -> None:
    assert roles_of([tensor(name) for name in names], layers=28) == (role,) * len(names)


def test_blocks_after_the_last_layer_are_mtp() -> None:
    names = [
        "model.layers.61.mlp.experts.0.up_proj.weight",
        "blk.61.nextn.eh_proj.weight",
        "mtp.layers.0.mlp.gate.weight",
    ]
    assert set(roles_of([tensor(name) for name in names], layers=61)) == {Role.MTP}


def test_roles_of_many_names_take_linear_time() -> None:
    """A real file has a few hundred patterns of names, a malicious one as many as tensors.

    Twice as many must take about twice the work, not four times.
    """
    letters = "abcdefghijklmnopqrstuvwxyz"

    def tensors(count: int) -> list[Tensor]:
        names = (
            "".join(letters[(i >> shift) % 26] for shift in range(240)) + letters[i % 26]
            for i in range(count)
        )
        return [
            tensor(f"{i:x}{name}".translate(str.maketrans("0123456789", "ghijklmnop")))
            for i, name in enumerate(names)
        ]

    fewer, more = (calls_of(partial(roles_of, tensors(count))) for count in (2_000, 4_000))
    assert more < 2.5 * fewer


@pytest.mark.parametrize(
    "name", ["mlp.experts.{e}.up_proj.weight", "mlp.switch_mlp.up_proj.weight"]
)
def test_active_weights_exclude_idle_experts_mtp_and_towers(name: str, tmp_path: Path) -> None:
    shapes: dict[str, list[int]] = {
        "model.embed_tokens.weight": [10, 8],
        "visual.patch.weight": [6, 6],
    }
    for layer in (0, 1, 2):  # layer 2 is an MTP block
        if "{e}" in name:
            shapes |= {f"model.layers.{layer}.{name.format(e=e)}": [4, 8] for e in range(4)}
        else:
            shapes[f"model.layers.{layer}.{name}"] = [4, 4, 8]
    inspection = inspect_model(write_model(tmp_path, MOE, shapes))
    assert inspection.weights is not None
    assert inspection.weights.total == 10 * 8 + 6 * 6 + 3 * 4 * 4 * 8
    assert inspection.weights.active == 10 * 8 + 2 * 1 * 4 * 8


def test_active_weights_are_unknown_if_experts_are_not_recognised(tmp_path: Path) -> None:
    inspection = inspect_model(
        write_model(tmp_path, MOE, {"model.embed_tokens.weight": [10, 8], "blob": [999]})
    )
    assert inspection.weights is not None
    assert (inspection.weights.total, inspection.weights.active) == (10 * 8 + 999, None)


@pytest.mark.parametrize(
    ("stated", "names", "tied"),
    [
        (True, ["lm_head.weight"], True),
        (False, ["model.embed_tokens.weight"], False),
        (None, ["thinker.lm_head.weight"], False),
        (None, ["model.embed_tokens.weight"], True),
        ("false", ["lm_head.weight"], False),
    ],
)
def test_tied_embeddings_of_config_and_tensor_names(
    stated: object, names: list[str], tmp_path: Path, *, tied: bool
) -> None:
    config = MOE if stated is None else {**MOE, "tie_word_embeddings": stated}
    inspection = inspect_model(write_model(tmp_path, config, {name: [10, 8] for name in names}))
    assert inspection.geometry is not None
    assert inspection.geometry.tied_embeddings is tied


def test_full_context_bytes_of_full_and_sliding_layers() -> None:
    inspection = inspect_model("sample:gemma-3-27b")
    full, sliding = 10 * 2 * 16 * 128, 52 * 2 * 16 * 128
    assert inspection.full_context_bytes == 2 * (131_072 * full + 1_024 * sliding)


def test_full_context_bytes_of_a_mamba_model_are_its_states(tmp_path: Path) -> None:
    config = {
        **MOE,
        "model_type": "mamba2",
        "conv_kernel": 4,
        "state_size": 4,
        "n_groups": 1,
        "num_heads": 4,
        "head_dim": 4,
    }
    inspection = inspect_model(
        write_model(tmp_path, config, {"backbone.embeddings.weight": [10, 8]})
    )
    assert (
        inspection.full_context_bytes
        == inspection.state_bytes
        == 4 * 2 * (3 * (16 + 2 * 4) + 4 * 16)
    )


def test_projections_of_recurrent_layers_are_not_attention() -> None:
    names = ["blk.0.attn_qkv.weight", "blk.3.attn_q.weight", "blk.0.ssm_out.weight"]
    index = next(i for i, m in enumerate(models()) if m["model"] == "qwen3-next-80b-a3b")
    header = model_header(index)
    geometry = read_geometry(header)
    named = replace(header, tensors=tuple(tensor(name) for name in names))
    roles = _with_recurrence(named, geometry.layers, roles_of(named.tensors or (), layers=48))
    assert roles == (Role.RECURRENT, Role.ATTENTION, Role.RECURRENT)


def test_inspect_model_accepts_a_path_and_has_a_short_repr(tmp_path: Path) -> None:
    write_model(tmp_path, MOE, {"model.embed_tokens.weight": [10, 8]})
    assert inspect_model(tmp_path).header.tensor_count == 1
    assert len(repr(inspect_model(tmp_path))) < 1_000


def test_parameters_stated_by_the_index_count_until_tensors_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**MOE, "vocab_size": None}))
    index = {
        "metadata": {"total_size": 8, "total_parameters": 744},
        "weight_map": {"a": "model.safetensors"},
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    data = tensors_header({"a": ("F16", [4], 8)}) + bytes(8)
    (tmp_path / "model.safetensors").write_bytes(data)
    architecture = inspect_model(tmp_path, depth=Depth.ARCHITECTURE).weights
    assert architecture is not None
    assert (architecture.total, architecture.basis) == (744, Basis.EXACT)
    assert (architecture.active, architecture.active_basis) == (None, Basis.MODELLED)
    weights = inspect_model(tmp_path).weights
    assert weights is not None
    assert weights.total == 4


def test_window_wider_than_the_context_is_limited_to_the_context(tmp_path: Path) -> None:
    config = {**MOE, "model_type": "mistral", "sliding_window": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = inspection_text(inspect_model(tmp_path))
    assert "2 sliding window 4,096" in text
    assert "at most 2.00 KiB" in text  # 64 tokens x 2 layers x (4 + 4) elements x 2 bytes


def test_inspection_text_names_the_pooling_of_an_encoder() -> None:
    index = next(i for i, m in enumerate(models()) if m["model"] == "all-minilm-l6-v2")
    files = gguf_files(
        "minilm",
        header_bytes(models()[index]["header_without_vocabulary"]),
        models()[index]["data_section_bytes"],
    )
    result = replace(
        inspect_model("sample:gemma-3-27b"),
        files=files,
        header=model_header(index),
        geometry=read_geometry(model_header(index)),
        cache=(),
    )
    assert "an encoder, pooling mean" in inspection_text(result)
