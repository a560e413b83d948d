"""A pool's HTTP server: what an outside agent harness speaks with, in OpenAI's language or in token ids.

    GET  /v1/models                     the roles of the episode (with the pool's key: its policies)
    POST /v1/chat/completions           messages in; streaming, tools
    POST /inference/v1/generate         token ids in and out, with log-probs and versions
    POST /v1/episodes                   take an episode that waits for a harness (the pool's key)
    POST /v1/episodes/ID/end            say how it ended (the episode's key)

A bearer token (or ``X-Astraflow-Key``) says who asks. The key of an open episode speaks for its roles, and what
passes is recorded as its trajectories; the pool's key, if there is one, asks the engines beside training, and nothing
is recorded. More requests than ``max_requests`` at once are told to come again (429). It starts when first needed.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from astraflow import config as cfg
from astraflow.raas import wire
from astraflow.raas.doors import Doors, OpenDoor
from astraflow.raas.remote import RemoteHandle, RemoteVoice
from astraflow.raas.streaming import TextSoFar, error_event, events
from astraflow.workflows.role import RoleHandle, Voice
from astraflow.workflows.runtime import KEY_HEADER, Outcome
from storage.errors import ConfigError, EngineError, EpisodeError

T = TypeVar("T")

_LARGEST_REQUEST = 64 << 20
_LONGEST_POLL_S = 30.0
_SHUTDOWN_S = 1.0
_STATUS = {
    "too_long": (400, "context_length_exceeded"),
    "over": (410, "episode_over"),
    "turn_timeout": (504, "timeout"),
}


class Gateway:
    """Serves one pool. ``voices`` are its policies', for who has the pool's key."""

    def __init__(self, section: cfg.Serving, voices: Mapping[str, Voice]) -> None:
        self.doors = Doors(self.start)
        self.served = 0
        self.turned_away = 0
        self._section = section
        self._voices = {name: voice for name, voice in voices.items() if not isinstance(voice, RemoteVoice)}
        self._key = os.environ.get(section.key_env, "")
        self._in_flight = 0
        self._url = ""
        self._starting = asyncio.Lock()
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Listen, unless it does already; returns the URL that clients call their base. Raises ``ConfigError``."""
        async with self._starting:
            if self._runner is None:
                application = web.Application(client_max_size=_LARGEST_REQUEST)
                application.add_routes(self._routes())
                runner = web.AppRunner(
                    application, handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_S
                )
                await runner.setup()
                listener = self._listen()
                await web.SockSite(runner, listener).start()
                self._runner, self._url = runner, self._address(listener.getsockname()[1])
        return self._url

    async def close(self) -> None:
        """Serve nobody any more."""
        if self._runner is not None:
            await self._runner.cleanup()

    def _listen(self) -> socket.socket:
        host, port = self._section.host, self._section.port
        try:
            return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error}",
                where="pools.….serve",
                remedy="Name an address of this machine and a free port; port = 0 takes any",
                kind="address",
            ) from error

    def _address(self, port: int) -> str:
        host = self._section.public_host or self._section.host
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"

    def _routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._health),
            web.get("/v1/models", self._guarded(self._models)),
            web.post("/v1/chat/completions", self._guarded(self._admitted(self._chat))),
            web.post("/inference/v1/generate", self._guarded(self._admitted(self._generate))),
            web.post("/v1/inference/v1/generate", self._guarded(self._admitted(self._generate))),
            web.post("/v1/episodes", self._guarded(self._take)),
            web.post("/v1/episodes/{id}/end", self._guarded(self._end)),
        ]

    # --- who may, and how many ---------------------------------------------------------------

    def _guarded(self, handler: Callable[[web.Request, OpenDoor | None], Awaitable[T]]) -> Any:
        """Find out who asks, and put errors into words."""

        async def guarded(request: web.Request) -> T | web.Response:
            keys = _keys(request)
            door = next((door for key in keys if (door := self.doors.by_key(key)) is not None), None)
            own = self._key.encode()
            is_pool = bool(own) and any(hmac.compare_digest(key.encode(), own) for key in keys)
            if door is None and not is_pool:
                return _refused(401, "no open episode has this key", "invalid_api_key")
            try:
                return await handler(request, door)
            except msgspec.DecodeError as error:
                return _refused(400, f"not a request: {error}", "invalid_request")
            except (EpisodeError, EngineError) as error:
                return _refused(*_words(error))

        return guarded

    def _admitted(self, handler: Callable[[web.Request, OpenDoor | None], Awaitable[T]]) -> Any:
        async def admitted(request: web.Request, door: OpenDoor | None) -> T | web.Response:
            if self._in_flight >= self._section.max_requests:
                self.turned_away += 1
                return _refused(429, f"{self._in_flight} requests are being served", "rate_limit_exceeded")
            self._in_flight += 1
            try:
                return await handler(request, door)
            finally:
                self._in_flight -= 1
                self.served += 1

        return admitted

    def _role(self, door: OpenDoor | None, model: str) -> RoleHandle:
        """Who speaks: a role of the episode, or for the pool's key a policy, whose words nobody keeps."""
        if door is None:
            if model in self._voices:
                return RoleHandle(model, self._voices[model], os.urandom(8).hex())
            known = sorted(self._voices)
        else:
            handles = {name: role for name, role in door.roles.handles.items() if not isinstance(role, RemoteHandle)}
            if model in handles:
                return handles[model]
            if not model and len(handles) == 1:
                return next(iter(handles.values()))
            known = sorted(handles)
        raise EpisodeError(f"there is no model {model!r}, only {', '.join(known)}", kind="model")

    # --- the routes --------------------------------------------------------------------------

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _models(self, _: web.Request, door: OpenDoor | None) -> web.Response:
        return web.json_response(wire.models_body(sorted(self._voices if door is None else door.roles.handles)))

    async def _chat(self, request: web.Request, door: OpenDoor | None) -> web.StreamResponse:
        asked = msgspec.json.decode(await request.read(), type=wire.ChatRequest)
        asked.check()
        role = self._role(door, asked.model)
        if asked.stream:
            return await self._stream(request, door, role, asked)
        asks = [_within(door, self._ask(role, asked)) for _ in range(asked.n or 1)]
        return web.json_response(wire.chat_body(asked, await _together(asks)))

    def _ask(self, role: RoleHandle, asked: wire.ChatRequest, progress: Any = None) -> Any:
        return role.chat(
            asked.messages,
            tools=asked.shown_tools,
            max_tokens=asked.limit,
            sampler=asked.sampler(role.voice.sampler),
            seed=asked.seed,
            as_read=True,
            progress=progress,
        )

    async def _stream(
        self, request: web.Request, door: OpenDoor | None, role: RoleHandle, asked: wire.ChatRequest
    ) -> web.StreamResponse:
        sampler = asked.sampler(role.voice.sampler)
        so_far = TextSoFar(role.voice.renderer, role.voice.stop_ids, sampler.stop, hold=bool(asked.shown_tools))
        stream: AsyncIterator[bytes] = events(
            asked, so_far, lambda progress: _within(door, self._ask(role, asked, progress))
        )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        try:
            async for event in stream:
                await response.write(event)
        except (EpisodeError, EngineError) as error:
            _, message, code = _words(error)
            await response.write(error_event(message, code))
        await response.write_eof()
        return response

    async def _generate(self, request: web.Request, door: OpenDoor | None) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=wire.GenerateRequest)
        sampling = asked.sampling_params
        sampling.check()
        if asked.stream or sampling.ignore_eos or not asked.token_ids:
            raise EpisodeError("stream, ignore_eos and empty token_ids are not supported", kind="unsupported")
        role = self._role(door, asked.model)
        asks = [
            _within(
                door,
                role.generate(
                    asked.token_ids,
                    max_tokens=sampling.max_tokens,
                    sampler=sampling.sampler(role.voice.sampler),
                    stop_ids=role.voice.stop_ids | frozenset(sampling.stop_token_ids or []),
                    seed=sampling.seed,
                ),
            )
            for _ in range(sampling.n or 1)
        ]
        return web.json_response(wire.generate_body(asked, await _together(asks)))

    async def _take(self, request: web.Request, door: OpenDoor | None) -> web.Response:
        if door is not None:
            return _refused(403, "an episode's key takes no other episodes", "forbidden")
        try:
            wait_s = min(_LONGEST_POLL_S, max(0.0, float(request.query.get("wait_s", _LONGEST_POLL_S))))
        except ValueError:
            return _refused(400, "wait_s is not a number", "invalid_request")
        offer = await self.doors.take(wait_s)
        if offer is None:
            return web.Response(status=204)
        problem = offer.problem
        return web.json_response(
            {
                "id": offer.id,
                "url": offer.door.url,
                "key": offer.door.key,
                "models": sorted(offer.door.roles.handles),
                "problem": {
                    "id": problem.id,
                    "prompt": problem.prompt,
                    "answer": problem.answer,
                    "meta": dict(problem.meta),
                },
            }
        )

    async def _end(self, request: web.Request, door: OpenDoor | None) -> web.Response:
        if door is None:
            return _refused(403, "only the episode's own key ends it", "forbidden")
        said = msgspec.json.decode(await request.read(), type=wire.EndOfEpisode)
        outcome = Outcome(said.reward, said.rewards, said.reward_parts, said.meta, said.error)
        self.doors.end(request.match_info["id"], door, outcome)
        return web.json_response({})


def _keys(request: web.Request) -> list[str]:
    """What the client shows; clients of some APIs know other headers than ``Authorization``."""
    kind, _, key = request.headers.get("Authorization", "").partition(" ")
    others = [request.headers.get(name, "") for name in (KEY_HEADER, "x-api-key")]
    return [key for key in (key if kind.lower() == "bearer" else "", *others) if key]


def _within(door: OpenDoor | None, request: Any) -> Any:
    """An episode's requests end with it."""
    return request if door is None else door.ask(request)


async def _together(asks: list[Any]) -> list[Any]:
    """All answers, or the first error once the others have ended."""
    if len(asks) == 1:
        return [await asks[0]]
    tasks = [asyncio.ensure_future(ask) for ask in asks]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _words(error: EpisodeError | EngineError) -> tuple[int, str, str]:
    if isinstance(error, EngineError):
        return 503, error.what, "engine_dead"
    status, code = _STATUS.get(error.kind, (404, "model_not_found") if error.kind == "model" else (400, error.kind))
    return status, str(error), code


def _refused(status: int, message: str, code: str) -> web.Response:
    headers = {"Retry-After": "1"} if status == 429 else None
    return web.json_response(wire.error_body(message, code), status=status, headers=headers)
