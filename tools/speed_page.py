"""Measured speeds -> docs/data/speeds.tsv, docs/pictures/speed.svg and the generated parts of docs/speed.md.

    python tools/speed_page.py [POINTS]

POINTS: JSON lines or a .tsv, see speed_rows.py. This takes minutes, because each machine is also predicted by constants
that are fitted to the others. Without POINTS only the parts are rewritten that follow from speed.json and speeds.tsv.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.score_speed import (
    Scored,
    by_ram_alone,
    counted,
    depth_of,
    left_out,
    picture,
    quantile,
    score,
)
from tools.speed_rows import read_rows
from tools.speed_table import TABLE, speed_table

from edgekit.engines.speed_formula import Constants, constants

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PICTURE = DOCS / "speed.md", DOCS / "pictures" / "speed.svg"
MISSES = Path(__file__).parent / "speed_misses.tsv"
WORST = 10

BACKENDS = ("cuda", "hip", "vulkan", "sycl", "metal", "mlx", "vllm", "cpu")
MEANINGS = {
    "weights": "share of the bandwidth that weights are read with",
    "experts": "routed experts: times that share",
    "cache": "share of the bandwidth that the cache is read with",
    "unpack_ops": "operations to unpack a quantised weight (CPU: ns of a core)",
    "attend": "attention while decoding: share of the FP32 peak (CPU: GFLOP/s of a core)",
    "layer_us": "per layer, µs",
    "token_us": "per token, µs",
    "users": "each further user: share of the time to read the weights once",
    "prompt": "prompts: share of the matrix peak (CPU: GFLOP/s of a core with AVX2 or the like)",
    "attention": "attention of prompts: share of the matrix peak (CPU: GFLOP/s of a core)",
    "prompt_layer_us": "per layer and micro-batch of a prompt, µs",
    "prompt_tile": "prompt tokens that share one reading of the cache",
    "expert_tokens": "tokens computed for nothing per expert and micro-batch",
    "crossing_us": "from one device to the next, µs",
    "reducing_us": "sum over the cards that share a layer, µs, twice per layer",
    "launches_us": "vLLM without CUDA graphs: per layer, µs",
    "prompt_width": "prompts: (1 + this / hidden size) times the operations",
    "link_gb_per_s": "weights in RAM sent to a card for a prompt, GB/s",
    "market_weights": "weights on workstation cards / Ultra chips: times",
    "market_prompt": "prompts on workstation cards / Ultra chips: times",
}
ELSEWHERE = {"format", "prompt_format", "spread"}  # in tables of their own
MARKETS = ("workstation", "ultra")
FORMATS = {
    "f16": "F16, F32", "bf16": "BF16", "q8": "Q8_0, FP8", "q4": "Q4_0 to Q5_1", "k": "Q2_K to Q6_K",
    "iq": "IQ, TQ", "fp4": "MXFP4, NVFP4", "int4": "AWQ, GPTQ", "affine": "MLX, quantised",
}  # fmt: skip
KINDS = {
    "card": "card or Mac of a measured generation", "new_card": "card of another generation", "cpu": "CPU alone",
    "split": "layers or experts in RAM", "users": "several users", "calibrated": "after `edgekit calibrate`",
    "assumed": "only the amount of RAM known",
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("points", type=Path, nargs="?")
    arguments = parser.parse_args()
    try:
        parts = {} if arguments.points is None else measured_parts(arguments.points)
        page = with_parts(PAGE.read_text(encoding="utf-8"), parts | shipped_parts())
    except (OSError, ValueError) as error:
        print(f"speed_page: {error}", file=sys.stderr)
        return 2
    PAGE.write_text(page, encoding="utf-8")
    return 0


def measured_parts(path: Path) -> dict[str, str]:
    """Writes the table and the picture; the parts of the page that follow from all points."""
    scored, unknown = score(read_rows(path))
    if not scored:
        raise ValueError(f"{path} has no point with a prediction")
    TABLE.write_text(speed_table(scored), encoding="utf-8")
    PICTURE.write_text(picture(scored), encoding="utf-8")
    others = left_out(scored)
    return {
        "scores": f"{counted(scored, unknown)}.\n\n{scores_table(scored, others)}",
        "worst": worst_table(scored),
    }


def shipped_parts() -> dict[str, str]:
    """The parts that follow from speed.json and speeds.tsv."""
    return {
        "constants": constants_tables(constants()),
        "intervals": intervals_table(constants()),
        "sources": sources_table(),
    }


def with_parts(page: str, parts: dict[str, str]) -> str:
    """The page with new text between the comments of each part. Raises ValueError if the page lacks one."""
    for name, text in parts.items():
        start, end = f"<!-- {name}: tools/speed_page.py -->", f"<!-- end of {name} -->"
        if page.count(start) != 1 or page.count(end) != 1:
            raise ValueError(f"{PAGE} must have {start} and {end} once")
        before, _, rest = page.partition(start)
        page = f"{before}{start}\n\n{text.strip()}\n\n{end}{rest.partition(end)[2]}"
    return page


def _rows(head: str, rows: list[list[str]]) -> str:
    lines = [head, "|" + "---|" * (head.count("|") - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


# -- constants -------------------------------------------------------------------------------


def constants_tables(values: Constants) -> str:
    """Every constant with its meaning, by backend; and the factors of formats."""
    names = {name.split(".")[0] for name in values}
    missing = names - set(MEANINGS) - ELSEWHERE
    if missing:
        raise ValueError(f"MEANINGS in {Path(__file__).name} lacks {', '.join(sorted(missing))}")
    by_backend, single = [], []
    for name, meaning in MEANINGS.items():
        if name not in names:
            continue
        if any(f"{name}.{backend}" in values for backend in BACKENDS):
            cells = [_figure(values.product(name, backend)) for backend in BACKENDS]
            by_backend.append([f"`{name}`", meaning, *cells])
        else:
            one = [values[name]] if name in values else [values[f"{name}.{key}"] for key in MARKETS]
            single.append([f"`{name}`", meaning, " / ".join(map(_figure, one))])
    formats = [
        [title, *(_format_cell(values, name, backend) for backend in BACKENDS)]
        for name, title in FORMATS.items()
        if f"format.{name}" in values
    ]
    return "\n\n".join(
        [
            _rows(f"| constant | | {' | '.join(BACKENDS)} |", by_backend),
            _rows("| constant | | value |", single),
            "Times `format` and `prompt_format` (empty: not measured), by how the weights are packed:",
            _rows(f"| weights | {' | '.join(BACKENDS)} |", formats),
        ]
    )


def _format_cell(values: Constants, name: str, backend: str) -> str:
    if f"format.{name}.{backend}" not in values:
        return ""
    decode = values.product("format", name, backend)
    prompt = values.product("prompt_format", name, backend)
    return f"{decode:.2f} / {prompt:.2f}"


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def intervals_table(values: Constants) -> str:
    rows = []
    for kind, title in KINDS.items():
        spreads = [values.get(f"spread.{word}.{kind}") for word in ("decode", "prompt")]
        rows.append([title, *("" if spread is None else f"{spread:.2f}" for spread in spreads)])
    return _rows("| typical / or * | decoding | prompts |", rows)


# -- scores ----------------------------------------------------------------------------------


def _group(name: str) -> Callable[[Scored], bool]:
    return lambda one: one.group == name


GROUPS: tuple[tuple[str, Callable[[Scored], bool]], ...] = (
    ("", lambda one: one.point.users == 1),
    ("all on the GPU", lambda one: one.group == "card" and one.point.users == 1),
    ("CPU alone", _group("processor")),
    ("layers or experts in RAM", _group("split")),
    ("more than 8K in the context", lambda one: depth_of(one) > 8192 and one.point.users == 1),
    ("several cards", lambda one: len(one.point.placement.cards) > 1),
    ("several users", lambda one: one.point.users > 1),
)


def scores_table(scored: list[Scored], others: list[Scored]) -> str:
    """The errors with the shipped constants, and with constants that never saw the machine."""
    rows = []
    for is_prompt, word in ((False, "decoding"), (True, "prompts")):
        for title, choose in GROUPS:
            seen, unseen = (
                [one for one in group if one.point.is_prompt is is_prompt and choose(one)]
                for group in (scored, others)
            )
            if seen and unseen:
                name = f"{word}, {title}" if title else f"**{word}, one user**"
                rows.append([name, str(len(seen)), *_errors(seen), *_errors(unseen)])
    by_ram = by_ram_alone(scored)
    if by_ram:
        name = "decoding, CPU alone, by the amount of RAM"
        rows.append([name, str(len(by_ram)), *_errors(by_ram), "", "", ""])
    head = "| | points | median | 90 % | inside | left out: median | 90 % | inside |"
    return _rows(head, rows)


def _errors(group: list[Scored]) -> list[str]:
    """Factors that half and nine tenths of the points are within, and the share in the interval."""
    errors = sorted(abs(one.error) for one in group)
    inside = sum(one.is_inside for one in group) / len(group)
    return [*(f"{math.exp(quantile(errors, share)):.2f}" for share in (0.5, 0.9)), f"{inside:.0%}"]


# -- the worst -------------------------------------------------------------------------------


def worst_table(scored: list[Scored]) -> str:
    """The largest errors, one of each machine and model, with what is known about the cause."""
    reasons = explanations()
    worst: dict[tuple[str, ...], Scored] = {}
    for one in sorted(scored, key=lambda one: -abs(one.error)):
        worst.setdefault(_key(one), one)
    rows = []
    for key, one in list(worst.items())[:WORST]:
        hardware, backend, model, kind = key
        if key not in reasons:
            print(f"not explained in {MISSES.name}: {', '.join(key)}", file=sys.stderr)
        where = f", {depth:,} in the context" if (depth := depth_of(one)) > 512 else ""
        where += f", {one.point.users} users" if one.point.users > 1 else ""
        what = f"{hardware}, {backend}: {model} {one.point.row['quant']}, {kind}{where}"
        expected = f"{_figure(one.typical)} ({_figure(one.slow)}-{_figure(one.fast)})"
        rows.append([what, _figure(one.point.measured), expected, reasons.get(key, "not examined")])
    return _rows("| point | measured | expected | why |", rows)


def _key(one: Scored) -> tuple[str, ...]:
    row = one.point.row
    model = str(row.get("model") or row.get("file")).removeprefix("config:").removeprefix("header:")
    return (
        str(row["hardware"]),
        str(row["backend"]),
        model,
        "prompt" if one.point.is_prompt else "decode",
    )


def explanations() -> dict[tuple[str, ...], str]:
    """Why a point is far off: hardware, backend, model, decode or prompt -> the reason."""
    lines = MISSES.read_text(encoding="utf-8").splitlines()[1:]
    cells = [line.split("\t") for line in lines if line.strip()]
    return {tuple(row[:4]): row[4] for row in cells}


# -- sources ---------------------------------------------------------------------------------

_REPOSITORY = re.compile(r"github\.com/([\w.-]+/[\w.-]+)")
FEW_ROWS = 20  # a source with fewer is counted with others


def sources_table() -> str:
    """The rows of speeds.tsv by source and licence."""
    rows: Counter[tuple[str, str]] = Counter()
    for row in read_rows(TABLE):
        found = _REPOSITORY.search(str(row["source"]))
        source = "other repositories and threads" if found is None else found[1]
        if row["licence"] == "the project":
            source = "measured for EdgeKit (`benchmarks/decode_speed.py`)"
        rows[source, _licence(str(row["licence"]))] += 1
    table: Counter[tuple[str, str]] = Counter()
    for (source, licence), count in rows.items():
        few = count < FEW_ROWS and source.count("/") == 1
        table["other repositories and threads" if few else source, licence] += count
    ordered = sorted(table.items(), key=lambda item: (-item[1], item[0]))
    return _rows("| source | licence | rows |", [[*names, str(count)] for names, count in ordered])


def _licence(licence: str) -> str:
    return "none stated: single facts, cited" if "facts" in licence else licence


if __name__ == "__main__":
    sys.exit(main())
