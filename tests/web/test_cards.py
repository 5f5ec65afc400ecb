"""Cards are plans: the same answers, the best first, shared by all who ask, whatever happens to who makes them."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import replace
from itertools import islice
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S, wait_until
from tests.web.model_files import write_model
from tests.web.serving import LOCAL, ask, events, start

from edgekit.catalog import read_catalog
from edgekit.catalog.names import find_entry
from edgekit.catalog.types import Catalog
from edgekit.cli import main
from edgekit.engines import engine_named
from edgekit.machine.types import Machine
from edgekit.plan.recommend import rank_of, smallest_bytes
from edgekit.request import Request as ModelRequest
from edgekit.web.cards import (
    KEPT_MACHINES,
    MOST_FOLLOWED,
    MOST_STARTS,
    Card,
    CardOrder,
    Cards,
    Deck,
    Maker,
    sort_entries,
    work,
)
from edgekit.web.failures import TooManyError
from edgekit.web.jobs import JobEvent
from edgekit.web.serving import warm

SMALL = ModelRequest(ram="2G")
PATH = "/api/v1/cards/events"


# What a card says.

SAMPLES = {  # entries that fit as a whole, divided, not at all, in few bits; with experts, states, and for embeddings
    ("qwen3-8b", "mixtral-8x7b", "nomic-embed-text-v1.5", "mamba-2.8b"): (
        "--device", "RTX 4090", "--ram", "64G",
    ),
    ("gemma-3-27b",): ("--device", "2x RTX 3090", "--ram", "32G"),
    ("gpt-oss-20b", "qwen2.5-32b"): ("--device", "m3-max-36"),
    ("llama-3.1-8b", "phi-3-small-8k-instruct", "qwen2.5-14b"): ("--ram", "8G"),
}  # fmt: skip
ENGINES = {
    ("qwen3-8b", "llama-3.1-70b"): ("--device", "RTX 4090", "--engine", "vllm"),
    ("qwen3-32b", "phi-3-mini-4k", "nomic-embed-text-v1.5"): (
        "--device",
        "m3-max-36",
        "--engine",
        "mlx",
    ),
}


@pytest.mark.parametrize(("ids", "words"), [*SAMPLES.items(), *ENGINES.items()])
def test_a_card_says_what_plan_says(
    capsys: pytest.CaptureFixture[str], ids: tuple[str, ...], words: tuple[str, ...]
) -> None:
    fields = dict(zip(words[::2], words[1::2], strict=True))
    engine = fields.get("--engine", "llama.cpp")
    devices = tuple(filter(None, [fields.get("--device")]))
    machine = ModelRequest(devices=devices, ram=fields.get("--ram")).find_machine()
    made = {card["id"]: card for card in cards_of(ids, request_for(machine, engine))}
    assert set(made) == set(ids)
    for name, card in made.items():
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
        assert card["cache"] in {plan["cache"]["name"], "bfloat16", None}
        assert card["speed"] == (plan["speed"] and without_because(plan["speed"]))
        assert [bar["required_bytes"] for bar in card["bars"]] == [
            budget["required_bytes"] for budget in plan["budgets"]
        ]


def request_for(machine: Machine, engine: str = "llama.cpp", **limits: Any) -> ModelRequest:
    return ModelRequest(machine=machine, engines=(engine,), **limits)


def cards_of(ids: tuple[str, ...], request: ModelRequest) -> Iterator[Card]:
    some = Catalog(entries=tuple(find_entry(name) for name in ids))
    return Maker(LOCAL).cards(request, some)


def without_because(speed: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in speed.items() if name != "because"}


def test_cards_keep_to_the_reserve_and_the_largest_share_asked_for() -> None:
    machine = ModelRequest(devices=("RTX 4060",), ram="32G").find_machine()
    usual, roomy, half = (
        next(cards_of(("llama-3.1-8b",), request_for(machine, **limits)))
        for limits in ({}, {"reserve_bytes": 0}, {"max_use": 0.5})
    )
    assert roomy["bars"][0]["available_bytes"] == usual["bars"][0]["free_bytes"]
    assert half["bars"][0]["utilization"] <= 0.5 < usual["bars"][0]["utilization"]


def test_what_an_engine_refuses_is_a_card_with_the_sentence() -> None:
    request = request_for(SMALL.find_machine())
    (card,) = cards_of(("phi-3-small-8k-instruct",), request)
    assert (card["status"], card["variant"], card["bars"]) == ("refused", None, [])
    assert "no GGUF of it to run" in card["told"]
    assert card["entry"]["family"] == find_entry("phi-3-small-8k-instruct").family


def test_what_goes_wrong_with_one_model_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def break_down(*_: object) -> None:
        raise ZeroDivisionError

    maker, request = Maker(LOCAL), request_for(SMALL.find_machine())
    entries = Catalog(entries=(find_entry("qwen3-0.6b"), find_entry("qwen2.5-0.5b")))
    monkeypatch.setattr("edgekit.web.cards.task_to_plan", break_down)
    answer = [(card["status"], card["told"]) for card in maker.cards(request, entries)]
    assert [status for status, _ in answer] == ["refused", "refused"]
    assert "internal error in EdgeKit" in answer[0][1]


def test_cards_that_are_there_are_not_made_again() -> None:
    entries = Catalog(entries=(find_entry("qwen3-0.6b"), find_entry("qwen2.5-0.5b")))
    cards = Maker(LOCAL).cards(
        request_for(SMALL.find_machine()), entries, frozenset({"qwen3-0.6b"})
    )
    assert [card["id"] for card in cards] == ["qwen2.5-0.5b"]


def test_what_is_recommended_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    """By what a card says of its merits the order is `edgekit recommend`'s; what does not fit comes last."""
    machine = ("--device", "RTX 4090", "--ram", "64G")
    assert main(["recommend", *machine, "--all-sizes", "--limit", "4", "--json"]) == 0
    best = [suggestion["id"] for suggestion in json.loads(capsys.readouterr().out)["suggestions"]]
    request = request_for(ModelRequest(devices=("RTX 4090",), ram="64G").find_machine())
    cards = list(cards_of(tuple({*best, "step-3.7-flash", "qwen3.5-122b-a10b"}), request))
    merits = {
        card["id"]: (
            card["status"] == "failed",
            not card["is_good"],
            not card["is_preferred"],
            -card["worth"],
        )
        for card in cards
    }
    assert sorted(merits, key=lambda name: (merits[name], name))[:4] == best
    assert merits["step-3.7-flash"][0]  # it would need fewer than four bits


