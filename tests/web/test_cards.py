"""Cards equal plans, come in order of rank, are shared_cards between streams, and survive a crash of their worker."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import multiprocessing
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, closing, contextmanager
from dataclasses import replace
from itertools import islice
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S, wait_until
from tests.web.model_files import write_model
from tests.web.serving import LOCAL, ask, events, start

from edgekit.app.candidates import complete
from edgekit.cli import main
from edgekit.engines import engine_named
from edgekit.index import checked_entries, read_index
from edgekit.index.names import find_entry
from edgekit.index.types import Index, ModelPurpose
from edgekit.machine.types import HostMemory, Machine, MemoryLimit, System
from edgekit.plan.commands import LIMIT
from edgekit.plan.recommend import rank_of, smallest_bytes, suits_task
from edgekit.report.cards import for_task
from edgekit.request import Request as ModelRequest
from edgekit.units import GIB, MIB
from edgekit.web.cards import (
    KEPT_MACHINES,
    MOST_FOLLOWED,
    MOST_STARTS,
    PICKS,
    CardOrder,
    Cards,
    Deck,
    Maker,
    Pause,
    Picks,
    sort_entries,
    work,
)
from edgekit.web.decks import CARDS, Card, machine_of_cards
from edgekit.web.failures import TooManyError
from edgekit.web.jobs import JobEvent
from edgekit.web.serving import warm
from edgekit.web.types import WebSettings

SMALL = ModelRequest(ram="2G")
PATH = "/api/v1/cards/events"


# --- contents of a card

# Models that fit on the GPU, fit in part, do not fit, or fit only in few bits; MoE, state-space and embedding models.
SAMPLES = {
    ("qwen3-8b", "mixtral-8x7b", "nomic-embed-text-v1.5", "mamba-2.8b"): (
        "--device", "RTX 4090", "--ram", "64G",
    ),
    ("gemma-3-27b",): ("--device", "2x RTX 3090", "--ram", "32G"),
    ("gpt-oss-20b", "qwen2.5-32b"): ("--device", "m3-max-36"),
    ("llama-3.1-8b", "phi-3-small-8k-instruct", "qwen2.5-14b"): ("--ram", "8G"),
}  # fmt: skip
OTHER_ENGINES = {
    ("qwen3-8b", "llama-3.1-70b"): ("--device", "RTX 4090", "--engine", "vllm"),
    ("qwen3-32b", "phi-3-mini-4k", "nomic-embed-text-v1.5"): (
        "--device",
        "m3-max-36",
        "--engine",
        "mlx",
    ),
}


@pytest.mark.parametrize(("ids", "words"), [*SAMPLES.items(), *OTHER_ENGINES.items()])
def test_card_equals_the_plan(
    capsys: pytest.CaptureFixture[str], ids: tuple[str, ...], words: tuple[str, ...]
) -> None:
    fields = dict(zip(words[::2], words[1::2], strict=True))
    engine = fields.get("--engine", "llama.cpp")
    devices = tuple(filter(None, [fields.get("--device")]))
    machine = ModelRequest(devices=devices, ram=fields.get("--ram")).find_machine()
    cards = {card["id"]: card for card in cards_of(ids, request_for(machine, engine))}
    assert set(cards) == set(ids)
    for name, card in cards.items():
        main(["plan", f"catalog:{name}", "--engine", engine, "--no-drafter", "--json", *words])
        plan = json.loads(capsys.readouterr().out)
        if "error" in plan:
            assert (card["status"], card["told"]) == ("refused", plan["error"]["message"])
            continue
        assert card["status"] == plan["status"]
        assert card["variant"] == plan["variant"]["name"]
        assert card["is_good"] == plan["variant"]["is_good"]
        assert card["context_tokens"] == plan["context_tokens"]
        assert card["way"] == plan["way"]
        for key in ("headline", "max_context", "download_bytes", "required_bytes"):
            assert card[key] == plan[key], (name, key)
        assert card["available_bytes"] == plan["available_bytes"]
        assert (card["command"], card["program"]) == first_command(plan["commands"])
        assert card["cache"] in {plan["cache"]["name"], "bfloat16", None}
        assert card["speed"] == (plan["speed"] and without_because(plan["speed"]))
        assert [bar["required_bytes"] for bar in card["bars"]] == [
            budget["required_bytes"] for budget in plan["budgets"]
        ]


def first_command(commands: list[dict[str, Any]]) -> tuple[str, str]:
    """The commands of the first program that `plan` prints, if they can be pasted as they are.

    A command that raises the GPU's limit is an improvement, not how to run the model.
    """
    commands = [command for command in commands if command["program"] != LIMIT]
    if not commands:
        return "", ""
    program = commands[0]["program"]
    texts = [command["text"] for command in commands if command["program"] == program]
    is_complete = not any("MODEL" in text.replace(".gguf", " ").split() for text in texts)
    return "\n".join(texts) if is_complete else "", program


def request_for(machine: Machine, engine: str = "llama.cpp", **limits: Any) -> ModelRequest:
    return ModelRequest(machine=machine, engines=(engine,), **limits)


def cards_of(ids: tuple[str, ...], request: ModelRequest) -> Iterator[Card]:
    catalog = Index(entries=tuple(find_entry(name) for name in ids))
    return Maker(LOCAL).cards(request, catalog.entries)


def without_because(speed: dict[str, Any]) -> dict[str, Any]:
    left_out = {"because", "users", "speculative"}  # of a plan's JSON, not of a card
    return {name: value for name, value in speed.items() if name not in left_out}


def test_cards_respect_reserve_and_max_use() -> None:
    machine = ModelRequest(devices=("RTX 4060",), ram="32G").find_machine()
    default, no_reserve, half = (
        next(cards_of(("llama-3.1-8b",), request_for(machine, **limits)))["bars"][0]
        for limits in ({}, {"reserve_bytes": 0}, {"max_use": 0.5})
    )
    assert no_reserve["available_bytes"] == default["free_bytes"]
    assert half["utilization"] <= 0.5 < default["utilization"]


def test_card_of_a_model_that_does_not_fit_names_the_gpu() -> None:
    """Its bars are those of the attempt on the GPU, not of one on the CPU alone."""
    machine = ModelRequest(devices=("RTX 4090",), ram="64G").find_machine()
    for card in cards_of(("minimax-m2.5", "deepseek-v3"), request_for(machine)):
        assert card["status"] == "failed"
        gpu, ram = card["bars"]
        assert (gpu["memory"], ram["memory"]) == ("RTX 4090", "RAM")
        assert gpu["required_bytes"] > gpu["available_bytes"] > 0
        assert card["required_bytes"] == gpu["required_bytes"]
        assert card["headline"].startswith("Does not fit your RTX 4090")
        assert (card["command"], card["runs_on"]) == ("", "")


def test_card_says_what_a_model_is() -> None:
    request = request_for(ModelRequest(devices=("RTX 4090",), ram="64G").find_machine())
    (card,) = cards_of(("qwen3-8b",), request)
    assert (card["title"], card["publisher"]) == ("Qwen3 8B", "Alibaba")
    facts = card["entry"]
    assert facts["repository"] == "Qwen/Qwen3-8B"
    assert (facts["licence"], facts["released"]) == ("apache-2.0", "2025-05-14")
    assert (card["runs_on"], card["program"]) == ("GPU", "llama-server")
    assert card["command"].startswith("llama-server -hf ")


def test_for_task_sets_what_the_model_is_worth_for_it() -> None:
    request = request_for(ModelRequest(devices=("RTX 4090",), ram="64G").find_machine())
    coder, embedder = (
        next(cards_of((name,), request)) for name in ("qwen3-coder-30b-a3b-instruct", "bge-small-en-v1.5")
    )  # fmt: skip
    chat, code = (for_task(coder, task) for task in (ModelPurpose.CHAT, ModelPurpose.CODE))
    assert "merits" not in chat
    assert chat["worth"] != code["worth"]
    assert code["rank"] == pytest.approx(
        rank_of(find_entry("qwen3-coder-30b-a3b-instruct"), ModelPurpose.CODE), abs=0.001
    )
    # Not a model for chat: it is rated as what it is.
    assert for_task(embedder, ModelPurpose.CHAT)["worth"] == embedder["worth"]


@pytest.mark.parametrize("task", [None, ModelPurpose.CODE, ModelPurpose.EMBEDDING])
def test_order_has_the_picks_of_recommend_and_their_cards_first(
    capsys: pytest.CaptureFixture[str], task: ModelPurpose | None
) -> None:
    machine = ("--device", "RTX 4070", "--ram", "32G")
    words = () if task is None else ("--task", task.value.removesuffix("ding"))
    assert main(["recommend", *machine, *words, "--limit", str(PICKS), "--json"]) == 0
    suggestions = json.loads(capsys.readouterr().out)["suggestions"]
    request = request_for(ModelRequest(devices=("RTX 4070",), ram="32G").find_machine())
    request = replace(request, purpose=task)
    made = Maker(LOCAL).order(CardOrder(1, request, frozenset()))
    first = next(made)
    assert isinstance(first, Picks)
    best = [suggestion["id"] for suggestion in suggestions]
    assert list(first.ids) == best
    cards: dict[str, Any] = {}
    for name, card in zip(best, made, strict=False):
        assert isinstance(card, dict)
        assert card["id"] == name
        cards[name] = card
    for suggestion in suggestions:
        card, plan = cards[suggestion["id"]], suggestion["plan"]
        assert card["variant"] == plan["variant"]["name"]
        assert card["context_tokens"] == plan["context_tokens"]
        assert for_task(card, task or ModelPurpose.CHAT)["worth"] == round(suggestion["worth"], 3)
    alone = {card["id"]: card for card in cards_of(tuple(best), request)}
    assert {name: cards[name] for name in best} == alone  # the search makes the same cards


def test_order_makes_each_card_once() -> None:
    machine = SMALL.find_machine()
    made = Maker(LOCAL).order(CardOrder(1, request_for(machine), frozenset()))
    ids = [card["id"] for card in made if isinstance(card, dict)]
    assert len(set(ids)) == len(ids)
    assert set(ids) >= {entry.id for entry in checked_entries(read_index())}


def test_search_that_is_not_urgent_pauses_for_another_order() -> None:
    is_waiting = [True, False]
    order = CardOrder(1, request_for(SMALL.find_machine()), frozenset(), is_urgent=False)
    made = Maker(LOCAL).order(order, is_waited_for=lambda: bool(is_waiting) and is_waiting.pop(0))
    assert isinstance(next(made), Pause)
    assert isinstance(next(made), Picks)


def test_sort_entries_for_a_task_puts_its_models_first() -> None:
    machine = ModelRequest(devices=("RTX 4090",), ram="64G").find_machine()
    entries = checked_entries(read_index())
    in_order = sort_entries(entries, machine, "llama.cpp", ModelPurpose.EMBEDDING)
    suited = [suits_task(entry, ModelPurpose.EMBEDDING) for entry in in_order]
    assert suited == sorted(suited, reverse=True)
    assert 0 < sum(suited) < len(suited)


def test_model_that_cannot_run_has_a_card_with_the_reason() -> None:
    request = request_for(SMALL.find_machine())
    (card,) = cards_of(("phi-3-small-8k-instruct",), request)
    assert (card["status"], card["variant"], card["bars"]) == ("refused", None, [])
    assert "no GGUF of it to run" in card["told"]
    assert card["entry"]["family"] == find_entry("phi-3-small-8k-instruct").family


def test_unexpected_error_for_one_model_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def break_down(*_: object) -> None:
        raise ZeroDivisionError

    maker, request = Maker(LOCAL), request_for(SMALL.find_machine())
    entries = [find_entry("qwen3-0.6b"), find_entry("qwen2.5-0.5b")]
    monkeypatch.setattr("edgekit.web.cards.task_to_plan", break_down)
    cards = list(maker.cards(request, entries))
    assert [card["status"] for card in cards] == ["refused", "refused"]
    assert "internal error in EdgeKit" in cards[0]["told"]


def test_cards_already_made_are_skipped() -> None:
    entries = [find_entry("qwen3-0.6b"), find_entry("qwen2.5-0.5b")]
    cards = Maker(LOCAL).cards(
        request_for(SMALL.find_machine()), entries, frozenset({"qwen3-0.6b"})
    )
    assert [card["id"] for card in cards] == ["qwen2.5-0.5b"]


def test_cards_sort_in_the_order_of_recommend(capsys: pytest.CaptureFixture[str]) -> None:
    """Sorted as the page sorts them, the first cards are the suggestions of `edgekit recommend`."""
    machine = ("--device", "RTX 4090", "--ram", "64G")
    assert main(["recommend", *machine, "--all-sizes", "--limit", "4", "--json"]) == 0
    best = [suggestion["id"] for suggestion in json.loads(capsys.readouterr().out)["suggestions"]]
    request = request_for(ModelRequest(devices=("RTX 4090",), ram="64G").find_machine())
    cards = list(cards_of(tuple({*best, "step-3.7-flash", "qwen3.5-122b-a10b"}), request))
    sort_keys = {
        card["id"]: (
            card["status"] == "failed",
            not card["is_good"],
            not card["is_notable"],
            -card["worth"],
        )
        for card in cards
    }
    assert sorted(sort_keys, key=lambda name: (sort_keys[name], name))[:4] == best
    assert sort_keys["step-3.7-flash"][0]  # does not fit: it would need fewer than four bits


def test_sort_entries_by_where_they_fit_then_by_rank() -> None:
    machine = ModelRequest(devices=("RTX 4090",), ram="64G").find_machine()
    entries = sort_entries(read_index().entries, machine, "llama.cpp")
    capacities = (machine.devices[0].free_bytes, engine_named("llama.cpp").capacity_bytes(machine))
    # 0: fits the GPU; 1: fits all memory; 2: does not fit.
    groups = [sum(smallest_bytes(entry) > size for size in capacities) for entry in entries]
    assert groups == sorted(groups)
    assert set(groups) == {0, 1, 2}
    for number in (0, 1, 2):
        ranks = [
            rank_of(entry) for entry, group in zip(entries, groups, strict=True) if group == number
        ]
        assert ranks == sorted(ranks, reverse=True)


@pytest.fixture
def users_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a model that the user added to the catalog as "mine"."""
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path / "data"))
    file = write_model(tmp_path)
    main(["catalog", "add", str(file), "--id", "mine"])
    return file


