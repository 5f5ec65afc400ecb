"""Find the places outside of the engines' folders that depend on an engine's name.

`dependences(root)` reads src/edgekit as syntax trees and the page's scripts as tokens. It returns

- comparisons: `==`, `!=`, `is`, `in` a literal, `case`, `startswith` and `includes` with an engine's name, with a
  constant that holds one, or with a class or module from an engine's folder (`isinstance`, `is`);
- tables: dicts and objects with engines' names as keys, collections of nothing but engines' names, and look-ups
  with a name (`table["vllm"]`, `.get("vllm")`, `.has("vllm")`);
- values: a name passed as an argument, used as a default or bound to a constant. They choose an engine but do not
  branch on it, so the rule "nothing compares or keeps a table" does not count them.

Prose does not count: only a literal that is exactly a name does, so messages, examples and help are left out. Four of
the names mean something else as well: "mlx" is a file format, "stream" a field of HTTP requests, "native" a kind of
kernel and the context that a model was trained for, "memo" a note. For these, `_means_something_else` decides.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

NAMES = frozenset({"llama.cpp", "llamacpp", "vllm", "mlx", "stream", "native", "memo"})
CLEAR = frozenset({"llama.cpp", "llamacpp", "vllm"})  # these have no other meaning
FOLDERS = ("engine", "engines")
COMPARISON, TABLE, VALUE = "comparison", "table", "value"

_FOLDER_OF = {"llama.cpp": "llamacpp", "stream": "native"}  # where it differs from the name

_QUOTED = re.compile(rf"""["']({"|".join(map(re.escape, sorted(NAMES)))})["']""")
_LOOKUPS = frozenset({"get", "has", "pop", "setdefault", "index", "count"})
_TESTS = frozenset(
    {"startswith", "endswith", "includes", "startsWith", "endsWith", "localeCompare"}
)
_OTHER_MEANING = re.compile(r"format|method|kernel|container|suffix|tag", re.IGNORECASE)
_COLLECTION = (ast.Tuple, ast.List, ast.Set)


@dataclass(frozen=True, slots=True, order=True)
class Dependence:
    """One place that depends on an engine's name."""

    path: str  # from src/edgekit
    line: int
    kind: str
    text: str


def dependences(
    root: Path, *, strict: bool = False, trees: Mapping[str, ast.Module] | None = None
) -> list[Dependence]:
    """The dependences of a checkout, by file and line.

    `strict`: also in the files that the engines share, and in an engine's folder if the name is another engine's.
    `trees`: the files from src/edgekit, if already parsed.
    """
    package = root / "src" / "edgekit"
    modules: dict[str, _Module] = {}
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package).as_posix()
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text) if trees is None else trees[relative]
        modules[_module_name(path, package)] = _Module(relative, text, tree)
    for module in modules.values():
        module.read_constants()
    result = {
        dependence
        for module in modules.values()
        if (strict or module.relative.split("/")[0] not in FOLDERS) and module.may_name_one(modules)
        for dependence in _of_module(module, modules)
    }
    scripts = {
        path.relative_to(package).as_posix(): path.read_text(encoding="utf-8")
        for path in package.rglob("*.js")
        if path.relative_to(package).parts[0] not in FOLDERS
    }
    constants = {
        match[1]: match[2]
        for text in scripts.values()
        for match in re.finditer(r"""\bconst (\w+) = ["']([\w.]+)["'];""", text)
        if match[2] in NAMES
    }
    result |= {each for path, text in scripts.items() for each in _of_script(text, path, constants)}
    return sorted(result)


