"""Compare EdgeKit's bills with a release of llama.cpp for many models, to see what the release changed.

    pip download --no-deps xllamacpp==2026.10.11549 -d wheels
    python tools/compare_engine.py wheels/xllamacpp-2026.10.11549-*.whl

The engine loads each header as a sparse file (no weights, no memory), as `edgekit verify` does, and each part of its
answer is compared with ours to the resolution of its log. Without WHEEL the installed xllamacpp is compared.
Exit code: 0 all equal, 1 something differs.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgekit.engines.llamacpp.run.binding import choose_method
from edgekit.engines.llamacpp.run.generated import HollowFile
from edgekit.engines.llamacpp.run.verification import verify_model
from edgekit.engines.llamacpp.setups import read_row
from edgekit.engines.llamacpp.types import LlamaMode
from edgekit.engines.program import ComparedRow, Verification
from edgekit.errors import EdgekitError, EngineError
from edgekit.formats.gguf import read_gguf
from edgekit.sources.locator import locate
from edgekit.sources.types import Container, ModelFile, ModelFiles, Origin
from edgekit.units import format_bytes

HEADERS = Path(__file__).parents[1] / "tests" / "data" / "headers"
HEAD = ".head.gz"  # a GGUF header alone, compressed
LARGEST = 2**50  # the file size while its header is read
LOADS = (
    {"n_ctx": 4096},
    {"n_ctx": 8192, "n_seq_max": 1, "n_ubatch": 256},
    {"n_ctx": 2048, "n_seq_max": 3, "flash_attn": "off"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A model with options: the comparison, or why there is none."""

    model: str
    options: dict[str, Any]
    verification: Verification | None = None
    refused: str | None = None  # why EdgeKit gives no bill
    failed: str | None = None  # why the engine gives no answer

    @property
    def different(self) -> tuple[ComparedRow, ...]:
        rows = () if self.verification is None else self.verification.rows
        return tuple(row for row in rows if row.difference_bytes)

    @property
    def equal(self) -> bool:
        return self.verification is not None and not self.different

    def summary(self) -> str:
        if self.verification is None:
            return f"we refuse: {self.refused}" if self.refused else f"engine failed: {self.failed}"
        return ", ".join(
            f"{row.part} {'+' if row.difference_bytes > 0 else '-'}"
            f"{format_bytes(abs(row.difference_bytes))} ({row.difference_share:+.1%})"
            for row in self.different
        )


def main(words: Sequence[str] | None = None) -> int:
    """Print the differences; return 1 if there are any."""
    arguments = _parser().parse_args(words)
    files = list(_headers(arguments.headers, arguments.model, every=arguments.all))
    if not files:
        sys.exit(f"no {HEAD} or .gguf file in {arguments.headers}")
    loads = LOADS if arguments.loads is None else tuple(map(json.loads, arguments.loads))
    differs = False
    for wheel in arguments.wheel or [None]:
        with _on_path(wheel):
            answers = [_compare(file, options) for file in files for options in loads]
        differs |= not all(answer.equal for answer in answers)
        print(*(_json(answers) if arguments.json else _text(answers)), sep="\n", flush=True)
    return int(differs)


