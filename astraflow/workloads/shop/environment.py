"""The shop as an environment: ``search[…]`` and ``click[…]`` over pages, and WebShop's reward when something is bought.

The reward counts the wanted attributes, options and the price, each as one, as a share of all of them, times how well
the kind of product fits (the same kind 1, the same department ½, another 0.1). An action that the page does not offer
changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from astraflow.problems import Problem
from astraflow.workloads.environments import Observation
from astraflow.workloads.shop.catalogue import Catalogue, Product, catalogue

PAGE = 10
_ACTION = re.compile(r"(search|click)\[(.*)\]", re.DOTALL)
_DETAILS = ("description", "features")


class Shops:
    """Implements ``Environments``."""

    @contextlib.asynccontextmanager
    async def play(self, problem: Problem) -> AsyncIterator[Shop]:
        """A visit of the shop that the problem is set in."""
        seed, size = json.loads(problem.meta["catalogue"])
        yield Shop(catalogue(seed, size), json.loads(problem.meta["goal"]), problem.prompt)


class Shop:
    """One visit. Implements ``World``."""

    def __init__(self, sold: Catalogue, goal: Mapping[str, Any], wish: str) -> None:
        self._sold = sold
        self._goal = goal
        self._wish = wish
        self._page = "search"
        self._found: list[Product] = []
        self._first = 0
        self._product: Product | None = None
        self._chosen: dict[str, str] = {}

    async def reset(self) -> Observation:
        return self._show(f"Instruction: {self._wish}")

    async def step(self, action: str) -> Observation:
        found = _ACTION.fullmatch(action.strip())
        if found is None:
            return self._show("That is no action. Use search[words] or click[what].")
        kind, argument = found[1], found[2].strip()
        if kind == "search" and self._page == "search" and argument:
            self._found, self._first, self._page = self._sold.find(argument), 0, "results"
            return self._show()
        if kind == "click" and argument.lower() in {name.lower() for name in self._clickable()}:
            return self._click(argument.lower())
        return self._show(f"«{action.strip()}» cannot be done here.")

    def _click(self, what: str) -> Observation:
        """Follow a link that the page has."""
        if what == "back to search":
            self._page = "search"
        elif what in ("next >", "< prev") and self._page == "results":
            self._first += PAGE if what == "next >" else -PAGE
        elif what == "< prev":
            self._page = "results" if self._page == "item" else "item"
        elif self._page == "results":
            self._product, self._chosen, self._page = self._sold.products[what.upper()], {}, "item"
        elif what in _DETAILS:
            self._page = what
        elif what == "buy now":
            return self._buy(self._bought())
        else:
            name = next(name for name, values in self._bought().options.items() if what in values)
            self._chosen[name] = what
            return self._show(f"You chose {name} {what}.")
        return self._show()

    def _buy(self, product: Product) -> Observation:
        score = reward(self._goal, product, self._chosen)
        return Observation(f"You bought {product.id}. Your score is {score:.2f}.", score, done=True)

    def _bought(self) -> Product:
        if self._product is None:
            raise RuntimeError("an item's page without an item")
        return self._product

    def _clickable(self) -> list[str]:
        """What the page has to click."""
        if self._page == "search":
            return []
        if self._page == "results":
            shown = [product.id for product in self._found[self._first : self._first + PAGE]]
            before = ["< Prev"] if self._first else []
            after = ["Next >"] if self._first + PAGE < len(self._found) else []
            return ["Back to Search", *before, *after, *shown]
        if self._page == "item":
            options = [value for values in self._bought().options.values() for value in values]
            return ["Back to Search", "< Prev", "Description", "Features", *options, "Buy Now"]
        return ["Back to Search", "< Prev"]

    def _show(self, said: str = "") -> Observation:
        actions = [f"click[{name}]" for name in self._clickable()]
        if self._page == "search":
            actions.append("search[words]")
        return Observation("\n".join(part for part in (said, self._text()) if part), actions=tuple(actions))

    def _text(self) -> str:
        if self._page == "search":
            return "The shop's search page."
        if self._page == "results":
            lines = [f"{p.id}: {p.title}, ${p.price:.2f}" for p in self._found[self._first : self._first + PAGE]]
            return f"Page {self._first // PAGE + 1}, {len(self._found)} results\n" + ("\n".join(lines) or "Nothing.")
        product = self._bought()
        if self._page == "description":
            return f"A {product.category} of {product.brand}, department {product.department}."
        if self._page == "features":
            return f"Features: {', '.join(product.attributes)}."
        chosen = ", ".join(f"{name} {value}" for name, value in self._chosen.items()) or "nothing yet"
        return f"{product.title}\nPrice: ${product.price:.2f}\nChosen: {chosen}"


def reward(goal: Mapping[str, Any], product: Product, chosen: Mapping[str, str]) -> float:
    """WebShop's reward of buying ``product`` with the options ``chosen``."""
    attributes = sum(attribute in product.attributes for attribute in goal["attributes"])
    options = sum(chosen.get(name) == value for name, value in goal["options"].items())
    wanted = len(goal["attributes"]) + len(goal["options"]) + 1
    kind = 1.0 if product.category == goal["category"] else 0.5 if product.department == goal["department"] else 0.1
    return float(kind * (attributes + options + (product.price <= goal["price"])) / wanted)
