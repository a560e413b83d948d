"""A virtual trainer: claims its policy by a manifest, trains batches in order, publishes, dies and comes back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from astraflow import records as r
from astraflow.simulation.agent import NO_PATIENCE, Agent
from storage.log import NumberedLog

if TYPE_CHECKING:
    from astraflow.simulation.world import World


class VirtualTrainer(Agent):
    """One life. What it has trained stands in its manifests, so the next life knows it."""

    role = "trainer"

    def __init__(self, world: World, name: str, policy: str) -> None:
        super().__init__(world, name)
        self.policy = policy
        self.step = 0
        self.version = -1
        self.incarnation = 0
        self._head: dict[str, Any] | None = None
        self._has_claimed = False
        self._batches: dict[int, r.Batched] = {}
        self._training: r.Batched
        self._making: dict[str, Any] | None = None
        self._made_at = 0.0
        self._metrics: dict[str, float] = {}
        self._asked_at = 0.0
        self._manifests = NumberedLog(self.store, lambda v: self.keys.manifest(policy, v), patience=NO_PATIENCE)

    def act(self) -> None:
        if not self._has_claimed:
            self._claim()
        for decision in self.decisions():
            match decision:
                case r.Batched(policy=self.policy):
                    self._batches[decision.n] = decision
                case r.DrainRequested() if self.is_meant(decision):
                    self.is_told_to_go = True
                case r.Stopped():
                    self.is_told_to_go = True
                case _:
                    pass
        self._train()

    def _claim(self) -> None:
        """Publish the next version, of the step that the head says: the fence of every older life."""
        while self._making is None and (found := self.manifest(self.policy, self.version + 1)) is not None:
            self._head, self.version = found, self.version + 1
        head = self._head
        if self._making is None:
            self.incarnation = head["incarnation"] + 1 if head else 0
            self.step = head["step"] if head else 0
            self._making = self._make(head["batch"] if head else -1)
        made = self._making
        self._publish(made)
        self._making = None
        self._has_claimed = True
        self._asked_at = self.world.timeline.now
        facts: list[r.AnyFact] = [
            r.TrainerJoined(policy=self.policy, incarnation=self.incarnation),
            self._published(made),
        ]
        if head and head["batch"] >= 0:  # what the last life published and did not say
            facts.append(self._consumed(made, {}))
        self.say(*facts)

    def _train(self) -> None:
        now = self.world.timeline.now
        if self._making is not None:
            if now < self._made_at:
                return
            self._publish(self._making)
            self.say(self._published(self._making), self._consumed(self._making, self._metrics))
            self.world.took_step(self.policy, self._training, self._metrics)
            self._making = None
            self._asked_at = now
            self._send()
        if self.step >= self.world.config.trainer_of(self.policy).steps or self.is_told_to_go:
            self.say(r.Ended(policy=self.policy), r.Left())
            self._send()
            self.die()
            return
        batch = self._batches.pop(self.step, None)
        if batch is None:
            return
        model = self.world.scenario.trainer
        step_s = model.step_s + model.token_s * self.world.tokens_of(self.policy, batch.groups)
        self._metrics = {"wait_s": now - self._asked_at, "step_s": step_s, "publish_s": model.publish_s}
        self.step += 1
        self._training = batch
        self._making = self._make(batch.n)
        took_s = step_s + model.publish_s
        self._made_at = now + took_s
        self.wake_in(took_s)

    def _make(self, batch: int) -> dict[str, Any]:
        version = self.version + 1
        return {
            "version": version,
            "step": self.step,
            "incarnation": self.incarnation,
            "batch": batch,
            "digest": f"{self.policy}-{version}-{self.incarnation}",
        }

    def _publish(self, made: dict[str, Any]) -> None:
        assert self._manifests.create(made["version"], json.dumps(made).encode()) is None, "one life at a time"
        self.version = made["version"]
        self.world.published(self.policy, self.version)

    def _published(self, made: dict[str, Any]) -> r.Published:
        fields = {name: made[name] for name in ("version", "step", "incarnation", "digest")}
        return r.Published(policy=self.policy, **fields)

    def _consumed(self, made: dict[str, Any], metrics: dict[str, float]) -> r.Consumed:
        fields = {name: made[name] for name in ("batch", "step", "incarnation")}
        return r.Consumed(policy=self.policy, metrics=metrics, **fields)