def _parser() -> argparse.ArgumentParser:
    description, _, example = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description,
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "wheel",
        metavar="WHEEL",
        nargs="*",
        type=Path,
        help="a wheel file of xllamacpp, or a folder it was installed to (pip install --target)",
    )
    parser.add_argument(
        "--headers",
        metavar="FOLDER",
        type=Path,
        default=HEADERS,
        help=f"GGUF files or headers ({HEAD}) to compare (default: those of the tests)",
    )
    parser.add_argument(
        "--model", metavar="NAME", action="append", help="only files whose name starts with NAME"
    )
    parser.add_argument(
        "--all", action="store_true", help="every quantisation (default: one file per model)"
    )
    parser.add_argument(
        "--load",
        metavar="JSON",
        dest="loads",
        action="append",
        help=f"options of one load, repeatable (default: {'; '.join(map(json.dumps, LOADS))})",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per model and load")
    return parser


def _headers(folder: Path, names: Sequence[str] | None, *, every: bool) -> Iterator[ModelFiles]:
    """One file per model, Q4_K_M if there is one; or every file."""
    paths = sorted(
        (path for path in folder.iterdir() if path.name.endswith((HEAD, ".gguf"))),
        key=lambda path: ("Q4_K_M" not in path.name, path.name),
    )
    seen: set[str] = set()
    for path in paths:
        model = _model_name(path)
        wanted = names is None or path.name.startswith(tuple(names))
        if wanted and (every or model not in seen):
            seen.add(model)
            yield _files(path)


def _model_name(path: Path) -> str:
    """'qwen3.5-9b' of 'qwen3.5-9b.Q4_K_M.novocab.gguf.head.gz': the part before the quantisation."""
    name = path.name.removesuffix(HEAD).removesuffix(".gguf").removesuffix(".novocab")
    return name.rpartition(".")[0] or name


def _files(path: Path) -> ModelFiles:
    if not path.name.endswith(HEAD):
        return locate(str(path))
    header = gzip.decompress(path.read_bytes())
    file = read_gguf(HollowFile(name=path.name, header=header, size_bytes=LARGEST))
    end = max((item.offset + item.size_bytes for item in file.tensors or ()), default=len(header))
    hollow = HollowFile(name=path.name, header=header, size_bytes=end)
    return ModelFiles(
        reference=str(path),
        label=path.name.removesuffix(HEAD),
        origin=Origin.LOCAL,
        container=Container.GGUF,
        weights=(ModelFile(name=path.name, open=lambda: hollow, size_bytes=end),),
    )


@contextmanager
def _on_path(wheel: Path | None) -> Iterator[None]:
    """Makes this process and its children import xllamacpp from the wheel."""
    with ExitStack() as stack:
        if wheel is not None:
            folder = wheel
            if wheel.is_file():
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wheel-")))
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(folder)
            before = os.environ.get("PYTHONPATH")
            stack.callback(_set_path, before)
            _set_path(os.pathsep.join(filter(None, (str(folder.resolve()), before))))
            sys.path.insert(0, str(folder.resolve()))
            stack.callback(sys.path.pop, 0)
        importlib.invalidate_caches()
        yield


def _set_path(text: str | None) -> None:
    if text is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = text


def _compare(files: ModelFiles, options: dict[str, Any]) -> Answer:
    load, setup = read_row(options, "cpu")
    load = replace(load, unified=options.get("kv_unified"))  # None: as llama-server decides
    model = files.label
    try:
        result = verify_model(files, load, setup, method=choose_method(LlamaMode.SERVER))
    except EngineError as error:
        return Answer(model=model, options=options, failed=str(error))
    except EdgekitError as error:
        return Answer(model=model, options=options, refused=str(error))
    return Answer(model=model, options=options, verification=result)


def _text(answers: Sequence[Answer]) -> Iterator[str]:
    results = [answer.verification for answer in answers if answer.verification is not None]
    title = (
        f"xllamacpp {results[0].answer.version}, rules of {results[0].rules_version}"
        if results
        else "xllamacpp"
    )
    for answer in answers:
        if not answer.equal:
            yield f"{answer.model} {json.dumps(answer.options)}: {answer.summary()}"
    equal = sum(answer.equal for answer in answers)
    models = {answer.model for answer in answers}
    equal_models = models - {answer.model for answer in answers if not answer.equal}
    yield f"{title}: {len(equal_models)} of {len(models)} models equal in every part ({equal} of {len(answers)} loads)"


def _json(answers: Sequence[Answer]) -> Iterator[str]:
    for answer in answers:
        row: dict[str, Any] = {
            "model": answer.model,
            "options": answer.options,
            "equal": answer.equal,
        }
        if answer.verification is None:
            row |= {"refused": answer.refused, "failed": answer.failed}
        else:
            row |= {
                "engine_version": answer.verification.answer.version,
                "rules_version": answer.verification.rules_version,
                "parts": [
                    {
                        "part": part.part,
                        "predicted_bytes": part.predicted_bytes,
                        "engine_low_bytes": part.measured.low_bytes,
                        "engine_high_bytes": part.measured.high_bytes,
                        "difference_bytes": part.difference_bytes,
                    }
                    for part in answer.verification.rows
                ],
            }
        yield json.dumps(row)


if __name__ == "__main__":
    sys.exit(main())
