"""A page that holds one message, without style sheets: for answers sent before the real page can be."""

from __future__ import annotations

from html import escape

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title} - EdgeKit</title></head>
<body><main><h1>{title}</h1><p>{text}</p><p><a href="{link}">{link_text}</a></p></main></body>
</html>
"""


def small_page(
    title: str, text: str, *, link: str = "/", link_text: str = "Back to EdgeKit"
) -> str:
    return _PAGE.format(
        title=escape(title), text=escape(text), link=escape(link), link_text=escape(link_text)
    )
