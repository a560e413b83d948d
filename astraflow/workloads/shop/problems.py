"""Shopping problems: what somebody wants, made from a product that has it; and the real WebShop's, by path."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from astraflow.problems import Problem
from astraflow.workloads.shop.catalogue import Product, catalogue
from storage.errors import ConfigError


def shop(seed: int, *, count: int = 512, products: int = 1000, catalogue_seed: int = 0) -> list[Problem]:
    """``count`` wishes over a catalogue of ``products``; another seed gives other wishes over the same catalogue."""
    if not 1 <= count <= 100_000 or not 10 <= products <= 20_000:
        raise ConfigError(
            f"no shop of {products} products with {count} wishes",
            where="problems.options",
            remedy="count is 1 to 100000, products 10 to 20000",
            kind="options",
        )
    sold = list(catalogue(catalogue_seed, products).products.values())
    problems = []
    for index in range(count):
        rng = random.Random(f"wish/{seed}/{index}")
        product = rng.choice(sold)
        goal = _goal(rng, product)
        meta = {"goal": json.dumps(goal, sort_keys=True), "catalogue": json.dumps([catalogue_seed, products])}
        problems.append(Problem(index, f"wish-{index}", _wish(goal), product.id, meta))
    return problems


def webshop(seed: int, *, path: str, count: int = 0) -> list[Problem]:
    """The goals of a real WebShop: a JSON list of objects with ``instruction`` (``items_human_ins.json`` or own).

    The shop itself is the user's installation of WebShop: environment ``gymnasium`` with a ``make`` of theirs.
    """
    file = Path(path)
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
        entries = list(_entries(found))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"WebShop's goals cannot be read: {type(error).__name__} {error}",
            where=path,
            remedy="Name items_human_ins.json of WebShop's data, or a list of objects with «instruction»",
            kind="file",
        ) from error
    entries = entries[:count] if count else entries
    return [
        Problem(i, f"webshop-{i}", text, asin, {"goal_index": str(i), **extra})
        for i, (text, asin, extra) in enumerate(entries)
    ]


def _entries(found: Any) -> list[tuple[str, str, dict[str, str]]]:
    """(instruction, product, other fields); the published file maps products to lists of instructions."""
    if isinstance(found, dict):
        rows = [{**row, "asin": row.get("asin", asin)} for asin, listed in found.items() for row in listed]
    else:
        rows = list(found)
    kept = []
    for row in rows:
        extra = {
            name: json.dumps(row[name]) for name in ("instruction_attributes", "instruction_options") if name in row
        }
        kept.append((str(row["instruction"]), str(row.get("asin", "")), extra))
    return kept


def _goal(rng: random.Random, product: Product) -> dict[str, Any]:
    options = {name: rng.choice(values) for name, values in product.options.items()}
    attributes = [product.attributes[-1], rng.choice(product.attributes[:-1])]  # the last one sets its family apart
    limit = 10 * (int(product.price) // 10 + 1)
    return {
        "id": product.id,
        "department": product.department,
        "category": product.category,
        "attributes": attributes,
        "options": options,
        "price": limit,
    }


def _wish(goal: dict[str, Any]) -> str:
    options = " and ".join(f"{name} {value}" for name, value in goal["options"].items())
    return (
        f"I am looking for a {goal['category']} that is {' and '.join(goal['attributes'])}, with {options}, "
        f"and a price lower than {goal['price']}.00 dollars."
    )
