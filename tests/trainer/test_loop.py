from __future__ import annotations

from astraflow.records import Consumed, Ended, Left, Published, TrainerJoined
from astraflow.trainer.loop import run_trainer


def test_trains_all_batches_and_ends(make_run):
    run = make_run(steps=4)
    run.decide(*[run.batched(n) for n in range(4)])
    run_trainer(run.store, run.config, "solver", participant="trainer-solver-a")
    facts = run.facts()
    assert isinstance(facts[0], TrainerJoined) and isinstance(facts[1], Published)
    assert [fact.version for fact in facts if isinstance(fact, Published)] == [0, 1, 2, 3, 4]
    assert [(fact.batch, fact.step) for fact in facts if isinstance(fact, Consumed)] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert isinstance(facts[-2], Ended) and isinstance(facts[-1], Left)
    print(facts[3])
