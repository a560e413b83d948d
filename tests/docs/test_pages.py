"""The pages for maintainers speak of what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from astraflow.dataflow.algorithms import CURATORS, FILTERS, ORDERS, REPLAYS
from astraflow.rewards import BUILT_IN as REWARDS
from astraflow.trainer.losses import LOSSES

ROOT = Path(__file__).parents[2]
PAGES = ("ARCHITECTURE.md", "AGENTS.md", "CHANGELOG.md")


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text())
    assert [path for path in named if not any((ROOT / base / path).is_file() for base in ("", "astraflow"))] == []


def test_the_extension_table_lists_what_is_built_in() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    rows = [line for line in page[page.index("## Extending it") :].splitlines() if line.startswith("| ")]
    listed = [set(re.findall(r"`(\w+)`", row.split("|")[3])) for row in rows]
    for registry in (CURATORS, FILTERS, ORDERS, REPLAYS, REWARDS, LOSSES):
        assert set(registry) in listed
