"""llama.cpp's server as a program, for tests: llama.cpp's own parser of arguments and its own server, from the wheel.

PyPI has no llama-server. The wheel's library exports the function that llama-server parses its arguments with, which
answers --version and --list-devices itself, and the wheel's CommonParams object holds the structure that it fills.
"""

from __future__ import annotations

import sys
from pathlib import Path

_SCRIPT = """\
#!{python}
import ctypes, signal, sys, threading
from importlib.metadata import version

import xllamacpp
from xllamacpp import xllamacpp as module

library = ctypes.CDLL(module.__file__)
# The wheel is built from an archive, without the number that a build in the repository has.
number = int(version("xllamacpp").rpartition(".")[2])
ctypes.c_int.in_dll(library, "LLAMA_BUILD_NUMBER").value = number
parse = library._Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E
parse.restype = ctypes.c_bool
parse.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
words = [word.encode() for word in sys.argv]
arguments = (ctypes.c_char_p * (len(words) + 1))(*words)
parameters = xllamacpp.CommonParams()
inside = id(parameters) + object.__basicsize__  # the C++ structure follows the object's header
if not parse(len(words), arguments, inside, {server}, None):
    sys.exit(1)
library._Z30common_log_set_verbosity_tholdi(int(sys.argv[sys.argv.index("-lv") + 1]))
server = xllamacpp.Server(parameters)
# llama.cpp writes its log in a thread: the line that ends it comes last.
library._Z15common_log_mainv.restype = ctypes.c_void_p
library._Z16common_log_flushP10common_log.argtypes = [ctypes.c_void_p]
library._Z16common_log_flushP10common_log(library._Z15common_log_mainv())
print(f"0.00.000.000 I srv  llama_server: listening on {{server.listening_address}}", file=sys.stderr, flush=True)
done = threading.Event()
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: done.set())
done.wait()
import os
os._exit(0)
"""
_SERVER = 12  # common.h: LLAMA_EXAMPLE_SERVER


def write_llama_server(folder: Path) -> Path:
    """An executable named llama-server in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "llama-server"
    path.write_text(_SCRIPT.format(python=sys.executable, server=_SERVER))
    path.chmod(0o755)
    return path
