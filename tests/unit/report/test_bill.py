"""report/bill.py, with an estimate whose figures can be checked by hand."""

from __future__ import annotations

from dataclasses import replace

from edgekit.app.estimate import EstimateAnswer
from edgekit.bill.types import Component, MemoryEstimate, MemoryLine
from edgekit.machine.types import DEVICE, HOST, Pool, PoolKind
from edgekit.model.types import Attention, Layer, ModelGeometry
from edgekit.report.bill import (
    bill_json,
    bill_text,
    explain_text,
    how_known,
    layers_table,
    pool_sums,
    ranges,
    sums_json,
)
from edgekit.report.text import Screen
from edgekit.units import GIB, MIB, Basis

GEOMETRY = ModelGeometry(
    architecture="llama",
    basis=Basis.EXACT,
    hidden=64,
    vocabulary=1000,
    trained_context=4096,
    native_context=4096,
    layers=tuple(
        Layer(index=i, mixer=Attention(heads=4, kv_heads=2, key_dim=16, value_dim=16))
        for i in range(3)
    ),
)


def line(component: Component, size_bytes: int, pool: Pool = DEVICE, **more: object) -> MemoryLine:
    return replace(MemoryLine(component=component, size_bytes=size_bytes, pool=pool), **more)  # type: ignore[arg-type]


LINES = (
    line(Component.WEIGHTS, 2 * GIB, layer=0, because="9 tensors"),
    line(Component.WEIGHTS, 2 * GIB, layer=1, because="9 tensors"),
    line(Component.WEIGHTS, 1 * GIB, layer=2, because="8 tensors"),
    line(Component.WEIGHTS, 512 * MIB, HOST, because="1 tensor"),
    line(Component.KV_CACHE, 256 * MIB, layer=0, because="4096 cells x (K f16 + V f16)"),
    line(Component.KV_CACHE, 256 * MIB, layer=2, because="4096 cells x (K f16 + V f16)"),
    line(Component.OUTPUT, 4 * MIB, HOST, because="1 sequence x 1048576 logits x 4 bytes"),
    line(Component.COMPUTE, 100 * MIB, basis=Basis.MODELLED, within=0.1, because="the widest layer"),
    line(Component.COMPUTE, 300 * MIB, HOST, basis=Basis.MODELLED, within=0.02, because="the head"),
    line(Component.RUNTIME, 500 * MIB, basis=Basis.ASSUMED, because="a context"),
    line(Component.PROMPT_CACHE, 8 * GIB, HOST, reserved=False, basis=Basis.MODELLED, because="old prompts"),
)  # fmt: skip
ESTIMATE = MemoryEstimate(
    engine="llama.cpp",
    backend="cuda",
    lines=LINES,
    facts=(("n_ctx", 4096), ("flash_attn", True), ("groups", (26, 4)), ("share", 0.5), ("none", None)),
    notes=("something a reader should know",),
)  # fmt: skip
BILL = EstimateAnswer(
    label="tiny.gguf",
    reference="./tiny.gguf",
    version="1.0",
    asked="4,096 tokens of context for 1 sequence, cache f16",
    command="llama-server -m './a folder/tiny.gguf' -c 4096",
    estimate=ESTIMATE,
    geometry=GEOMETRY,
)

TEXT = """\
6.88 GiB: 6.09 GiB on the GPU, 816.00 MiB in RAM
tiny.gguf  ·  llama.cpp 1.0  ·  cuda
4,096 tokens of context for 1 sequence, cache f16

            model     context     compute       other       total
GPU      5.00 GiB  512.00 MiB  100.00 MiB  500.00 MiB    6.09 GiB
RAM    512.00 MiB           -  300.00 MiB    4.00 MiB  816.00 MiB
total    5.50 GiB  512.00 MiB  400.00 MiB  504.00 MiB    6.88 GiB

Other    4.00 MiB output in RAM: 1 sequence x 1048576 logits x 4 bytes
         500.00 MiB runtime on the GPU: a context

Later    up to 8.00 GiB prompt cache in RAM: old prompts

Basis    exact: weights, kv cache, output
         modelled, within 4.0 %: compute
         assumed: runtime
         modelled: prompt cache

Note     something a reader should know

Run      llama-server -m './a folder/tiny.gguf' -c 4096
"""

EXPLAINED = """\
weights: 5.50 GiB, exact
  GPU: 2 x 2,147,483,648 bytes = 4,294,967,296 (4.00 GiB)
    = 9 tensors
    layers 0-1
  GPU: 1,073,741,824 bytes (1.00 GiB)
    = 8 tensors
    layer 2
  RAM: 536,870,912 bytes (512.00 MiB)
    = 1 tensor

kv cache: 512.00 MiB, exact
  GPU: 2 x 268,435,456 bytes = 536,870,912 (512.00 MiB)
    = 4096 cells x (K f16 + V f16)
    layers 0, 2

output: 4.00 MiB, exact
  RAM: 4,194,304 bytes (4.00 MiB)
    = 1 sequence x 1048576 logits x 4 bytes

compute: 400.00 MiB, modelled, within 4.0 %
  GPU: 104,857,600 bytes (100.00 MiB), modelled, within 10 %
    = the widest layer
  RAM: 314,572,800 bytes (300.00 MiB), modelled, within 2.0 %
    = the head

runtime: 500.00 MiB, assumed
  GPU: 524,288,000 bytes (500.00 MiB)
    = a context

prompt cache: 8.00 GiB, modelled
  RAM: 8,589,934,592 bytes (8.00 GiB)
    = old prompts

what llama.cpp resolved:
  n_ctx       4,096
  flash_attn  yes
  groups      26, 4
  share       0.50
  none        -
"""

