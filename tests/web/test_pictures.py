"""/picture.svg, /badge.svg and the shared HTML file: in a real browser no text leaves its place."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

import pytest
from playwright.sync_api import Browser
from tests.unit.report.test_picture import NAMES
from tests.unit.report.verdicts import RECORDED, recorded
from tests.web.serving import LOCAL, Reply, ask, start

from edgekit.cli import main
from edgekit.report.picture import MARGIN, THEMES, WIDTH, badge_svg, picture_svg
from edgekit.report.shared_answer import SharedAnswer, shared_answer

DAY = dt.date(2026, 7, 31)
MODEL = {"model": "sample:gemma-3-27b", "device": "RTX 4090", "ram": "64G"}
SVG_TYPE = "image/svg+xml"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with start() as address:
        yield address


def image(server: str, path: str, fields: dict[str, str], **headers: str) -> Reply:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(server, f"{path}?{urlencode(fields)}", headers=names)


def words_of(reply: Reply) -> str:
    return " ".join(ET.fromstring(reply.body).itertext())


@pytest.mark.parametrize("path", ["/picture.svg", "/badge.svg"])
def test_images_have_the_answer_of_check(server: str, path: str) -> None:
    reply = image(server, path, MODEL)
    assert (reply.status, reply.headers["content-type"]) == (200, SVG_TYPE)
    assert reply.headers["content-security-policy"].startswith(
        "default-src 'none'; style-src 'unsafe-inline'"
    )
    assert reply.headers["cache-control"] == "no-store"
    assert "42 tokens/s" in words_of(reply)


def test_picture_has_two_themes(server: str) -> None:
    light, dark = (image(server, "/picture.svg", {**MODEL, "theme": theme}) for theme in THEMES)
    assert light.status == dark.status == 200
    assert light.body != dark.body


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({}, 400, "model: required"),
        ({**MODEL, "theme": "pink"}, 400, "light, dark"),
        ({**MODEL, "engine": "all"}, 400, "one engine"),
        ({**MODEL, "nonsense": "1"}, 400, "unknown field"),
        ({**MODEL, "device": "RTX 9999"}, 400, "RTX 9999"),
        ({**MODEL, "model": "/etc/passwd"}, 403, "--models-dir"),
        ({**MODEL, "model": "no-such-model-at-all"}, 404, "not found"),
    ],
)
def test_errors_are_grey_badges_with_the_status(
    server: str, fields: dict[str, str], status: int, message: str
) -> None:
    for path in ("/picture.svg", "/badge.svg"):
        reply = image(server, path, fields)
        assert (reply.status, reply.headers["content-type"]) == (status, SVG_TYPE)
        assert message in words_of(reply)
        assert b"#5f6872" in reply.body


def test_other_sites_and_methods_are_refused(server: str) -> None:
    reply = image(server, "/badge.svg", MODEL, Sec_Fetch_Site="cross-site")
    assert (reply.status, reply.headers["content-type"]) == (403, SVG_TYPE)
    assert ask(server, "/badge.svg", {}, method="POST").status == 405


def test_token_is_needed_and_not_taken_from_the_address() -> None:
    token = "0123456789abcdefghij"
    with start(replace(LOCAL, token=token)) as address:
        assert image(address, "/badge.svg", {**MODEL, "token": token}).status == 401
        assert image(address, "/badge.svg", MODEL, Authorization=f"Bearer {token}").status == 200


OVERFLOW = """([left, right, bottom]) => [...document.querySelectorAll("text")]
  .map((text) => [text.textContent, text.getBBox()])
  .filter(([, box]) => box.x < left || box.x + box.width > right || box.y + box.height > bottom)
  .map(([words]) => words)"""


def pictures() -> Iterator[SharedAnswer]:
    for name in RECORDED:
        yield shared_answer(recorded(name), DAY)
    for name in NAMES:
        answer = shared_answer(recorded("tight"), DAY)
        yield replace(answer, title=name, publisher=name, machine=name, sentence=name, engine=name)


def test_no_text_leaves_the_picture(browser: Browser) -> None:
    page = browser.new_page()
    for answer, theme in product(pictures(), THEMES):
        page.set_content(picture_svg(answer, theme))
        beyond = page.evaluate(OVERFLOW, [MARGIN - 2, WIDTH - MARGIN + 2, 630])
        assert beyond == [], answer.title
    page.close()


def test_no_text_leaves_the_badge(browser: Browser) -> None:
    page = browser.new_page()
    for answer in pictures():
        svg = badge_svg(replace(answer, hardware=answer.machine))
        page.set_content(svg)
        width = float(ET.fromstring(svg).get("width", "0"))
        assert page.evaluate(OVERFLOW, [0, width, 20]) == [], answer.title
    page.close()


def test_picture_can_be_drawn_into_a_canvas(browser: Browser) -> None:
    page = browser.new_page()
    script = """async (svg) => {
      const image = new Image();
      image.src = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
      await image.decode();
      const canvas = Object.assign(document.createElement("canvas"), { width: 1200, height: 630 });
      canvas.getContext("2d").drawImage(image, 0, 0);
      return canvas.toDataURL("image/png").length;
    }"""
    svg = picture_svg(shared_answer(recorded("fits"), DAY))
    assert page.evaluate(script, svg) > 10_000
    page.close()


@pytest.mark.parametrize("width", [360, 1200])
def test_shared_file_makes_no_request_and_fits_the_screen(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    file = tmp_path / "answer.html"
    main(["share", MODEL["model"], "--device", "RTX 4090", "--ram", "64G", "-o", str(file)])
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme="dark")
    requests: list[str] = []
    faults: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: faults.append(message.text))
    page.goto(file.as_uri())
    assert [url for url in requests if not url.startswith("data:")] == [file.as_uri()]
    assert faults == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.close()
