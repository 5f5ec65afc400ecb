"""A GGUF's keys and tensor directory -> the reason why llama.cpp would not load it.

Follows llama-model.cpp (load_hparams, load_tensors) and llama-model-loader.cpp (check_tensor_dims,
done_getting_tensors). Unknown variables, keys and conditions are never a reason for refusal.

loader_table.tsv lists what the loader requires of each architecture; tools/loader_table.py generates it from
llama.cpp's source. Shapes and conditions use llama.cpp's variables (n_embd, n_head, il); a variable without a value
makes an expression unknown (None), never wrong.
"""

from __future__ import annotations

import ast
import operator
import re
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pkgutil import get_data  # importlib.resources takes 5 ms to import

from edgekit.engines.llamacpp.architectures import known_architecture
from edgekit.engines.llamacpp.weights import block_number
from edgekit.formats.types import ModelHeader, Tensor
from edgekit.model.hyperparameters import MAX_LAYERS
from edgekit.model.types import LatentAttention, Model, Recurrent, SharedCache, Span, attention_of

MAX_EXPERTS = 512  # LLAMA_MAX_EXPERTS
ROPE_SCALING_TYPES = ("none", "linear", "yarn", "longrope")  # llama-model.cpp
PER_LAYER = (  # one number, or one per layer
    "expert_used_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
)
SECTIONS = "rope.dimension_sections"
FUSED = ("attn_qkv.weight", "attn_qkv.bias", "ffn_gate_up_exps.weight")  # replace separate matrices
SCALES = (".scale", ".input_scale")  # optional next to any weight
Shape = tuple[int | None, ...]  # None: not known
_IN_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})(?:\.(.*))?", re.DOTALL)


def refusal(model: Model) -> str:
    """Why llama.cpp would not load this GGUF file; empty if no reason is known."""
    return next(_reasons(model), "")


def _reasons(model: Model) -> Iterator[str]:
    """The reasons in the loader's order."""
    header, architecture = model.header, model.geometry.architecture
    if header.big_endian and sys.byteorder == "little":
        yield (
            f"this GGUF file version {(header.version or 3) << 24} is extremely large, is there a mismatch between "
            "the host and model endianness? (the file is big-endian: gguf-py's gguf_convert_endian.py converts it)"
        )
    known_loader = loader_of(architecture)
    loader = known_loader or Loader()
    keys = _Keys(header, architecture)
    for key in ("context_length", "embedding_length", "block_count", *loader.keys):
        if header.complete and not keys.is_there(key):
            yield f"key not found in model: {keys.name(key)}"
    lengths = dict.fromkeys(PER_LAYER, keys.number("block_count"))
    if SECTIONS in loader.keys:
        lengths[SECTIONS] = 4
    for key, length in lengths.items():
        count = keys.count(key)
        if count is not None and length is not None and count != length:
            yield f"key {keys.name(key)} has wrong array length; expected {length}, got {count}"
    yield from _bad_numbers(keys)
    variables = _model_variables(model, keys, loader)
    if known_loader is None:
        yield from _empty_blocks(model)
        return
    if header.tensors is not None:
        yield from _bad_tensors(model, loader, variables)
    checks = [*loader.checks]
    # K and V must be as wide as the cache rows; otherwise building the graph aborts.
    message = _failed("a->ne[0] == b->ne[0]")
    mixers = [layer.mixer for layer in model.geometry.layers]
    if all(isinstance(mixer, LatentAttention) and mixer.span is Span.ALL for mixer in mixers):
        checks.append(("not is_mla or n_embd_k_gqa == n_lora_kv + n_rot", message))
    if known_architecture(architecture).rotated_heads:
        checks.append(("n_embd_head_k == n_rot and n_embd_head_v == n_rot", message))
    for must_hold, message in checks:
        if evaluate(must_hold, variables) is False:
            yield message


