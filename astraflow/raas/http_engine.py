"""An engine behind HTTP: a server that runs somewhere, or one that the pool starts and ends itself.

Weights reach a server of the pool's own as a folder that it reads: at its start, and again where its dialect can. An
update waits until what is being sampled is done (``finish``) or samples that again (``abort``); a server cannot change
weights between two tokens, so ``continue`` is refused. A server that the pool did not start keeps its weights: it
plays frozen policies.

Invariant: an answer is of one version, the one that was loaded when it was asked for and when it came.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from astraflow import config as cfg
from astraflow.raas.child_server import ChildServer, fill, free_port
from astraflow.raas.dialects import DIALECTS, read_answer
from astraflow.raas.engine import Generation, GenerationRequest
from storage.errors import ConfigError, DataError, EngineError, EpisodeError

if TYPE_CHECKING:
    from astraflow.weights.update import WeightUpdate

_BUSY = (408, 429, 502, 503, 504)
_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 5.0
_MAX_RESTARTS = 3
_CUT = "this server's log-probs are those from before top-p, top-k and min-p, and the policy is trained on them"
_UNCUT = "Leave top_p at 1, top_k and min_p at 0, or let the pool's own engine play"


class HttpEngine:
    """Implements ``Engine``. ``folder`` holds the model's files; create it inside the running event loop."""

    def __init__(
        self, policy: str, server: cfg.Server, folder: Path, *, update: str = "finish", frozen: bool = True
    ) -> None:
        self.version = -1
        self.child: ChildServer | None = None
        self._policy = policy
        self._server = server
        self._folder = folder
        self._mode = update
        self._frozen = frozen
        self._dialect = DIALECTS[server.dialect]  # 'chat' has no token ids: such a server only answers ``post``
        self._url = server.url.rstrip("/").removesuffix("/v1")
        self._session: aiohttp.ClientSession | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._open = asyncio.Event()  # unset while weights change
        self._idle = asyncio.Condition()
        self._closed = False

    async def generate(self, request: GenerationRequest) -> Generation:
        if not self._frozen and not self._dialect.tells_cuts and _cuts(request):
            raise EpisodeError(_CUT, where=self._where, remedy=_UNCUT, kind="unsupported")
        begun = time.monotonic()
        for _ in range(_MAX_RESTARTS + 1):
            await self._admitted()
            asked, version = time.monotonic(), self.version
            task = asyncio.create_task(self._ask(request))
            self._running.add(task)
            try:
                said = read_answer(self._dialect, await task, self._where)
            except asyncio.CancelledError:
                here = asyncio.current_task()
                if self._closed or (here is not None and here.cancelling()):
                    task.cancel()
                    raise
                continue  # an update threw it away
            finally:
                self._running.discard(task)
                async with self._idle:
                    self._idle.notify_all()
            count = len(said.token_ids)
            return Generation(
                said.token_ids,
                said.logprobs,
                [version] * count,
                said.finish_reason,
                queue_s=asked - begun,
                decode_s=time.monotonic() - asked,
            )
        raise EpisodeError("an answer was thrown away by one update after the other", where=self._where, kind="aborted")

    async def load(self, update: WeightUpdate) -> None:
        if self._server.command and self.child is None:
            await self._start(update)
        elif self.version >= 0:
            await self._reload(update)
        else:
            await self._find()
        self.version = update.version
        self._open.set()

    async def close(self) -> None:
        self._closed = True
        self._open.set()
        for task in self._running:
            task.cancel()
        if self._session is not None:
            await self._session.close()
        if self.child is not None:
            await self.child.stop()

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Ask the server something in its own words; the model's name is put in."""
        await self._admitted()
        return await self._unless_dead(self._post(path, {"model": self._model, **body}))

    async def find(self) -> None:
        """Wait until the server answers; it has no weights of ours."""
        if self._server.command and self.child is None:
            await self._start(None)
        else:
            await self._find()
        self.version = 0
        self._open.set()

    @property
    def _where(self) -> str:
        return f"{self._url}{self._dialect.path} for policy {self._policy}"

    @property
    def _model(self) -> str:
        return self._server.model or self._policy

    async def _admitted(self) -> None:
        await self._open.wait()
        if self._closed:
            raise EngineError("the engine is closed", kind="closed")
        if self.child is not None:
            self.child.check()

    # --- asking ------------------------------------------------------------------------------

    async def _ask(self, request: GenerationRequest) -> Any:
        body = self._dialect.body(request, self._model)
        return await self._unless_dead(self._post(self._dialect.path, body))

    async def _unless_dead(self, work: Any) -> Any:
        return await (work if self.child is None else self.child.unless_dead(work))

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        """Post until it is answered. A server that is away or busy is waited for until ``timeout_s``."""
        deadline = time.monotonic() + self._server.timeout_s
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                async with self._http().post(self._url + path, json=body) as response:
                    if response.status == 200:
                        return await response.json(content_type=None)
                    trouble = f"{response.status}: {(await response.text())[:300]}"
                    if response.status not in _BUSY:
                        raise self._refused(response.status, trouble)
            except (aiohttp.ClientError, TimeoutError) as error:
                trouble = f"{type(error).__name__}: {error}"
            if time.monotonic() + wait_s > deadline:
                raise EngineError(
                    f"{self._url}{path} did not answer for {self._server.timeout_s:g} s: {trouble}",
                    where=f"policy {self._policy}",
                    remedy="Is the server up? The pool ends; start it again when it is",
                    kind="unreachable",
                )
            await asyncio.sleep(wait_s)
            wait_s = min(_LONGEST_WAIT_S, 2 * wait_s)

    def _refused(self, status: int, trouble: str) -> Exception:
        if status in (401, 403, 404, 405):
            remedy = f"Check url, model and dialect; the key is taken from ${self._server.key_env or '(key_env unset)'}"
            return EngineError(f"the server refused: {trouble}", where=self._where, remedy=remedy, kind="refused")
        return EpisodeError(f"the server refused the request: {trouble}", where=self._where, kind="refused")

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            key = os.environ.get(self._server.key_env, "") if self._server.key_env else ""
            self._session = aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=aiohttp.ClientTimeout(total=self._server.timeout_s),
                connector=aiohttp.TCPConnector(limit=0),
            )
        return self._session

    # --- weights -----------------------------------------------------------------------------

    async def _start(self, update: WeightUpdate | None) -> None:
        """Write the weights, start the server on them and wait until it answers."""
        folder = self._folder if update is None else await asyncio.to_thread(self._write, update)
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        command = fill(self._server.command, model=str(folder), name=self._model, port=str(port))
        self.child = await ChildServer.start(command)
        try:
            await self.child.until_ready(self._is_ready, self._server.start_timeout_s)
        except BaseException:
            await self.child.stop()
            raise

    async def _find(self) -> None:
        """Wait for a server that somebody else runs."""
        deadline = time.monotonic() + self._server.start_timeout_s
        while not await self._is_ready():
            if time.monotonic() > deadline:
                raise EngineError(
                    f"nothing answers at {self._url}",
                    where=f"policy {self._policy}",
                    remedy="Start the server, or correct its url",
                    kind="unreachable",
                )
            await asyncio.sleep(_FIRST_WAIT_S)

    async def _is_ready(self) -> bool:
        for path in ("/health", "/v1/models"):
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with self._http().get(self._url + path) as response:
                    if response.status == 200:
                        return True
        return False

    async def _reload(self, update: WeightUpdate) -> None:
        """Let the server read new weights while nothing is sampled."""
        if self.child is None or self._dialect.reload is None:
            raise EngineError(
                f"a server that speaks {self._server.dialect!r} cannot be given version {update.version}",
                where=f"policy {self._policy}",
                remedy="Only a server of the pool's own that can reload plays a policy that is trained",
                kind="unsupported",
            )
        before = self._folder / f"version-{self.version}"
        folder = await asyncio.to_thread(self._write, update)  # while the old ones sample on
        self._open.clear()
        try:
            if self._mode == "abort":
                for task in self._running:
                    task.cancel()
            async with self._idle:
                await self._idle.wait_for(lambda: not self._running)
            path, body = self._dialect.reload(str(folder), update.version)
            answer = await self._unless_dead(self._post(path, body))
            if not answer.get("success", False):
                raise DataError(
                    f"the server did not take version {update.version}: {answer.get('message', answer)}",
                    where=self._where,
                    kind="refused",
                )
            self.version = update.version  # before the door opens: what is asked from then on is drawn by it
        finally:
            self._open.set()
        await asyncio.to_thread(shutil.rmtree, before, True)

    def _write(self, update: WeightUpdate) -> Path:
        """The weights and the model's files as a folder that servers load (in a thread)."""
        from astraflow.weights.export import save_model  # noqa: PLC0415 - brings transformers

        folder = self._folder / f"version-{update.version}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in self._folder.iterdir():
            if file.is_file():
                shutil.copy(file, folder)
        save_model(folder, update.tensors)
        return folder


