"""Run one command of EdgeKit in this process and write what it entered, imported and parsed as JSON.

    python tools/traced_command.py REPORT.json TEXT check model.gguf -c TEXT ...

`entered`: files of the package in which a function or the body of a class ran; bodies of modules, lambdas and
comprehensions do not count. `called`: only files with a function that was called while no module was being imported.
`parses`: functions that got TEXT as an argument and returned it as a number, the
innermost only, with the number of calls. An int(...) of a value out of a container is not seen.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType


class Trace:
    """A profile function for sys.setprofile."""

    def __init__(self, package: Path, text: str) -> None:
        self.prefix = f"{package}/"
        self.text = text
        self.entered: set[str] = set()
        self.called: set[str] = set()
        self.parses: Counter[str] = Counter()
        self._took_text: list[FrameType] = []
        self._importing = 0

    def __call__(self, frame: FrameType, event: str, value: object) -> None:
        code = frame.f_code
        if event not in {"call", "return"} or not code.co_filename.startswith(self.prefix):
            return
        file = code.co_filename.removeprefix(self.prefix)
        if code.co_name == "<module>":
            self._importing += 1 if event == "call" else -1
        elif event == "return":
            self._leave(frame, file, value)
        else:
            if not code.co_name.startswith("<"):
                self.entered.add(file)
            if not self._importing:
                self.called.add(file)
            arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(self._is_text(frame.f_locals.get(name)) for name in arguments):
                self._took_text.append(frame)

    def _is_text(self, value: object) -> bool:
        return isinstance(value, str) and value == self.text

    def _leave(self, frame: FrameType, file: str, value: object) -> None:
        if frame not in self._took_text:
            return
        is_innermost = self._took_text[-1] is frame
        self._took_text.remove(frame)
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and value == int(self.text)
        ):
            if is_innermost:
                self.parses[f"{file}:{frame.f_code.co_name}"] += 1
            self._took_text.clear()  # its callers pass the number along


def main() -> None:
    report, text, *words = sys.argv[1:]
    spec = importlib.util.find_spec("edgekit")
    if spec is None or spec.origin is None:
        sys.exit("edgekit is not installed here")
    trace = Trace(Path(spec.origin).parent, text)
    output = io.StringIO()
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        with contextlib.redirect_stdout(output):
            importlib.import_module("edgekit.cli").main(words)
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    modules = sorted(name for name in sys.modules if name.split(".")[0] == "edgekit")
    result = {
        "output": output.getvalue(),
        "entered": sorted(trace.entered),
        "called": sorted(trace.called),
        "modules": modules,
        "parses": dict(trace.parses),
    }
    Path(report).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
