"""Cells, batches and rows of logits: what llama_context makes of a load."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.recorded import engine_models

from edgekit.bill.types import (
    Load,
    cache_type,
)
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.context import resolve
from edgekit.engines.llamacpp.types import LlamaCppSetup, LlamaMode, Rules
from edgekit.errors import RefusedError, UsageError
from edgekit.model.types import Attention, Model

LIBRARY = LlamaCppSetup(rules=Rules.V0_5)


SERVER = LlamaCppSetup(mode=LlamaMode.SERVER, rules=Rules.V0_5)


def llama() -> Model:
    return engine_models()["llama-3.1-8b", "Q4_K_M"]  # 32 layers of 8 x 128 keys and values


def gemma() -> Model:
    return engine_models()["gemma-3-27b", "Q4_K_M"]  # windows of 1024


def deepseek() -> Model:
    return engine_models()["deepseek-v3", "Q4_K_M"]


def _with_heads(model: Model, **changes: Any) -> Model:
    """The same model with other heads in every layer."""
    layers = []
    for layer in model.geometry.layers:
        assert isinstance(layer.mixer, Attention)
        changed = replace(layer.mixer, **changes)
        layers.append(replace(layer, mixer=changed))
    return Model(header=model.header, geometry=replace(model.geometry, layers=tuple(layers)))


def test_cells_are_padded_to_256_and_rounded_up_for_each_sequence() -> None:
    context = resolve(llama(), Load(context_tokens=5000, sequences=3), LIBRARY)
    assert (context.n_ctx_seq, context.n_ctx, context.kv_streams) == (1792, 3 * 1792, 3)


def test_the_batch_is_cut_by_the_context_as_asked_for_not_as_padded() -> None:
    context = resolve(llama(), Load(context_tokens=100), LIBRARY)
    assert (context.n_batch, context.n_ubatch, context.n_ctx) == (100, 100, 256)


def test_no_context_means_the_trained_one() -> None:
    assert resolve(llama(), Load(), LIBRARY).n_ctx == 131_072


def test_a_window_takes_itself_and_a_micro_batch_for_all_sequences_that_share() -> None:
    shared = resolve(gemma(), Load(context_tokens=32768, sequences=4, unified=True), LIBRARY)
    alone = resolve(gemma(), Load(context_tokens=32768, sequences=4), LIBRARY)
    assert shared.kv_swa_cells == 4 * 1024 + 512
    assert alone.kv_swa_cells == 1536  # 1024 + 512, of each of four streams
    full = Load(context_tokens=32768, full_window=True)
    assert resolve(gemma(), full, LIBRARY).kv_swa_cells == 32768


def test_a_server_has_four_sequences_in_one_cache_and_a_row_of_logits_for_each() -> None:
    context = resolve(llama(), Load(context_tokens=8192), SERVER)
    assert (context.n_seq_max, context.kv_streams, context.n_outputs) == (4, 1, 4)
    drafting = replace(SERVER, draft_max=6)
    assert resolve(llama(), Load(context_tokens=8192), drafting).n_outputs == 4 * 7


def test_a_server_that_embeds_holds_the_batch_in_one_micro_batch() -> None:
    context = resolve(llama(), Load(context_tokens=8192), replace(SERVER, embeddings=True))
    assert context.n_batch == context.n_ubatch == 512


def test_a_block_that_does_not_divide_the_heads_is_refused() -> None:
    phi = engine_models()["phi-3-mini-4k", "Q4_K_M"]  # heads of 96
    llamacpp.estimate(phi, Load(context_tokens=4096, cache_k=cache_type("q8_0")), LIBRARY)
    narrow = _with_heads(phi, key_dim=80)
    with pytest.raises(
        RefusedError, match="block size 32 of K cache type q8_0 does not divide the head size 80"
    ):
        resolve(
            narrow,
            Load(context_tokens=4096, cache_k=cache_type("q8_0")),
            LIBRARY,
        )


@pytest.mark.parametrize(
    "load", [Load(context_tokens=-1), Load(batch_tokens=2**40), Load(sequences=-3)], ids=repr
)
def test_numbers_that_make_no_sense_are_usage_errors(load: Load) -> None:
    with pytest.raises(UsageError, match="is not between 0 and"):
        resolve(llama(), load, LIBRARY)
