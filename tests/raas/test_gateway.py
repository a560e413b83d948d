"""A pool's server: what an outside harness asks is recorded as if the workflow had asked it, and only while it may."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from astraflow import config as cfg
from astraflow.problems import Problem
from astraflow.raas.gateway import Gateway
from astraflow.rewards import ScoredProblem, contains
from astraflow.workflows import Roles, load_workflow, outside, user
from astraflow.workflows.runtime import Outcome
from storage.errors import ConfigError, EngineError, EpisodeError
from tests.workflows.conftest import CHATML, Stage
from tests.workflows.test_tools import CALL, TOOL_TEMPLATE, TOOLS

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
GENERATE = "/inference/v1/generate"


class Served:
    """A gateway over a scripted voice, and a client of it."""

    def __init__(self, play: Stage, **section: Any) -> None:
        self.play = play
        self.gateway = Gateway(cfg.Serving(**section), play.voices)
        self.roles = Roles.of(play.voices, "seed", self.gateway.doors)
        self.session = aiohttp.ClientSession()

    async def post(self, key: str, path: str, body: Any) -> tuple[int, Any]:
        root = (await self.gateway.start()).removesuffix("/v1")
        async with self.session.post(root + path, json=body, headers={"Authorization": f"Bearer {key}"}) as response:
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else text


@contextlib.asynccontextmanager
async def serving(play: Stage, **section: Any) -> AsyncIterator[Served]:
    served = Served(play, **section)
    try:
        yield served
    finally:
        await served.session.close()
        await served.gateway.close()


def ask(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "solver", "messages": [{"role": "user", "content": text}], **more}


async def test_a_conversation_is_recorded_with_its_tokens() -> None:
    async with serving(Stage(CHATML).role("solver", "one", "two")) as s, s.roles.served() as door:
        status, first = await s.post(door.key, CHAT, ask(logprobs=True, return_token_ids=True))
        assert status == 200
        [choice] = first["choices"]
        assert choice["message"] == {"role": "assistant", "content": "one"} and choice["finish_reason"] == "stop"
        assert choice["token_ids"] == [*s.play.ids("one"), s.play.stop_id]
        assert [t["logprob"] for t in choice["logprobs"]["content"]] == [-1.0] * 4
        assert first["usage"]["completion_tokens"] == 4
        history = [user("hi"), choice["message"], user("more")]
        _, second = await s.post(door.key, CHAT, ask() | {"messages": [dict(m) for m in history]})
        assert second["choices"][0]["message"]["content"] == "two"
        s.roles.give(1.0)
    [row] = s.roles.trajectories()
    assert [t.role for t in row.turns] == ["assistant", "user", "assistant"]
    assert s.play.text(row.prompt_ids + row.response_ids) == (
        "<user>\nhi<|end|>\n<assistant>\none<|end|>\n<user>\nmore<|end|>\n<assistant>\ntwo<|end|>"
    )


async def test_tools_pass_as_openai_has_them() -> None:
    async with serving(Stage(TOOL_TEMPLATE).role("solver", CALL, "3")) as s, s.roles.served() as door:
        _, first = await s.post(door.key, CHAT, ask(tools=TOOLS))
        [choice] = first["choices"]
        [call] = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls"
        assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
        said = {"role": "tool", "tool_call_id": call["id"], "content": "three"}
        body = ask(tools=TOOLS) | {"messages": [*ask()["messages"], choice["message"], said]}
        _, second = await s.post(door.key, CHAT, body)
        assert second["choices"][0]["message"]["content"] == "3"
        s.roles.give(0)
    [row] = s.roles.trajectories()
    assert [(t.role, t.tool) for t in row.turns] == [("assistant", ""), ("tool", "add"), ("assistant", "")]


async def test_a_stream_brings_the_same_as_the_whole() -> None:
    play = Stage(CHATML).role("solver", Stage().ids("héllo") and list(Stage().ids("hello STOP")), stop=["STOP"])
    async with serving(play) as s, s.roles.served() as door:
        status, text = await s.post(door.key, CHAT, ask(stream=True, stream_options={"include_usage": True}))
        assert status == 200
        lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        events = [json.loads(line) for line in lines[:-1]]
        deltas = [e["choices"][0]["delta"] for e in events if e["choices"]]
        assert "".join(d.get("content", "") for d in deltas) == "hello "
        assert [e["choices"][0]["finish_reason"] for e in events if e["choices"]][-1] == "stop"
        assert events[-1]["usage"]["completion_tokens"] == len("hello STOP")
        s.roles.give(0)
    assert s.play.text(s.roles.trajectories()[0].response_ids) == "hello STOP"


async def test_token_ids_in_and_out() -> None:
    async with serving(Stage().role("solver", "one", "two")) as s, s.roles.served() as door:
        ids = s.play.ids("a")
        assert (await s.post(door.key, "/v1/episodes", {}))[0] == 403
        sampling = {"stop_token_ids": [s.play.stop_id], "logprobs": 1, "temperature": 0.5, "seed": 7}
        _, first = await s.post(door.key, GENERATE, {"model": "solver", "token_ids": ids, "sampling_params": sampling})
        [choice] = first["choices"]
        assert choice["token_ids"] == [*s.play.ids("one"), s.play.stop_id]
        assert [t["token"] for t in choice["logprobs"]["content"]] == [f"token_id:{i}" for i in choice["token_ids"]]
        assert choice["weight_versions"] == [{"start": 0, "end": 4, "version": "0"}]
        more = {"token_ids": [*ids, *choice["token_ids"], *s.play.ids("b")], "sampling_params": sampling}
        await s.post(door.key, GENERATE, more)
        s.roles.give(0)
    [row] = s.roles.trajectories()
    assert s.play.text(row.response_ids) == "one<|end|>btwo<|end|>" and row.temperature == 0.5
    assert row.seeds == [7, 7]


async def test_who_has_no_key_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRAFLOW_SERVE_KEY", "the-pools")
    async with serving(Stage().role("solver", "1", "2")) as s:
        async with s.roles.served() as door:
            for key in ("", "wrong", door.key + "x"):
                assert (await s.post(key, CHAT, ask()))[0] == 401
            status, answer = await s.post("the-pools", CHAT, ask())
            assert status == 200 and answer["choices"][0]["message"]["content"] == "1"
            assert not s.roles.solver.sequences  # beside training: nothing is recorded
        status, answer = await s.post(door.key, CHAT, ask())
        assert status == 401 and "no open episode" in answer["error"]["message"]


async def test_without_a_pools_key_only_episodes_are_served() -> None:
    async with serving(Stage().role("solver", "1")) as s:
        assert (await s.post("", "/v1/episodes", {}))[0] == 401


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (ask(model="other"), 404, "model_not_found"),
        (ask(presence_penalty=0.5), 400, "unsupported"),
        (ask(logit_bias={"5": 1}), 400, "unsupported"),
        (ask(tool_choice="required"), 400, "unsupported"),
        (ask(response_format={"type": "json_object"}), 400, "unsupported"),
        (ask(messages=[]), 400, "request"),
        (ask(messages="hi"), 400, "invalid_request"),
        (ask(temperature="warm"), 400, "invalid_request"),
    ],
)
async def test_what_is_not_honoured_is_refused(body: Any, status: int, code: str) -> None:
    async with serving(Stage().role("solver", "1")) as s, s.roles.served() as door:
        got, answer = await s.post(door.key, CHAT, body)
        assert (got, answer["error"]["code"]) == (status, code)
        assert not s.play.engines["solver"].requests


async def test_a_template_that_refuses_is_the_clients_error() -> None:
    template = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}"
    async with serving(Stage(template).role("solver", "1")) as s, s.roles.served() as door:
        status, answer = await s.post(door.key, CHAT, ask(messages=[{"role": "critic", "content": "no"}]))
        assert (status, answer["error"]["code"]) == (400, "template") and "user first" in answer["error"]["message"]


async def test_too_many_are_told_to_come_again() -> None:
    play = Stage().role("solver", *"12345")
    play.engines["solver"]._delay_s = 0.2
    async with serving(play, max_requests=2) as s, s.roles.served() as door:
        got = await asyncio.gather(*(s.post(door.key, CHAT, ask()) for _ in range(5)))
        assert sorted(status for status, _ in got) == [200, 200, 429, 429, 429]
        assert (s.gateway.served, s.gateway.turned_away) == (2, 3)


async def test_an_episode_that_ends_ends_its_requests() -> None:
    play = Stage().role("solver", "1")
    play.engines["solver"]._delay_s = 60
    async with serving(play) as s:
        async with s.roles.served() as door:
            asking = asyncio.create_task(s.post(door.key, CHAT, ask()))
            while not play.engines["solver"].requests:
                await asyncio.sleep(0.01)
        status, answer = await asking
        assert (status, answer["error"]["code"]) == (410, "episode_over")
        assert not s.gateway.doors
    with pytest.raises(EpisodeError):
        s.roles.trajectories()  # nothing was sampled


async def test_a_client_that_goes_away_ends_its_request() -> None:
    play = Stage().role("solver", "1")
    play.engines["solver"]._delay_s = 60
    async with serving(play) as s, s.roles.served() as door:
        asking = asyncio.create_task(s.post(door.key, CHAT, ask()))
        while not s.gateway.doors.by_key(door.key).requests:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        asking.cancel()
        while s.gateway.doors.by_key(door.key).requests:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)


async def test_no_harness_hides_a_dead_engine() -> None:
    async with serving(Stage().role("solver", "1")) as s:
        await s.play.engines["solver"].close()
        with pytest.raises(EngineError):
            async with s.roles.served() as door:
                status, answer = await s.post(door.key, CHAT, ask())
                assert (status, answer["error"]["code"]) == (503, "engine_dead")


async def test_a_harness_elsewhere_takes_an_episode_and_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRAFLOW_SERVE_KEY", "the-pools")
    problem = ScoredProblem(0, "p", "1+1=", "2", {"level": "easy"}, reward=contains)
    async with serving(Stage(CHATML).role("solver", "2", "3", "4")) as s:
        assert (await s.post("the-pools", "/v1/episodes?wait_s=0", {}))[0] == 204
        for said, reward in (({"reward": 0.25, "meta": {"k": "v"}}, 0.25), ({}, 0.0)):
            roles = Roles.of(s.play.voices, "seed", s.gateway.doors)
            playing = asyncio.create_task(outside.outside.bind({}).play(problem, roles))
            status, given = await s.post("the-pools", "/v1/episodes?wait_s=10", {})
            assert status == 200 and given["models"] == ["solver"]
            assert given["problem"] == {"id": "p", "prompt": "1+1=", "answer": "2", "meta": {"level": "easy"}}
            await s.post(given["key"], CHAT, ask(given["problem"]["prompt"]))
            end = f"/v1/episodes/{given['id']}/end"
            assert (await s.post("the-pools", end, said))[0] == 403
            assert (await s.post(given["key"], end, said))[0] == 200
            await playing
            [row] = roles.trajectories()
            assert row.reward == reward and row.meta == said.get("meta", {})
        roles = Roles.of(s.play.voices, "seed", s.gateway.doors)
        playing = asyncio.create_task(outside.outside.bind({}).play(problem, roles))
        _, given = await s.post("the-pools", "/v1/episodes", {})
        await s.post(given["key"], f"/v1/episodes/{given['id']}/end", {"error": "sandbox lost"})
        with pytest.raises(EpisodeError, match="sandbox lost"):
            await playing


HARNESS = """
import json, os, sys, urllib.request
problem = json.load(sys.stdin)
body = {"model": "solver", "messages": [{"role": "user", "content": problem["prompt"]}]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
print("thinking")
print(json.dumps({"reward": 0.5, "meta": {"answer": answer}}))
"""


async def test_a_harness_is_started_for_each_episode() -> None:
    problem = ScoredProblem(0, "p", "1+1=", "2", reward=contains)
    async with serving(Stage(CHATML).role("solver", "2")) as s:
        played = outside.harness.bind({"command": [sys.executable, "-c", HARNESS]})
        await played.play(problem, s.roles)
        [row] = s.roles.trajectories()
        assert row.reward == 0.5 and row.meta == {"answer": "2"}
        failing = outside.harness.bind({"command": [sys.executable, "-c", "raise SystemExit('no licence')"]})
        with pytest.raises(EpisodeError, match="no licence") as caught:
            await failing.play(problem, s.roles)
        assert caught.value.kind == "harness"


async def test_the_outcome_says_rewards_by_role() -> None:
    play = Stage(CHATML).role("solver", "2").role("other", "x")
    roles = Roles.of(play.voices, "seed")
    await roles.solver.chat([user("a")])
    await roles.other.chat([user("b")])
    problem = ScoredProblem.of(Problem(0, "p", "1+1=", "2"), contains)
    await outside.settle(Outcome(rewards={"other": 0.75}), problem, roles)
    assert [row.reward for row in roles.trajectories()] == [1.0, 0.75]


async def test_a_taken_port_says_so() -> None:
    async with serving(Stage().role("solver", "1")) as s:
        port = int((await s.gateway.start()).removesuffix("/v1").rpartition(":")[2])
        other = Gateway(cfg.Serving(port=port), {})
        with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1"):
            await other.start()


def test_they_are_built_in() -> None:
    for name, options in (("outside", {}), ("harness", {"command": ["x"]})):
        config = cfg.RunConfig.model_validate(
            {
                "name": "t",
                "policies": {"solver": {"model": "tiny-qwen3"}},
                "problems": {"source": "addition"},
                "workflow": {"name": name, "options": options},
            }
        )
        assert load_workflow(config).roles == ("solver",)
