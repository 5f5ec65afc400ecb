"""llama.cpp's source trees -> the table of the tensors and keys that its loader expects of each architecture.

    python tools/loader_table.py LLAMA_CPP/src [OLDER_LLAMA_CPP/src ...] > src/edgekit/engines/llamacpp/loader_table.tsv

Reads src/models/*.cpp (load_arch_hparams, load_arch_tensors, the graph's asserts), llama-arch.cpp and llama-hparams.h.
The table has facts only: names of tensors and keys, and shapes and conditions as llama.cpp writes them. What this
reader does not understand, or what differs between two source trees, becomes "may be there" or a shape of "*".
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# Loaders with blocks of another kind, or two models in one: only the universal checks apply to them.
NOT_READ = {"clef", "clip", "dflash", "eagle3", "gemma4-assistant", "hrm_text", "pockettts", "qwen3tts", "t5",
            "t5encoder", "wavtokenizer-dec"}  # fmt: skip
ANY_SHAPE = "*"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Item:
    name: str
    condition: str  # Python syntax; "" is always, "unknown" if this reader does not understand it
    shape: str
    required: bool


@dataclass
class Loader:
    items: list[Item] = field(default_factory=list)
    required_keys: set[str] = field(default_factory=set)
    fields: dict[str, str] = field(
        default_factory=dict
    )  # hparams field -> key, with its default after "="
    changed: set[str] = field(default_factory=set)  # fields that the code computes
    checks: dict[str, str] = field(default_factory=dict)  # condition that must hold -> the message


Statement = tuple[tuple[str, ...], str]


def block_after(text: str, start: int) -> str:
    """The text between the next brace and the matching one."""
    begin = text.index("{", start)
    depth = 0
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin + 1 : at]
    raise ValueError("unbalanced braces")


def statements(text: str, around: tuple[str, ...] = ()) -> Iterator[Statement]:
    """Every statement with the conditions and loops around it."""
    at, before = 0, ""
    control = re.compile(r"(if|for|while|else if|else|switch|try|catch)\b\s*")
    while at < len(text):
        at += len(text[at:]) - len(text[at:].lstrip())
        if at >= len(text):
            return
        if result := control.match(text, at):
            word, at, head = result[1], result.end(), ""
            if text[at] == "(":
                depth, begin = 0, at
                while True:
                    depth += {"(": 1, ")": -1}.get(text[at], 0)
                    at += 1
                    if depth == 0:
                        break
                head = " ".join(text[begin + 1 : at - 1].split())
            at += len(text[at:]) - len(text[at:].lstrip())
            if text[at] == "{":
                inner = block_after(text, at)
                at += len(inner) + 2
            else:
                end = text.index(";", at) + 1
                inner, at = text[at:end], end
            if word == "if":
                before = head
                inside: tuple[str, ...] = (f"if {head}",)
            elif word == "else":
                inside = (f"not {before}",)
            elif word == "else if":
                inside = (f"not {before}", f"if {head}")
                before = f"({before}) || ({head})"
            else:
                inside = (f"{word} {head}",)
            yield from statements(inner, (*around, *inside))
            continue
        if text[at] == "{":
            inner = block_after(text, at)
            yield from statements(inner, around)
            at += len(inner) + 2
            continue
        depth, begin = 0, at
        while at < len(text) and not (text[at] == ";" and depth == 0):
            depth += (text[at] in "({[") - (text[at] in ")}]")
            at += 1
        statement = " ".join(text[begin:at].split())
        at += 1
        if lambda_ := re.match(r"(?:const )?auto (\w+) = \[&\]\(([^)]*)\)[^{]*\{", statement):
            if "mtp" not in lambda_[1]:
                yield from statements(block_after(statement, lambda_.end() - 1), around)
        else:
            yield around, statement


def without_choices(text: str) -> str:
    """The text without lambdas that load a tensor in one of two shapes: their calls load one of any shape."""
    pattern = re.compile(r"auto (\w+) = \[&\]\(\w+ (\w+)\) \{")
    for found in [*pattern.finditer(text)]:
        body = block_after(text, found.start())
        created = re.search(r"return \w+ \? \w+ : create_tensor\(tn\(([^()]*)\)", body)
        if created is None:
            continue
        loaded = f"create_tensor(tn({created[1]}), {{0}}, TENSOR_ALLOW_RESHAPE)"
        text = text.replace(text[found.start() : found.end() + len(body) + 1], "", 1)
        for call in {*re.findall(rf"\b{found[1]}\((\w+)\)", text)}:
            one = re.sub(rf"\b{found[2]}\b", call, loaded)
            text = text.replace(f"{found[1]}({call})", one)
    return text


def normal(expression: str, local: dict[str, str]) -> str:
    """A C++ expression as Python with locals replaced; "unknown" if it cannot be translated."""
    text = expression.strip()
    text = re.sub(r"static_cast<\w+>\(([^()]*)\)", r"\1", text)
    text = re.sub(r"\((?:u?int(?:\d+_t)?|size_t)\)\s*", "", text)
    text = text.replace("hparams.", "").replace("->", ".").replace("layer.", "layer_")
    text = re.sub(r"\b(\w+) != (?:nullptr|NULL)\b", r"\1", text)
    text = re.sub(r"\b(\w+) == (?:nullptr|NULL)\b", r"!\1", text)
    text = re.sub(r"(\d)[uU]\b", r"\1", text)
    text = re.sub(r"\b(\w+)\((?:i|il)\)", r"\1_il", text)
    text = re.sub(
        r"\b(\w+)(?:\(0?\)|_arr\[0\])", r"\1", text
    )  # without a layer: that of the first layer
    text = text.replace("&&", " and ").replace("||", " or ")
    text = re.sub(r"!(?!=)", " not ", text)
    text = re.sub(r"\bi\b", "il", text)
    text = re.sub(r"\bfalse\b", "False", text)
    text = re.sub(r"\btrue\b", "True", text)
    text = re.sub(r"(?<![/])/(?![/])", "//", text)
    if result := re.fullmatch(r"(.+?)\s*\?\s*(.+?)\s*:\s*(.+)", text):
        text = f"({result[2]}) if ({result[1]}) else ({result[3]})"
    text = re.sub(r"\b[A-Za-z_]\w*\b(?!\()", lambda m: local.get(m[0], m[0]), text)
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return UNKNOWN
    allowed = (ast.Expression, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Name, ast.Constant,
               ast.operator, ast.boolop, ast.unaryop, ast.cmpop, ast.expr_context)  # fmt: skip
    if not all(isinstance(node, allowed) for node in ast.walk(tree)):
        return UNKNOWN
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if names & {"NULL", "nullptr", UNKNOWN}:
        return UNKNOWN
    return ast.unparse(tree)


def condition_of(around: tuple[str, ...], local: dict[str, str]) -> str:
    """The conditions and the ranges of loops around a statement as one condition on il, the block."""
    parts = []
    for item in around:
        word, _, head = item.partition(" ")
        result = normal(head, local) if word in {"if", "not"} else UNKNOWN
        if word == "not" and result != UNKNOWN:
            result = f"not ({result})"
        if loop := re.match(r"int (?:i|il) = (.+?); (?:i|il) < (.+?);", head):
            first, end = normal(loop[1], local), normal(loop[2], local)
            if first == "0" and end in {"n_layer", "n_layer_all"}:
                continue
            if UNKNOWN not in {first, end}:
                result = f"{first} <= il and il < {end}"
        parts.append(result)
    return UNKNOWN if UNKNOWN in parts else " and ".join(f"({part})" for part in parts)


def read_tree(source: Path) -> dict[str, Loader]:
    arch = (source / "llama-arch.cpp").read_text()
    tensors = dict(re.findall(r'\{\s*LLM_TENSOR_(\w+),\s*"([^"]+)"\s*\}', arch))
    keys = {  # without the architecture's prefix; "/" marks keys without a prefix
        key: name.removeprefix("%s.") if name.startswith("%s.") else f"/{name}"
        for key, name in re.findall(r'\{\s*LLM_KV_(\w+),\s*"([^"]+)"\s*\}', arch)
    }
    defaults = dict(
        re.findall(r"u?int32_t\s+(\w+)\s*=\s*(-?\d+)\s*;", (source / "llama-hparams.h").read_text())
    )
    enums = {
        enum.lower(): name
        for enum, name in re.findall(r'\{\s*LLM_ARCH_(\w+),\s*"([^"]+)"\s*\}', arch)
    }
    bodies: dict[str, dict[str, str]] = {}
    for path in sorted((source / "models").glob("*.cpp")):
        text = re.sub(r"/\*.*?\*/", "", re.sub(r"//[^\n]*", "", path.read_text()), flags=re.DOTALL)
        for part in re.finditer(
            r"^(?:void )?llama_model_(\w+)::(load_arch_hparams|load_arch_tensors|graph(?:<\w+>)?::graph)\(",
            text,
            flags=re.MULTILINE,
        ):
            bodies.setdefault(part[1], {}).setdefault(part[2], block_after(text, part.start()))
    derived = dict(
        re.findall(
            r"struct llama_model_(\w+) : public llama_model_(\w+) \{",
            (source / "models/models.h").read_text(),
        )
    )
    classes = dict(
        re.findall(
            r"case LLM_ARCH_(\w+):\s*return new llama_model_(\w+)\(",
            (source / "llama-model.cpp").read_text(),
        )
    )
    result: dict[str, Loader] = {}
    for enum, name in enums.items():
        cls = classes.get(enum.upper(), enum)
        own_bodies = bodies.get(cls, {})
        parent = bodies.get(derived.get(cls, ""), {})
        both = {**parent, **own_bodies}
        if name in NOT_READ or "load_arch_tensors" not in both:
            continue
        try:
            result[name] = read_loader(both, tensors, keys, defaults)
        except ValueError as error:
            print(f"{name}: {error}", file=sys.stderr)
    return result


def read_loader(
    bodies: dict[str, str], tensors: dict[str, str], keys: dict[str, str], defaults: dict[str, str]
) -> Loader:
    loader = Loader()
    read_keys(bodies.get("load_arch_hparams", ""), keys, defaults, loader)
    local: dict[str, str] = {"n_embd_gqa": "n_embd_v_gqa"}
    early_exits: list[
        tuple[tuple[str, ...], str]
    ] = []  # (enclosing conditions, condition under which the block continues)
    for context, statement in statements(without_choices(bodies["load_arch_tensors"])):
        declared = re.match(
            r"(?:const )?(?:int|int64_t|uint32_t|bool|auto|size_t) (\w+) = (.+)$", statement
        )
        if declared and "create_tensor" not in statement:
            value = normal(declared[2], local)
            known = local.get(declared[1])
            local[declared[1]] = (
                UNKNOWN if value == UNKNOWN or known not in {None, f"({value})"} else f"({value})"
            )
            continue
        changed = re.match(r"(\w+) (?:[|+*-]?)= ", statement)
        if changed and "create_tensor" not in statement:
            local[changed[1]] = UNKNOWN
        if statement in {"return", "continue"}:
            inside = (
                max((i for i, part in enumerate(context) if part.startswith("for ")), default=-1)
                + 1
            )
            outer = inside if statement == "continue" else 0
            early_exits.append(
                (context[:outer], f"not ({condition_of(context[outer:], local) or 'True'})")
            )
            continue
        exclusions = [results for where, results in early_exits if context[: len(where)] == where]
        results = [part for part in (condition_of(context, local), *exclusions) if part]
        condition = UNKNOWN if any(UNKNOWN in part for part in results) else " and ".join(results)
        read_check(statement, context, condition, local, loader)
        for item in items_of(statement, condition, local, tensors):
            loader.items.append(item)
        if match := re.match(r"([\w.]+) = create_tensor\(tn\(", statement):
            names = [item.name for item in items_of(statement, condition, local, tensors)]
            local[match[1].replace(".", "_")] = f"has_{identifier(names[0])}" if names else UNKNOWN
    read_asserts(
        next((text for name, text in bodies.items() if name.startswith("graph")), ""), loader
    )
    return loader


def items_of(
    statement: str, condition: str, local: dict[str, str], tensors: dict[str, str]
) -> Iterator[Item]:
    for result in re.finditer(
        r"create_tensor_(qkv|gate_up_exps)\(layer, \w+, (.*?), (\w+|[^,]*)\)(?:$|;)", statement
    ):
        shape = ",".join(shapes(result[2], local))
        yield Item(result[1], condition, shape, is_required(result[3]))
    pattern = r"create_tensor\(\s*tn\(LLM_TENSOR_(\w+)((?:\s*,\s*[^),]+)*)\)\s*,\s*\{([^{}]*)\}\s*,\s*(.*?)\)(?:$|;)"
    matched = 0
    for result in re.finditer(pattern, statement):
        matched += 1
        flags = result[4]
        if re.fullmatch(r".*TENSOR_DUPLICATED", flags):
            continue
        name = tensors[result[1]]
        suffix = re.search(r'"(\w+)"', result[2])
        name = name + (f".{suffix[1]}" if suffix else "")
        shape = ANY_SHAPE if "RESHAPE" in flags else ",".join(shapes(result[3], local))
        if choice := re.fullmatch(r"\(0 if (\w+) else TENSOR_NOT_REQUIRED\)", local.get(flags, "")):
            yield Item(
                name,
                f"{condition} and {choice[1]}" if condition else choice[1],
                shape,
                required=True,
            )
        yield Item(name, condition, shape, is_required(flags))
    if statement.count("create_tensor(") != matched:
        raise ValueError(f"not understood: {statement}")


def identifier(name: str) -> str:
    """blk.%d.attn_qkv.weight -> attn_qkv_weight."""
    return re.sub(r"\W", "_", name.removeprefix("blk.%d."))


def is_required(flags: str) -> bool:
    """`flags` and `trunk_flags` skip a tensor only in files that consist of prediction blocks."""
    words = set(re.findall(r"\w+", flags)) - {"0", "false", "flags", "trunk_flags"}
    return not words - {"TENSOR_ALLOW_RESHAPE", "TENSOR_READ_LAZY"}


def shapes(text: str, local: dict[str, str]) -> Iterator[str]:
    for part in text.split(","):
        value = normal(part, local)
        yield ANY_SHAPE if value == UNKNOWN else value


def read_keys(text: str, keys: dict[str, str], defaults: dict[str, str], loader: Loader) -> None:
    for around, statement in statements(text):
        pattern = r"ml\.(get_key|get_arr|get_key_or_arr|get_arr_n)\(LLM_KV_(\w+),\s*([^,]+?)[,)]"
        for result in re.finditer(pattern, statement):
            name = keys[result[2]]
            target = result[3].removeprefix("hparams.")
            read = result[3].startswith("hparams.") and re.fullmatch(r"\w+", target)
            if result[1] == "get_arr":
                loader.changed.add(target)
            elif read:
                default = "0" if target.endswith("_arr") else defaults.get(target)
                stated = name if default is None else f"{name}={default}"
                if loader.fields.setdefault(target, stated) != stated or around:
                    loader.changed.add(target)
            if not around and "false" not in statement and statement.startswith("ml."):
                loader.required_keys.add(name)
        for changed in re.finditer(r"hparams\.(\w+)(?:\[[^]]*\])?\s*[|+*/-]?=(?!=)", statement):
            loader.changed.add(changed[1])
        for filled in re.finditer(r"hparams\.(set_\w+|\w+)\.?(?:begin|fill)?\(", statement):
            if filled[1].startswith("set_"):
                loader.changed.add(
                    {"set_swa_pattern": "is_swa_impl", "set_recr_pattern": "is_recr_impl"}.get(
                        filled[1], filled[1]
                    )
                )
    # a call whose target is filled by std::fill counts as computed too
    for filled in re.finditer(r"std::(?:fill|fill_n)\(hparams\.(\w+)", text):
        loader.changed.add(filled[1])


def read_check(
    statement: str, around: tuple[str, ...], condition: str, local: dict[str, str], loader: Loader
) -> None:
    if result := re.fullmatch(r'throw std::runtime_error\((?:format\()?"([^"%]+)"\)?\)', statement):
        if condition not in {"", UNKNOWN} and not any(item.startswith("for") for item in around):
            loader.checks[f"not ({condition})"] = result[1]
    elif result := re.fullmatch(r"GGML_ASSERT\((.+)\)", statement):
        read_assert(result[1], condition, local, loader)


def read_assert(text: str, condition: str, local: dict[str, str], loader: Loader) -> None:
    plain = re.sub(r'\s*&&\s*"[^"]*"', "", text)
    value = normal(plain, local)
    if value != UNKNOWN and condition == "" and not re.search(r"_il\b|\bil\b|\bhas_", value):
        loader.checks[value] = f"GGML_ASSERT({text}) failed"


def read_asserts(text: str, loader: Loader) -> None:
    local: dict[str, str] = {"n_embd_gqa": "n_embd_v_gqa"}
    for around, statement in statements(text):
        if declared := re.match(
            r"(?:const )?(?:int|int64_t|uint32_t|bool|auto) (\w+) = (.+)$", statement
        ):
            value = normal(declared[2], local)
            local[declared[1]] = UNKNOWN if value == UNKNOWN or around else f"({value})"
        elif (result := re.fullmatch(r"GGML_ASSERT\((.+)\)", statement)) and not around:
            read_assert(result[1], "", local, loader)


def merge(trees: list[dict[str, Loader]]) -> dict[str, Loader]:
    """The newest tree that knows an architecture decides; tensors that only older ones load may be there."""
    merged: dict[str, Loader] = {}
    for name in sorted({name for tree in trees for name in tree}):
        newest, *older = [tree[name] for tree in trees if name in tree]
        names = {item.name for item in newest.items}
        for tree in older:
            newest.required_keys &= tree.required_keys
            newest.changed |= tree.changed
            newest.checks = {
                check: text for check, text in newest.checks.items() if check in tree.checks
            }
            newest.items += [
                Item(item.name, item.condition, item.shape, required=False)
                for item in tree.items
                if item.name not in names
            ]
        merged[name] = newest
    return merged


def main() -> None:
    trees = [read_tree(Path(path)) for path in sys.argv[1:]]
    print(
        "# What llama.cpp's loader asks of each architecture. Made by tools/loader_table.py; do not edit."
    )
    for name, loader in merge(trees).items():
        fields = sorted(
            f"{key}={value}" for key, value in loader.fields.items() if key not in loader.changed
        )
        print(name, "keys", " ".join(sorted(loader.required_keys)), sep="\t")
        print(name, "fields", " ".join(fields), sep="\t")
        print(name, "computed", " ".join(sorted(loader.changed)), sep="\t")
        for check, text in loader.checks.items():
            print(name, "check", check, text, sep="\t")
        rows: dict[str, list[str]] = {}
        for item in loader.items:
            place = item.name.replace("blk.%d.", "blk.")
            rows.setdefault(item.condition, []).append(
                f"{place}{'' if item.required else '?'}[{item.shape}]"
            )
        for condition, items in rows.items():
            print(name, "tensors", condition, *dict.fromkeys(items), sep="\t")


if __name__ == "__main__":
    main()
