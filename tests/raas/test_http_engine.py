"""Servers behind HTTP: asked in their own words, watched, given weights where that can be, never left over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from aiohttp import web

from astraflow import config as cfg
from astraflow.models import build_tiny_qwen3, load_causal_lm
from astraflow.raas.child_server import ChildServer
from astraflow.raas.engine import GenerationRequest
from astraflow.raas.gateway import Gateway
from astraflow.raas.http_engine import HttpEngine, make_http_engine
from astraflow.raas.remote import RemoteVoice, TextOnly
from astraflow.weights.update import WeightUpdate
from astraflow.workflows import Roles, assistant, user
from storage.errors import ConfigError, DeadlineError, EngineError, EpisodeError
from tests.workflows.conftest import Stage

pytestmark = pytest.mark.anyio

SGLANG = ["{python}", str(Path(__file__).parent / "sglang_like.py"), "{port}", "{model}"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    build_tiny_qwen3(folder, 0)
    return folder


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    """Model files without weights, as a pool downloads them."""
    for file in tiny.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def marked(tiny: Path, version: int) -> WeightUpdate:
    """Weights that say which version they are."""
    tensors = dict(load_causal_lm(tiny, torch.bfloat16).state_dict())
    tensors["model.norm.weight"] = torch.full_like(tensors["model.norm.weight"], 10 + version)
    return WeightUpdate("p", version, version, "", tensors, frozenset(tensors), 0)


def ask(count: int = 4, **more: Any) -> GenerationRequest:
    return GenerationRequest("p", (1, 2, 3), count, frozenset([0]), **more)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not done():
            await asyncio.sleep(0.02)


def family(child: ChildServer) -> list[int]:
    return [child.pid, *(process.pid for process in psutil.Process(child.pid).children(recursive=True))]


async def test_what_is_asked_while_an_old_folder_goes_is_of_the_new_version(
    folder: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = HttpEngine("p", cfg.Server(command=SGLANG, dialect="sglang"), folder, update="abort")
    await engine.load(marked(tiny, 0))
    remove = shutil.rmtree

    def slowly(path: Path, ignore_errors: bool = False) -> None:
        time.sleep(0.5 if ignore_errors and path.name == "version-0" else 0)
        remove(path, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", slowly)
    loading = asyncio.create_task(engine.load(marked(tiny, 1)))
    while not loading.done():
        answer = await engine.generate(ask())
        assert [token - 10 for token in answer.token_ids] == answer.versions
    await loading
    await engine.close()


@pytest.mark.parametrize("mode", ["finish", "abort"])
async def test_a_server_of_the_pools_own_follows_the_trainer(folder: Path, tiny: Path, mode: str) -> None:
    server = cfg.Server(command=SGLANG, dialect="sglang")
    engine = HttpEngine("p", server, folder, update=mode)
    await engine.load(marked(tiny, 0))
    assert engine.child is not None
    pids = family(engine.child)
    assert len(pids) == 3  # the guard, the server, what the server started
    first = await engine.generate(ask())
    assert (first.token_ids, first.logprobs, first.versions) == ([10] * 4, [-0.5] * 4, [0] * 4)
    assert first.finish_reason == "length"
    for version in (1, 2):
        asking = [asyncio.create_task(engine.generate(ask())) for _ in range(4)]
        await engine.load(marked(tiny, version))
        for answer in [*await asyncio.gather(*asking), await engine.generate(ask())]:
            assert [token - 10 for token in answer.token_ids] == answer.versions
        assert answer.versions == [version] * 4
    assert [path.name for path in folder.glob("version-*")] == ["version-2"]  # older folders are gone
    await engine.close()
    await until(lambda: all(map(is_gone, pids)))
    with pytest.raises(EngineError):
        await engine.generate(ask())


async def test_a_dead_server_says_why(folder: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIE", "2")
    engine = HttpEngine("p", cfg.Server(command=SGLANG, dialect="sglang"), folder)
    await engine.load(marked(tiny, 0))
    assert engine.child is not None
    pids = family(engine.child)
    await engine.generate(ask())
    with pytest.raises(EngineError, match=r"ended with code 3(?s:.*)out of luck"):
        await engine.generate(ask())
    with pytest.raises(EngineError, match="out of luck"):
        await engine.generate(ask())
    await until(lambda: all(map(is_gone, pids)))  # also what it had started
    await engine.close()


async def test_a_server_that_cannot_start_says_why(folder: Path, tiny: Path) -> None:
    broken = cfg.Server(command=["{python}", "-c", "raise SystemExit('no GPU here')"])
    with pytest.raises(EngineError, match="no GPU here"):
        await HttpEngine("p", broken, folder).load(marked(tiny, 0))
    missing = cfg.Server(command=["/no/such/program"])
    with pytest.raises(EngineError, match="cannot start /no/such/program"):
        await HttpEngine("p", missing, folder).load(marked(tiny, 0))
    silent = cfg.Server(command=["{python}", "-c", "print('loading', flush=True); import time; time.sleep(60)"],
                        start_timeout_s=1.5)  # fmt: skip
    engine = HttpEngine("p", silent, folder)
    with pytest.raises(DeadlineError, match=r"not ready after 1.5 s(?s:.*)loading"):
        await engine.load(marked(tiny, 0))
    assert engine.child is not None
    await until(lambda: is_gone(engine.child.pid))  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="placeholder"):
        await HttpEngine("p", cfg.Server(command=["{modell}"]), folder).load(marked(tiny, 0))


HOLDER = """
import asyncio, sys
from astraflow.raas.child_server import ChildServer
async def main():
    child = await ChildServer.start([sys.executable, "-c", "import os, subprocess, sys, time;"
        "print(os.getpid(), subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True);"
        "time.sleep(600)"])
    while not child.tail: await asyncio.sleep(0.01)
    print(child.pid, child.tail[0], flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_no_server_outlives_its_pool(how: signal.Signals) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        pids = [int(word) for word in (await asyncio.to_thread(holder.stdout.readline)).split()]
        assert len(pids) == 3 and not any(map(is_gone, pids))
        holder.send_signal(how)
        await until(lambda: all(map(is_gone, pids)))
    finally:
        holder.kill()
        holder.wait()


async def test_no_server_outlives_its_guard() -> None:
    child = await ChildServer.start([sys.executable, "-c", "import time; time.sleep(600)"])
    await until(lambda: len(family(child)) == 2)
    pids = family(child)
    os.kill(child.pid, signal.SIGKILL)
    await until(lambda: all(map(is_gone, pids)))
    with pytest.raises(EngineError):
        await child.unless_dead(asyncio.sleep(60))
    await child.stop()


@contextlib.asynccontextmanager
async def serving(**handlers: Any) -> AsyncIterator[str]:
    """A server of these routes; ``__`` in a name is a slash."""
    application = web.Application()
    for name, handler in handlers.items():
        application.router.add_route("*", "/" + name.replace("__", "/"), handler)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def ok(_: web.Request) -> web.Response:
    return web.Response()


async def test_vllms_completions_with_token_ids(folder: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    async def completions(request: web.Request) -> web.Response:
        seen.append((request.headers.get("Authorization"), await request.json()))
        if len(seen) == 1:
            return web.Response(status=503, text="warming up")
        choice = {"token_ids": [7, 0], "logprobs": {"token_logprobs": [-1.5, -0.1]}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})

    monkeypatch.setenv("JUDGE_KEY", "secret")
    async with serving(health=ok, v1__completions=completions) as url:
        server = cfg.Server(url=url + "/v1", model="big", key_env="JUDGE_KEY")
        engine = make_http_engine("p", folder, cfg.Pool(servers={"p": server}), frozen=True)
        await engine.load(marked(tiny, 0))
        answer = await engine.generate(
            ask(9, temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, stop=("x",), seed=2**64 - 1)
        )
        assert (answer.token_ids, answer.logprobs, answer.versions) == ([7, 0], [-1.5, -0.1], [0, 0])
        assert seen[1] == ("Bearer secret", {
            "model": "big", "prompt": [1, 2, 3], "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 5,
            "min_p": 0.1, "seed": 2**63 - 1, "stop": ["x"], "stop_token_ids": [0], "include_stop_str_in_output": True,
            "logprobs": 0, "return_token_ids": True,
        })  # fmt: skip
        with pytest.raises(EngineError, match="cannot be given version 1"):
            await engine.load(marked(tiny, 1))
        await engine.close()


@pytest.mark.parametrize(
    ("reply", "error", "kind"),
    [
        ({"choices": [{"text": "hi", "finish_reason": "stop"}]}, EpisodeError, "protocol"),
        ({"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": []}, "finish_reason": "stop"}]},
         EpisodeError, "protocol"),
        ({"choices": [{"token_ids": [], "logprobs": {"token_logprobs": []}, "finish_reason": "stop"}]},
         EpisodeError, "empty_answer"),
        ({"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [0.0]}, "finish_reason": "abort"}]},
         EpisodeError, "aborted"),
        (400, EpisodeError, "refused"),
        (401, EngineError, "refused"),
        (500, EpisodeError, "refused"),
        (503, EngineError, "unreachable"),
    ],
)  # fmt: skip
async def test_other_answers_are_errors(
    reply: Any, error: type[Exception], kind: str, folder: Path, tiny: Path
) -> None:
    async def completions(_: web.Request) -> web.Response:
        return web.Response(status=reply) if isinstance(reply, int) else web.json_response(reply)

    async with serving(health=ok, v1__completions=completions) as url:
        engine = HttpEngine("p", cfg.Server(url=url, timeout_s=0.5), folder)
        await engine.load(marked(tiny, 0))
        with pytest.raises(error) as caught:
            await engine.generate(ask())
        assert caught.value.kind == kind  # type: ignore[attr-defined]
        await engine.close()


