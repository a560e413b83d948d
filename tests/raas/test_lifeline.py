"""No wait outlives the processes it waits for."""

from __future__ import annotations

import asyncio

import pytest

from astraflow.raas.lifeline import Lifeline
from storage.errors import EngineError

pytestmark = pytest.mark.anyio


class Processes:
    dead = False


async def forever() -> None:
    await asyncio.Event().wait()


async def test_death_is_seen_and_told_to_all_with_the_last_lines() -> None:
    processes = Processes()
    life = Lifeline("it", is_dead=lambda: processes.dead, last_lines=lambda: "ERROR no memory")
    waiting = [asyncio.create_task(life.until(forever())) for _ in range(3)]
    assert await life.until(asyncio.sleep(0, "answer"), timeout_s=5) == "answer"
    processes.dead = True
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(result) for result in results} == {EngineError}
    assert all("ERROR no memory" in str(result) for result in results)
    with pytest.raises(EngineError) as caught:
        life.check()
    assert caught.value.kind == "died"
    assert life.died() is caught.value, "the first error stays"


async def test_hanging_closing_and_other_errors_are_told_apart() -> None:
    life = Lifeline("it", is_dead=lambda: False, last_lines=lambda: "INFO step 3")
    with pytest.raises(EngineError) as caught:
        await life.until(forever(), timeout_s=0.01)
    assert caught.value.kind == "stuck"
    assert "step 3" in caught.value.what

    async def late() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await life.until(late(), timeout_s=5)
    waiting = asyncio.create_task(life.until(forever()))
    await asyncio.sleep(0)
    life.close()
    with pytest.raises(EngineError) as caught:
        await waiting
    assert caught.value.kind == "closed"


async def test_a_waiter_that_is_cancelled_takes_its_work_along() -> None:
    life = Lifeline("it", is_dead=lambda: False, last_lines=lambda: "")
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await forever()
        finally:
            ended.set()

    waiting = asyncio.create_task(life.until(work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.wait_for(ended.wait(), 5)
    life.close()
