"""A collection of public device data -> src/edgekit/machine/device_data/collected.tsv.

Usage: python tools/device_table.py [COLLECTION]

COLLECTION is a JSON list of {name, kind, memory_gb, bandwidth_gb_s, release_date, source}; the default is devices.json
in EDGEKIT_TRUTH. Takes graphics cards with at least 4 GB, from 2016 on, under the name that their driver gives them.
kept.tsv has corrections and further devices, and wins.

Arithmetic speed: gpu_cores.tsv has the shader cores and boost clock of each card (Intel's graphics clock for Alchemist,
the middle of NVIDIA's range for laptops); machine/gpu_rates.py has the operations per core and clock of each
generation. kept.tsv has the figures of data sheets, or the same product.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from edgekit.machine.devices import COLUMNS, Words, words_of
from edgekit.machine.gpu_rates import OTHER_RATES, speed_of

ROOT = Path(__file__).parents[1]
DATA = ROOT / "src" / "edgekit" / "machine" / "device_data"
TRUTH = Path(os.environ.get("EDGEKIT_TRUTH", ROOT.parent / "shared" / "truth"))
FROM = "2016"

# Not separate cards: consoles, slices of cards, mining boards, chips that were never sold, boards and modules in
# kept.tsv, and editions under the name of another card.
_LEFT_OUT = re.compile(
    r"GRID|Playstation|Xbox|Switch|Atari|AeroBox|Subor|Steam Deck|Ryzen|PG50|CMP |P10[2-6]|Arctic|DRIVE|H3C|Xe DG1"
    r"|Jetson|GB10|FirePro|R[579] M|980MX|\bE9\d|MXM|MCM|Embedded|Mac Edition|-\d+Q$|T10\b|T4G|CNX|L40G|A10M|A100X|A30X"
    r"|FHHL|DGXS|4010|Duo|X2|\b(?:GA|AD|TU|GP)\d{3}\b|Refresh|Rev\.|Gbps|GDDR|Limited|Liquid|Watercooled|Anniversary"
    r"|CEO|OEM|\d{3,4}SP|GME|580G|TiM|3050 A|M6 |P6 |A4000H|H100|H800|A100\b|A800|V100|P100\b|MI[23]\d\d|3080 Ti 20"
    r"|Max (?:1350|1550|Sub)|NVIDIA B[23]00|9600D|R9700S|W7900D|PRO 6000.* Max-Q"
)
_MOBILE = re.compile(r" (?:Mobile|Max-Q)\b")
# The driver marks laptop cards of these series with "Laptop"; older ones have the desktop's name or "Max-Q Design".
_LAPTOP_NAMED = re.compile(r"RTX (?:[345]0[5-9]0|2050|A\d)|Ada")
_MAKERS = ("NVIDIA ", "AMD ", "Intel ")
_SHORT = re.compile(r"^(?:GeForce |Radeon (?=RX|PRO|AI )|Radeon Instinct )")


class Rule(NamedTuple):
    names: re.Pattern[str]
    capability: str


# developer.nvidia.com/cuda-gpus; the first that fits
CAPABILITIES = tuple(
    Rule(re.compile(names), capability)
    for names, capability in (
        (r"Quadro RTX|Quadro T\d|TITAN RTX|^T\d+|GTX 16\d0|RTX 20[678]0", "7.5"),
        (r"TITAN V|GV100", "7.0"),
        (r"Ada|RTX 40[5-9]0|^L\d", "8.9"),
        (r"RTX 30[5-9]0|RTX 2050|RTX A\d", "8.6"),
        (r"RTX 50[5-9]0|RTX PRO", "12.0"),
    )
)


def main(collection: Path) -> None:
    text = collected(json.loads(collection.read_text(encoding="utf-8")))
    (DATA / "collected.tsv").write_text(text, encoding="utf-8")
    print(f"{text.count(chr(10)) - 1} rows")


def collected(entries: list[dict[str, Any]]) -> str:
    """The table: a row for each card that is not in kept.tsv; of editions with one name, the slower one."""
    manual_names = _manual_names()
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for row in _rows(entries):
        key = (row["name"], row["size_gb"])
        if words_of(row["name"].format(row["size_gb"])) in manual_names:
            continue
        if key not in rows or float(row["bandwidth_gb_s"]) < float(rows[key]["bandwidth_gb_s"]):
            rows[key] = row
    sized = {name for name, _ in rows}
    cores = _cores()
    for row in rows.values():
        row["name"] = _sized(row["name"], sized)
        row.update(rates(*cores[row["name"].format(row["size_gb"])]))
    lines = ["\t".join(row.get(column, "") for column in COLUMNS) for row in rows.values()]
    return "\n".join(("\t".join(COLUMNS), *sorted(lines))) + "\n"


def _cores() -> dict[str, tuple[str, str, str]]:
    """(generation, cores, MHz) by name."""
    lines = (Path(__file__).parent / "gpu_cores.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = (line.split("\t") for line in lines)
    return {name: (generation, cores, mhz) for name, generation, cores, mhz in rows}


def rates(generation: str, cores: str, mhz: str) -> dict[str, str]:
    """The columns of the arithmetic speed, in TFLOPS: 10,496 Ampere cores at 1,695 MHz are an RTX 3090's 35.6."""
    speed = speed_of(generation, int(cores), int(mhz))
    if speed is None:
        raise ValueError(f"gpu_cores.tsv: {generation}, {cores} cores, {mhz} MHz")
    fp32, fp16, matrix = speed
    return {
        "architecture": generation if generation in OTHER_RATES else "",
        "fp32_tflops": _three_digits(fp32),
        "fp16_tflops": "" if fp16 == fp32 else _three_digits(fp16),
        "matrix_tflops": _three_digits(matrix) if matrix else "",
    }


