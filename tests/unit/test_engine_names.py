"""tools/engine_names.py: what counts as a dependence on an engine's name, and what does not."""

from pathlib import Path

import pytest
from tools.engine_names import COMPARISON, TABLE, VALUE, dependences

IS_SETUP = "from edgekit.engines.vllm.types import Setup\ndef f(x): return isinstance(x, Setup)"
COUNTED = {
    'if engine == "vllm": ...': COMPARISON,
    'if question.engine != "llama.cpp": ...': COMPARISON,
    'if wanted in {"vllm", "mlx"}: ...': COMPARISON,
    'if wanted in frozenset({"vllm", "mlx"}): ...': COMPARISON,
    'if engine == "stream": ...': COMPARISON,
    'VLLM = "vllm"\ndef f(x): return x == VLLM': COMPARISON,
    'A, VLLM = "a", "vllm"\ndef f(x): return x == VLLM': COMPARISON,
    "from edgekit.names import MLX\ndef f(x): return x is MLX": COMPARISON,
    "from edgekit import names\ndef f(x): return x == names.MLX": COMPARISON,
    "from edgekit.engines import vllm\ndef f(x): return x.NAME == vllm.NAME": COMPARISON,
    "from edgekit.engines import vllm\ndef f(x): return x is vllm": COMPARISON,
    IS_SETUP: COMPARISON,
    'match engine:\n    case "mlx": ...': COMPARISON,
    'engine.startswith("vllm")': COMPARISON,
    'both[engine == "vllm"]': COMPARISON,
    'T = {"vllm": 1, "mlx": 2}': TABLE,
    'T = {"llama-server": 0, "vllm": 1}': TABLE,
    'ALWAYS = ("vllm", "mlx")': TABLE,
    'ALWAYS = frozenset({"vllm"})': TABLE,
    'T["mlx"] = 3': TABLE,
    'T.get("llama.cpp", {})': TABLE,
    'def f(engine="llama.cpp"): ...': VALUE,
    'engine_named("vllm")': VALUE,
    'engine = requested or "llama.cpp"': VALUE,
}
NOT_COUNTED = (
    '"""vllm"""',
    'print("vllm and mlx")',
    'NAME = "llama"\nprint(f"{NAME}")',
    'if shard.format == "mlx": ...',
    'if (method or "").lower() == "mlx": ...',
    'body = {**fields, "stream": True}',
    'answer = {"native": 8192, "longest": 4096}',
    'body.get("stream")',
    'words = ["vllm", "serve", name]',
)
SCRIPTS = {
    'if (engine === "vllm") f();': COMPARISON,
    'if ("mlx" !== engine) f();': COMPARISON,
    'const VLLM = "vllm";\nf(engine === VLLM);': COMPARISON,
    'switch (x) { case "mlx": f(); }': COMPARISON,
    '["vllm", "mlx"].includes(engine);': COMPARISON,
    'engine.startsWith("vllm");': COMPARISON,
    'const T = { "llama.cpp": 1, vllm: 2 };': TABLE,
    "const T = { mlx: 1, stream: 2 };": TABLE,
    'new Set(["llama.cpp", "stream"]);': TABLE,
    'new Map([["vllm", 1]]);': TABLE,
    'T.get("vllm");': TABLE,
    'T["vllm"];': TABLE,
    "T.vllm;": TABLE,
    'verdictWord(status, "vllm");': VALUE,
}
SCRIPTS_NOT_COUNTED = (
    '// engine === "vllm"',
    '/* { vllm: 1 } */ "vllm and mlx";',
    "const body = { stream: true };",
    'const rows = [[native, "native"], [largest, "largest"]];',
)


def kinds_in(folder: Path, name: str, text: str, *, strict: bool = False) -> set[str]:
    for path, content in {
        "names.py": 'MLX = "mlx"',
        "engines/vllm/types.py": "class Setup: ...",
        "engines/vllm/__init__.py": 'NAME = "vllm"',
        name: text,
    }.items():
        file = folder / "src" / "edgekit" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text if path == name else content)
    return {
        dependence.kind
        for dependence in dependences(folder, strict=strict)
        if dependence.path == name
    }


@pytest.mark.parametrize("text", COUNTED)
def test_dependences_finds_engine_names_in_python(tmp_path: Path, text: str) -> None:
    assert COUNTED[text] in kinds_in(tmp_path, "plan/one.py", text)


@pytest.mark.parametrize("text", NOT_COUNTED)
def test_dependences_ignores_other_uses_of_the_words(tmp_path: Path, text: str) -> None:
    assert kinds_in(tmp_path, "plan/one.py", text) == set()


@pytest.mark.parametrize("text", COUNTED)
def test_dependences_ignores_the_folder_of_the_engine(tmp_path: Path, text: str) -> None:
    assert kinds_in(tmp_path, "engines/vllm/one.py", text) == set()


@pytest.mark.parametrize(
    ("path", "text", "kinds"),
    [
        ("engines/one.py", 'if engine == "vllm": ...', {COMPARISON}),
        ("engines/mlx/one.py", 'if engine == "vllm": ...', {COMPARISON}),
        ("engines/vllm/one.py", 'if engine == "vllm": ...', set()),
        ("engines/llamacpp/one.py", 'if engine == "llama.cpp": ...', set()),
        ("engines/native/one.py", 'if engine == "stream": ...', set()),
        ("engines/vllm/one.py", IS_SETUP, set()),
        ("engines/mlx/one.py", IS_SETUP, {COMPARISON}),
    ],
)
def test_strict_dependences_allow_an_engine_its_own_name_only(
    tmp_path: Path, path: str, text: str, kinds: set[str]
) -> None:
    assert kinds_in(tmp_path, path, text, strict=True) == kinds


@pytest.mark.parametrize("text", SCRIPTS)
def test_dependences_finds_engine_names_in_scripts(tmp_path: Path, text: str) -> None:
    assert SCRIPTS[text] in kinds_in(tmp_path, "web/pages/one.js", text)


@pytest.mark.parametrize("text", SCRIPTS_NOT_COUNTED)
def test_dependences_ignores_comments_and_fields_in_scripts(tmp_path: Path, text: str) -> None:
    assert kinds_in(tmp_path, "web/pages/one.js", text) == set()
