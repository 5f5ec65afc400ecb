"""GGUF files of real models for the server to open: the header is recorded, the weights are a hole."""

from __future__ import annotations

from pathlib import Path

from tests.recorded import header_bytes, models, padded


def write_model(folder: Path, name: str = "llama-3.1-8b", quant: str = "Q4_K_M") -> Path:
    """Writes NAME.QUANT.gguf, a sparse file of the model's full size."""
    model = next(item for item in models() if (item["model"], item["quant"]) == (name, quant))
    header = header_bytes(model["header_without_vocabulary"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{quant}.gguf"
    with path.open("wb") as file:
        file.write(header)
        file.truncate(padded(len(header)) + model["data_section_bytes"])
    return path
