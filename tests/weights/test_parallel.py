"""Work in threads comes back in order, and little of it is under way."""

from __future__ import annotations

import threading

import pytest

from astraflow.weights.parallel import in_order


def test_results_are_in_order_and_few_are_ahead() -> None:
    begun: list[int] = []
    threads = set()

    def work(item: int) -> int:
        begun.append(item)
        threads.add(threading.current_thread().name)
        return item * item

    results = in_order(work, range(20), workers=2)
    for index, result in enumerate(results):
        assert result == index * index
        assert len(begun) <= index + 4
    assert threading.current_thread().name not in threads


@pytest.mark.parametrize(("items", "workers"), [([7], 2), ([7, 8], 1), ([], 2)])
def test_one_item_or_worker_needs_no_thread(items: list[int], workers: int) -> None:
    assert list(in_order(lambda _: threading.current_thread(), items, workers)) == [threading.current_thread()] * len(
        items
    )


def test_an_error_comes_out_where_its_result_would() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise ValueError("three")
        return item

    results = in_order(work, range(100), workers=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