@pytest.mark.usefixtures("users_model")
def test_card_of_a_users_model_needs_its_file_inside_models_dir(tmp_path: Path) -> None:
    request = request_for(ModelRequest(ram="32G").find_machine())
    entries = [find_entry("mine")]
    (outside,) = Maker(LOCAL).cards(request, entries)
    assert outside["status"] == "refused"
    assert "--models-dir" in outside["told"]
    (inside,) = Maker(replace(LOCAL, models_dirs=(tmp_path,))).cards(request, entries)
    assert (inside["status"], inside["variant"]) == ("passed", "Q4_K_M")
    # No `mix`: the file determines the weights.
    assert set(inside["flags"]) <= {"context", "type_k", "type_v"}


def test_card_of_a_public_server_shows_no_folder(users_model: Path, tmp_path: Path) -> None:
    users_model.write_bytes(b"GGUF" + b"\xff" * 60)
    request = request_for(ModelRequest(ram="32G").find_machine())
    public = replace(LOCAL, host="0.0.0.0", models_dirs=(tmp_path.resolve(),))
    (card,) = Maker(public).cards(request, [find_entry("mine")])
    assert card["status"] == "refused"
    assert card["told"].startswith(f"{users_model.name}: GGUF version")


# --- the stream of events


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with start(LOCAL) as result:
        yield result


