"""Bills of models that only the index knows, compared with what the real llama.cpp would allocate.

    python benchmarks/verify_index.py [--count 30] [--any-basis]

Takes the most used model of each architecture. Where the index has the keys of a GGUF, its header is generated from
them, as by `edgekit verify NAME`. Where it has a config.json, the bill is made from that, and the header has the
tensors and keys of EdgeKit's conversion, and more keys that llama.cpp wants. llama.cpp loads the header without
weights. This checks rules and conversion, not whether the numbers in the index are the model's own. "-": no header of
the model can be generated that llama.cpp loads. Needs xllamacpp. Exit code: 0 all agree, 1 something differs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from edgekit.app.open import open_named
from edgekit.bill.types import MemoryEstimate
from edgekit.engines import default_engine, engine_named
from edgekit.engines.llamacpp.conversion import convert
from edgekit.engines.llamacpp.run.generated import generated_files
from edgekit.engines.llamacpp.run.verification import compare
from edgekit.engines.llamacpp.types import LlamaCppSetup, LlamaMode
from edgekit.engines.program import ComparedRow, Verification
from edgekit.errors import EdgekitError
from edgekit.formats.types import Value
from edgekit.index import read_index
from edgekit.index.types import Entry
from edgekit.model import OpenModel
from edgekit.model.types import ModelGeometry, attention_of
from edgekit.sources.types import Container
from edgekit.units import Basis, format_bytes

CONTEXT = 8192
# Keys that llama.cpp requires of some architecture, with a value that is valid for all: memory does not depend on them.
UNUSED: dict[str, Value] = {
    "attention.layer_norm_epsilon": 1e-5,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "context_length": CONTEXT,
    "rope.dimension_sections": (24, 20, 20, 0),
}
FLOATS = {"embedding_scale", "residual_scale", "logit_scale", "clamp_kqv", "expert_weights_scale"}
ENGINE = default_engine().name


def most_used(*, any_basis: bool) -> Iterator[Entry]:
    """The most used model of each architecture with a geometry of its own."""
    seen: set[str] = set()
    for entry in sorted(read_index().entries, key=lambda entry: (-entry.uses, entry.id)):
        if not entry.has_geometry or entry.is_users:
            continue
        if entry.basis is not Basis.EXACT and not any_basis:
            continue
        opened = open_named(f"catalog:{entry.id}").opened(ENGINE)
        architecture = architecture_of(opened)
        if architecture not in seen:
            seen.add(architecture)
            yield entry


def architecture_of(opened: OpenModel) -> str:
    """llama.cpp's name of the architecture; that of the config if it has none."""
    try:
        return convert(opened.model, "F16").model.geometry.architecture
    except EdgekitError:
        return opened.model.geometry.architecture


def completed(keys: Mapping[str, Value], geometry: ModelGeometry) -> dict[str, Value]:
    """The keys of the conversion with others that llama.cpp requires."""
    name, blocks = keys["general.architecture"], len(geometry.layers) + geometry.mtp_layers
    windows = [getattr(attention_of(layer.mixer), "span_tokens", 0) for layer in geometry.layers]
    more: dict[str, Value] = {**UNUSED}
    if geometry.mtp_layers:
        more["nextn_predict_layers"] = geometry.mtp_layers
    if any(layer.experts for layer in geometry.layers):
        more["expert_shared_count"] = 1
        shared = (layer.experts.shared_width for layer in geometry.layers if layer.experts)
        more["expert_shared_feed_forward_length"] = max(shared)
    if any(windows):
        more["attention.sliding_window"] = next(filter(None, windows))
        more["attention.sliding_window_pattern"] = tuple(map(bool, windows))
    result = {f"{name}.{key}": value for key, value in more.items()} | dict(keys)
    result["tokenizer.ggml.token_type_count"] = 2
    for key, value in result.items():  # the converter's lists have the prediction blocks, too
        if isinstance(value, tuple) and len(value) == len(geometry.layers):
            result[key] = value + value[-1:] * (blocks - len(value))
        elif key.rpartition(".")[2] in FLOATS and type(value) is int:
            result[key] = float(value)
    return result


def compared(entry: Entry) -> Sequence[ComparedRow]:
    """The bill of what the index has next to llama.cpp's report for the header."""
    engine = engine_named(ENGINE)
    load, setup = engine.setup({"context": CONTEXT})
    verifier = engine.program("verify").verifier({"context": CONTEXT}, really=False, timeout_s=None)
    opened = open_named(f"catalog:{entry.id}").as_file(ENGINE)
    header, mix = opened.model.header, opened.mix
    if header.container is Container.GGUF:
        report: Verification = verifier.verify(generated_files(header, label=entry.id))
        return report.rows
    converted = convert(opened.model, mix).model
    header = replace(converted.header, keys=completed(converted.header.keys, converted.geometry))
    found = verifier.verify(generated_files(header, label=entry.id))
    setup = replace(LlamaCppSetup.of(setup), mode=LlamaMode(found.mode), use_mmap=False, mix=mix)
    bill: MemoryEstimate = engine.estimate(opened.model, load, setup)
    return compare(bill, found.answer.parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=30, help="how many models to compare")
    parser.add_argument("--any-basis", action="store_true", help="also partly known geometries")
    options = parser.parse_args()
    equal = total = 0
    for entry in most_used(any_basis=options.any_basis):
        if total == options.count:
            break
        name = f"{entry.id} ({entry.architecture})"
        try:
            rows = compared(entry)
        except EdgekitError as error:
            print(f"-      {name}: {error}", flush=True)
            continue
        total += 1
        parts = [row for row in rows if row.difference_bytes]
        equal += not parts
        differs = ", ".join(
            f"{row.part} {row.difference_bytes:+,} of {format_bytes(row.predicted_bytes)}"
            for row in parts
        )
        print(f"{'equal' if not parts else 'DIFFER'}  {name}  {differs}", flush=True)
    print(f"{equal} of {total} equal")
    return int(equal < total)


if __name__ == "__main__":
    raise SystemExit(main())
