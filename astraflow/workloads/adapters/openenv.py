"""OpenEnv servers by URL: one WebSocket session an episode, as their own client speaks.

Messages are ``{"type": "reset" | "step", "data": …}``; an answer's ``data`` holds ``observation``, ``reward`` and
``done``. What an action looks like differs from environment to environment: ``action`` is a template whose texts
``{action}`` become what the model said, ``text`` the observation's field that is shown (all of it as JSON if there is
none).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from astraflow.problems import Problem
from astraflow.workloads.environments import Observation
from astraflow.workloads.packages import need
from storage.errors import EpisodeError

_LONGEST_MESSAGE = 1 << 24


class OpenEnvs:
    """Implements ``Environments``."""

    def __init__(
        self, *, url: str, action: Mapping[str, Any] | None = None, text: str = "", timeout_s: float = 60.0
    ) -> None:
        base = url.rstrip("/").replace("http://", "ws://", 1).replace("https://", "wss://", 1)
        self._url = base if base.endswith("/ws") else f"{base}/ws"
        self._action = dict(action or {"message": "{action}"})
        self._text = text
        self._timeout_s = timeout_s

    @contextlib.asynccontextmanager
    async def play(self, problem: Problem) -> AsyncIterator[OpenEnv]:
        """A session of the server, closed at the end."""
        aiohttp = need("aiohttp", "openenv")
        try:
            async with (
                aiohttp.ClientSession() as client,
                client.ws_connect(self._url, max_msg_size=_LONGEST_MESSAGE) as socket,
            ):
                seed = int(problem.meta.get("seed", problem.index))
                yield OpenEnv(
                    socket, self._url, seed=seed, action=self._action, text=self._text, timeout_s=self._timeout_s
                )
                with contextlib.suppress(ConnectionError):
                    await socket.send_json({"type": "close"})
        except aiohttp.ClientError as error:
            raise _failed(f"{type(error).__name__}: {error}", self._url) from error


class OpenEnv:
    """One session. Implements ``World``; the score is the best reward so far, kept within 0 and 1."""

    def __init__(
        self, socket: Any, url: str, *, seed: int, action: Mapping[str, Any], text: str, timeout_s: float
    ) -> None:
        self._socket = socket
        self._url = url
        self._seed = seed
        self._action = action
        self._text = text
        self._timeout_s = timeout_s
        self._score = 0.0

    async def reset(self) -> Observation:
        return self._seen(await self._ask("reset", {"seed": self._seed}))

    async def step(self, action: str) -> Observation:
        return self._seen(await self._ask("step", _filled(self._action, action)))

    async def _ask(self, kind: str, data: Any) -> dict[str, Any]:
        try:
            await self._socket.send_json({"type": kind, "data": data})
            answer = await self._socket.receive_json(timeout=self._timeout_s)
        except (TimeoutError, TypeError, ValueError, ConnectionError) as error:
            raise _failed(f"{kind}: {type(error).__name__} {error}", self._url) from error
        found: dict[str, Any] = answer.get("data") or {}
        if answer.get("type") == "error" or "observation" not in found:
            raise _failed(f"{kind}: {found.get('message', 'an answer without an observation')}", self._url)
        return found

    def _seen(self, found: Mapping[str, Any]) -> Observation:
        seen = found["observation"]
        text = seen[self._text] if self._text else seen if isinstance(seen, str) else json.dumps(seen)
        self._score = max(self._score, min(max(float(found.get("reward") or 0.0), 0.0), 1.0))
        return Observation(str(text), self._score, bool(found.get("done")))


def _filled(template: Any, action: str) -> Any:
    if isinstance(template, Mapping):
        return {name: _filled(value, action) for name, value in template.items()}
    return template.replace("{action}", action) if isinstance(template, str) else template


def _failed(what: str, where: str) -> EpisodeError:
    return EpisodeError(f"the environment's server failed: {what}", where=where, kind="environment")
