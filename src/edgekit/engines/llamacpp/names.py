"""The architectures llama.cpp has: llama-arch.cpp (LLM_ARCH_NAMES) of 0c1e570 and b11549."""

from __future__ import annotations

_NAMES = (
    "afmoe apertus arcee arctic arwkv7 baichuan bailingmoe bailingmoe2 bailingmoe3 bert bitnet "
    "bloom chameleon chatglm clef codeshell cogvlm cohere2 cohere2moe command-r dbrx deci deepseek "
    "deepseek2 deepseek2-ocr deepseek32 deepseek4 dflash dots1 dots3note dream eagle3 ernie4_5 "
    "ernie4_5-moe eurobert exaone exaone-moe exaone4 falcon falcon-h1 gemma gemma-embedding gemma-embedding2 "
    "gemma2 gemma3 gemma3n gemma4 gemma4-assistant glm-dsa glm4 glm4moe glm5-next gpt-oss gpt2 "
    "gptj gptneox granite granite_swa granitehybrid granitemoe graniteswitch grok grovemoe "
    "hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 hy_v4 internlm2 jais jais2 jamba "
    "jina-bert-v2 jina-bert-v3 k2-horizon kimi-k3 kimi-linear laguna lfm2 lfm2moe llada llada-moe llama "
    "llama-embed llama4 maincoder mamba mamba2 maple mellum mimo2 minicpm minicpm3 minimax-01 "
    "minimax-m2 minimax-m3 mistral3 mistral4 modern-bert mpt muse-glimmer nanbeige nemotron "
    "nemotron_h nemotron_h_moe neo-bert nomic-bert nomic-bert-moe olmo olmo2 olmoe openelm orion "
    "paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo2 plamo3 plm pockettts qwen qwen2 "
    "qwen2moe qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next qwen3tts qwen3vl qwen3vlmoe "
    "qwen4exp refact rnd1 rwkv6 rwkv6qwen2 rwkv7 seed_oss smallthinker smollm3 spark2_5 stablelm "
    "starcoder starcoder2 step35 t5 t5encoder talkie wavtokenizer-dec xverse"
)
ARCHITECTURES = frozenset(_NAMES.split())
# Those that came after April 2026, with their first build. After b10586: the first build that was looked at.
FIRST_BUILDS = {
    "hunyuan_vl": 8885,
    "talkie": 9337,
    "deepseek32": 9411,
    "mellum": 9482,
    "gemma4-assistant": 9549,
    "eagle3": 9606,
    "cohere2moe": 9626,
    "dflash": 9831,
    "deepseek4": 9840,
    "hy_v3": 9993,
    "laguna": 10087,
    "minimax-m3": 10135,
    "nanbeige": 10153,
    "qwen3tts": 10270,
    "graniteswitch": 10342,
    "muse-glimmer": 10349,
    "pockettts": 10369,
    "minimax-01": 10437,
    "kimi-k3": 10448,
    "bailingmoe3": 10460,
    "granite_swa": 10514,
    "dots3note": 10569,
    "qwen4exp": 10809,
    "hrm_text": 11063,
    "hy_v4": 11063,
    "maple": 11063,
    "spark2_5": 11063,
    "glm5-next": 11064,
    "clef": 11065,
    "gemma-embedding2": 11065,
    "k2-horizon": 11065,
}