def _cuts(drawn: GenerationRequest | cfg.Sampling) -> bool:
    """Whether some tokens are never drawn."""
    return drawn.top_p < 1 or drawn.top_k > 0 or drawn.min_p > 0


def make_http_engine(
    policy: str, folder: Path, pool: cfg.Pool, *, frozen: bool, sampling: cfg.Sampling | None = None
) -> HttpEngine:
    """The engine of a policy that a server plays. Raises ``ConfigError`` if it could never follow a trainer."""
    server = pool.servers[policy]
    if not frozen:
        able = [name for name, dialect in DIALECTS.items() if dialect.reload is not None]
        if server.dialect not in able or not server.command:
            raise ConfigError(
                f"this server cannot be given new weights, and {policy!r} is trained",
                where=f"pools.….servers.{policy}",
                remedy=f"Set a command with one of the dialects {', '.join(able)}, or freeze the policy",
                kind="unsupported",
            )
        if pool.update == "continue":
            raise ConfigError(
                "a server cannot change weights between two tokens of an answer",
                where="pools.….update",
                remedy="Set update = 'finish' or 'abort'",
                kind="unsupported",
            )
        if sampling is not None and not DIALECTS[server.dialect].tells_cuts and _cuts(sampling):
            raise ConfigError(_CUT, where=f"policies.{policy}.sampling", remedy=_UNCUT, kind="unsupported")
    return HttpEngine(policy, server, folder, update=pool.update, frozen=frozen)
