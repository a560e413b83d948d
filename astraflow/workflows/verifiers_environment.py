"""``verifiers``: an environment of the verifiers library (v1) plays the episode, and its rewards are taken as they are.

The environment's agents reach the model through the pool's server, so its harnesses, tools and judges run unchanged
and every token they sample is recorded. Which task of its taskset is played is the problem's ``meta["task"]``, as
``tasks`` in this module makes problems of a taskset. Needs the extra ``verifiers``.

One environment object serves all episodes of a pool; its own servers live in a task of their own, because they must
end where they began.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from astraflow.problems import Problem
from astraflow.rewards import ScoredProblem
from astraflow.workflows.runtime import KEY_HEADER, Roles
from storage.errors import ConfigError, EpisodeError

_KEY_VARIABLE = "ASTRAFLOW_NO_KEY"  # never set: the episode's key goes in a header
_START_S = 120.0


class VerifiersEnvironment:
    """Implements ``Workflow``. ``env`` is what verifiers calls the ``[env]`` block.

    With ``client = "chat"`` conversations are rendered here; with ``"tokens"`` verifiers renders them itself and sends
    token ids. An agent whose ``model`` is not pinned speaks as the first of ``roles``.
    """

    def __init__(
        self,
        *,
        env: Mapping[str, Any],
        client: Literal["chat", "tokens"] = "chat",
        roles: Sequence[str] = ("solver",),
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        self.roles = tuple(roles)
        self._environment = load(env)
        self._tasks: dict[int, Any] = {}
        self._stream = iter(self._environment.taskset)
        self._client = client
        self._sampling = dict(sampling or {})
        self._serving: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def play(self, problem: ScoredProblem, roles: Roles) -> None:
        """Play the problem's task, and reward each agent's conversations with its trace's reward."""
        task = self._task(int(problem.meta.get("task", problem.index)))
        await self._served()
        async with roles.served() as door:
            episode = await self._environment.run_episode(task, self._context(roles, door.url, door.key))
        if not episode.ok:
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            words = "; ".join(f"{error.type}: {error.message}" for error in errors) or "no reason given"
            raise EpisodeError(f"the environment failed: {words[:1000]}", where=f"problem {problem.id}", kind="harness")
        self._reward(episode, roles)

    def demonstrate(self, problem: Problem, rng: Any) -> list[Any]:
        raise ConfigError(
            "an environment of verifiers has no demonstrations, so it cannot warm a model up",
            where="policies.…warmup",
            remedy="Remove the warmup",
            kind="no_demonstrations",
        )

    def _task(self, number: int) -> Any:
        for index, task in zip(itertools.count(len(self._tasks)), self._stream):
            self._tasks[index] = task
            if index >= number:
                break
        if number not in self._tasks:
            raise EpisodeError(f"the taskset has no task {number}, only {len(self._tasks)}", kind="problem")
        return self._tasks[number]

    def _context(self, roles: Roles, url: str, key: str) -> Any:
        import verifiers.v1 as vf  # noqa: PLC0415 - an extra

        headers = {KEY_HEADER: key}  # its clients set Authorization themselves
        client: Any
        if self._client == "tokens":
            tokenizer = roles.handles[self.roles[0]].voice.renderer.tokenizer
            client = vf.TrainClientConfig(
                base_url=url,
                api_key_var=_KEY_VARIABLE,
                headers=headers,
                renderer_model_name=tokenizer.name_or_path,
            )
        else:
            client = vf.EvalClientConfig(base_url=url, api_key_var=_KEY_VARIABLE, headers=headers)
        return vf.ModelContext(model=self.roles[0], client=client, sampling=vf.SamplingConfig(**self._sampling))

    def _reward(self, episode: Any, roles: Roles) -> None:
        """A trace's reward goes to the role that its agent speaks as; of several the last one's holds."""
        for trace in episode.traces:
            role = getattr(trace.agent, "model", None) or self.roles[0]
            handle = roles.handles.get(role, roles.handles[self.roles[0]])
            for sequence in handle.sequences:
                sequence.reward = float(trace.reward)
                parts = {name: float(r.value) for name, r in trace.rewards.items() if r is not None}
                sequence.trajectory.reward_parts.update(parts)
        roles.give(sum(float(trace.reward) for trace in episode.traces) / len(episode.traces))

    async def _served(self) -> None:
        """The environment's own servers run from the first episode on."""
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        ready = asyncio.ensure_future(self._ready.wait())
        both: set[asyncio.Future[Any]] = {ready, self._serving}
        await asyncio.wait(both, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._serving.done():
            self._serving.result()
        if not self._ready.is_set():
            raise EpisodeError(f"the environment's servers did not start in {_START_S:g} s", kind="harness")

    async def _serve(self) -> None:
        async with self._environment.serving():
            self._ready.set()
            await asyncio.Event().wait()


def load(env: Mapping[str, Any]) -> Any:
    """The environment of an ``[env]`` block. Raises ``ConfigError``."""
    try:
        from verifiers.v1.utils.loaders import environment_class  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(
            f"verifiers is not installed: {error}",
            where="workflow.name",
            remedy="Install the extra: pip install 'astraflow-prefect[verifiers]'",
            kind="extra",
        ) from error
    try:
        kind: Any = environment_class(str(env.get("taskset", {}).get("id", "")), str(env.get("id", "")))
        return kind(_config_type(kind).model_validate(dict(env)))
    except (ValueError, TypeError, ImportError, AttributeError) as error:  # pydantic's is a ValueError
        raise ConfigError(
            f"verifiers cannot make this environment: {error}",
            where="workflow.options.env",
            remedy="Write it as the [env] block of a verifiers config: taskset.id, agent.harness.id, agent.runtime",
            kind="options",
        ) from error


def tasks(seed: int, *, env: Mapping[str, Any], count: int = 0) -> list[Problem]:
    """The first ``count`` tasks of an environment as problems (0: all), in the taskset's order whatever the seed."""
    environment = load(env)
    if not environment.taskset.bounded and count <= 0:
        raise ConfigError("this taskset never ends", where="problems.options", remedy="Set count", kind="options")
    found = itertools.islice(environment.taskset, count or None)
    return [_problem(index, task) for index, task in enumerate(found)]


def _problem(index: int, task: Any) -> Problem:
    prompt = task.data.prompt if isinstance(task.data.prompt, str) else task.data.model_dump_json(include={"prompt"})
    return Problem(index, str(task.data.id or task.data.name or index), prompt or "", "", {"task": str(index)})


def _config_type(kind: Any) -> Any:
    from verifiers.v1.configs.env import EnvConfig  # noqa: PLC0415 - an extra
    from verifiers.v1.env import Env  # noqa: PLC0415
    from verifiers.v1.utils.generic import concrete_type  # noqa: PLC0415

    return concrete_type(kind, EnvConfig, origin=Env) or EnvConfig