# Models in few bits, on one of two GPUs, that do not fit, with the KV cache in RAM; and of the other engines.
CHECKED = {
    ("step-3.7-flash", "qwen3-8b", "e5-mistral-7b-instruct"): {
        "device": ["2x RTX 3090"],
        "ram": "64G",
    },
    ("command-r-35b",): {"device": ["RTX 3090", "RTX 4060"], "ram": "32G"},
    ("bloom",): {"device": ["RTX 4090"], "ram": "64G"},
    ("qwen2.5-14b", "nomic-embed-text-v1.5"): {"ram": "8G"},
    ("qwen3-8b", "qwen3-14b"): {"device": ["RTX 4090"], "ram": "64G", "engine": "vllm"},
    ("qwen3-32b", "gpt-oss-20b", "qwen2.5-72b"): {"device": ["m3-max-36"], "engine": "mlx"},
}


@pytest.mark.parametrize(("ids", "fields"), CHECKED.items())
def test_check_with_the_flags_of_a_card_gives_the_same_verdict(
    address: str, ids: tuple[str, ...], fields: dict[str, Any]
) -> None:
    engine = fields.get("engine", "llama.cpp")
    machine = ModelRequest(
        devices=tuple(fields.get("device", ())), ram=fields.get("ram")
    ).find_machine()
    cards = list(cards_of(ids, request_for(machine, engine)))
    assert {card["id"] for card in cards} == set(ids)
    for card in cards:
        request = {"model": f"catalog:{card['id']}", **fields, "engine": engine, **card["flags"]}
        check = ask(address, "/api/v1/check", request).json()
        assert (check["status"], check["context_tokens"]) == (
            card["status"],
            card["context_tokens"],
        )
        assert card["flags"].get("mix") == (card["variant"] if engine == "llama.cpp" else None)