def statements(node: ast.AST, *, is_typing: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every statement, and whether it is in an `if TYPE_CHECKING`. Much faster than a walk over the expressions."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for item in getattr(node, name, ()):
            yield item, is_typing
            is_for_types = isinstance(item, ast.If) and "TYPE_CHECKING" in ast.dump(item.test)
            yield from statements(item, is_typing=is_typing or is_for_types)


def _module_name(path: Path, package: Path) -> str:
    parts = ("edgekit", *path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass
class _Module:
    relative: str
    text: str
    tree: ast.Module
    constants: dict[str, str] = field(default_factory=dict)  # LLAMACPP -> "llama.cpp"
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> module, name there
    of_engines: set[str] = field(default_factory=set)  # classes and modules from an engine's folder

    @property
    def own_folder(self) -> str:
        return _engine_folder(f"edgekit.{self.relative.replace('/', '.')}")

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def may_name_one(self, modules: dict[str, _Module]) -> bool:
        """False for files that neither spell a name nor import one."""
        if self.of_engines or _QUOTED.search(self.text):
            return True
        imported_modules = (
            modules.get(f"{place}.{name}") for place, name in self.imported.values()
        )
        return any(_constant(name, self, modules) for name in self.imported) or any(
            module is not None and module.constants for module in imported_modules
        )

    def read_constants(self) -> None:
        for node, _ in statements(self.tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind(target, node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._bind(node.target, node.value)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    name = alias.asname or alias.name
                    self.imported[name] = (node.module, alias.name)
                    folder = _engine_folder(f"{node.module}.{alias.name}")
                    if folder and folder != self.own_folder:
                        self.of_engines.add(name)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for item, item_value in zip(target.elts, value.elts, strict=False):
                self._bind(item, item_value)
        elif isinstance(target, ast.Name) and target.id.isupper() and _is_name(value):
            self.constants[target.id] = ast.literal_eval(value)


def _engine_folder(dotted: str) -> str:
    """edgekit.engines.vllm.types.VllmSetup -> vllm; "" for what all engines share (edgekit.engines.flags)."""
    parts = dotted.split(".")
    return parts[2] if len(parts) > 2 and parts[1] in FOLDERS and parts[2] in NAMES else ""


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in NAMES


def _name_of(node: ast.AST, module: _Module, modules: dict[str, _Module]) -> str | None:
    """The engine's name that an expression is known to hold."""
    match node:
        case ast.Constant(value=str(value)) if value in NAMES:
            return value
        case ast.Name(id=name):
            return _constant(name, module, modules)
        case ast.Attribute(value=ast.Name(id=owner), attr=attr):
            place, name = module.imported.get(owner, ("", ""))
            target = modules.get(f"{place}.{name}")
            if target is not None and target.relative.split("/")[0] in FOLDERS and attr == "NAME":
                return owner if owner in NAMES else None
            return None if target is None else _constant(attr, target, modules)
    return None


def _constant(name: str, module: _Module, modules: dict[str, _Module]) -> str | None:
    for _ in range(8):  # a constant may be imported from a module that imported it
        if name in module.constants:
            return module.constants[name]
        place, name = module.imported.get(name, ("", ""))
        if place not in modules:
            return None
        module = modules[place]
    return None


def _of_module(module: _Module, modules: dict[str, _Module]) -> Iterator[Dependence]:
    for node in ast.walk(module.tree):
        if isinstance(getattr(node, "ctx", None), ast.Store):
            continue
        name = _name_of(node, module, modules)
        if name and _FOLDER_OF.get(name, name) == module.own_folder:
            continue
        result = _classified(node, name, module, modules) if name else _class_test(node, module)
        if result is not None:
            where, kind = result
            text = " ".join(ast.unparse(where).split())[:100]
            yield Dependence(module.relative, getattr(where, "lineno", 0), kind, text)


def _class_test(node: ast.AST, module: _Module) -> tuple[ast.AST, str] | None:
    """isinstance(setup, VllmSetup), `engine is vllm`, `case VllmSetup()`."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, kind]):
            used: list[ast.expr] = [kind]
        case ast.Compare(left=left, ops=ops, comparators=comparators) if any(
            isinstance(op, ast.Is | ast.IsNot) for op in ops
        ):
            used = [left, *comparators]
        case ast.MatchClass(cls=cls):
            used = [cls]
        case _:
            return None
    one_by_one = [
        item for each in used for item in (each.elts if isinstance(each, ast.Tuple) else [each])
    ]
    names = {item.id for item in one_by_one if isinstance(item, ast.Name)}
    return (node, COMPARISON) if names & module.of_engines else None


def _classified(
    node: ast.AST, name: str, module: _Module, modules: dict[str, _Module]
) -> tuple[ast.AST, str] | None:
    """The expression around a name, and its kind of dependence."""
    inner, outer = node, module.parents[node]
    if isinstance(outer, _COLLECTION):
        if isinstance(module.parents[outer], ast.Assign) and _unpacks(module.parents[outer]):
            return None
        holder: ast.AST = outer
        call = module.parents[outer]
        if isinstance(call, ast.Call) and ast.unparse(call.func) in {"frozenset", "set", "tuple"}:
            holder = call
        if isinstance(module.parents[holder], ast.Compare):
            inner, outer = holder, module.parents[holder]
        else:
            only = all(_name_of(elt, module, modules) is not None for elt in outer.elts)
            return (outer, TABLE) if only else None
    if isinstance(outer, ast.FormattedValue | ast.Expr):
        return None  # part of a message, or a docstring
    kind, where = _use(inner, outer, module)
    if kind is TABLE and isinstance(where, ast.Dict):
        return (where, TABLE) if _is_table(where, module, modules) else None
    if name not in CLEAR and _means_something_else(where, kind, name, module):
        return None
    return where, kind


def _use(inner: ast.AST, outer: ast.AST, module: _Module) -> tuple[str, ast.AST]:
    match outer:
        case ast.Compare():
            return COMPARISON, outer
        case ast.MatchValue():
            return COMPARISON, outer
        case ast.Dict() if inner in outer.keys:
            return TABLE, outer
        case ast.Subscript() if outer.slice is inner:
            return TABLE, outer
        case ast.Call(func=ast.Attribute(attr=attr), args=[first, *_]) if first is inner:
            if attr in _TESTS:
                return COMPARISON, outer
            if attr in _LOOKUPS:
                return TABLE, outer
    shown = module.parents[inner] if isinstance(outer, ast.expr | ast.keyword) else inner
    if isinstance(outer, ast.Assign | ast.AnnAssign):
        shown = outer
    return VALUE, shown


def _unpacks(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)


def _is_table(node: ast.Dict, module: _Module, modules: dict[str, _Module]) -> bool:
    """{"stream": True, ...} and {"native": 8192, ...} are fields with another meaning."""
    names = [None if key is None else _name_of(key, module, modules) for key in node.keys]
    known = {name for name in names if name is not None}
    return bool(known & CLEAR) or len(known) > 1 or (names == ["mlx"])


def _means_something_else(where: ast.AST, kind: str, name: str, module: _Module) -> bool:
    text = ast.unparse(where)
    if _OTHER_MEANING.search(text) or "kernels" in module.relative:
        return True
    if kind == COMPARISON or (kind == TABLE and name == "mlx"):
        return False
    return not re.search(r"engine|devices_for|LLAMACPP|STREAM|BUILT_IN", text)


# --- the page's scripts ---

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)
      | (?P<word>[A-Za-z_$][\w$]*)
      | (?P<number>\d[\w.]*)
      | (?P<sign>===|!==|==|!=|=>|\.\.\.|\?\?=?|\?\.|&&|\|\||.)""",
    re.VERBOSE | re.DOTALL,
)
_EQUALITIES = frozenset({"===", "!==", "==", "!="})
_CLOSES = {"{": "}", "[": "]", "(": ")"}


@dataclass(slots=True)
class _Token:
    kind: str
    text: str
    line: int

    @property
    def name(self) -> str | None:
        text = self.text[1:-1] if self.kind == "string" else self.text
        return text if self.kind in {"string", "word"} and text in NAMES else None


def _tokens(text: str, constants: Mapping[str, str]) -> list[_Token]:
    """A constant that holds an engine's name counts as the name itself."""
    result: list[_Token] = []
    line = 1
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "sign"
        if match[0] in constants and result and result[-1].text not in {"const", ".", "?."}:
            result.append(_Token("string", f'"{constants[match[0]]}"', line))
        elif kind != "space":
            result.append(_Token(kind, match[0], line))
        line += match[0].count("\n")
    return result


def _of_script(text: str, path: str, constants: Mapping[str, str]) -> Iterator[Dependence]:
    edge = _Token("sign", "", 0)
    tokens = [edge, *_tokens(text, constants), edge, edge]
    lines = text.splitlines()
    open_at: list[int] = []  # places of the brackets around this token
    for place, token in enumerate(tokens):
        if token.kind == "sign" and token.text in _CLOSES:
            open_at.append(place)
        elif token.kind == "sign" and token.text in _CLOSES.values() and open_at:
            open_at.pop()
        elif token.name is not None:
            result = _script_use(tokens, place, open_at)
            if result is not None:
                line, kind = result
                yield Dependence(path, line, kind, lines[line - 1].strip()[:100])


def _script_use(tokens: list[_Token], place: int, open_at: list[int]) -> tuple[int, str] | None:
    before, token, after = tokens[place - 1], tokens[place], tokens[place + 1]
    opened = open_at[-1] if open_at else 0
    bracket = tokens[opened].text
    is_key = after.text == ":" and bracket == "{" and before.text in {"{", ","}
    if is_key:
        return (tokens[opened].line, TABLE) if _is_object_table(tokens, opened, token) else None
    if token.kind == "word":
        is_member = before.text in {".", "?."} and token.name in {"vllm", "llamacpp", "mlx"}
        return (token.line, TABLE) if is_member and after.text != "(" else None
    if before.text in _EQUALITIES or after.text in _EQUALITIES or before.text == "case":
        return token.line, COMPARISON
    if bracket == "(" and opened == place - 1 and tokens[opened - 2].text in {".", "?."}:
        called = tokens[opened - 1].text
        if called in _TESTS:
            return token.line, COMPARISON
        if called in _LOOKUPS:
            return token.line, TABLE
    if bracket == "[" and (token.name in CLEAR or _holds_names_only(tokens, opened)):
        return tokens[opened].line, COMPARISON if _is_searched(tokens, opened) else TABLE
    return (token.line, VALUE) if token.name in CLEAR else None


def _is_object_table(tokens: list[_Token], opened: int, token: _Token) -> bool:
    if token.name in CLEAR:
        return True
    keys = [
        item.name
        for place, item in enumerate(tokens[opened : _closing(tokens, opened)], opened)
        if item.name and tokens[place + 1].text == ":"
    ]
    return len(set(keys)) > 1


def _holds_names_only(tokens: list[_Token], opened: int) -> bool:
    inside = tokens[opened + 1 : _closing(tokens, opened)]
    return all(item.text == "," or (item.kind == "string" and item.name) for item in inside)


def _is_searched(tokens: list[_Token], opened: int) -> bool:
    """["vllm", "mlx"].includes(engine)"""
    end = _closing(tokens, opened)
    return tokens[end + 1].text == "." and tokens[end + 2].text in _TESTS


def _closing(tokens: list[_Token], opened: int) -> int:
    depth = 0
    for place in range(opened, len(tokens) - 2):
        if tokens[place].kind == "sign":
            depth += (tokens[place].text in _CLOSES) - (tokens[place].text in _CLOSES.values())
        if depth == 0:
            return place
    return len(tokens) - 3
