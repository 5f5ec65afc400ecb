"""Measure the structure of a checkout: dependences on engine names, and what one check parses, enters and imports.

    python tools/structure.py                        # this checkout
    python tools/structure.py --root ../other        # another one; its .venv is used if it has one
    python tools/structure.py --verbose              # with the places behind each figure
    python tools/structure.py --json

Every figure comes from the syntax trees, from the page's scripts or from one traced run, so it does not depend on where
a module is.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.engine_names import COMPARISON, FOLDERS, TABLE, VALUE, dependences, statements

CONTEXT = "8192"
SAMPLE, SIZE_BYTES = "gemma-3-27b*.gguf.head.gz", 16_539_892_544
CHECK = ("check", "model.gguf", "-c", CONTEXT, "--device", "RTX 4090", "--ram", "64G")
ENGINES = {  # how code names an engine: names, modules, classes and functions
    "llama.cpp": re.compile(r"llama.?cpp", re.IGNORECASE),
    "vllm": re.compile(r"vllm", re.IGNORECASE),
    "mlx": re.compile(r"(?<![a-z.])mlx", re.IGNORECASE),  # header.mlx is a file format
    "stream": re.compile(
        r"edgekit\.\w+\.(stream|native)\b|^_?STREAM|^StreamSetup|^_?stream_(options|budgets|ways)"
    ),
}
SPELLS_PARAMETERS = 5  # a file with at least 5 of these is a place that spells them
PARAMETERS = {  # of llama.cpp: its flags, its fields in C and in xllamacpp, and the keys of EdgeKit's REST and Python
    "context": ("-c", "--ctx-size", "n_ctx"),
    "batch": ("-b", "--batch-size", "n_batch"),
    "microbatch": ("-ub", "--ubatch-size", "n_ubatch"),
    "sequences": ("-np", "--parallel", "n_parallel", "n_seq_max"),
    "one cache": ("-kvu", "--kv-unified", "kv_unified"),
    "keys": ("-ctk", "--cache-type-k", "cache_type_k", "type_k"),
    "values": ("-ctv", "--cache-type-v", "cache_type_v", "type_v"),
    "flash attention": ("-fa", "--flash-attn", "flash_attn", "flash_attn_type"),
    "full window": ("--swa-full", "swa_full"),
    "layers": ("-ngl", "--n-gpu-layers", "--gpu-layers", "n_gpu_layers"),
    "experts": ("-ncmoe", "--n-cpu-moe", "n_cpu_moe"),
    "overrides": ("-ot", "--override-tensor", "override_tensor", "tensor_buft_overrides"),
    "shares": ("-ts", "--tensor-split", "tensor_split"),
    "split": ("-sm", "--split-mode", "split_mode"),
    "main card": ("-mg", "--main-gpu", "main_gpu"),
    "cache on the host": ("-nkvo", "--no-kv-offload", "no_kv_offload", "offload_kqv"),
    "mapped": ("--no-mmap", "no_mmap", "use_mmap"),
    "repacked": ("-nr", "--repack", "--no-repack", "no_repack", "repack"),
}
OWN_WORDS = re.compile(r"ollama|lm_studio")  # programs with their own parameters
FLAG = re.compile(r"^\.?(-ncmoe|--n-cpu-moe|n_cpu_moe)$")  # one typical flag


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the report, and the places that it counts."""

    name: str
    value: object
    places: tuple[str, ...] = ()