def test_stream_has_machine_cards_and_end(address: str) -> None:
    machine, *others, end = events(address, f"{PATH}?ram=8G&engine=vllm")
    assert (machine["event"], end["event"]) == ("machine", "done")
    cards = [event for event in others if event["event"] == "card"]
    (picks,) = (event for event in others if event["event"] == "picks")
    assert len(cards) + 1 == len(others)
    assert picks["data"] == {"ids": []}  # vLLM needs a GPU
    assert machine["data"]["name"] == "8 GiB RAM"
    ids = {card["data"]["id"] for card in cards}
    assert ids == {entry.id for entry in checked_entries(read_index())}
    assert len(cards) == len(ids) == machine["data"]["count"] == end["data"]["count"]
    assert end["data"].keys() == {"count"}
    assert {card["data"]["status"] for card in cards} == {"refused"}
    assert "NVIDIA" in cards[0]["data"]["told"]


def test_stream_of_a_machine_with_two_gpus(address: str) -> None:
    path = f"{PATH}?device=RTX+3090&device=RTX+4090&ram=64G"
    with closing(events(address, path)) as stream:
        machine = next(stream)
        first = next(event for event in stream if event["event"] == "card")
    assert machine["data"]["name"] == "RTX 3090 + RTX 4090 + 64 GiB RAM"
    assert "RAM" in {bar["memory"] for bar in first["data"]["bars"]}
    assert first["data"]["status"] in {"passed", "warning"}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("device=RTX+4091", "RTX 4090"),
        ("ram=lots", "--ram"),
        ("engine=stream", "plan"),
        ("engine=nonsense", "nonsense"),
        ("context=5", "unknown field"),
        ("ram=8G&vram=-1", "--vram"),
    ],
)
def test_invalid_query_is_refused_before_the_stream(address: str, query: str, message: str) -> None:
    answer = ask(address, f"{PATH}?{query}")
    assert (answer.status, answer.error["type"]) == (400, "UsageError")
    assert message in answer.error["message"]


def test_disconnect_stops_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    decks: list[Deck] = []

    class RecordedCards(Cards):
        def deck(self, request: ModelRequest, *, is_limited: bool = True) -> Deck:
            decks.append(super().deck(request, is_limited=is_limited))
            return decks[-1]

    monkeypatch.setattr("edgekit.web.calls.Cards", RecordedCards)
    with start(LOCAL) as address:
        assert len(list(islice(events(address, f"{PATH}?ram=2G"), 3))) == 3
        wait_until(lambda: not decks[0].followers)
        assert not decks[0].is_begun
        assert not decks[0].has_ended


def test_machines_followed_at_once_are_limited(shared_cards: Cards) -> None:
    async def follow_many(cards: Cards) -> None:
        async with AsyncExitStack() as following:
            for size in range(MOST_FOLLOWED):
                deck = deck_of(cards, ModelRequest(ram=f"{size + 16}G"))
                stream = await following.enter_async_context(aclosing(cards.follow(deck)))
                await anext(stream)
            deck_of(cards, ModelRequest(ram="16G"))  # one of those machines: no more work
            with pytest.raises(TooManyError):
                deck_of(cards, ModelRequest(ram="64G"))

    asyncio.run(follow_many(shared_cards))


def test_deck_dropped_from_the_cache_can_still_be_followed(shared_cards: Cards) -> None:
    """A deck may be dropped from the cache between its request and the start of its stream."""

    async def follow_first(cards: Cards) -> None:
        sizes = range(100, 100 + KEPT_MACHINES + 4)
        decks = [deck_of(cards, ModelRequest(ram=f"{size}G")) for size in sizes]
        assert len(cards._decks) == KEPT_MACHINES
        async with aclosing(cards.follow(decks[0])) as stream, asyncio.timeout(PATIENCE_S):
            assert len(await next_cards(stream, 2)) == 2
        assert not cards._followed

    asyncio.run(follow_first(shared_cards))