async def test_another_pools_server_plays_a_frozen_policy(folder: Path, tiny: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ASTRAFLOW_SERVE_KEY", "the-pools")
    play = Stage().role("judge", "yes")
    gateway = Gateway(cfg.Serving(), play.voices)
    url = await gateway.start()
    server = cfg.Server(url=url, dialect="generate", model="judge", key_env="ASTRAFLOW_SERVE_KEY")
    engine = HttpEngine("p", server, folder)
    await engine.load(marked(tiny, 0))
    request = GenerationRequest("p", tuple(play.ids("q")), 8, frozenset([play.stop_id]))
    answer = await engine.generate(request)
    assert answer.token_ids == [*play.ids("yes"), play.stop_id] and answer.logprobs == [-1.0] * 4
    await engine.close()
    await gateway.close()


async def test_a_remote_judge_is_asked_in_text(folder: Path) -> None:
    seen: list[Any] = []

    async def chat(request: web.Request) -> web.Response:
        seen.append(await request.json())
        message = {"role": "assistant", "content": "fine", "refusal": None}
        return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}]})

    async with serving(v1__models=ok, v1__chat__completions=chat) as url:
        engine = HttpEngine("judge", cfg.Server(url=url, dialect="chat", model="gpt"), folder)
        await engine.find()
        voice = RemoteVoice(
            "judge", engine, TextOnly(), cfg.Sampling(max_tokens=5, stop=["\n"]), frozenset(), frozen=True
        )
        play = Stage().role("solver", "1")
        roles = Roles.of({**play.voices, "judge": voice}, "seed")
        (await roles.solver.chat([user("a")])).reward = 1
        answer = await roles.judge.chat([user("well?")], temperature=0.0)
        assert answer.text == "fine" and answer.messages == [user("well?"), assistant("fine")]
        assert seen == [{"model": "gpt", "messages": [{"role": "user", "content": "well?"}], "max_tokens": 5,
                         "temperature": 0.0, "stop": ["\n"]}]  # fmt: skip
        assert [row.role for row in roles.trajectories()] == ["solver"]
        with pytest.raises(EpisodeError, match="only chats"):
            await roles.judge.complete("a")
        await engine.close()


