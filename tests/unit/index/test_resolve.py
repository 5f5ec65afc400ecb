"""`index.resolve`: what a name refers to."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgekit.errors import AmbiguousNameError, NotFoundError, RemoteInspectError
from edgekit.index.resolve import resolve


def test_resolve_gives_the_entry_of_a_name_and_reads_nothing() -> None:
    result = resolve("qwen3-8b", lambda source: pytest.fail(f"{source} was read"))
    assert result.entry is not None
    assert (result.entry.id, result.found) == ("qwen3-8b", None)


def test_resolve_reads_what_the_catalog_does_not_have() -> None:
    result = resolve("acme/model", lambda source: source.upper())
    assert (result.entry, result.found) == (None, "ACME/MODEL")


def test_resolve_takes_the_entry_of_a_repository_that_cannot_be_reached() -> None:
    def unreachable(_: str) -> str:
        raise RemoteInspectError("no network")

    result = resolve("Qwen/Qwen3-8B", unreachable)
    assert result.entry is not None
    reason = "Qwen/Qwen3-8B could not be read: no network"
    assert (result.entry.id, result.from_index) == ("qwen3-8b", reason)
    assert result.notes == (f"answered from the index, because {reason}",)


def _missing(name: str) -> str:
    raise NotFoundError(f"no such file or folder: {name}")


@pytest.mark.parametrize(
    "path",
    [
        "Qwen3-8B-Q5_K_M.gguf",
        "/data/models/unsloth/Qwen3-8B-GGUF/Qwen3-8B-Q5_K_M-00001-of-00002.gguf",
        r"D:\models\bartowski\Qwen_Qwen3-8B-GGUF\Qwen_Qwen3-8B-Q5_K_M.gguf",
    ],
)
def test_resolve_takes_the_entry_of_a_file_on_another_machine(path: str) -> None:
    result = resolve(path, _missing)
    assert result.entry is not None
    assert (result.entry.id, result.quant) == ("qwen3-8b", "Q5_K_M")
    assert result.from_index == f"{path} is not on this machine"


def test_resolve_of_a_mistyped_path_is_an_error(tmp_path: Path) -> None:
    """The folder is here: the file's name is wrong, and another model would hide that."""
    with pytest.raises(NotFoundError, match="no such file"):
        resolve(str(tmp_path / "Qwen3-8B-Q5_K_M.gguf"), _missing)


def test_resolve_of_an_ambiguous_name_reads_a_model_of_that_name_first() -> None:
    assert resolve("Qwen2.5-VL", str.upper).found == "QWEN2.5-VL"
    with pytest.raises(AmbiguousNameError, match="matches several models"):
        resolve("Qwen2.5-VL", _missing)