def test_deck_replaced_by_a_newer_one_can_still_be_followed(
    monkeypatch: pytest.MonkeyPatch, shared_cards: Cards
) -> None:
    request = ModelRequest(ram="3G")

    async def follow_across_renewal(cards: Cards) -> None:
        first = deck_of(cards, request)
        async with aclosing(cards.follow(first)) as stream, asyncio.timeout(PATIENCE_S):
            await next_cards(stream, 1)
            monkeypatch.setattr("edgekit.web.cards.KEPT_S", 0.0)
            assert deck_of(cards, request) is not first
            before = len(first.cards)
            assert len(await next_cards(stream, before + 2)) == before + 2

    asyncio.run(follow_across_renewal(shared_cards))


def test_stream_is_in_the_openapi_document(address: str) -> None:
    spec = ask(address, "/api/v1/openapi.json").json()["paths"][PATH]["get"]
    assert list(spec["responses"]["200"]["content"]) == ["text/event-stream"]
    assert {parameter["name"] for parameter in spec["parameters"]} == {
        "device",
        "ram",
        "vram",
        "cpu",
        "engine",
        "max_use",
        "reserve",
        "task",
    }


def test_warm_probes_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    cached: list[tuple[float, Machine]] = []
    monkeypatch.setattr("edgekit.web.calls._machine", cached)
    warm().join(PATIENCE_S)
    assert [machine.what_if for _, machine in cached] == [False]


def test_warm_continues_after_a_failed_step(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def break_down() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("edgekit.web.serving._STEPS", (break_down, lambda: done.append("next")))
    warm().join(PATIENCE_S)
    assert done == ["next"]


# --- the worker that makes the cards


@contextmanager
def opened_cards() -> Iterator[Cards]:
    cards = Cards(LOCAL)
    try:
        yield cards
    finally:
        cards.close()


@pytest.fixture(scope="module")
def shared_cards() -> Iterator[Cards]:
    """One worker for all tests that do not end it. Each test uses its own machines."""
    with opened_cards() as cards:
        yield cards


def deck_of(cards: Cards, request: ModelRequest = SMALL) -> Deck:
    return cards.deck(request_for(request.find_machine()))


async def next_cards(stream: AsyncIterator[JobEvent], count: int) -> list[str]:
    """The ids of the next `count` cards."""
    ids: list[str] = []
    async for event in stream:
        assert event.name != "failed", event.data
        if event.name == "card":
            ids.append(json.loads(event.data)["id"])
            if len(ids) == count:
                break
    return ids


def test_streams_of_one_machine_share_the_work(shared_cards: Cards) -> None:
    async def listen(cards: Cards) -> None:
        deck = deck_of(cards, ModelRequest(ram="5G"))
        assert deck_of(cards, ModelRequest(ram="5G")) is deck
        async with aclosing(cards.follow(deck)) as early, aclosing(cards.follow(deck)) as late:
            first_ids = await next_cards(early, 3)
            more_ids, late_ids = await asyncio.gather(next_cards(early, 3), next_cards(late, 6))
            assert [*first_ids, *more_ids] == late_ids
        assert len({str(card["id"]) for card in deck.cards}) == len(deck.cards)

    asyncio.run(listen(shared_cards))


def test_unfollowed_deck_pauses_and_resumes(shared_cards: Cards) -> None:
    async def leave_and_return(cards: Cards) -> None:
        deck = deck_of(cards, ModelRequest(ram="6G"))
        async with aclosing(cards.follow(deck)) as stream:
            first_ids = await next_cards(stream, 2)
        count = len(deck.cards)
        assert not deck.is_begun
        async with aclosing(cards.follow(deck_of(cards, ModelRequest(ram="7G")))) as other:
            await next_cards(other, 3)  # the worker goes on, but not with the first deck
        assert len(deck.cards) == count
        async with aclosing(cards.follow(deck)) as stream:
            ids = await next_cards(stream, count + 2)
        assert ids[:2] == first_ids
        assert len(set(ids)) == len(ids)

    asyncio.run(leave_and_return(shared_cards))


def test_two_machines_get_cards_in_turn(shared_cards: Cards) -> None:
    async def listen(cards: Cards) -> None:
        small, large = (deck_of(cards, ModelRequest(ram=size)) for size in ("9G", "10G"))
        async with aclosing(cards.follow(small)) as first, aclosing(cards.follow(large)) as second:
            await asyncio.gather(next_cards(first, 3), next_cards(second, 3))
        assert not small.is_done
        assert not large.is_done

    asyncio.run(listen(shared_cards))


def kill(cards: Cards) -> None:
    process = cards.process
    assert process is not None
    process.kill()
    wait_until(lambda: not process.is_alive())


def test_killed_worker_is_replaced() -> None:
    async def listen(cards: Cards) -> None:
        deck = deck_of(cards)
        async with aclosing(cards.follow(deck)) as stream:
            before = await next_cards(stream, 2)
            kill(cards)
            after = await next_cards(stream, len(deck.cards))
        assert len({*before, *after}) == len(before) + len(after)

    with opened_cards() as cards:
        asyncio.run(listen(cards))


def wait_for_crashes(deck: Deck, count: int) -> None:
    wait_until(lambda: deck.starts >= count)


def test_worker_that_keeps_crashing_is_given_up() -> None:
    def kill_each(cards: Cards, deck: Deck) -> None:
        for count in range(1, MOST_STARTS + 1):
            wait_until(lambda: cards.process is not None)
            kill(cards)
            wait_for_crashes(deck, count)

    async def listen(cards: Cards) -> JobEvent:
        deck = deck_of(cards)
        async with aclosing(cards.follow(deck)) as stream:
            await anext(stream)
            await asyncio.to_thread(kill_each, cards, deck)
            return [event async for event in stream][-1]

    with opened_cards() as cards:
        last = asyncio.run(listen(cards))
        assert not deck_of(cards).fault  # the next request gets a new deck
    assert last.name == "failed"
    assert "keeps crashing" in json.loads(last.data)["error"]["message"]


def test_close_ends_streams_and_the_process() -> None:
    async def listen(cards: Cards) -> JobEvent:
        async with aclosing(cards.follow(deck_of(cards))) as stream:
            await next_cards(stream, 1)
            process = cards.process
            assert process is not None
            threading.Thread(target=cards.close).start()
            last = [event async for event in stream][-1]
            wait_until(lambda: not process.is_alive())
            return last

    before = set(multiprocessing.active_children())
    with opened_cards() as cards:
        last = asyncio.run(listen(cards))
        assert last.name == "failed"
        assert "stopped" in json.loads(last.data)["error"]["message"]
        assert cards.process is None
        cards.close()  # idempotent
    assert set(multiprocessing.active_children()) <= before


def test_cards_are_made_in_a_thread_if_no_process_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: SpawnProcess) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(SpawnProcess, "start", refuse)

    async def listen(cards: Cards) -> None:
        async with aclosing(cards.follow(deck_of(cards))) as stream:
            assert len(await next_cards(stream, 2)) == 2
        assert cards.process is None

    with opened_cards() as cards:
        asyncio.run(listen(cards))


