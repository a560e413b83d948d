"""A catalogue that is made up: the same seed and size give the same products everywhere.

Products come in families that differ in one attribute, option or price, so a search alone never finds the right one:
the buyer has to read.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

from astraflow.workloads.search.corpus import Passage
from astraflow.workloads.search.retrieve import Fts5Index

DEPARTMENTS: dict[str, dict[str, tuple[str, ...]]] = {
    "fashion": {
        "running shoes": ("breathable", "waterproof", "lightweight", "wide fit", "reflective"),
        "hoodie": ("fleece lined", "organic cotton", "machine washable", "slim fit", "long sleeve"),
        "rain jacket": ("waterproof", "packable", "hooded", "windproof", "lightweight"),
        "backpack": ("water resistant", "laptop sleeve", "padded straps", "anti theft", "lightweight"),
    },
    "home": {
        "desk lamp": ("dimmable", "usb charging", "eye caring", "foldable", "energy saving"),
        "storage box": ("stackable", "with lid", "foldable", "moisture proof", "transparent"),
        "throw blanket": ("machine washable", "super soft", "reversible", "fleece lined", "lightweight"),
        "office chair": ("lumbar support", "height adjustable", "breathable", "easy assembly", "with armrests"),
    },
    "grocery": {
        "green tea": ("organic", "caffeine free", "sugar free", "individually wrapped", "kosher"),
        "protein bar": ("gluten free", "sugar free", "vegan", "high fiber", "non gmo"),
        "trail mix": ("gluten free", "low sodium", "vegan", "resealable bag", "non gmo"),
        "olive oil": ("extra virgin", "organic", "cold pressed", "kosher", "non gmo"),
    },
    "electronics": {
        "bluetooth speaker": ("waterproof", "long battery life", "deep bass", "hands free", "portable"),
        "phone case": ("shockproof", "wireless charging", "anti yellowing", "with stand", "ultra thin"),
        "usb cable": ("fast charging", "braided", "right angle", "gold plated", "heavy duty"),
        "webcam": ("noise cancelling", "plug and play", "with stand", "wide angle", "privacy cover"),
    },
}
_COLOURS = ("black", "white", "navy", "red", "green", "grey", "pink", "yellow")
_SIZES = {
    "fashion": ("small", "medium", "large", "x-large"),
    "home": ("small", "medium", "large"),
    "grocery": ("pack of 1", "pack of 6", "pack of 12"),
    "electronics": ("1 pack", "2 pack", "3 pack"),
}
_BRANDS = ("Alder", "Birch", "Cedar", "Dune", "Ember", "Fjord", "Grove", "Haven", "Iris", "Juno")


@dataclass(frozen=True, slots=True)
class Product:
    """What is sold. ``options`` are to be chosen before buying."""

    id: str
    department: str
    category: str
    brand: str
    attributes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    price: float

    @property
    def title(self) -> str:
        """What a page of results shows: not all attributes."""
        return f"{self.brand} {self.category}, {', '.join(self.attributes[:2])}"


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All products, by id, and their index."""

    products: dict[str, Product]
    index: Fts5Index

    def find(self, words: str, most: int = 50) -> list[Product]:
        """Products for a search, best first."""
        listed = list(self.products.values())
        return [listed[number] for number in self.index.best(words, most)]


@lru_cache(maxsize=8)
def catalogue(seed: int, size: int) -> Catalogue:
    """A catalogue of ``size`` products."""
    rng = random.Random(f"shop/{seed}")
    kinds = [(department, category) for department, found in DEPARTMENTS.items() for category in found]
    products: dict[str, Product] = {}
    while len(products) < size:
        department, category = rng.choice(kinds)
        for product in _family(rng, department, category):
            if len(products) < size:
                products[product.id] = product
    passages = [Passage(p.title, f"{p.department} {' '.join(p.attributes)}") for p in products.values()]
    return Catalogue(products, Fts5Index(passages))


def _family(rng: random.Random, department: str, category: str) -> list[Product]:
    """Products of one brand and kind that differ in one attribute or in price."""
    known = DEPARTMENTS[department][category]
    attributes = rng.sample(known, 3)
    spare = [attribute for attribute in known if attribute not in attributes]
    brand, price = rng.choice(_BRANDS), rng.randrange(8, 120)
    colours, sizes = rng.sample(_COLOURS, rng.randint(2, 4)), _SIZES[department]
    family = []
    for member in range(rng.randint(2, 3)):
        own = attributes if member == 0 else [*attributes[:2], spare[member - 1]]
        cost = round(price * (1 + 0.35 * member) - 0.01, 2)
        options = {"color": tuple(colours), "size": sizes[: rng.randint(2, len(sizes))]}
        name = "B" + "".join(rng.choices("0123456789ABCDEFGHJKLMNPQRSTUVWXYZ", k=9))
        family.append(Product(name, department, category, brand, tuple(own), options, cost))
    return family
