"""A small language model as mlx-lm reads it: a folder with a config, weights, a tokenizer and a chat template."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "and",
    "then",
    "it",
    "sleeps",
    "in",
    "the",
    "sun",
    "user",
    "assistant",
    "system",
]
SPECIAL = ["<unk>", "<s>", "</s>"]
HIDDEN, LAYERS, HEADS, KV_HEADS, FEED_FORWARD, VOCABULARY = 64, 2, 2, 1, 128, 320
TEMPLATE = (
    "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def write_small_model(folder: Path) -> Path:
    """A random Llama with two layers. It answers with any words."""
    import numpy as np
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "intermediate_size": FEED_FORWARD,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    names = {"model.embed_tokens": (VOCABULARY, HIDDEN), "lm_head": (VOCABULARY, HIDDEN)}
    kv = HIDDEN // HEADS * KV_HEADS
    for layer in range(LAYERS):
        block = f"model.layers.{layer}"
        names |= {
            f"{block}.self_attn.q_proj": (HIDDEN, HIDDEN),
            f"{block}.self_attn.k_proj": (kv, HIDDEN),
            f"{block}.self_attn.v_proj": (kv, HIDDEN),
            f"{block}.self_attn.o_proj": (HIDDEN, HIDDEN),
            f"{block}.mlp.gate_proj": (FEED_FORWARD, HIDDEN),
            f"{block}.mlp.up_proj": (FEED_FORWARD, HIDDEN),
            f"{block}.mlp.down_proj": (HIDDEN, FEED_FORWARD),
        }
    random = np.random.default_rng(7)
    tensors = {
        f"{name}.weight": (random.standard_normal(shape) * 0.1).astype(np.float16)
        for name, shape in names.items()
    }
    norms = ["model.norm"]
    for layer in range(LAYERS):
        norms += [
            f"model.layers.{layer}.{name}"
            for name in ("input_layernorm", "post_attention_layernorm")
        ]
    tensors |= {f"{name}.weight": np.ones(HIDDEN, np.float16) for name in norms}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokens = [*SPECIAL, *dict.fromkeys(WORDS)]
    tokens += [f"w{number}" for number in range(VOCABULARY - len(tokens))]
    tokenizer = Tokenizer(
        models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    return folder
