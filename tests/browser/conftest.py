"""A local stack with recipes of its own, and a headless Chromium that looks at its pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.ui import Operator
from tests.e2e.runs import write_recipes
from tests.e2e.stack import LocalStack

CHROMIUM = os.environ.get("ASTRAFLOW_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ENDLESS = """
extends = "two.toml"
name = "endless"
trainer.steps = 500
trainer.batch_size = 1
"""
TWO_REGIONS = """
extends = "unhurried.toml"
name = "two-regions"
trainer.steps = 120
dataflow.drain_s = 120
problems.reward.options.hold = "{hold}"
[pools.local]
capacity = 2
[pools.west]
region = "west"
capacity = 2
flush_s = 0.0
"""


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """Server and runner; the folder's recipes have become deployments."""
    stack = LocalStack(tmp_path_factory.mktemp("browser"), {})
    write_recipes(stack.folder)
    (stack.folder / "endless.toml").write_text(ENDLESS)
    (stack.folder / "two-regions.toml").write_text(TWO_REGIONS.format(hold=stack.folder / "hold"))
    try:
        stack.up()
        yield stack
    finally:
        stack.down()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, or that of ``ASTRAFLOW_CHROMIUM``."""
    if not Path(CHROMIUM).exists():
        pytest.fail("there is no chromium: `make operator` installs it, ASTRAFLOW_CHROMIUM names another one")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def operator(stack: LocalStack, browser: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Operator]:
    """A person at the pages of the stack; screenshots are kept in ``ASTRAFLOW_SCREENSHOTS``."""
    folder = Path(os.environ.get("ASTRAFLOW_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    page = browser.new_page(viewport={"width": 1400, "height": 1800})
    page.set_default_timeout(30_000)
    expect.set_options(timeout=30_000)
    yield Operator(page, stack, folder)
    page.screenshot(path=folder / f"{request.node.name}-end.png")
    page.close()