class _Keys:
    """The keys of one architecture, looked up like get_key."""

    def __init__(self, header: ModelHeader, architecture: str) -> None:
        self.header = header
        self.architecture = architecture

    def name(self, key: str) -> str:
        """The full name of a key; a leading slash marks a key without the architecture's prefix."""
        return key[1:] if key.startswith("/") else f"{self.architecture}.{key}"

    def value(self, key: str) -> object:
        return self.header.keys.get(self.name(key))

    def count(self, key: str) -> int | None:
        """The length of an array; None if the key is not an array."""
        value = self.value(key)
        if isinstance(value, tuple):
            return len(value)
        fact = self.header.arrays.get(self.name(key))
        return None if fact is None else fact.count

    def is_there(self, key: str) -> bool:
        """True if the file has the key, even if its value was too long to be read."""
        name, header = self.name(key), self.header
        return name in header.keys or name in header.arrays or name in header.long_strings

    def number(self, key: str, default: int | None = None) -> int | None:
        """An integer, or the first element of an array; None if unknown."""
        value = self.value(key)
        if value is None and not self.is_there(key):
            return default
        if isinstance(value, tuple):
            value = value[0] if value else None
        return value if isinstance(value, int) else None

    def of_layer(self, key: str, layer: int, default: int | None = None) -> int | None:
        """The layer's element of an array, or the number that applies to all layers; None if unknown."""
        value = self.value(key)
        if isinstance(value, tuple):
            element = value[layer] if layer < len(value) else None
            return element if isinstance(element, int) else None
        return self.number(key, default)