def test_a_server_that_could_never_follow_is_refused(folder: Path) -> None:
    away = cfg.Server(url="http://x", dialect="sglang")
    own = cfg.Server(command=["x"], dialect="sglang")
    for server, update, word in ((away, "finish", "cannot be given"), (own, "continue", "between two tokens")):
        with pytest.raises(ConfigError, match=word):
            make_http_engine("p", folder, cfg.Pool(servers={"p": server}, update=update), frozen=False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="either a url or a command"):
        cfg.Server()


async def test_logprobs_that_know_no_cut_are_not_trained_on(folder: Path, tiny: Path) -> None:
    """SGLang takes log-probs before top-p, top-k and min-p: refused for trained policies, whoever asks for a cut."""
    own = cfg.Pool(servers={"p": cfg.Server(command=SGLANG, dialect="sglang")}, update="finish")
    for cut in ({"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}):
        with pytest.raises(ConfigError, match="from before top-p") as refused:
            make_http_engine("p", folder, own, frozen=False, sampling=cfg.Sampling(**cut))
        assert refused.value.where == "policies.p.sampling"
        engine = make_http_engine("p", folder, own, frozen=False, sampling=cfg.Sampling())
        with pytest.raises(EpisodeError, match="from before top-p"):
            await engine.generate(ask(**cut))
        await engine.close()
    frozen = make_http_engine("p", folder, own, frozen=True, sampling=cfg.Sampling(top_p=0.9))
    await frozen.load(marked(tiny, 0))
    assert (await frozen.generate(ask(top_p=0.9))).token_ids
    await frozen.close()


def test_the_config_says_what_servers_are_for() -> None:
    base = {"name": "t", "problems": {"source": "addition"}}
    solver = {"solver": {"model": "tiny-qwen3"}}
    judge = {**solver, "judge": {"model": "remote", "frozen": True}}
    chat = {"judge": {"url": "http://x", "dialect": "chat"}}
    cfg.RunConfig.model_validate({**base, "policies": judge, "pools": {"a": {"servers": chat}}})
    for policies, pool, word in (
        (judge, {}, "must say where"),
        ({**judge, "judge": {"model": "remote"}}, {"servers": chat}, "cannot be trained"),
        (solver, {"servers": chat}, "does not serve"),
        (judge, {"servers": {"judge": {"url": "http://x"}}}, "dialect of remote"),
        (solver, {"policies": ["solver", "solver"]}, "twice"),
    ):
        with pytest.raises(ValueError, match=word):
            cfg.RunConfig.model_validate({**base, "policies": policies, "pools": {"a": pool}})
