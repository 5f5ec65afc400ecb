"""TABLE of the model classes that vLLM 0.32.0 has, and of those it had (model_executor/models/registry.py)."""

from __future__ import annotations

from collections.abc import Mapping


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


HAS = frozenset(
    _words("""
        AfmoeForCausalLM ApertusForCausalLM AXK1ForCausalLM BailingMoeForCausalLM
        BailingMoeV2ForCausalLM BailingMoeV2_5ForCausalLM BailingMoeV3ForCausalLM BloomForCausalLM
        ChatGLMModel ChatGLMForConditionalGeneration CohereForCausalLM Cohere2ForCausalLM
        Cohere2MoeForCausalLM DbrxForCausalLM DeciLMForCausalLM DeepseekForCausalLM
        DeepseekV2ForCausalLM DeepseekV3ForCausalLM DeepseekV32ForCausalLM DeepseekV4ForCausalLM
        Ernie4_5ForCausalLM Ernie4_5_MoeForCausalLM ExaoneForCausalLM Exaone4ForCausalLM
        ExaoneMoeForCausalLM ExaoneMoEForCausalLM FalconForCausalLM FalconMambaForCausalLM
        FalconH1ForCausalLM GemmaForCausalLM Gemma2ForCausalLM Gemma3ForCausalLM Rnj1ForCausalLM
        Gemma3nForCausalLM Gemma4ForCausalLM Qwen3NextForCausalLM Qwen4ExpForCausalLM
        Glm4ForCausalLM Glm4MoeForCausalLM Glm4MoeLiteForCausalLM GlmMoeDsaForCausalLM
        Glm5NextForCausalLM GptOssForCausalLM GPT2LMHeadModel GPTJForCausalLM GraniteForCausalLM
        GraniteMoeForCausalLM GraniteMoeHybridForCausalLM GraniteMoeSharedForCausalLM
        GraniteMoeSWAForCausalLM GraniteSWAForCausalLM HrmTextForCausalLM HYV3ForCausalLM
        HYV4ForCausalLM HyperCLOVAXForCausalLM InternLM2ForCausalLM InternLM3ForCausalLM
        IQuestCoderForCausalLM IQuestLoopCoderForCausalLM JambaForCausalLM K2HorizonForCausalLM
        KimiLinearForCausalLM Lfm2ForCausalLM Lfm2MoeForCausalLM LagunaForCausalLM LlamaForCausalLM
        Llama4ForCausalLM LLaMAForCausalLM LongcatFlashForCausalLM LongcatFlashNgramForCausalLM
        MambaForCausalLM Mamba2ForCausalLM MiniCPMForCausalLM MiniCPM3ForCausalLM
        MiniMaxM2ForCausalLM MiniMaxM3SparseForCausalLM InklingForCausalLM
        InklingForConditionalGeneration Ministral3ForCausalLM MistralForCausalLM
        MistralLarge3ForCausalLM MixtralForCausalLM MiMoForCausalLM MiMoV2FlashForCausalLM
        MiMoV2ForCausalLM NemotronForCausalLM NemotronHForCausalLM NemotronHPuzzleForCausalLM
        MuseGlimmerForCausalLM OlmoHybridForCausalLM OlmoeForCausalLM OPTForCausalLM
        OrionForCausalLM PanguEmbeddedForCausalLM PanguProMoEV2ForCausalLM PanguUltraMoEForCausalLM
        Param2MoEForCausalLM Phi3ForCausalLM PhiMoEForCausalLM Plamo3ForCausalLM Qwen2ForCausalLM
        Qwen2MoeForCausalLM Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen3_5ForCausalLM
        Qwen3_5MoeForCausalLM SarvamMoEForCausalLM SarvamMLAForCausalLM Step1ForCausalLM
        Step3TextForCausalLM Step3p5ForCausalLM StableLmForCausalLM SolarForCausalLM
        TeleChat2ForCausalLM TeleChat3ForCausalLM TeleFLMForCausalLM Zamba2ForCausalLM
        ArceeForCausalLM CwmForCausalLM FlexOlmoForCausalLM GlmForCausalLM GPTBigCodeForCausalLM
        GPTNeoXForCausalLM HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM Jais2ForCausalLM
        MellumForCausalLM NanbeigeForCausalLM OlmoForCausalLM Olmo2ForCausalLM Olmo3ForCausalLM
        PhiForCausalLM SeedOssForCausalLM SmolLM3ForCausalLM Starcoder2ForCausalLM
        VaultGemmaForCausalLM
    """)
)

# The last release that had it.
_DROPPED = (
    ("0.9.2", "Phi3SmallForCausalLM"),
    ("0.10.2", "MotifForCausalLM Phi4FlashForCausalLM MllamaForConditionalGeneration"),
    ("0.12.0", "Phi4MultimodalForCausalLM"),
    ("0.22.0", "JAISLMHeadModel"),
    (
        "0.23.0",
        (
            "QWenLMHeadModel QwenVLForConditionalGeneration InternLMForCausalLM InternLM2VEForCausalLM "
            "XverseForCausalLM Dots1ForCausalLM BambaForCausalLM MiniMaxForCausalLM "
            "MiniMaxText01ForCausalLM MiniMaxM1ForCausalLM MiniMaxVL01ForConditionalGeneration "
            "BaiChuanForCausalLM BaichuanForCausalLM"
        ),
    ),
    (
        "0.24.0",
        (
            "AquilaModel AquilaForCausalLM Grok1ModelForCausalLM Grok1ForCausalLM "
            "AyaVisionForConditionalGeneration"
        ),
    ),
    ("0.25.0", "TeleChatForCausalLM PersimmonForCausalLM FuyuForCausalLM"),
    ("0.26.0", "Plamo2ForCausalLM OuroForCausalLM"),
    (
        "0.28.0",
        (
            "ArcticForCausalLM ChameleonForConditionalGeneration MPTForCausalLM MptForCausalLM "
            "RWForCausalLM StableLMEpochForCausalLM GritLM"
        ),
    ),
)
DROPPED: Mapping[str, str] = {
    name: release for release, names in _DROPPED for name in _words(names)
}
