"""Whole pools around HTTP: engines that are servers of the pool's own, remote judges, and harnesses that play."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web

from astraflow import config as cfg
from astraflow.raas.scripted_engine import ScriptedEngine
from astraflow.records import Applied, Committed, Failed, PoolJoined
from storage.errors import EngineError
from tests.raas.test_gateway import HARNESS
from tests.raas.test_http_engine import SGLANG, is_gone, ok, serving, until
from tests.raas.test_pool import EOS, Bench, always, ids, tiny

pytestmark = pytest.mark.anyio
__all__ = ["tiny"]


def children(before: Collection[int] = ()) -> list[int]:
    """Processes below this one, without those that were there before: servers that other tests share."""
    return [process.pid for process in psutil.Process().children(recursive=True) if process.pid not in before]


def with_server(**more: Any) -> dict[str, Any]:
    servers = {"solver": {"command": SGLANG, "dialect": "sglang"}}
    return {"pools": {"local": {"update": "finish", "servers": servers, **more}}}


async def test_a_pool_of_a_server_plays_follows_and_leaves_nothing(tiny: Path) -> None:
    bench, before = Bench(tiny, **with_server()), children()
    async with bench.pool():
        started = children(before)
        assert len(started) >= 3
        bench.lease(0)
        await bench.until(lambda: bench.facts(Committed))
        bench.publish(step=1, shift=1.0)  # the norm is 2 now: the server says token 2
        await bench.until(lambda: bench.facts(Applied)[-1].version == 1)
        bench.lease(1)
        await bench.until(lambda: len(bench.facts(Committed)) == 2)
    rows = [bench.table(item).to_pylist()[0] for c in bench.facts(Committed) for item in c.objects]
    assert {row["engine"] for row in rows} == {"http:sglang"}
    assert [(row["response_ids"], row["version_min"], row["version_max"]) for row in rows] == [
        ([1] * 4, 0, 0),
        ([2] * 4, 1, 1),
    ]
    assert not bench.facts(Failed)
    await until(lambda: all(map(is_gone, started)))


async def test_a_server_that_dies_ends_the_pool_and_says_why(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIE", "1")
    bench, before = Bench(tiny, **with_server()), children()
    bench.publish()
    task = bench.run()
    await bench.until(lambda: bench.facts(PoolJoined) or task.done())
    started = children(before)
    bench.lease(0)
    with pytest.raises(EngineError, match=r"ended with code 3(?s:.*)out of luck"):
        await asyncio.wait_for(task, 60)
    assert bench.status().state == "failed"
    await until(lambda: all(map(is_gone, started)))


async def test_a_remote_judge_serves_beside_a_policy(tiny: Path, tmp_path: Path, monkeypatch: Any) -> None:
    async def chat(request: web.Request) -> web.Response:
        said = (await request.json())["messages"][-1]["content"]
        message = {"role": "assistant", "content": f"{said}!"}
        return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}]})

    (tmp_path / "judged_play.py").write_text(
        "from astraflow.workflows import user, workflow\n"
        "@workflow(roles=['solver', 'judge'])\n"
        "async def play(problem, roles):\n"
        "    answer = await roles.solver.chat([user(problem.prompt)])\n"
        "    verdict = await roles.judge.chat([user(answer.text)])\n"
        "    answer.meta['verdict'] = verdict.text\n"
        "    answer.reward = 0.5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    async with serving(v1__models=ok, v1__chat__completions=chat) as url:
        bench = Bench(
            tiny,
            policies={"solver": {"model": "tiny-qwen3"}, "judge": {"model": "remote", "frozen": True}},
            workflow={"name": "judged_play:play"},
            pools={"local": {"servers": {"judge": {"url": url, "dialect": "chat"}}}},
        )
        async with bench.pool(ScriptedEngine(always("12"))):
            assert {(fact.policy, fact.version) for fact in bench.facts(Applied)} == {("solver", 0), ("judge", 0)}
            bench.lease(0)
            await bench.until(lambda: bench.facts(Committed))
    [item] = bench.facts(Committed)[0].objects
    assert item.policy == "solver"
    assert [dict(row["meta"]) for row in bench.table(item).to_pylist()] == [{"verdict": "12!"}] * 2


async def test_a_harness_plays_through_the_pool(tiny: Path) -> None:
    workflow = {"name": "harness", "options": {"command": [sys.executable, "-c", HARNESS]}}
    bench = Bench(tiny, workflow=workflow)
    async with bench.pool(ScriptedEngine(always("12"))):
        bench.lease(0)
        await bench.until(lambda: bench.facts(Committed) or bench.facts(Failed))
    assert not bench.facts(Failed)
    [item] = bench.facts(Committed)[0].objects
    for row in bench.table(item).to_pylist():
        assert row["response_ids"] == [*ids("12"), EOS] and row["prompt_ids"] == [1, *ids(bench.problems[3].prompt)]
        assert (row["reward"], dict(row["meta"])) == (0.5, {"answer": "12"})


def test_serving_is_on_loopback_unless_told_otherwise() -> None:
    assert cfg.Serving().host == "127.0.0.1"