class Checkout:
    """A checkout's sources, parsed once."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.package = self.root / "src" / "edgekit"
        python = self.root / ".venv" / "bin" / "python"
        self.python = str(python) if python.exists() else sys.executable

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        return {
            path.relative_to(self.package).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
            for path in sorted(self.package.rglob("*.py"))
        }

    @cached_property
    def scripts(self) -> dict[str, str]:
        return {
            path.relative_to(self.package).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted(self.package.rglob("*.js"))
        }

    @cached_property
    def words(self) -> dict[str, set[str]]:
        """File -> its identifiers and its string literals, without docstrings and comments."""
        result = {path: set(_words(tree)) for path, tree in self.trees.items()}
        for path, text in self.scripts.items():
            code = re.sub(r"/\*.*?\*/|(?<!:)//[^\n]*", "", text, flags=re.DOTALL)
            result[path] = set(re.findall(r"[A-Za-z_]\w*", re.sub(r'"[^"\n]*"', '""', code)))
            result[path] |= set(re.findall(r'"([^"\n]*)"', code))
        return result

    def run(self, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src")}
        environment |= {
            "EDGEKIT_CACHE": str(folder / "cache"),
            "EDGEKIT_DATA": str(folder / "data"),
        }
        return subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )


def _words(tree: ast.Module) -> Iterator[str]:
    prose = {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }  # docstrings are expression statements
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(value)) if node not in prose:
                yield value
            case ast.Name(id=name) | ast.arg(arg=name):
                yield name
            case ast.Attribute(attr=name):
                yield f".{name}"
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.ImportFrom(module=str(module)):
                yield from (module, *module.split("."))
            case ast.alias(name=name):
                yield from name.split(".")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="with the places behind each figure")
    request = parser.parse_args()
    figures = list(measured(Checkout(request.root)))
    if request.json:
        shown = {each.name: {"value": each.value, "places": each.places} for each in figures}
        print(json.dumps(shown, indent=2))
        return
    for each in figures:
        print(f"{each.name}: {each.value}")
        for place in each.places if request.verbose else ():
            print(f"    {place}")


def measured(checkout: Checkout) -> Iterator[Figure]:
    yield from _names(checkout)
    yield from _one_check(checkout)
    yield parameters(checkout)
    yield from _additions(checkout)
    yield from _imports(checkout)
    yield from _sizes(checkout)


def _names(checkout: Checkout) -> Iterator[Figure]:
    result = dependences(checkout.root, trees=checkout.trees)
    for kind, title in (
        (COMPARISON, "comparisons with an engine's name"),
        (TABLE, "tables and look-ups by an engine's name"),
        (VALUE, "engine's names as arguments, defaults and constants"),
    ):
        python = [each for each in result if each.kind == kind and each.path.endswith(".py")]
        script = [each for each in result if each.kind == kind and each.path.endswith(".js")]
        places = tuple(f"{each.path}:{each.line}  {each.text}" for each in (*python, *script))
        value = f"{len(places)} ({len(python)} Python, {len(script)} page)"
        yield Figure(f"{title}, outside the engines' folder", value, places)


def _one_check(checkout: Checkout) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_model(checkout.package, folder / "model.gguf")
        report = folder / "report.json"
        program = Path(__file__).with_name("traced_command.py")
        done = checkout.run(
            checkout.python, str(program), str(report), CONTEXT, *CHECK, folder=folder
        )
        if done.returncode:
            sys.exit(f"the traced check ended with {done.returncode}: {done.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    if "8,192" not in result["output"] and "8K" not in result["output"]:
        sys.exit(f"the traced check did not answer: {result['output'][:500]}")
    parses: Mapping[str, int] = result["parses"]
    places = tuple(f"{name} x{count}" for name, count in parses.items())
    yield Figure(f'parses of the text "{CONTEXT}" in one check', sum(parses.values()), places)
    yield Figure("files entered by one check", len(result["entered"]), tuple(result["entered"]))
    called = tuple(result["called"])
    yield Figure("files with functions that one check calls after importing", len(called), called)
    modules = tuple(result["modules"])
    yield Figure("modules imported by one check", len(modules), modules)


def write_model(package: Path, path: Path) -> None:
    """A sparse GGUF file of the model's size with the sample's header."""
    header = gzip.decompress(next(package.rglob(SAMPLE)).read_bytes())
    with path.open("wb") as file:
        file.write(header)
        file.truncate(SIZE_BYTES)


def parameters(checkout: Checkout) -> Figure:
    """Files that spell several of llama.cpp's parameters as strings: its flags, or names in its own library or in REST.

    Attributes and keyword arguments are fields of EdgeKit, which mypy checks, and are not counted.
    """
    known = {word: name for name, words in PARAMETERS.items() for word in words}
    spelled: dict[str, set[str]] = {}
    for path, tree in checkout.trees.items():
        literals = {
            node.value.split("=")[0].rstrip()
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        spelled[path] = {known[word] for word in literals & known.keys()}
    for path in checkout.scripts:
        spelled[path] = {known[word] for word in checkout.words[path] & known.keys()}
    counted = sorted(
        ((len(names), path) for path, names in spelled.items() if len(names) >= SPELLS_PARAMETERS),
        reverse=True,
    )
    other_programs = [f"{path}: {count}" for count, path in counted if OWN_WORDS.search(path)]
    places = [f"{path}: {count}" for count, path in counted if not OWN_WORDS.search(path)]
    return Figure(
        f"files that spell {SPELLS_PARAMETERS} or more of llama.cpp's parameters",
        f"{len(places)}, and {len(other_programs)} for Ollama or LM Studio",
        (*places, *other_programs),
    )


def _additions(checkout: Checkout) -> Iterator[Figure]:
    depending = dependences(checkout.root, trees=checkout.trees)
    for engine, pattern in ENGINES.items():
        quoted = re.compile(rf"""["']{re.escape(engine)}["']""")
        by_name = {each.path for each in depending if quoted.search(each.text)}
        places = tuple(
            path
            for path, words in checkout.words.items()
            if path.split("/")[0] not in FOLDERS
            and (path in by_name or any(pattern.search(word) for word in _short(words)))
        )
        yield Figure(f"files outside the engines' folder that name {engine}", len(places), places)
    places = tuple(
        path for path, words in checkout.words.items() if any(FLAG.match(word) for word in words)
    )
    yield Figure("files that name one flag of llama.cpp (n_cpu_moe)", len(places), places)


def _short(words: Iterable[str]) -> Iterator[str]:
    """Names and paths, not sentences."""
    return (word for word in words if " " not in word and len(word) < 60)


def _imports(checkout: Checkout) -> Iterator[Figure]:
    for title, is_typing in (("import cycles", False), ("import cycles with TYPE_CHECKING", True)):
        result = cycles(import_graph(checkout.trees, with_typing=is_typing))
        places = tuple(" ".join(sorted(cycle)) for cycle in result)
        yield Figure(f"{title} between files", len(places), places)
    linter = Path(checkout.python).with_name("lint-imports")
    done = subprocess.run(
        (str(linter), "--no-cache"), cwd=checkout.root, capture_output=True, text=True, check=False
    )
    kept = re.search(r"Contracts: .*", done.stdout)
    yield Figure("import contracts (upward imports)", kept[0] if kept else "not checked")


def import_graph(trees: Mapping[str, ast.Module], *, with_typing: bool) -> dict[str, set[str]]:
    """Module -> modules that it imports, inside functions too."""
    names = {_module(path): path for path in trees}
    result: dict[str, set[str]] = {}
    for name, path in names.items():
        edges: set[str] = set()
        for node, is_typing in statements(trees[path]):
            if is_typing and not with_typing:
                continue
            if isinstance(node, ast.Import):
                edges |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner_module = f"{node.module}.{alias.name}"
                    edges.add(inner_module if inner_module in names else node.module)
        result[name] = {edge for edge in edges if edge in names and edge != name}
    return result


def upward_imports(graph: Mapping[str, set[str]], layers: Sequence[str]) -> list[tuple[str, str]]:
    """Imports of a higher layer: module, what it imports. `layers` are packages and modules, the highest first."""
    height = {name: len(layers) - place for place, name in enumerate(layers)}
    of_module = {name: height.get(".".join(name.split(".")[:2])) for name in graph}
    return sorted(
        (name, other)
        for name, imported in graph.items()
        for other in imported
        if (low := of_module[name]) and (high := of_module[other]) and high > low
    )


def _module(path: str) -> str:
    return ".".join(("edgekit", *Path(path).with_suffix("").parts)).removesuffix(".__init__")


def cycles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Groups of modules that all reach each other."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        waiting = list(graph[start])
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += graph[name]
        reached[start] = seen
    groups = {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in graph
        if name in reached[name]
    }
    return sorted((set(group) for group in groups), key=sorted)


def _sizes(checkout: Checkout) -> Iterator[Figure]:
    classes: dict[str, list[str]] = defaultdict(list)
    functions: Counter[bool] = Counter()
    for path, tree in checkout.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(path)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                functions[len(body) == 1] += 1
    homonyms = sorted(
        ((len(places), name, places) for name, places in classes.items() if len(places) > 1),
        key=lambda each: (-each[0], each[1]),
    )
    shown = tuple(f"{name} x{count}: {' '.join(places)}" for count, name, places in homonyms)
    yield Figure("class names with more than one definition", len(homonyms), shown)
    lines = sum(
        len((checkout.package / path).read_text(encoding="utf-8").splitlines())
        for path in checkout.trees
    )
    yield Figure("files of Python in src", len(checkout.trees))
    yield Figure("lines of Python in src", lines)
    share = functions[True] / max(functions.total(), 1)
    yield Figure(
        "functions of one statement", f"{functions[True]} of {functions.total()} ({share:.0%})"
    )
    helpers, inner, loose = [], [], []
    for path, tree in checkout.trees.items():
        helpers += [f"{path}:{each.lineno}  {each.name}" for each in single_use_helpers(tree)]
        inner += [f"{path}:{line}" for line in inner_imports(tree)]
        loose += [f"{path}:{line}" for line in lines_with_any(tree)]
    yield Figure("private functions of up to three lines used once", len(helpers), tuple(helpers))
    yield Figure("imports inside functions", len(inner), tuple(inner))
    yield Figure("lines with Any in annotations", len(loose), tuple(loose))
    words = {
        path.relative_to(checkout.root).as_posix(): len(path.read_text(encoding="utf-8").split())
        for path in sorted((checkout.root / "docs").rglob("*.md"))
    }
    yield Figure(
        "words of docs",
        sum(words.values()),
        tuple(f"{path}: {count}" for path, count in words.items()),
    )


def single_use_helpers(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Private functions and methods whose body has at most three lines and that their file names once."""
    named = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    )
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("_")
        and not node.name.startswith("__")
        and named[node.name] == 1
        and (body := node.body[1:] if ast.get_docstring(node) is not None else node.body)
        and (body[-1].end_lineno or 0) - body[0].lineno < 3
    ]


def inner_imports(tree: ast.Module) -> list[int]:
    """Lines of import statements inside functions."""
    result = {
        node.lineno
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    return sorted(result)


def lines_with_any(tree: ast.Module) -> list[int]:
    return sorted(
        {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "Any"}
    )


if __name__ == "__main__":
    main()