def test_idle_worker_ends() -> None:
    server_end, worker_end = multiprocessing.Pipe()
    with server_end:
        work(worker_end, settings=LOCAL, idle_s=0.05)
        with pytest.raises(EOFError):
            server_end.recv()


def test_idle_worker_whose_server_is_gone_ends() -> None:
    server_end, worker_end = multiprocessing.Pipe()
    server_end.close()
    worker = threading.Thread(
        target=work,
        args=(worker_end,),
        kwargs={"settings": LOCAL, "idle_s": 10 * PATIENCE_S},
        daemon=True,
    )
    worker.start()
    worker.join(PATIENCE_S)
    assert not worker.is_alive()


def test_busy_worker_whose_server_is_gone_ends() -> None:
    server_end, worker_end = multiprocessing.Pipe()
    worker = threading.Thread(target=work, args=(worker_end,), kwargs={"settings": LOCAL})
    worker.start()
    server_end.send(CardOrder(7, request_for(SMALL.find_machine()), frozenset()))
    number, card = server_end.recv()
    assert (number, card is None) == (7, False)
    server_end.close()
    worker.join(PATIENCE_S)
    assert not worker.is_alive()


# --- cards on disk, and what the home page gets of them

DISK = WebSettings(port=0, network=False)
TINY = ("qwen3-0.6b", "qwen2.5-0.5b", "smollm2-135m-instruct", "bge-small-en-v1.5")


