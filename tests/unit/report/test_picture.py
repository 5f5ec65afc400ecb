"""The picture and the badge: well-formed, escaped, readable, and no text wider than its place."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from importlib.resources import files
from itertools import product
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.report.verdicts import RECORDED, card, mac, machine, recorded

from edgekit.errors import UsageError
from edgekit.machine.types import Machine, MemoryLimit
from edgekit.machine.what_if import what_if_machine
from edgekit.report.machine_label import machine_label, ram_gb
from edgekit.report.picture import (
    DARK,
    HEIGHT,
    ICON,
    INNER,
    LIGHT,
    MARGIN,
    THEMES,
    WIDTH,
    Theme,
    badge_svg,
    error_badge_svg,
    picture_svg,
    read_theme,
)
from edgekit.report.shared_answer import (
    SharedAnswer,
    shared_answer,
    without_folders,
)
from edgekit.report.svg_text import ELLIPSIS, shortened, text_element, text_width, wrapped
from edgekit.units import GIB

DAY = dt.date(2026, 7, 31)
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</svg><script>alert(1)</script>&\"'\x00\x1b\u202e\ud800\ufffe]]>"
NAMES = (
    "NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
    "通义千问 3 大语言模型 27B 指令微调版",
    HOSTILE,
    "x" * 4096,
    "﷽" * 40,
    "",
)


def answer_of(name: str) -> SharedAnswer:
    return shared_answer(recorded(name), DAY)


@pytest.mark.parametrize(("name", "theme"), list(product(RECORDED, THEMES)))
def test_picture_is_well_formed_and_has_the_sentence_in_words(name: str, theme: str) -> None:
    answer = answer_of(name)
    root = ET.fromstring(picture_svg(answer, theme))
    assert root.tag == f"{SVG}svg"
    assert (root.get("width"), root.get("height")) == (str(WIDTH), str(HEIGHT))
    description = root.findtext(f"{SVG}desc") or ""
    assert answer.sentence in description
    assert answer.title in description
    assert len(answer.figures) == 4


def test_tight_picture_has_the_figures_of_the_headline() -> None:
    answer = answer_of("tight")
    assert answer.verdict == "Tight on GPU + CPU"
    assert [figure.label for figure in answer.figures] == [
        "Speed", "GPU memory", "Max context", "Weights",
    ]  # fmt: skip
    assert f"{answer.figures[1].value} of" in answer.sentence
    assert answer.date_words == "31 July 2026"


def test_failed_picture_says_what_is_missing() -> None:
    answer = answer_of("too large")
    needs, usable, missing, _ = answer.figures
    assert answer.verdict == "Does not fit"
    assert round(float(needs.value) - float(usable.value), 1) == float(missing.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("theme", THEMES)
def test_names_of_strangers_are_text_that_fits(name: str, theme: str) -> None:
    answer = replace(answer_of("fits"), title=name, publisher=name, machine=name, sentence=name)
    root = ET.fromstring(picture_svg(answer, theme))
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags == {"svg", "title", "desc", "g", "rect", "circle", "path", "text", "tspan"}
    for text in root.iter(f"{SVG}text"):
        bold = text.get("font-weight") == "700"
        width = text_width(text.text or "", float(text.get("font-size", "0")), bold=bold)
        x = float(text.get("x", "0"))
        left, right = (x - width, x) if text.get("text-anchor") == "end" else (x, x + width)
        assert MARGIN - 1 <= left <= right <= WIDTH - MARGIN + 1, text.text


def test_picture_refers_to_nothing_outside() -> None:
    for svg in (picture_svg(answer_of("fits")), badge_svg(answer_of("fits"))):
        assert not re.search(r"href|url\(|<style|<image|foreignObject|<script|@import", svg)
        assert re.findall(r"https?://[^\"\s]+", svg) == ["http://www.w3.org/2000/svg"]


def test_picture_is_the_same_for_the_same_answer() -> None:
    assert picture_svg(answer_of("mac")) == picture_svg(answer_of("mac"))


def test_icon_is_that_of_the_page() -> None:
    icon = files("edgekit").joinpath("web/pages/icon.svg").read_text(encoding="utf-8")
    assert ICON in icon


def luminance(colour: str) -> float:
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in channels
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=THEMES)
def test_colours_pass_wcag_aa(theme: Theme) -> None:
    assert contrast(theme.ink, theme.ground) >= 7
    assert contrast(theme.muted, theme.ground) >= 4.5
    for ink, ground in theme.tones.values():
        assert contrast(ink, ground) >= 4.5
        assert contrast(theme.ink, ground) >= 4.5
        assert contrast(ink, theme.ground) >= 4.5
    for part in theme.parts:
        assert contrast(part, theme.track) >= 3


def test_badge_is_as_wide_as_its_texts() -> None:
    root = ET.fromstring(badge_svg(answer_of("fits")))
    texts = list(root.iter(f"{SVG}text"))
    assert texts[0].text == "EdgeKit"
    widths = [float(text.get("textLength", "0")) for text in texts]
    assert float(root.get("width", "0")) == sum(widths) + 4 * 7
    for text, width in zip(texts, widths, strict=True):
        assert width == pytest.approx(text_width(text.text or "", 11), abs=0.51)


def test_badge_has_a_title_with_model_and_machine() -> None:
    answer = answer_of("too large")
    root = ET.fromstring(badge_svg(answer))
    title = root.findtext(f"{SVG}title") or ""
    assert answer.title in title
    assert answer.machine in title
    assert title == root.get("aria-label")
    assert "does not fit" in title
    for ground in ("#1b7a3d", "#8f5b00", "#b3332a", "#5f6872", "#1f3a5f"):
        assert contrast("#ffffff", ground) >= 4.5


@pytest.mark.parametrize("name", NAMES)
def test_badges_of_hostile_texts_are_well_formed_and_narrow(name: str) -> None:
    answer = replace(answer_of("fits"), title=name, hardware=name, machine=name)
    for svg in (badge_svg(answer), error_badge_svg(name)):
        root = ET.fromstring(svg)
        assert float(root.get("width", "0")) < 560
        assert f"{SVG}script" not in {element.tag for element in root.iter()}


def test_read_theme_names_the_choices() -> None:
    assert read_theme(" Dark ") == "dark"
    with pytest.raises(UsageError, match="light, dark"):
        read_theme("pink")


# -- text -----------------------------------------------------------------------------------------


def test_text_width_adds_the_widths_of_dejavu_sans() -> None:
    assert text_width("GB", 1000) == 775 + 686
    assert text_width("é", 1000) == text_width("e", 1000)
    assert text_width("模型", 20) == 40


@given(st.text(max_size=60), st.integers(60, 900))
def test_shortened_text_fits(text: str, most: int) -> None:
    result = shortened(text, 20, most)
    assert text_width(result, 20) <= most
    assert result == text or ELLIPSIS in result


@given(st.text(max_size=300), st.integers(200, 900))
def test_wrapped_lines_fit_and_are_few(text: str, most: int) -> None:
    rows = wrapped(text, 22, most, lines=2)
    assert 1 <= len(rows) <= 2
    assert all(text_width(row, 22) <= most for row in rows)


def test_wrapped_keeps_quantities_together() -> None:
    sentence = (
        "Runs on your RTX 4090 at Q4_K_M, just: 21.5 of 22.5 GiB at 32K, about 42 tokens/s (34-52)"
    )
    rows = wrapped(sentence, 22, INNER - 126, lines=2)
    assert " ".join(rows) == sentence
    assert "21.5 of 22.5 GiB" in rows[1]


def test_text_of_unknown_width_gets_a_text_length() -> None:
    assert "textLength" in text_element("Привет", 0, 0, 20, fill="#000", most=500)
    assert "textLength" not in text_element("Qwen3 模型 é", 0, 0, 20, fill="#000", most=500)


# -- the machine ----------------------------------------------------------------------------------

TWO_CARDS = machine(card("RTX 3090", 24), card("RTX 3090", 24))


@pytest.mark.parametrize(
    ("described", "label"),
    [
        (machine(card("RTX 4090", 24)), "RTX 4090 · 24 GB · 64 GB RAM"),
        (TWO_CARDS, "2x RTX 3090 · 24 GB each · 64 GB RAM"),
        (machine(card("RTX 4070", 12), ram_gib=None), "RTX 4070 · 12 GB"),
        (mac(36), "M3 Max · 36 GB unified memory"),
        (machine(processor="Intel(R) Xeon(R) Z CPU @ 2.70GHz"), "Intel Xeon Z · 64 GB RAM"),
        (machine(), "CPU · 64 GB RAM"),
    ],
)
def test_machine_label(described: Machine, label: str) -> None:
    assert machine_label(described) == label


def test_label_of_a_phone_has_its_memory_and_that_of_a_container_its_limit() -> None:
    phone = what_if_machine(devices=["phone-8"])
    assert machine_label(phone).endswith("8 GB RAM")
    container = machine()
    assert container.host is not None
    limit = MemoryLimit(name="cgroup", limit_bytes=16 * GIB, used_bytes=0)
    limited = replace(container, host=replace(container.host, limits=(limit,)))
    assert machine_label(limited) == "CPU · 16 GB RAM"


@pytest.mark.parametrize(
    ("gib", "sold"),
    [(7.6, 8), (15.5, 16), (31.2, 32), (62.7, 64), (94, 96), (125.6, 128), (503, 512), (0.5, 1)],
)
def test_ram_gb_is_the_size_of_the_modules(gib: float, sold: int) -> None:
    assert ram_gb(int(gib * 1024**3)) == sold


# -- local paths ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llama-server -m /home/me/m/x.gguf -c 8192", "llama-server -m x.gguf -c 8192"),
        ("-m '/home/me/my models/x.gguf'", "-m 'x.gguf'"),
        ("--mmproj=/mnt/p.gguf,/mnt/q.gguf", "--mmproj=p.gguf,q.gguf"),
        ("FROM ./private/x.gguf", "FROM x.gguf"),
        ("-m private/x.gguf", "-m x.gguf"),
        (r"-m C:\Users\me\x.gguf", "-m x.gguf"),
        ("~me/x.gguf", "x.gguf"),
        ("file:///home/me/x.gguf", "x.gguf"),
        ("-hf org/name-GGUF:Q4_K_M at 42 tokens/s", "-hf org/name-GGUF:Q4_K_M at 42 tokens/s"),
        ("https://huggingface.co/models?search=x", "https://huggingface.co/models?search=x"),
    ],
)
def test_without_folders(text: str, expected: str) -> None:
    assert without_folders(text, ["private", "/home/me/my models"]) == expected