def test_what_plausibly_fits_comes_first_each_by_rank() -> None:
    machine = ModelRequest(devices=("RTX 4090",), ram="64G").find_machine()
    result = sort_entries(read_catalog().entries, machine, "llama.cpp")
    card, every = machine.devices[0].free_bytes, engine_named("llama.cpp").capacity_bytes(machine)
    places = [sum(smallest_bytes(entry) > room for room in (card, every)) for entry in result]
    assert places == sorted(places)
    assert set(places) == {0, 1, 2}
    for place in (0, 1, 2):
        ranks = [rank_of(one) for one, where in zip(result, places, strict=True) if where == place]
        assert ranks == sorted(ranks, reverse=True)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a model that the user added as "mine"."""
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path / "data"))
    file = write_model(tmp_path)
    main(["catalog", "add", str(file), "--id", "mine"])
    return file


@pytest.mark.usefixtures("mine")
def test_what_the_user_added_is_read_only_inside_the_folders(tmp_path: Path) -> None:
    request = request_for(ModelRequest(ram="32G").find_machine())
    entries = Catalog(entries=(find_entry("mine"),))
    (outside,) = Maker(LOCAL).cards(request, entries)
    assert outside["status"] == "refused"
    assert "--models-dir" in outside["told"]
    (inside,) = Maker(replace(LOCAL, models_dirs=(tmp_path,))).cards(request, entries)
    assert (inside["status"], inside["variant"]) == ("passed", "Q4_K_M")
    assert set(inside["flags"]) <= {
        "context",
        "type_k",
        "type_v",
    }  # the weights are those of the file


def test_where_a_file_lies_is_not_told_elsewhere(mine: Path, tmp_path: Path) -> None:
    mine.write_bytes(b"GGUF" + b"\xff" * 60)
    request = request_for(ModelRequest(ram="32G").find_machine())
    there = replace(LOCAL, host="0.0.0.0", models_dirs=(tmp_path.resolve(),))
    (card,) = Maker(there).cards(request, Catalog(entries=(find_entry("mine"),)))
    assert card["status"] == "refused"
    assert card["told"].startswith(f"{mine.name}: GGUF version")


# The stream.


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with start(LOCAL) as result:
        yield result


CHECKED = {  # in few bits; on one of two cards; not at all; with the cache on the host; as each engine says it
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


@pytest.mark.parametrize(("ids", "answers"), CHECKED.items())
def test_a_check_with_its_flags_says_what_a_card_says(
    address: str, ids: tuple[str, ...], answers: dict[str, Any]
) -> None:
    engine = answers.get("engine", "llama.cpp")
    machine = ModelRequest(
        devices=tuple(answers.get("device", ())), ram=answers.get("ram")
    ).find_machine()
    made = list(cards_of(ids, request_for(machine, engine)))
    assert {card["id"] for card in made} == set(ids)
    for card in made:
        fields = {"model": f"catalog:{card['id']}", **answers, "engine": engine, **card["flags"]}
        check = ask(address, "/api/v1/check", fields).json()
        assert (check["status"], check["context_tokens"]) == (
            card["status"],
            card["context_tokens"],
        )
        assert card["flags"].get("mix") == (card["variant"] if engine == "llama.cpp" else None)


def test_events_over_the_wire(address: str) -> None:
    answer = list(events(address, f"{PATH}?ram=8G&engine=vllm"))
    assert [item["event"] for item in answer] == ["machine", *["card"] * (len(answer) - 2), "done"]
    assert answer[0]["data"]["name"] == "8 GiB RAM"
    ids = {item["data"]["id"] for item in answer[1:-1]}
    assert ids == {entry.id for entry in read_catalog().entries}
    assert answer[-1]["data"] == {"count": len(ids)} == {"count": answer[0]["data"]["count"]}
    assert {item["data"]["status"] for item in answer[1:-1]} == {"refused"}
    assert "NVIDIA" in answer[1]["data"]["told"]


def test_two_gpus(address: str) -> None:
    path = f"{PATH}?device=RTX+3090&device=RTX+4090&ram=64G"
    first, *more = islice(events(address, path), 3)
    assert first["data"]["name"] == "RTX 3090 + RTX 4090 + 64 GiB RAM"
    assert [item["event"] for item in more] == ["card", "card"]
    assert {bar["memory"] for bar in more[0]["data"]["bars"]} >= {"RAM"}
    assert more[0]["data"]["status"] in {"passed", "warning"}


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("device=RTX+4091", "RTX 4090"),
        ("ram=lots", "--ram"),
        ("engine=stream", "plan"),
        ("engine=nonsense", "nonsense"),
        ("context=5", "unknown field"),
        ("ram=8G&vram=-1", "--vram"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_stream(
    address: str, query: str, told: str
) -> None:
    answer = ask(address, f"{PATH}?{query}")
    assert (answer.status, answer.error["type"]) == (400, "UsageError")
    assert told in answer.error["message"]


def test_a_client_that_goes_away_stops_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    decks: list[Deck] = []

    class Watched(Cards):
        def deck(self, request: ModelRequest) -> Deck:
            decks.append(super().deck(request))
            return decks[-1]

    monkeypatch.setattr("edgekit.web.calls.Cards", Watched)
    with start(LOCAL) as address:
        assert len(list(islice(events(address, f"{PATH}?ram=2G"), 3))) == 3
        wait_until(lambda: not decks[0].followers)
        assert not decks[0].is_begun
        assert not decks[0].has_ended


def test_too_many_machines_at_once_are_refused(shared: Cards) -> None:
    async def follow_many(cards: Cards) -> None:
        async with AsyncExitStack() as following:
            for size in range(MOST_FOLLOWED):
                deck = deck_of(cards, ModelRequest(ram=f"{size + 16}G"))
                one = await following.enter_async_context(aclosing(cards.follow(deck)))
                await anext(one)
            deck_of(cards, ModelRequest(ram="16G"))  # the same as another: no more work
            with pytest.raises(TooManyError):
                deck_of(cards, ModelRequest(ram="64G"))

    asyncio.run(follow_many(shared))


def test_whoever_follows_gets_cards_though_the_machine_is_no_longer_kept(shared: Cards) -> None:
    """Many may ask before the first of them listens."""

    async def follow_all(cards: Cards) -> None:
        sizes = range(100, 100 + KEPT_MACHINES + 4)
        decks = [deck_of(cards, ModelRequest(ram=f"{size}G")) for size in sizes]
        assert len(cards._decks) == KEPT_MACHINES
        async with aclosing(cards.follow(decks[0])) as one, asyncio.timeout(30):
            assert len(await next_cards(one, 2)) == 2
        assert not cards._followed

    asyncio.run(follow_all(shared))


def test_whoever_follows_gets_cards_though_the_machine_is_asked_about_anew(
    monkeypatch: pytest.MonkeyPatch, shared: Cards
) -> None:
    request = ModelRequest(ram="3G")

    async def follow_both(cards: Cards) -> None:
        first = deck_of(cards, request)
        async with aclosing(cards.follow(first)) as one, asyncio.timeout(30):
            await next_cards(one, 1)
            monkeypatch.setattr("edgekit.web.cards.KEPT_S", 0.0)
            assert deck_of(cards, request) is not first
            before = len(first.cards)
            assert len(await next_cards(one, before + 2)) == before + 2

    asyncio.run(follow_both(shared))


def test_it_is_documented(address: str) -> None:
    spec = ask(address, "/api/v1/openapi.json").json()["paths"][PATH]["get"]
    assert list(spec["responses"]["200"]["content"]) == ["text/event-stream"]
    assert {parameter["name"] for parameter in spec["parameters"]} == {
        "device",
        "ram",
        "vram",
        "engine",
        "max_use",
        "reserve",
    }


def test_what_the_first_page_asks_for_is_read_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, Machine]] = []
    monkeypatch.setattr("edgekit.web.calls._machine", seen)
    warm().join(PATIENCE_S)
    assert [machine.what_if for _, machine in seen] == [False]


def test_what_cannot_be_read_beforehand_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def break_down() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("edgekit.web.serving._STEPS", (break_down, lambda: done.append("next")))
    warm().join(PATIENCE_S)
    assert done == ["next"]


# Who makes them.


@contextmanager
def opened_cards() -> Iterator[Cards]:
    cards = Cards(LOCAL)
    try:
        yield cards
    finally:
        cards.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Cards]:
    """One worker for all tests that do not end it; each asks about machines of its own."""
    with opened_cards() as cards:
        yield cards


def deck_of(cards: Cards, request: ModelRequest = SMALL) -> Deck:
    return cards.deck(request_for(request.find_machine()))


async def next_cards(following: AsyncIterator[JobEvent], count: int) -> list[str]:
    result: list[str] = []
    async for event in following:
        assert event.name != "failed", event.data
        if event.name == "card":
            result.append(json.loads(event.data)["id"])
            if len(result) == count:
                break
    return result


def test_listeners_share_the_work_and_who_comes_later_gets_all(shared: Cards) -> None:
    async def listen(cards: Cards) -> None:
        deck = deck_of(cards, ModelRequest(ram="5G"))
        assert deck_of(cards, ModelRequest(ram="5G")) is deck
        async with aclosing(cards.follow(deck)) as one, aclosing(cards.follow(deck)) as other:
            first = await next_cards(one, 3)
            both = await asyncio.gather(next_cards(one, 3), next_cards(other, 6))
            assert [*first, *both[0]] == both[1]
        assert len({str(card["id"]) for card in deck.cards}) == len(deck.cards)

    asyncio.run(listen(shared))


def test_who_leaves_stops_what_nobody_else_wants_and_may_come_back(shared: Cards) -> None:
    async def leave_and_return(cards: Cards) -> None:
        deck = deck_of(cards, ModelRequest(ram="6G"))
        async with aclosing(cards.follow(deck)) as following:
            first = await next_cards(following, 2)
        made = len(deck.cards)
        assert not deck.is_begun
        async with aclosing(cards.follow(deck_of(cards, ModelRequest(ram="7G")))) as another:
            await next_cards(another, 3)  # the worker goes on, and not with the first one
        assert len(deck.cards) == made
        async with aclosing(cards.follow(deck)) as following:
            again = await next_cards(following, made + 2)
        assert again[:2] == first
        assert len(set(again)) == len(again)

    asyncio.run(leave_and_return(shared))


def test_two_machines_get_their_cards_in_turn(shared: Cards) -> None:
    async def listen(cards: Cards) -> None:
        small, large = (deck_of(cards, ModelRequest(ram=size)) for size in ("9G", "10G"))
        async with aclosing(cards.follow(small)) as one, aclosing(cards.follow(large)) as other:
            await asyncio.gather(next_cards(one, 3), next_cards(other, 3))
        assert not small.is_done
        assert not large.is_done

    asyncio.run(listen(shared))


def kill(cards: Cards) -> None:
    process = cards.process
    assert process is not None
    process.kill()
    wait_until(lambda: not process.is_alive())


def test_a_worker_that_is_killed_is_replaced() -> None:
    async def listen(cards: Cards) -> None:
        deck = deck_of(cards)
        async with aclosing(cards.follow(deck)) as following:
            before = await next_cards(following, 2)
            kill(cards)
            after = await next_cards(following, len(deck.cards))
        assert len({*before, *after}) == len(before) + len(after)

    with opened_cards() as cards:
        asyncio.run(listen(cards))


def until_started(deck: Deck, times: int) -> None:
    wait_until(lambda: deck.starts >= times)


def test_one_that_is_killed_again_and_again_is_given_up() -> None:
    def kill_each(cards: Cards, deck: Deck) -> None:
        for times in range(MOST_STARTS):
            wait_until(lambda: cards.process is not None)
            kill(cards)
            until_started(deck, times + 1)

    async def listen(cards: Cards) -> JobEvent:
        deck = deck_of(cards)
        async with aclosing(cards.follow(deck)) as following:
            await anext(following)
            await asyncio.to_thread(kill_each, cards, deck)
            return [event async for event in following][-1]

    with opened_cards() as cards:
        last = asyncio.run(listen(cards))
        assert not deck_of(cards).fault  # who asks again is not told of it for ever
    assert last.name == "failed"
    assert "keeps crashing" in json.loads(last.data)["error"]["message"]


def test_closing_tells_who_listens_and_leaves_no_process() -> None:
    async def listen(cards: Cards) -> JobEvent:
        async with aclosing(cards.follow(deck_of(cards))) as following:
            await next_cards(following, 1)
            process = cards.process
            assert process is not None
            threading.Thread(target=cards.close).start()
            last = [event async for event in following][-1]
            wait_until(lambda: not process.is_alive())
            return last

    before = set(multiprocessing.active_children())
    with opened_cards() as cards:
        last = asyncio.run(listen(cards))
        assert last.name == "failed"
        assert "stopped" in json.loads(last.data)["error"]["message"]
        assert cards.process is None
        cards.close()  # once more does no harm
    assert set(multiprocessing.active_children()) <= before


def test_without_a_process_a_thread_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: SpawnProcess) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(SpawnProcess, "start", refuse)

    async def listen(cards: Cards) -> None:
        async with aclosing(cards.follow(deck_of(cards))) as following:
            assert len(await next_cards(following, 2)) == 2
        assert cards.process is None

    with opened_cards() as cards:
        asyncio.run(listen(cards))


def test_a_worker_without_work_ends_and_so_does_one_without_a_server() -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours:
        work(theirs, settings=LOCAL, idle_s=0.05)
        with pytest.raises(EOFError):
            ours.recv()
    ours, theirs = multiprocessing.Pipe()
    ours.close()
    work(theirs, settings=LOCAL)  # returns at once, though it would wait for a minute


def test_a_worker_whose_server_goes_while_it_works_ends() -> None:
    ours, theirs = multiprocessing.Pipe()
    worker = threading.Thread(target=work, args=(theirs,), kwargs={"settings": LOCAL})
    worker.start()
    ours.send(CardOrder(7, request_for(SMALL.find_machine()), frozenset()))
    number, card = ours.recv()
    assert (number, card is None) == (7, False)
    ours.close()
    worker.join(PATIENCE_S)
    assert not worker.is_alive()