@pytest.fixture
def few_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four models are checked, in a thread of this process. Returns the folder of stored cards."""
    monkeypatch.setenv("EDGEKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path / "data"))
    entries = [find_entry(name) for name in TINY]
    monkeypatch.setattr("edgekit.web.cards.checked_entries", lambda _: entries)
    monkeypatch.setattr("edgekit.web.cards._start_process", lambda *_: None)
    return tmp_path / "cache" / "cards"


def followed(settings: WebSettings = DISK, request: ModelRequest = SMALL) -> Deck:
    """The complete deck of a server that starts, and ends when its cards are made."""
    cards = Cards(settings)

    async def follow(deck: Deck) -> None:
        async with aclosing(cards.follow(deck)) as stream, asyncio.timeout(PATIENCE_S):
            assert [event.name async for event in stream][-1] == "done"

    try:
        deck = deck_of(cards, request)
        asyncio.run(follow(deck))
        return deck
    finally:
        cards.close()


def test_cards_are_kept_for_the_next_start(few_models: Path) -> None:
    first = followed()
    assert len(list(few_models.glob("*.json"))) == 1
    again = deck_of(Cards(DISK))
    assert again.is_done
    assert again.picks == first.picks
    assert again.made.cards == json.loads(json.dumps(first.made.cards))


def test_cards_are_not_kept_with_no_cache(few_models: Path) -> None:
    followed(LOCAL)
    assert not few_models.exists()
    followed(DISK)
    assert not deck_of(Cards(LOCAL)).cards  # and those of another start are not read


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"cards": [], "picks": {}}',
        '{"cards": {"qwen3-0.6b": {}}, "picks": {}}',
        '{"cards": {"qwen3-0.6b": 7}, "picks": {}}',
        '{"cards": {}, "picks": {"chat": [7]}}',
        '{"cards": {}, "picks": {"chat": "qwen3-0.6b"}}',
        "[" * 100_000,
        "x" * (CARDS.max_bytes + 1),
    ],
)
def test_damaged_stored_cards_are_ignored(few_models: Path, text: str) -> None:
    followed()
    (path,) = few_models.glob("*.json")
    path.write_text(text)
    deck = deck_of(Cards(DISK))
    assert (deck.cards, deck.picks, deck.is_done) == ([], None, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rank", None),
        ("rank", "high"),
        ("worth", math.inf),
        ("is_notable", 1),
        ("headline", None),
        ("headline", "\ud800"),
        ("bars", [{}]),
        ("bars", None),
        ("speed", {}),
        ("flags", []),
        ("merits", {"chat": {}, "embedding": {}}),
        ("merits", {"chat": {"rank": "high"}}),
        ("merits", {"chat": 7}),
        ("merits", []),
        ("entry", None),
    ],
)
def test_stored_cards_with_a_wrong_field_are_ignored(
    few_models: Path, name: str, value: object
) -> None:
    followed()
    (path,) = few_models.glob("*.json")
    answer = json.loads(path.read_text(encoding="utf-8"))
    answer["cards"]["qwen3-0.6b"][name] = value
    path.write_text(json.dumps(answer), encoding="utf-8")
    assert not deck_of(Cards(DISK)).cards


def test_stored_cards_without_a_field_that_the_page_reads_are_ignored(few_models: Path) -> None:
    followed()
    (path,) = few_models.glob("*.json")
    text = path.read_text(encoding="utf-8")
    for name in ("rank", "max_context", "way", "speed", "merits", "told"):
        answer = json.loads(text)
        del answer["cards"]["qwen3-0.6b"][name]
        if name == "rank":
            answer["cards"]["qwen3-0.6b"]["merits"] = {}
        path.write_text(json.dumps(answer), encoding="utf-8")
        assert not deck_of(Cards(DISK)).cards, name


def test_stored_cards_depend_on_everything_that_a_plan_does(
    few_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed()

    def is_known(request: ModelRequest = SMALL, **limits: Any) -> bool:
        return bool(Cards(DISK).deck(request_for(request.find_machine(), **limits)).cards)

    assert is_known()
    assert not is_known(ModelRequest(ram="3G"))
    assert not is_known(ModelRequest(ram="2G DDR5-6000"))
    assert not is_known(reserve_bytes=0)
    assert not is_known(max_use=0.5)
    with monkeypatch.context() as patch:
        patch.setenv("EDGEKIT_LLAMA_VERSION", "0.4")
        assert not is_known()
    with monkeypatch.context() as patch:
        patch.setattr("edgekit.app.candidates.__version__", "0.0")
        assert not is_known()
    with monkeypatch.context() as patch:
        patch.setattr("edgekit.web.decks.code_stamp", lambda: 0)
        assert not is_known()
    assert is_known()


@pytest.mark.usefixtures("few_models")
def test_stored_cards_do_not_depend_on_how_the_machine_is_spelled() -> None:
    def key(*devices: str, ram: str) -> str | None:
        return Cards(DISK).deck(complete(ModelRequest(devices=devices, ram=ram))).made.key

    spelled = {key("RTX 4090", ram="8G"), key("rtx4090", ram="8 GB"), key("rtx-4090", ram="8192M")}
    assert len(spelled) == 1
    assert spelled.isdisjoint({None, key("RTX 3060", ram="8G"), key("RTX 4090", ram="16G")})


def this_machine(
    free_gib: float, *, limit_gib: float | None = None, used_gib: float = 0
) -> Machine:
    """A detected machine with 32 GiB of RAM."""
    limits: tuple[MemoryLimit, ...] = ()
    if limit_gib is not None:
        sizes = {"limit_bytes": int(limit_gib * GIB), "used_bytes": int(used_gib * GIB)}
        limits = (MemoryLimit(name="cgroup", **sizes),)
    host = HostMemory(total_bytes=32 * GIB, free_bytes=int(free_gib * GIB), limits=limits)
    return Machine(name="this machine", system=System.LINUX, cores=8, host=host)


def free_gib(machine: Machine) -> float:
    assert machine.host is not None
    return machine.host.usable_bytes / GIB


@pytest.mark.parametrize(
    ("free", "rounded"), [(20.99, 20), (8.5, 8), (8, 8), (7.99, 7.75), (0.3, 0.25), (0.2, 0)]
)
def test_cards_are_made_for_rounded_free_memory(free: float, rounded: float) -> None:
    assert free_gib(machine_of_cards(this_machine(free), ())) == rounded
    limited = this_machine(30, limit_gib=24, used_gib=24 - free)
    result = machine_of_cards(limited, ())
    assert free_gib(result) == pytest.approx(rounded)
    assert result.host is not None
    assert result.host.limited_total_bytes == 24 * GIB


def test_cards_hold_until_free_memory_leaves_their_step_by_half_a_step() -> None:
    """Never for more memory than is free."""
    earlier = [machine_of_cards(this_machine(12.4), ())]
    for free, made_for in ((12.99, 12), (13.49, 12), (12, 12), (13.5, 13), (11.99, 11)):
        assert free_gib(machine_of_cards(this_machine(free), earlier)) == made_for, free
    below = machine_of_cards(this_machine(11.9), earlier)
    for free in (12.1, 11.9, 12.4, 11.0):  # around the step: no more new cards
        assert free_gib(machine_of_cards(this_machine(free), [below])) == 11
    other = replace(this_machine(12.4), cores=4)
    assert machine_of_cards(other, earlier) not in earlier


def test_small_changes_of_free_memory_keep_the_deck() -> None:
    cards = Cards(LOCAL)

    def deck(free: float) -> Deck:
        machine = this_machine(free)
        assert machine.host is not None
        swapped = replace(machine.host, swap_total_bytes=GIB, swap_free_bytes=int(free * MIB))
        return cards.deck(request_for(replace(machine, host=swapped)))

    first = deck(20.4)
    assert all(deck(free) is first for free in (20.1, 20.7, 21.1, 20.0))
    lower = deck(19.9)
    assert lower is not first
    assert free_gib(lower.request.find_machine()) == 19
    assert deck(20.3) is first


def test_number_of_stored_decks_is_bounded(few_models: Path) -> None:
    few_models.mkdir(parents=True)
    for number in range(CARDS.most_files + 5):
        (few_models / f"{number}.json").write_text("{}")
    followed()
    assert len(list(few_models.glob("*.json"))) == CARDS.most_files
    assert deck_of(Cards(DISK)).is_done  # the newest is kept


def test_cards_of_another_task_are_made_once(few_models: Path) -> None:
    first = followed()
    cards = Cards(DISK)
    request = request_for(SMALL.find_machine(), purpose=ModelPurpose.EMBEDDING)
    deck = cards.deck(request)
    assert {card["id"] for card in deck.cards} == set(TINY) < {card["id"] for card in first.cards}
    assert (deck.picks, deck.is_done) == (None, False)  # only the best ones are still unknown
    view = cards.view(deck)
    assert view.entries[0].id == "bge-small-en-v1.5"


@pytest.mark.usefixtures("few_models")
def test_users_models_are_checked_again_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_model(tmp_path)
    main(["catalog", "add", str(file), "--id", "mine"])
    entries = [find_entry("mine"), find_entry("qwen3-0.6b")]
    monkeypatch.setattr("edgekit.web.cards.checked_entries", lambda _: entries)
    settings = replace(DISK, models_dirs=(tmp_path,))
    deck = followed(settings, ModelRequest(ram="32G"))
    assert "mine" in deck.made.cards
    again = deck_of(Cards(settings), ModelRequest(ram="32G"))
    assert "mine" not in again.made.cards
    assert "qwen3-0.6b" in again.made.cards


@pytest.mark.usefixtures("few_models")
def test_cards_made_ahead_need_no_follower() -> None:
    with opened_cards() as cards:
        request = request_for(SMALL.find_machine())
        cards.make_ahead(request)
        deck = cards.deck(request)
        wait_until(lambda: deck.is_done)
        wait_until(lambda: not cards._followed)
        cards.make_ahead(request)  # nothing to do
        assert not cards._followed


@pytest.mark.usefixtures("few_models")
def test_cards_made_ahead_come_first_for_a_follower() -> None:
    async def follow(cards: Cards) -> None:
        request = request_for(SMALL.find_machine())
        cards.make_ahead(request)
        deck = cards.deck(request)
        assert not deck.is_urgent
        async with aclosing(cards.follow(deck)) as stream, asyncio.timeout(PATIENCE_S):
            names = [event.name async for event in stream]
        assert deck.is_urgent
        assert names[-1] == "done"
        assert names.count("card") == len({card["id"] for card in deck.cards}) == len(deck.cards)

    with opened_cards() as cards:
        asyncio.run(follow(cards))


HOME = "/api/v1/home"


def test_home_answers_without_planning(address: str) -> None:
    answer = ask(address, f"{HOME}?device=RTX+4060&ram=16G&task=code").json()
    assert (answer["schema"], answer["task"], answer["engine"]) == (1, "code", "llama.cpp")
    assert answer["machine"] == {
        "name": "RTX 4060 + 16 GiB RAM",
        "what_if": True,
        "label": "RTX 4060 · 8 GB · 16 GB RAM",
    }
    assert answer["known"] == len(read_index().entries)
    assert answer["picks"] is None
    assert {model["card"] for model in answer["models"]} == {None}
    machine = ModelRequest(devices=("RTX 4060",), ram="16G").find_machine()
    entries = sort_entries(checked_entries(read_index()), machine, "llama.cpp", ModelPurpose.CODE)
    assert [model["id"] for model in answer["models"]] == [entry.id for entry in entries]
    assert answer["models"][0].keys() == {
        "id", "title", "publisher", "repository", "parameters", "active_parameters", "kinds", "licence", "released",
        "is_for_task", "card",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("query", "message"),
    [("task=poetry", "poetry"), ("engine=stream", "plan"), ("device=RTX+4091", "RTX 4090")],
)
def test_home_refuses_invalid_fields(address: str, query: str, message: str) -> None:
    answer = ask(address, f"{HOME}?{query}")
    assert (answer.status, answer.error["type"]) == (400, "UsageError")
    assert message in answer.error["message"]


def test_home_has_the_cards_made_so_far_in_few_bytes(address: str) -> None:
    machine = "device=RTX+4090&ram=64G"
    with closing(events(address, f"{PATH}?{machine}")) as stream:
        *_, picks = until_picks(stream)
        more = islice((event for event in stream if event["event"] == "card"), 20)
        count = sum(1 for _ in more)
    answer = ask(address, f"{HOME}?{machine}").json()
    assert answer["picks"] == picks["data"]["ids"]
    cards = {model["id"]: model["card"] for model in answer["models"] if model["card"]}
    assert len(cards) >= count
    assert "parts" in cards[answer["picks"][0]]["bars"][0]
    # 160 cards of this size fit into 45 KB, gzipped.
    rows = [model for model in answer["models"] if model["card"]]
    size = len(gzip.compress(json.dumps(rows).encode(), 6))
    assert size * len(answer["models"]) / len(rows) < 45_000


def until_picks(stream: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for event in stream:
        yield event
        if event["event"] == "picks":
            return
