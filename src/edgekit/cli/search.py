"""`search`: the answer as text or JSON."""

from __future__ import annotations

import argparse
import sys

from edgekit.app.search import Question, search
from edgekit.cli.console import is_terminal, screen, show_progress
from edgekit.cli.plan import plan_words
from edgekit.engines import default_engine
from edgekit.errors import HardwareError, NotFoundError
from edgekit.report.json import json_text
from edgekit.report.search import search_json, search_text
from edgekit.request import Request, Session
from edgekit.sources.types import Reach


def run_search(arguments: argparse.Namespace) -> tuple[str, int]:
    """The matching models as text. The exit code says if nothing matches, or nothing of it fits."""
    question = Question.from_fields(vars(arguments))
    arguments.engine = arguments.engine or default_engine().name
    request = Request.from_argv(arguments, one_engine=True)
    shows = is_terminal(sys.stderr) and not arguments.json
    reach = Reach(network=False, progress=show_progress if shows else None)
    try:
        answer = search(question, request, Session(reach=reach))
    finally:
        if shows:
            show_progress("")
    code = 0
    if not answer.models:
        code = HardwareError.exit_code if answer.matching else NotFoundError.exit_code
    if arguments.json:
        return json_text(search_json(answer)), code
    return search_text(answer, screen(), words=tuple(plan_words(arguments))), code