LAYERS = """\
layer    kind                  weights        cache         rest       pool
0        full attention  2,147,483,648  268,435,456            -        GPU
1        full attention  2,147,483,648            -            -        GPU
2        full attention  1,073,741,824  268,435,456            -        GPU
outside                    536,870,912            -  947,912,704  GPU + RAM
"""


def test_bill_text_of_every_kind_of_line() -> None:
    assert bill_text(BILL) == TEXT


def test_bill_text_with_colour_marks_the_headline_only() -> None:
    first, *rest = bill_text(BILL, screen=Screen(colour=True)).splitlines()
    assert first == f"\x1b[1m{TEXT.splitlines()[0]}\x1b[0m"
    assert rest == TEXT.splitlines()[1:]


def test_explain_text_has_the_arithmetic() -> None:
    assert explain_text(BILL) == EXPLAINED


def test_layers_table_has_every_layer() -> None:
    assert layers_table(BILL) == LAYERS


def test_ranges_joins_consecutive_numbers() -> None:
    assert ranges([7, 0, 1, 2, 4, 6]) == "0-2, 4, 6-7"
    assert ranges([3]) == "3"


def test_bill_text_fits_100_columns() -> None:
    long = replace(
        BILL,
        label="x" * 300,
        asked="word " * 60,
        command="llama-server " + "--some-flag 12345 " * 20,
        estimate=replace(
            ESTIMATE,
            notes=("a note " * 40,),
            lines=tuple(replace(item, because="arithmetic " * 30) for item in LINES),
            facts=(("groups", tuple(range(90))),),
        ),
    )
    text = bill_text(long) + explain_text(long)
    assert max(map(len, text.splitlines())) <= 100
    run = text[text.index("Run      ") : text.index("weights: ")]
    assert run.replace("\\\n", "").split()[1:] == long.command.split()


def test_bill_text_has_no_control_characters() -> None:
    evil = replace(BILL, label="\x1b[2J", command="llama-server -m '\x1b]0;owned\x07'")
    assert "\x1b" not in bill_text(evil)


def test_bill_text_numbers_several_devices() -> None:
    second = Pool(PoolKind.DEVICE, 1)
    estimate = replace(ESTIMATE, lines=(*LINES, line(Component.WEIGHTS, GIB, second, layer=1)))
    lines = bill_text(replace(BILL, estimate=estimate)).splitlines()
    assert lines[0] == ("7.88 GiB: 6.09 GiB on GPU 0, 1.00 GiB on GPU 1, 816.00 MiB in RAM")
    assert [row.split("  ")[0] for row in lines[5:9]] == ["GPU 0", "GPU 1", "RAM", "total"]
    pools = sums_json(estimate)["pools"]
    assert pools["device"]["model"] == 6 * GIB
    assert [device["model"] for device in pools["devices"]] == [5 * GIB, GIB]


def test_bill_text_of_one_pool_has_no_total_row() -> None:
    estimate = replace(ESTIMATE, lines=tuple(item for item in LINES if item.pool is HOST))
    lines = bill_text(replace(BILL, estimate=estimate)).splitlines()
    assert lines[0] == "816.00 MiB in RAM"
    assert sum(row.startswith(("RAM", "total", "GPU")) for row in lines) == 1


def test_how_known_weighs_bounds_by_size() -> None:
    compute = [item for item in LINES if item.component is Component.COMPUTE]
    assert how_known(compute) == (Basis.MODELLED, (100 * 0.1 + 300 * 0.02) / 400)
    assert how_known([*compute, replace(compute[0], within=None)])[1] is None
    assert how_known([]) == (Basis.EXACT, None)


def test_bill_json_sums_are_those_of_the_lines() -> None:
    document = bill_json(BILL, layers=True)
    assert document["total_bytes"] == sum(item.size_bytes for item in LINES if item.reserved)
    assert document["total_bytes"] == sum(
        item["bytes"] for item in document["lines"] if item["reserved"]
    )
    assert document["later_bytes"] == 8 * GIB
    assert document["basis"] == "assumed"
    assert document["pools"] == {
        "device": {"model": 5 * GIB, "context": 512 * MIB, "compute": 100 * MIB, "runtime": 500 * MIB},
        "host": {"model": 512 * MIB, "context": 0, "compute": 300 * MIB},
    }  # fmt: skip
    assert document["output_bytes"] == 4 * MIB
    assert [layer["context"] for layer in document["layer_list"]] == [256 * MIB, 0, 256 * MIB]
    assert sum(sum(row.values()) for row in pool_sums(ESTIMATE).values()) == document["total_bytes"]
