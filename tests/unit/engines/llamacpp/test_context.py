"""Cells, batches and rows of logits: what llama_context makes of a load."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.recorded import engine_models

from edgekit.bill.types import (
    Load,
)
from edgekit.engines.llamacpp.context import resolve
from edgekit.engines.llamacpp.types import LlamaCppSetup, LlamaMode, Rules
from edgekit.errors import UsageError
from edgekit.model.types import Model

LIBRARY = LlamaCppSetup(rules=Rules.V0_5)
SERVER = LlamaCppSetup(mode=LlamaMode.SERVER, rules=Rules.V0_5)


def llama() -> Model:
    return engine_models()["llama-3.1-8b", "Q4_K_M"]  # 32 layers of 8 x 128 keys and values


def gemma() -> Model:
    return engine_models()["gemma-3-27b", "Q4_K_M"]  # sliding layers of 1024 tokens


def test_cells_of_each_sequence_are_padded_to_256() -> None:
    context = resolve(llama(), Load(context_tokens=5000, sequences=3), LIBRARY)
    assert (context.n_ctx_seq, context.n_ctx, context.kv_streams) == (1792, 3 * 1792, 3)


def test_batch_is_limited_by_the_requested_context_not_the_padded_one() -> None:
    context = resolve(llama(), Load(context_tokens=100), LIBRARY)
    assert (context.n_batch, context.n_ubatch, context.n_ctx) == (100, 100, 256)


def test_default_context_is_the_trained_one() -> None:
    assert resolve(llama(), Load(), LIBRARY).n_ctx == 131_072


def test_sliding_cells_are_the_window_plus_a_micro_batch() -> None:
    unified = resolve(gemma(), Load(context_tokens=32768, sequences=4, unified=True), LIBRARY)
    separate = resolve(gemma(), Load(context_tokens=32768, sequences=4), LIBRARY)
    assert unified.kv_swa_cells == 4 * 1024 + 512
    assert separate.kv_swa_cells == 1536  # 1024 + 512 in each of four streams
    full_window = Load(context_tokens=32768, full_window=True)
    assert resolve(gemma(), full_window, LIBRARY).kv_swa_cells == 32768


def test_server_has_four_sequences_in_one_cache_with_a_row_of_logits_each() -> None:
    context = resolve(llama(), Load(context_tokens=8192), SERVER)
    assert (context.n_seq_max, context.kv_streams, context.n_outputs) == (4, 1, 4)
    drafting = replace(SERVER, draft_max=6)
    assert resolve(llama(), Load(context_tokens=8192), drafting).n_outputs == 4 * 7


def test_embedding_server_has_a_batch_of_one_micro_batch() -> None:
    context = resolve(llama(), Load(context_tokens=8192), replace(SERVER, embeddings=True))
    assert context.n_batch == context.n_ubatch == 512


@pytest.mark.parametrize(
    "load", [Load(context_tokens=-1), Load(batch_tokens=2**40), Load(sequences=-3)], ids=repr
)
def test_impossible_numbers_of_a_load_are_usage_errors(load: Load) -> None:
    with pytest.raises(UsageError, match="is not between 0 and"):
        resolve(llama(), load, LIBRARY)