def _bad_numbers(keys: _Keys) -> Iterator[str]:
    """Asserts of load_hparams that this file would fail. They apply to every architecture."""
    architecture = known_architecture(keys.architecture)
    layers, prediction_layers = keys.number("block_count"), keys.number("nextn_predict_layers", 0)
    if layers is not None and not 0 < layers <= MAX_LAYERS:
        yield _failed("hparams.n_layer_all > 0 && hparams.n_layer_all <= LLAMA_MAX_LAYERS")
    if layers is not None and prediction_layers is not None and prediction_layers > layers:
        yield _failed("hparams.n_layer_nextn <= hparams.n_layer_all")
    experts, most_used = keys.number("expert_count", 0), keys.number("expert_used_count", 0)
    used = keys.value("expert_used_count")
    if isinstance(used, tuple):
        listed = max(used, default=0)
        most_used = listed if isinstance(listed, int) else None
    groups = keys.number("expert_group_count", 0)
    groups_used = keys.number("expert_group_used_count", 0)
    if (
        experts is not None
        and most_used is not None
        and groups is not None
        and groups_used is not None
    ):
        if architecture.one_expert_is_none and experts <= 1:
            experts, most_used = 0, 0
        if experts > MAX_EXPERTS:
            yield _failed("hparams.n_expert <= LLAMA_MAX_EXPERTS")
        if most_used > experts:
            yield _failed("n_expert_used_max <= hparams.n_expert")
        if experts and not most_used:
            yield _failed("n_expert_used_max > 0")
        if experts and groups >= experts:
            yield _failed("hparams.n_expert_groups < hparams.n_expert")
        if groups > 1 and experts and (experts % groups or not 0 < groups_used < groups):
            yield _failed("hparams.n_group_used < hparams.n_expert_groups")
        if groups and not experts:
            yield _failed("hparams.n_expert_groups == 0")
    scaling = keys.value("rope.scaling.type")
    if isinstance(scaling, str) and scaling not in ROPE_SCALING_TYPES:
        yield (
            _failed("hparams.rope_scaling_type_train != LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED")
            + f" (rope.scaling.type is {scaling[:40]!r})"
        )
    heads, width = keys.number("attention.head_count", 0), keys.number("embedding_length")
    if architecture.full_rotation and heads and width is not None:
        head = keys.number("attention.key_length", width // heads)
        rotated = keys.number("rope.dimension_count", head)
        if head is not None and rotated is not None and rotated != head:
            yield f"invalid n_rot: {rotated}, expected {head}"


def _failed(assertion: str) -> str:
    """llama.cpp's message for an assertion that does not hold."""
    return f"GGML_ASSERT({assertion}) failed"


def _model_variables(model: Model, keys: _Keys, loader: Loader) -> dict[str, int]:
    """llama.cpp's variables for the model, as far as keys and geometry determine them. Variables of block 0 are
    included without their suffix _il.
    """
    header, geometry = model.header, model.geometry
    layers, prediction_layers = keys.number("block_count"), keys.number("nextn_predict_layers", 0)
    width = keys.number("embedding_length")
    token_types = header.keys.get("tokenizer.ggml.token_type_count", 0)
    vocabulary = keys.count("/tokenizer.ggml.tokens")
    if vocabulary is None and keys.value("/tokenizer.ggml.model") in ("none", "no_vocab"):
        vocabulary = keys.number("vocab_size", 0)
    variables: dict[str, int | None] = {
        "n_embd": width,
        "n_ctx_train": keys.number("context_length"),
        "n_vocab": vocabulary,
        "n_token_types": token_types if isinstance(token_types, int) else None,
        "n_layer": None
        if layers is None or prediction_layers is None
        else layers - prediction_layers,
        "n_expert": keys.number("expert_count", 0),
        "n_embd_out": keys.number("embedding_length_out", width),
        "n_cls_out": keys.count("classifier.output_labels") or 1,
        "rope_scaling_type_train": int(keys.value("rope.scaling.type") == "longrope"),
        "LLAMA_ROPE_SCALING_TYPE_LONGROPE": 1,
    }
    for variable, (key, default) in loader.fields.items():
        if variable not in variables or keys.is_there(key):
            variables[variable] = keys.number(key, default)
    for computed in loader.computed:
        variables[computed] = None
    block_variables = _block_variables(model, keys, loader, 0)
    variables |= {
        name.removesuffix("_il"): value for name, value in block_variables.items() if name != "il"
    }
    if variables.get("n_layer_dense_lead") is None:
        with_experts = (layer.index for layer in geometry.layers if layer.experts is not None)
        variables["n_layer_dense_lead"] = next(with_experts, len(geometry.layers))
    mixer = geometry.layers[0].mixer
    if isinstance(mixer, LatentAttention):
        variables["n_lora_q"] = mixer.query_rank
    key_width, value_width = variables.get("n_embd_head_k_mla"), variables.get("n_embd_head_v_mla")
    if key_width is not None and value_width is not None:
        variables["is_mla"] = bool(key_width and value_width)
        if not variables["is_mla"]:  # the file does not state separate widths of K and V
            variables["n_embd_head_k_mla"] = variables["n_embd_head_k"]
            variables["n_embd_head_v_mla"] = variables["n_embd_head_v"]
    return {name: value for name, value in variables.items() if value is not None}


def _block_variables(model: Model, keys: _Keys, loader: Loader, block: int) -> dict[str, int]:
    """The variables of one block: il, and those that end in _il."""
    layer_number = partial(keys.of_layer, layer=block)
    width, heads = keys.number("embedding_length"), keys.number("attention.head_count", 0)
    head = width // heads if width is not None and heads else 0
    variables: dict[str, int | None] = {
        "n_head_il": layer_number("attention.head_count", default=0),
        "n_ff_il": layer_number("feed_forward_length", default=0),
        "n_ff_exp_il": layer_number("expert_feed_forward_length", default=0),
        "n_expert_used_il": layer_number("expert_used_count", default=0),
    }
    variables["n_head_kv_il"] = layer_number(
        "attention.head_count_kv", default=variables["n_head_il"]
    )
    slides = False
    if block < len(model.geometry.layers):
        mixer = model.geometry.layers[block].mixer
        attention = attention_of(mixer)
        slides = attention is not None and attention.span is Span.WINDOW
        variables["is_swa_il"] = slides
        variables["is_recr_il"] = isinstance(mixer, Recurrent)
        variables["has_kv_il"] = not isinstance(mixer, SharedCache)
    for side, key in (("k", "attention.key_length"), ("v", "attention.value_length")):
        variable = f"n_embd_head_{side}"
        full_width = keys.number(key, head) if heads or variable in loader.fields else 0
        dim = keys.number(f"{key}_swa", full_width) if slides else full_width
        variables[f"{variable}_il"], kv_heads = dim, variables["n_head_kv_il"]
        if dim is not None and kv_heads is not None:
            variables[f"n_embd_{side}_gqa_il"] = dim * kv_heads
    rotated = keys.number("rope.dimension_count", keys.number("attention.key_length", head))
    variables["n_rot_il"] = keys.number("rope.dimension_count_swa", rotated) if slides else rotated
    for computed in loader.computed - {"is_recr", "is_swa"}:  # the geometry has these two
        variables[f"{computed}_il"] = None
    return {"il": block, **{name: value for name, value in variables.items() if value is not None}}


def _bad_tensors(model: Model, loader: Loader, variables: Variables) -> Iterator[str]:
    """Missing tensors and wrong shapes in the loader's order, then a wrong tensor count."""
    tensors, layers = model.header.tensors or (), variables.get("n_layer")
    if layers is None:
        return
    by_block: dict[int | None, dict[str, Tensor]] = {}
    for tensor in tensors:
        match = _IN_BLOCK.fullmatch(tensor.name)
        block, name = (int(match[1]), match[2] or "") if match else (None, tensor.name)
        by_block.setdefault(block, {})[name] = tensor
    keys = _Keys(model.header, model.geometry.architecture)
    outside, inside = _TensorCheck(loader, in_block=False), _TensorCheck(loader, in_block=True)
    errors, created = outside.load(by_block.get(None, {}), {**variables, "il": 0}, "")
    yield from errors
    for layer in range(layers):
        layer_variables = {**variables, **_block_variables(model, keys, loader, layer)}
        errors, used = inside.load(by_block.get(layer, {}), layer_variables, f"blk.{layer}.")
        yield from errors
        created += used
    prediction_layers = keys.number("nextn_predict_layers", 0) or 0
    created += sum(len(by_block.get(layers + extra, {})) for extra in range(prediction_layers))
    if created != len(tensors):
        yield f"wrong number of tensors; expected {len(tensors)}, got {created}"


def _empty_blocks(model: Model) -> Iterator[str]:
    """Blocks without any tensor. This check works for architectures that are not in the loader's table, too."""
    if model.header.tensors is None:
        return
    blocks = {block_number(tensor.name) for tensor in model.header.tensors}
    if None not in blocks:
        yield "the file has no tensors outside its blocks"
    count = len(model.geometry.layers) // model.geometry.loops
    stack = model.header.keys.get("hrm_text.hrm.layers_per_stack")
    if model.geometry.architecture == "hrm_text" and isinstance(stack, int):
        count = min(count, 2 * stack)  # two stacks of blocks, which run several times
    for block in range(count):
        if block not in blocks:
            yield f"the file has no tensors for block {block}"


class _TensorCheck:
    """Checks the tensors of a block, or those outside the blocks, against the loader's table.

    What the table requires is computed once for blocks with the same variables and conditions.
    """

    def __init__(self, loader: Loader, *, in_block: bool) -> None:
        self.needs = [need for need in loader.tensors if need.in_block is in_block]
        self.conditions = tuple(dict.fromkeys(need.condition for need in self.needs))
        # names of required tensors, and the allowed shapes of each tensor
        self.required_and_shapes: dict[Hashable, tuple[list[str], dict[str, list[Shape]]]] = {}

    def load(
        self, present: Mapping[str, Tensor], variables: Variables, prefix: str
    ) -> tuple[list[str], int]:
        """The loader's errors, and the number of tensors that it uses. `present`: the file's tensors by name."""
        has = {HAS + re.sub(r"\W", "_", name): True for name in present}
        holds = {
            condition: evaluate(condition, {**variables, **has}) for condition in self.conditions
        }
        block_key = (
            *holds.values(),
            *(value for name, value in variables.items() if name != "il"),
            *(name in present for name in FUSED),
        )
        if block_key not in self.required_and_shapes:
            required, shapes = self.required_and_shapes[block_key] = [], {}
            for need in self.needs:
                condition = holds[need.condition]  # None: unknown, which requires nothing
                if condition is None or condition:
                    for name, lengths, is_required in _tensors_of_row(need, present):
                        shape = tuple(evaluate(length, variables) for length in lengths)
                        shapes.setdefault(name, []).append(shape)
                        if is_required and condition:
                            required.append(name)
        required, shapes = self.required_and_shapes[block_key]
        errors = [f"tensor '{prefix}{name}' not found" for name in required if name not in present]
        used = 0
        for name, tensor in present.items():
            allowed = shapes.get(name)
            if allowed is None:  # any weight may have a scale, and so may its input
                used += any(
                    name.endswith(suffix) and f"{name.removesuffix(suffix)}.weight" in shapes
                    for suffix in SCALES
                )
                continue
            used += 1
            dimensions = tensor.shape[::-1]
            if not any(_fits(dimensions, shape) for shape in allowed):
                expected = ", ".join("?" if size is None else str(size) for size in allowed[0])
                got = ", ".join(map(str, (*dimensions, 1, 1, 1, 1)[:4]))
                errors.append(
                    f"tensor '{prefix}{name}' has wrong shape; expected {expected}, got {got}"
                )
        return errors, used


def _tensors_of_row(
    need: NeededTensor, present: Mapping[str, Tensor]
) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """The tensors that a row of the table stands for: name, shape, and whether the loader requires it. Rows for Q, K
    and V and for gate and up mean one fused matrix if the file has it, else separate ones.
    """
    if need.name == QKV:
        width, *parts = need.shape
        fused = " + ".join(f"({part})" for part in parts)
        is_fused = "attn_qkv.weight" in present
        if is_fused:
            yield "attn_qkv.weight", (width, fused), True
            yield "attn_qkv.bias", (fused,), False
        for letter, part in zip("qkv", parts, strict=True):
            if not is_fused:
                yield f"attn_{letter}.weight", (width, part), True  # without it the graph crashes
            if "attn_qkv.bias" not in present or not is_fused:
                yield f"attn_{letter}.bias", (part,), False
    elif need.name == GATE_UP:
        width, wide, experts = need.shape
        if "ffn_gate_up_exps.weight" in present:
            yield "ffn_gate_up_exps.weight", (width, f"({wide}) * 2", experts), True
        else:
            yield "ffn_gate_exps.weight", need.shape, need.required
            yield "ffn_up_exps.weight", need.shape, need.required
    else:
        yield need.name, need.shape, need.required


def _fits(dimensions: tuple[int, ...], shape: Shape) -> bool:
    """True if a tensor has this shape; missing dimensions are 1, unknown ones match."""
    if shape == (None,):
        return True
    missing = len(shape) - len(dimensions)
    padded = (*dimensions, *([1] * max(missing, 0)))
    expected = (*shape, *([1] * max(-missing, 0)))
    pairs = zip(expected, padded, strict=True)
    return all(length is None or length == dimension for length, dimension in pairs)


Number = int | bool
Variables = Mapping[str, int]

ANYTHING = "*"
BLOCK = "blk."
HAS = "has_"  # followed by a tensor's name: whether the file has it
QKV = "qkv"  # create_tensor_qkv: one fused matrix, or three
GATE_UP = "gate_up_exps"  # create_tensor_gate_up_exps: one fused matrix, or two


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededTensor:
    name: str  # without block number
    in_block: bool
    required: bool
    condition: str  # empty: always
    shape: tuple[str, ...]  # innermost first, as in llama.cpp


@dataclass(slots=True, kw_only=True)
class Loader:
    """What llama.cpp's loader requires of one architecture: its rows of loader_table.tsv."""

    keys: tuple[str, ...] = ()  # required, without the architecture's prefix
    # variable -> key, default
    fields: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    computed: frozenset[str] = frozenset()  # variables that the loader computes itself
    checks: list[tuple[str, str]] = field(default_factory=list)  # condition, message if it is false
    tensors: list[NeededTensor] = field(default_factory=list)


@cache
def loader_of(architecture: str) -> Loader | None:
    """The rows of an architecture; None if it is not in the table."""
    loader: Loader | None = None
    text = get_data("edgekit.engines.llamacpp", "loader_table.tsv") or b""
    for row in text.decode().splitlines():
        name, _, columns = row.partition("\t")
        if name != architecture:
            continue
        loader = loader or Loader()
        kind, *cells = columns.split("\t")
        match kind:
            case "keys":
                loader.keys = tuple(cells[0].split())
            case "fields":
                for cell in cells[0].split():
                    variable, key, *default = cell.split("=")
                    loader.fields[_word(variable)] = key, int(default[0]) if default else None
            case "computed":
                loader.computed = frozenset(map(_word, cells[0].split()))
            case "check":
                loader.checks.append((cells[0], cells[1]))
            case "tensors":
                loader.tensors.extend(_read_tensor(cell, cells[0]) for cell in cells[1:])
    return loader


def _word(name: str) -> str:
    """The variable in expressions that stands for a field of llama_hparams."""
    return name.removesuffix("_arr").removesuffix("_impl").removesuffix("_full")


def _read_tensor(cell: str, condition: str) -> NeededTensor:
    """Reads a cell of the table: name, ? if the tensor is optional, and its shape in brackets."""
    name, _, shape = cell.removesuffix("]").partition("[")
    required = not name.endswith("?")
    name = name.removesuffix("?")
    return NeededTensor(
        name=name.removeprefix(BLOCK),
        in_block=name.startswith(BLOCK) or name in {QKV, GATE_UP},
        required=required,
        condition=condition,
        shape=tuple(shape.split(",")) if shape else (),
    )


_OPERATORS: Mapping[type[ast.AST], Callable[[int, int], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def evaluate(expression: str, variables: Variables) -> Number | None:
    """The value of an expression; None if a variable has no value."""
    if not expression:
        return True
    return None if expression == ANYTHING else _evaluate(_parse(expression), variables)


@cache
def _parse(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def _evaluate(node: ast.expr, variables: Variables) -> Number | None:
    """The value of a parsed expression; None if it depends on a variable without a value."""
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name):
            return variables.get(name, False if name.startswith(HAS) else None)
        case (
            ast.BinOp(left=left, op=op, right=right)
            | ast.Compare(left=left, ops=[op], comparators=[right])
        ):
            first, second = _evaluate(left, variables), _evaluate(right, variables)
            if first is None or second is None:
                return None
            if isinstance(op, ast.FloorDiv | ast.Mod) and second == 0:
                return None
            return _OPERATORS[type(op)](first, second)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            negated = _evaluate(operand, variables)
            return None if negated is None else not negated
        case ast.BoolOp(op=op, values=values):
            decides = isinstance(op, ast.Or)  # True decides "or", False decides "and"
            operands = [_evaluate(value, variables) for value in values]
            if any(operand is not None and bool(operand) is decides for operand in operands):
                return decides
            return None if None in operands else not decides
        case ast.IfExp(test=test, body=body, orelse=orelse):
            tested = _evaluate(test, variables)
            return None if tested is None else _evaluate(body if tested else orelse, variables)
    return None
