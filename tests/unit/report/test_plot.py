"""report/plot.py: plots are written atomically, are reproducible, and can be read without colour."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from edgekit.errors import EdgekitError, UsageError
from edgekit.plan.curve import Curve, Point
from edgekit.report import plot
from edgekit.report.plot import STYLES, write_plot
from edgekit.units import GIB

pytest.importorskip(
    "matplotlib", reason="plots need matplotlib: pip install 'edgekit-models[plot]'"
)


def curve(cache: str, bytes_per_token: int, longest: int, native: int = 131_072) -> Curve:
    """10 GiB plus `bytes_per_token` for each token, with 20 GiB usable."""
    tokens = sorted({256, *range(native // 8, native + 1, native // 8), longest} - {0})
    points = tuple(Point(tokens=n, required_bytes=10 * GIB + n * bytes_per_token) for n in tokens)
    return Curve(
        cache=cache, points=points, memory="RTX 4090", budget_bytes=20 * GIB, longest=longest, native=native
    )  # fmt: skip


# 7 GiB of cache are within 85 %: 57,344 tokens of 128 KiB, 114,688 of 64.
CURVES = (curve("f16", 128 * 1024, 57_344), curve("q8_0", 64 * 1024, 114_688), curve("q4_0", 32 * 1024, 131_072))  # fmt: skip


def figure_of(curves: tuple[Curve, ...] = CURVES, **more: str) -> Any:
    names = {"model": "gemma-3-27b", "machine": "RTX 4090", **more}
    import matplotlib as mpl

    with mpl.rc_context(plot._SETTINGS):
        return plot.draw(curves, **names)


def texts(figure: Any) -> list[str]:
    axes = figure.axes[0]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    return [figure.get_suptitle(), axes.get_xlabel(), axes.get_ylabel(), *legend, *(t.get_text() for t in axes.texts)]  # fmt: skip


def test_write_plot_writes_a_png(tmp_path: Path) -> None:
    write_plot(CURVES, tmp_path / "plot.png", model="m", machine="x")
    data = (tmp_path / "plot.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (8 * 150, 4.8 * 150)
    assert list(tmp_path.iterdir()) == [tmp_path / "plot.png"]


def test_write_plot_svg_is_reproducible(tmp_path: Path) -> None:
    for name in ("a.svg", "b.SVG"):
        write_plot(CURVES, tmp_path / name, model="m", machine="x")
    first, second = ((tmp_path / name).read_bytes() for name in ("a.svg", "b.SVG"))
    assert first == second
    assert ET.fromstring(first).tag == "{http://www.w3.org/2000/svg}svg"
    assert b"<dc:date>" not in first


def test_draw_labels_axes_and_curves() -> None:
    labels = texts(figure_of())
    assert labels[:3] == [
        "gemma-3-27b on RTX 4090",
        "context, tokens (1k = 1,024)",
        "RTX 4090, GiB",
    ]
    assert labels[3:6] == ["f16: 57,344", "q8_0: 114,688", "q4_0: 131,072 (all)"]
    assert {"20.00 GiB usable", "f16", "q8_0", "q4_0"} <= set(labels)


def test_draw_marks_the_usable_memory_with_one_line() -> None:
    heights = {tuple(line.get_ydata()) for line in figure_of().axes[0].lines}
    assert (20.0, 20.0) in heights
    assert (17.0, 17.0) not in heights  # only one line, at the usable memory


def test_draw_has_ticks_in_k() -> None:
    labels = [label.get_text() for label in figure_of().axes[0].get_xticklabels()]
    assert labels == ["0", "16k", "32k", "48k", "64k", "80k", "96k", "112k", "128k"]


def test_styles_differ_in_dashes_and_colours() -> None:
    assert len({str(dashes) for _, dashes in STYLES}) == len({colour for colour, _ in STYLES}) == len(STYLES)  # fmt: skip


def test_draw_more_cache_types_than_styles() -> None:
    many = tuple(curve(f"type {n}", 1024 * n, 131_072) for n in range(1, len(STYLES) + 3))
    assert "type 7: 131,072 (all)" in texts(figure_of(many))


def test_draw_says_that_a_cache_type_does_not_fit() -> None:
    assert "f16: does not fit" in texts(figure_of((curve("f16", 10**6, 0),)))


def test_draw_shows_hostile_names_as_text() -> None:
    labels = texts(figure_of(model="$x_{1", machine="\x1b[2J 漢字" + "y" * 500))
    assert labels[0].startswith("$x_{1 on \N{REPLACEMENT CHARACTER}[2J 漢字yyy")
    assert len(labels[0]) == 84


def test_write_plot_with_hostile_names(tmp_path: Path) -> None:
    write_plot(CURVES, tmp_path / "plot.svg", model="$x_{1$", machine="漢字" + "y" * 500)
    assert (tmp_path / "plot.svg").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["plot", "plot.pdf", "plot.svg.txt", ".svg"])
def test_write_plot_rejects_other_suffixes(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ends in \.svg or \.png"):
        write_plot(CURVES, tmp_path / name, model="m", machine="x")
    assert not list(tmp_path.iterdir())


def test_write_plot_rejects_no_curves(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to draw"):
        write_plot((), tmp_path / "plot.svg", model="m", machine="x")


def test_write_plot_to_a_path_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory"):
        write_plot(CURVES, tmp_path / "none" / "plot.svg", model="m", machine="x")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UsageError, match=r"folder\.png cannot be written"):
        write_plot(CURVES, tmp_path / "folder.png", model="m", machine="x")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


def test_write_plot_keeps_the_old_file_on_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "plot.png"
    target.write_bytes(b"old")

    def full(self: Path, other: Path) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UsageError, match="No space left"):
        write_plot(CURVES, target, model="m", machine="x")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("plot.png", b"old")]


def test_write_plot_without_matplotlib_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(EdgekitError, match=r"pip install 'edgekit-models\[plot\]'"):
        write_plot(CURVES, tmp_path / "plot.svg", model="m", machine="x")


def test_draw_changes_no_global_settings_and_opens_no_window() -> None:
    script = (
        "import sys; from tests.unit.report.test_plot import figure_of; figure_of(); import matplotlib;"
        "assert matplotlib.rcParams['text.parse_math'] and matplotlib.rcParams['svg.hashsalt'] is None;"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    import matplotlib as mpl

    font_cache = {
        "MPLCONFIGDIR": mpl.get_cachedir()
    }  # or matplotlib searches all fonts of the machine
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, **font_cache},
    )
