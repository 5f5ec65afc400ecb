"""Small HTML pages without scripts: errors, redirects, and the page that asks for the token.

Each is complete in itself, because a client without the token cannot fetch the page's files.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from urllib.parse import quote

from edgekit.web.assets import FOLDER

STYLE = """
:root { color-scheme: light dark; --bg: #f6f7f9; --panel: #fff; --ink: #17202b; --muted: #55606e; --line: #d5dae1;
  --field: #7d8896; --accent: #1d5fae; --on-accent: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --bg: #10151c; --panel: #182029; --ink: #e7ecf2; --muted: #a2aebc; --line: #2f3a47;
    --field: #75828f; --accent: #7db4ff; --on-accent: #0c1a2b; }
}
* { box-sizing: border-box; }
body { margin: 0; padding: 12vh 1rem 2rem; background: var(--bg); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 30rem; margin: 0 auto; padding: 2rem; background: var(--panel);
  border: 1px solid var(--line); border-radius: 12px; }
.brand { display: flex; align-items: center; gap: .5rem; margin: 0 0 1.5rem; font-weight: 600; }
h1 { margin: 0 0 .5rem; font-size: 1.75rem; line-height: 1.2; }
p { margin: 0 0 1rem; overflow-wrap: anywhere; }
p:last-child { margin: 0; }
form { margin: 1.5rem 0; }
label { display: block; margin-bottom: .25rem; color: var(--muted); font-size: .875rem; }
.row { display: flex; gap: .5rem; }
input, button { min-height: 2.75rem; padding: 0 .75rem; font: inherit; border-radius: 8px; }
input { flex: 1; min-width: 0; color: inherit; background: var(--bg); border: 1px solid var(--field); }
button { padding: 0 1.25rem; border: 0; color: var(--on-accent); background: var(--accent); cursor: pointer; }
a { color: var(--accent); }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
"""
# Allows this style sheet, and no other, in a content security policy.
STYLE_SOURCE = f"'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'"

_ICON = quote((FOLDER / "icon.svg").read_text(encoding="utf-8").strip())
_PAGE = f"""\
<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{{title}} - EdgeKit</title>
<link rel="icon" href="data:image/svg+xml,{_ICON}">
<style>{{style}}</style></head>
<body><main>
<p class="brand"><img src="data:image/svg+xml,{_ICON}" alt="" width="24" height="24">EdgeKit</p>
<h1>{{title}}</h1>
<p>{{text}}</p>{{form}}
<p><a href="{{link}}">{{link_text}}</a></p>
</main></body>
</html>
"""
# POST, so that the token is in no address, history or log.
_FORM = """
<form method="post" action="{action}">
<label for="token">Token, or the address that edgekit web printed</label>
<div class="row"><input id="token" name="token" type="password" required autofocus maxlength="2000" autocomplete="off"
autocapitalize="off" spellcheck="false"><button type="submit">Open</button></div>
</form>"""


def small_page(
    title: str,
    text: str,
    *,
    link: str = "/",
    link_text: str = "Back to EdgeKit",
    form_action: str | None = None,
) -> str:
    """An HTML page with a title, a paragraph and a link; with `form_action`, also a field for the token."""
    return _PAGE.format(
        style=STYLE,
        title=escape(title),
        text=escape(text),
        form="" if form_action is None else _FORM.format(action=escape(form_action)),
        link=escape(link),
        link_text=escape(link_text),
    )
