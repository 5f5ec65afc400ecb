"""Ask `check`, `plan`, `recommend`, the web page and Python the same questions, and show where their answers differ.

    python tools/front_ends.py              # every question, every answer, and the number of differences
    python tools/front_ends.py --differing  # only questions whose answers differ; exit code 1 if there are any

The page's answer is that of its model page: `check`, and `fit` with the flags that `check` chose.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.goldens import output_of, response_of, same_everywhere

Json = dict[str, Any]
FLAGS = {  # name in REST and Python -> flag
    "context": "-c",
    "type_k": "-ctk",
    "type_v": "-ctv",
    "n_gpu_layers": "-ngl",
    "n_cpu_moe": "-ncmoe",
    "mix": "--mix",
    "kv_cache_dtype": "--kv-cache-dtype",
    "kv_bits": "--kv-bits",
    "tensor_split": "-ts",
    "quant": "--quant",
    "users": "--users",
    "job": "--job",
    "min_context": "--min-context",
    "max_use": "--max-use",
    "reserve": "--reserve",
}
VERDICT_FLAGS = {"users", "job", "min_context", "max_use", "reserve"}  # not options of an engine
RECOMMEND_FLAGS = VERDICT_FLAGS | {"context"}  # recommend has no others
AUTO = "auto"
FOLDER = "folder of "  # a folder with the config.json of a model in the catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A model, a machine, an engine and flags."""

    model: str
    device: str | None = None
    ram: str | None = None
    vram: str | None = None
    engine: str = "llama.cpp"
    task: str = "chat"
    flags: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def machine(self) -> dict[str, str]:
        result = {"device": self.device, "ram": self.ram, "vram": self.vram}
        return {name: value for name, value in result.items() if value is not None}

    @property
    def words(self) -> list[str]:
        """The command line without the model."""
        machine = [word for name, value in self.machine.items() for word in (f"--{name}", value)]
        flags = [word for name, value in self.flags.items() for word in (FLAGS[name], str(value))]
        return ["--engine", self.engine, *machine, *flags]

    @property
    def fields(self) -> Json:
        """The fields of REST and Python, without the flags."""
        engine = {} if self.engine == AUTO else {"engine": self.engine}
        return {"model": self.model, **engine, **self.machine}

    def __str__(self) -> str:
        return shlex.join([self.model, *self.words])


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a front end in comparable texts; None for what it does not state."""

    verdict: str
    placement: str | None = None
    window: int | None = None
    cache: str | None = None
    quantization: str | None = None
    engine: str | None = None
    command: str | None = None


MAY_BE_MISSING = {"placement", "command"}  # recommend has only sentences, Python no commands
NAMES = tuple(item.name for item in fields(Answer))
NOT_LISTED = Answer(verdict="not listed")
CANNOT_ASK = Answer(verdict="cannot be asked")


def _question(model: str, machine: str, engine: str = "llama.cpp", **flags: str | int) -> Question:
    """`machine` is a device, memory (RAM), or both: 'RTX 4090 + 64G'; memory in brackets is VRAM."""
    device, ram, vram = None, None, None
    for part in machine.split(" + "):
        if re.fullmatch(r"\d+G", part):
            ram = part
        elif part.startswith("["):
            vram = part.strip("[]")
        else:
            device = part
    task = "embed" if "embed" in model else "chat"
    return Question(
        model=model, device=device, ram=ram, vram=vram, engine=engine, task=task, flags=flags
    )


QUESTIONS = (
    _question("llama-3.1-8b", "RTX 4060 + 32G"),
    _question("llama-3.1-8b", "RTX 4060 + 32G", context=8192),
    _question("llama-3.1-8b", "RTX 4060 + 32G", context=32768, type_k="q8_0", type_v="q8_0"),
    _question("llama-3.1-8b", "RTX 4060 + 32G", context=16384, n_gpu_layers=20),
    _question("llama-3.1-8b", "RTX 4060 + 32G", mix="Q8_0"),
    _question("gemma-3-27b", "RTX 4090 + 64G"),
    _question("gemma-3-27b", "RTX 4090 + 64G", context=8192),
    _question("gemma-3-27b", "RTX 4090 + 64G", context=32768),
    _question("llama-3.1-70b", "2x RTX 3090 + 64G"),
    _question("llama-3.1-70b", "2x RTX 3090 + 64G", context=4096),
    _question("llama-3.1-70b", "m4-max-64"),
    _question("llama-3.1-70b", "m4-max-64", context=16384),
    _question("qwen3-14b", "RTX 3060 + 32G"),
    _question("qwen3-14b", "RTX 3060 + 32G", context=16384),
    _question("qwen3-30b-a3b", "RTX 3060 + 32G"),
    _question("qwen3-30b-a3b", "RTX 3060 + 32G", context=16384, n_cpu_moe=30),
    _question("qwen3-30b-a3b", "RTX 4090 + 64G"),
    _question("qwen3-30b-a3b", "[24G] + 32G", type_k="q8_0", type_v="q8_0"),
    _question("gpt-oss-20b", "[16G] + 32G"),
    _question("gpt-oss-120b", "Strix Halo 128GB"),
    _question("gpt-oss-120b", "RTX 3090 + 64G"),
    _question("gpt-oss-120b", "DGX Spark", context=32768),
    _question("gemma-4-12b-it", "m2-16"),
    _question("qwen3-32b", "RTX 5090 + 64G"),
    _question("qwen3-32b", "RTX 4090 + 64G", context=16384),
    _question("qwen3-4b", "phone-8"),
    _question("mistral-small-24b", "Arc B580 + 32G"),
    _question("qwen3-8b", "16G"),
    _question("qwen3-8b", "16G", context=8192),
    _question("qwen3-8b", "Raspberry Pi 5 8GB"),
    _question("qwen3.5-27b", "RTX 4090 + 64G"),
    _question("qwen3.6-27b", "RTX 3090 + 32G", context=131072),
    _question("gemma-4-26b-a4b", "23G"),
    _question("nomic-embed-text-v1.5", "Raspberry Pi 5 8GB"),
    _question("qwen3-8b", "RTX 4090", "vllm"),
    _question("qwen3-8b", "RTX 4090", "vllm", context=32768, kv_cache_dtype="fp8"),
    _question("llama-3.1-70b", "2x H100", "vllm"),
    _question("deepseek-v3", "8x H200", "vllm"),
    _question("qwen3-8b", "m2-16", "mlx"),
    _question("qwen3-30b-a3b", "m4-max-64", "mlx", context=32768, kv_bits=8),
    _question("qwen3-8b", "RTX 4090 + 64G", users=4),
    _question("llama-3.1-8b", "RTX 4090 + 64G", users=4, context=8192),
    _question("qwen3-8b", "RTX 4090 + 64G", "vllm", users=8, context=4096),
    _question("qwen3-8b", "m4-max-64", "mlx", users=2),
    _question("qwen3-14b", "RTX 3060 + 32G", job="6000+800"),
    _question("qwen3-8b", "RTX 4090", "vllm", job="6000+800"),
    _question("qwen3-8b", "RTX 4090 + 64G", users=2, job="6000+800"),
    _question("qwen3-14b", "RTX 3060 + 32G", min_context=65536),
    _question("phi-4", "RTX 4090 + 64G", min_context=65536),
    _question("llama-3.1-8b", "RTX 4060 + 32G", max_use="80%"),
    _question("gemma-3-27b", "RTX 4090 + 64G", reserve="0"),
    _question("qwen3-8b", "RTX 4090", "vllm", reserve="1G"),
    _question("llama-3.1-8b", "RTX 4090 + 64G", context=0),
    _question("qwen3-8b", "RTX 4090 + 64G", context=0, users=2),
    _question("qwen3-8b", "RTX 4090", "vllm", context=0),
    _question("qwen3-8b", "m4-max-64", "mlx", context=0),
    _question("llama-3.1-8b", "RTX 4060 + 32G", type_k="q8_0"),
    _question("qwen3-8b", "16G", context=32768, type_v="q4_0"),
    _question("llama-3.1-70b", "2x RTX 3090 + 64G", tensor_split="2,1"),
    _question("llama-3.1-70b", "2x RTX 3090", tensor_split="1,1"),
    _question("qwen3-30b-a3b", "RTX 3060"),
    _question("llama-3.1-8b", "RTX 4090"),
    _question("gpt-oss-120b", "RTX 4090"),
    _question("folder of qwen3-8b", "RTX 4090 + 64G", AUTO),
    _question("folder of qwen3-32b", "RTX 4090 + 64G", AUTO),
    _question("folder of qwen3-32b", "RTX 4060 + 64G", AUTO, context=16384),
    _question("folder of llama-3.1-70b", "m2-16", AUTO),
    _question("folder of qwen3-32b", "RTX 4090 + 64G", AUTO, kv_cache_dtype="fp8"),
    _question("folder of qwen3-32b", "RTX 4090 + 64G", AUTO, n_gpu_layers=20),
    _question("llama-3.1-8b", "RTX 4060 Ti 16GB", "vllm"),
    _question("llama-3.3-70b", "2x RTX 4090", "vllm"),
    _question("llama-3.1-8b", "RTX 4060 Ti 16GB", "vllm", users=2, context=8192),
    _question("nomic-embed-text-v1.5", "RTX 4090 + 64G", "vllm"),
    _question("qwen3-embedding-8b", "RTX 4060 + 32G"),
    _question("e5-mistral-7b-instruct", "m2-16", "mlx"),
    _question("llama-3.1-70b", "RTX 4060 + 16G"),
    _question("llama-3.1-70b", "m2-16", "mlx"),
    _question("llama-3.1-70b", "RTX 4060", "vllm"),
    _question("qwen3-8b:Q8_0", "RTX 4060 + 32G", AUTO),
    _question("qwen3-8b", "m2-16", "mlx", quant="8bit"),
)


def answers(question: Question) -> dict[str, Answer]:
    """Front end -> answer."""
    with same_everywhere() as home:
        if question.model.startswith(FOLDER):
            question = replace(question, model=_folder(home, question.model.removeprefix(FOLDER)))
        return {
            "check": _check(question),
            "plan": _plan(question),
            "recommend": _recommend(question),
            "page": _page(question),
            "python": _python(question),
        }


def _folder(home: str, name: str) -> str:
    """A downloaded folder without the weights."""
    from edgekit.index.database import header_of
    from edgekit.index.names import find_entry

    folder = Path(home, name)
    folder.mkdir()
    folder.joinpath("config.json").write_text(
        json.dumps(header_of(find_entry(name)).config, default=dict)
    )
    return str(folder)


def differences(
    answers_by_name: Mapping[str, Answer], *, missing: bool = True
) -> dict[str, list[str]]:
    """The properties that differ, with the value in each front end that lists the model.

    A missing value is a difference too, unless `missing` is false.
    """
    compared = {
        front_end: answer
        for front_end, answer in answers_by_name.items()
        if answer not in {NOT_LISTED, CANNOT_ASK}
    }
    differing = {}
    for name in NAMES:
        values = {front_end: getattr(answer, name) for front_end, answer in compared.items()}
        if not missing or name in MAY_BE_MISSING:
            values = {front_end: value for front_end, value in values.items() if value is not None}
        if len(set(values.values())) > 1:
            differing[name] = [f"{front_end} {value}" for front_end, value in values.items()]
    return differing


def _check(question: Question) -> Answer:
    return _of_check(_command("check", question.model, *question.words))


def _of_check(answer: Json) -> Answer:
    if "error" in answer:
        return Answer(verdict=answer["error"]["type"])
    flags, engine = answer["flags"], _named(answer["engine"]) or ""
    can_load = answer["can_load"]
    return Answer(
        verdict=answer["status"],
        placement=_placement(flags, engine) if can_load else None,
        window=answer["context_tokens"],
        cache=answer["cache"],
        quantization=answer["quantization"],
        engine=engine,
        command=answer["command"] if can_load else None,
    )


def _plan(question: Question) -> Answer:
    answer = _command("plan", question.model, *question.words)
    if "error" in answer:
        return Answer(verdict=answer["error"]["type"])
    result = _of_plan(answer)
    typed = answer["estimate"]["command"] if answer["can_load"] else None
    if not typed:
        return replace(result, placement=None)
    return replace(result, placement=_placement(_typed(typed), result.engine or ""), command=typed)


def _of_plan(answer: Json) -> Answer:
    return Answer(
        verdict=answer["status"],
        placement=_in_words(answer["way"]) if answer["can_load"] else None,
        window=answer["total_context_tokens"],
        cache=_named(answer["cache"]),
        quantization=_named(answer["variant"]),
        engine=_named(answer["engine"]),
    )


def _recommend(question: Question) -> Answer:
    """With a catalog of this model only, so that nothing else is listed."""
    from edgekit.index import read_index

    if question.flags.keys() - RECOMMEND_FLAGS or question.engine == AUTO:
        return CANNOT_ASK
    catalog = read_index()
    single = catalog._replace(
        entries=tuple(entry for entry in catalog.entries if entry.id == question.model)
    )
    with mock.patch("edgekit.app.recommend.read_index", return_value=single):
        answer = _command("recommend", "--task", question.task, *question.words)
    if "error" in answer:
        return Answer(verdict=answer["error"]["type"])
    plans = [*answer["suggestions"], *([answer["nearest"]] if answer["nearest"] else [])]
    return _of_plan(plans[0]["plan"]) if plans else NOT_LISTED


def _page(question: Question) -> Answer:
    compared, home = question.fields, (Path.cwd(),)
    status, check = response_of("POST", "check", compared | dict(question.flags), models_dirs=home)
    if status != 200:
        return Answer(verdict=check["error"]["type"])
    text = ("max_use", "reserve", "min_context")
    limits = {name: question.flags[name] for name in text if name in question.flags}
    if "parallel" not in check["flags"] and "users" in question.flags:
        limits["users"] = question.flags["users"]
    chosen_fields = compared | {"engine": check["engine"]["name"]} | check["flags"] | limits
    _, fit = response_of("POST", "fit", chosen_fields, models_dirs=home)
    return _of_check(fit)


def _python(question: Question) -> Answer:
    from edgekit.engines import engine_named
    from edgekit.engines.flags import typed
    from edgekit.errors import EdgekitError
    from edgekit.models import model_preflight
    from edgekit.request import read_max_use, read_reserve

    options: Json = dict(question.flags)
    names = ("context", *VERDICT_FLAGS)
    compared: Json = {
        name: options.pop(name) for name in names if name in options
    } | question.machine
    if "job" in compared:
        compared["job"] = tuple(map(int, str(compared["job"]).split("+")))
    for name, read in (("max_use", read_max_use), ("reserve", read_reserve)):
        if name in compared:
            compared[name] = read(compared[name])
    if "tensor_split" in options:
        options["tensor_split"] = [float(share) for share in options["tensor_split"].split(",")]
    try:
        result = model_preflight(question.model, question.engine, options=options, **compared)
    except EdgekitError as error:
        return Answer(verdict=type(error).__name__)
    flags = typed(engine_named(result.engine).placement(result.way.setup))
    return Answer(
        verdict=result.status.value,
        placement=_placement(flags, result.engine) if result.can_load else None,
        window=result.context_tokens,
        cache=result.cache,
        quantization=result.quantization,
        engine=result.engine,
    )


def _command(*words: str) -> Json:
    _, out, _ = output_of([*words, "--json"])
    answer: Json = json.loads(out)
    return answer


def _named(value: Any) -> str | None:
    """The name in {"name": "q8_0"}, or the text itself."""
    if isinstance(value, Mapping):
        value = value.get("name")
    return None if value is None else str(getattr(value, "name", value))


_TYPED = {
    "-ngl": "n_gpu_layers", "-ncmoe": "n_cpu_moe", "-ot": "override_tensor", "-cmoe": "cpu_moe", "-ts": "tensor_split",
    "-tp": "tensor_parallel_size", "-pp": "pipeline_parallel_size",
}  # fmt: skip


def _typed(command: str) -> dict[str, str]:
    """The placement flags of a command line."""
    words = shlex.split(command)
    return {_TYPED[answer]: value for answer, value in pairwise([*words, ""]) if answer in _TYPED}


def _placement(flags: Mapping[str, Any], engine: str) -> str:
    """The placement as flags of the engine; 'CPU' if nothing is on a device."""
    results = [
        word if name == "cpu_moe" else f"{word} {_plain_number(flags[name])}"
        for word, name in _TYPED.items()
        if name in flags and (not name.endswith("parallel_size") or str(flags[name]) != "1")
    ]
    return " ".join(results) or ("CPU" if engine == "llama.cpp" else "as a whole")


def _plain_number(value: object) -> str:
    """'34.0,33.0' -> '34,33'."""
    return re.sub(r"\.0\b", "", str(value))


_WORDS = (
    (r"fully on the CPU", "CPU"),
    (r"fully on .*", "-ngl all"),
    (r"(\d+) of \d+ layers on .*", r"-ngl \1"),
    (r"(\d+) of \d+ layers, no experts, on .*", r"-ngl \1 -cmoe"),
    (r"all but the experts of (\d+) of \d+ layers on .*", r"-ngl all -ncmoe \1"),
    (r"all but the experts on .*", "-ngl all -cmoe"),
    (r"shared by .*, tensor parallel (\d+)(, .* of its memory)?", r"-tp \1"),
    (r"on .*|in the unified memory of .*", "as a whole"),
)


def _in_words(placement: str) -> str | None:
    """The placement from its sentence; None for several cards, whose shares it does not state."""
    if re.search(r" \d+x .*| and | the last ", placement) and "parallel" not in placement:
        return None
    for words, flags in _WORDS:
        if result := re.fullmatch(words, placement):
            return result.expand(flags)
    return placement


def main() -> int:
    """Return 1 if answers differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--differing", action="store_true", help="only questions that differ")
    arguments = parser.parse_args()
    counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for question in QUESTIONS:
        result = answers(question)
        for missing, count in counts.items():
            differing = differences(result, missing=missing)
            count.update(differing.keys())
            count["questions"] += bool(differing)
        if differences(result) or not arguments.differing:
            print(table(question, result), flush=True)
    for missing, count in counts.items():
        parts = ", ".join(f"{name} {count[name]}" for name in NAMES)
        rule = "missing values count" if missing else "missing values do not count"
        print(f"{count['questions']} of {len(QUESTIONS)} questions differ ({rule}): {parts}")
    return int(bool(counts[True]["questions"]))


def table(question: Question, answers_by_name: Mapping[str, Answer]) -> str:
    """A line for each front end, and the properties that differ."""
    lines = [str(question)]
    for front_end, answer in answers_by_name.items():
        verdict, placement, window, cache, weights, engine, command = (
            "-" if getattr(answer, name) is None else str(getattr(answer, name)) for name in NAMES
        )
        lines.append(
            f"  {front_end:9}  {verdict:15}  {placement:22}  {window:>8}  {cache:11}  {weights:10}  {engine}"
        )
        lines += [f"{'':13}{command}"] if command != "-" else []
    return "\n".join((*lines, f"  differ: {', '.join(differences(answers_by_name)) or 'no'}", ""))


if __name__ == "__main__":
    sys.exit(main())
