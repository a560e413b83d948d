# ruff: noqa: E501 - tables
"""Search, the shop and OpenEnv: found, bought and scored as they should be, by scripts whose reward is known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from astraflow.config import Problems
from astraflow.problems import Problem, load_problems
from astraflow.workloads.adapters.episodes import episodes
from astraflow.workloads.adapters.openenv import OpenEnvs
from astraflow.workloads.search.corpus import FOLDOC, Passage, read_corpus
from astraflow.workloads.search.retrieve import Bm25sIndex, CorpusRetriever, Fts5Index, HttpRetriever
from astraflow.workloads.search.score import exact_match, f1
from astraflow.workloads.shop.catalogue import catalogue
from astraflow.workloads.shop.environment import Shops, reward
from storage.errors import ConfigError, EpisodeError

PASSAGES = [
    Passage("Ada", "A language named after Lovelace, who wrote programs."),
    Passage("Lovelace", "Ada King, Countess; born in London."),
    Passage("London", "A city by a river."),
    Passage("Thames", "A river through London and other places."),
]


@pytest.mark.parametrize("make", [Bm25sIndex, Fts5Index])
def test_indexes_find_titles_first(make: Any) -> None:
    index = make(PASSAGES)
    assert index.best("London", 1) == [2] and set(index.best("london!", 9)) == {1, 2, 3}
    assert index.best("countess", 2) == [1] and index.best("nothing here matches zebras", 1) == [] == index.best('"', 3)


@pytest.mark.parametrize(
    ("said", "answers", "score", "match"),
    [
        ("the London", ["London"], 1, 1), ("London city", ["London"], 2 / 3, 0), ("yes", ["yes"], 1, 1), ("yes it is", ["yes"], 0, 0),
        ("", ["x"], 0, 0), ("b", ["a b c d", "b"], 1, 1), ("New-York!", ["newyork"], 1, 1), ("x", [], 0, 0),
    ],
)  # fmt: skip
def test_answers_are_scored_as_squad_does(said: str, answers: list[str], score: float, match: float) -> None:
    assert f1(said, answers) == pytest.approx(score) and exact_match(said, answers) == match


async def _served(handler: Any, path: str) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", path, handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def with_server(handler: Any, path: str, work: Any) -> Any:
    async def play() -> Any:
        async for url in _served(handler, path):
            return await work(url)

    return asyncio.run(play())


def test_a_retrieval_server() -> None:
    async def retrieve(request: web.Request) -> web.Response:
        asked = await request.json()
        if asked["queries"] == ["break"]:
            return web.Response(status=500)
        found = [
            {"document": {"contents": f'"T{i}"\n{asked["queries"][0]}'}, "score": 1.0} for i in range(asked["topk"])
        ]
        return web.json_response({"result": [found]})

    async def work(url: str) -> Any:
        retriever = HttpRetriever(url=url)
        found = await retriever.search("words", 2)
        with pytest.raises(EpisodeError) as caught:
            await retriever.search("break", 1)
        return found, caught.value.kind

    assert with_server(retrieve, "/retrieve", work) == ([Passage("T0", "words"), Passage("T1", "words")], "retriever")


@pytest.mark.skipif(not FOLDOC.with_suffix(".index").exists(), reason="dict-foldoc is not installed")
def test_questions_of_the_dictionary_can_be_answered_by_searching() -> None:
    found = load_problems(Problems(source="foldoc", options={"count": 30}), 0)
    assert len(found) == 30 and len(read_corpus("foldoc")) > 10_000
    retriever = CorpusRetriever()

    async def reached(problem: Problem) -> bool:
        """By the chain that the question describes: each entry is found by its name."""
        path = json.loads(problem.meta["path"])
        shown = [[p.title for p in await retriever.search(title, 5)] for title in path]
        return all(title in titles for title, titles in zip(path, shown, strict=True))

    async def all_reached() -> int:
        return sum([await reached(problem) for problem in found])

    assert asyncio.run(all_reached()) >= 27
    for problem in found:
        assert (
            problem.answer not in problem.prompt.partition("«")[0]
            and json.loads(problem.meta["path"])[2] == problem.answer
        )


def test_a_corpus_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"title": "x"}')
    for name in ("c.jsonl", "missing.jsonl"):
        with pytest.raises(ConfigError):
            read_corpus(str(tmp_path / name))


WISHES = load_problems(Problems(source="shop", options={"count": 40, "products": 300}), 0)


def shopped(problem: Problem, *actions: str) -> list[Any]:
    async def play() -> list[Any]:
        async with Shops().play(problem) as shop:
            return [await shop.reset(), *[await shop.step(action) for action in actions]]

    return asyncio.run(play())


def perfect(problem: Problem) -> list[str]:
    """The scripted buyer: it knows what is wanted, pages to it and chooses the options."""
    goal = json.loads(problem.meta["goal"])
    words = f"{goal['category']} {' '.join(goal['attributes'])}"
    found = catalogue(*json.loads(problem.meta["catalogue"])).find(words)
    place = next(i for i, product in enumerate(found) if product.id == goal["id"])
    options = [f"click[{value}]" for value in goal["options"].values()]
    return [f"search[{words}]", *["click[Next >]"] * (place // 10), f"click[{goal['id']}]", *options, "click[Buy Now]"]


def test_the_scripted_buyer_gets_all() -> None:
    for problem in WISHES:
        seen = shopped(problem, *perfect(problem))
        assert seen[-1].done and seen[-1].score == 1.0, (problem.prompt, [o.text for o in seen])
        assert not any(o.done or o.score for o in seen[:-1])


def test_less_fitting_purchases_earn_less() -> None:
    actions = perfect(WISHES[0])
    without_options = [action for action in actions if action not in actions[-3:-1]]
    assert shopped(WISHES[0], *without_options)[-1].score == pytest.approx(3 / 5)
    goal = json.loads(WISHES[0].meta["goal"])
    sold = catalogue(*json.loads(WISHES[0].meta["catalogue"])).products.values()
    other = next(product for product in sold if product.department != goal["department"])
    assert reward(goal, other, goal["options"]) <= 0.1


def test_pages_and_what_cannot_be_done() -> None:
    problem = WISHES[1]
    goal = json.loads(problem.meta["goal"])
    seen = shopped(problem, "click[Buy Now]", "buy", f"search[{goal['category']}]", "search[again]", "click[nothing]")
    assert "cannot be done" in seen[1].text and "no action" in seen[2].text and "results" in seen[3].text
    assert "cannot be done" in seen[4].text and "cannot be done" in seen[5].text and problem.prompt in seen[0].text
    item = perfect(problem)[-4]
    pages = shopped(problem, *perfect(problem)[:-3], "click[Description]", "click[< Prev]", "click[Features]", "click[< Prev]",
                    "click[< Prev]", item, "click[Back to Search]")  # fmt: skip
    texts = [page.text for page in pages[-7:]]
    assert (
        goal["category"] in texts[0]
        and "Price" in texts[1]
        and goal["attributes"][0] in texts[2]
        and "Price" in texts[3]
    )
    assert "results" in texts[4] and "Price" in texts[5] and "search page" in texts[6]


def test_the_real_shops_goals(tmp_path: Path) -> None:
    path = tmp_path / "items_human_ins.json"
    path.write_text(
        json.dumps({"B01": [{"instruction": "i want tea", "instruction_attributes": ["green"]}], "B02": []})
    )
    [problem] = load_problems(Problems(source="webshop", options={"path": str(path)}), 0)
    assert (problem.prompt, problem.answer, problem.meta["instruction_attributes"]) == (
        "i want tea",
        "B01",
        '["green"]',
    )


def test_an_openenv_server() -> None:
    async def session(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            asked = json.loads(message.data)
            if asked["type"] == "close":
                break
            if asked["data"].get("message") == "break":
                await socket.send_json({"type": "error", "data": {"message": "broken"}})
                continue
            said = asked["data"].get("message", f"seed {asked['data'].get('seed')}")
            data = {
                "observation": {"echoed_message": said},
                "reward": 0.7 if said == "win" else None,
                "done": said == "win",
            }
            await socket.send_json({"type": "observation", "data": data})
        return socket

    async def work(url: str) -> Any:
        worlds = OpenEnvs(url=url, text="echoed_message")
        async with worlds.play(episodes(2, count=3)[1]) as world:
            seen = [await world.reset(), await world.step("hello"), await world.step("win")]
        with pytest.raises(EpisodeError) as caught:
            async with worlds.play(episodes(0, count=1)[0]) as world:
                await world.step("break")
        return [(o.text, o.score, o.done) for o in seen], caught.value.kind

    assert with_server(session, "/ws", work) == (
        [("seed 2000001", 0.0, False), ("hello", 0.0, False), ("win", 0.7, True)],
        "environment",
    )
    with pytest.raises(EpisodeError):
        asyncio.run(_unreachable())


async def _unreachable() -> None:
    async with OpenEnvs(url="http://127.0.0.1:9").play(episodes(0, count=1)[0]):
        pass