def _three_digits(flops: float) -> str:
    tflops = flops / 10**12
    return f"{tflops:.0f}" if tflops >= 100 else f"{tflops:.3g}"


def _sized(name: str, names: set[str]) -> str:
    """With its size if a card of another size has the same name; the bare name then matches both."""
    return f"{name} {{}}GB" if f"{name} {{}}GB" in names else name


def _manual_names() -> set[Words]:
    """All names of the devices in kept.tsv, with and without sizes."""
    names: set[Words] = set()
    for line in (DATA / "kept.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        row = dict(zip(COLUMNS, line.split("\t"), strict=True))
        for size in row["size_gb"].split(","):
            model = row["name"].replace(" {}GB", "")
            for name in (model, row["name"].format(size), *row["also"].split("; ")):
                names |= {words_of(name), words_of(f"{name} {size}GB")}
    return names


def _rows(entries: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    for entry in entries:
        if entry["kind"] != "gpu" or entry["release_date"] < FROM:
            continue
        name = None if _LEFT_OUT.search(entry["name"]) else _named(entry["name"])
        if name is not None:
            yield _row(entry, name)


def _row(entry: dict[str, Any], name: str) -> dict[str, str]:
    vendor = entry["name"].split()[0].lower()
    return {
        "name": name,
        "kind": "gpu",
        "vendor": vendor,
        "size_gb": str(int(entry["memory_gb"])),
        "bandwidth_gb_s": f"{entry['bandwidth_gb_s']:g}",
        "capability": _capability(name) if vendor == "nvidia" else "",
        "released": entry["release_date"][:7],
        "source": f"TechPowerUp {entry['source'].rsplit('/', 1)[-1]}",
    }


def _named(name: str) -> str | None:
    """The driver's name with {} for the size; None for a laptop card under a desktop's name."""
    for maker in _MAKERS:
        name = name.removeprefix(maker)
    if _MOBILE.search(name):
        if _LAPTOP_NAMED.search(name):
            name = f"{_MOBILE.sub('', name)} Laptop"
        elif "Mobile" in name:
            return None
    name = re.sub(r" \d+ ?GB\b", " {}GB", _SHORT.sub("", name))
    name = re.sub(r"(.*) \{\}GB (.+)", r"\1 \2 {}GB", name)
    return re.sub(r" (?:PCIe|SXM\d?|Generation)(?= |$)", "", name)


def _capability(name: str) -> str:
    return next((rule.capability for rule in CAPABILITIES if rule.names.search(name)), "")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TRUTH / "devices.json")
