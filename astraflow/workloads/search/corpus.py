"""A corpus: passages with titles, from a JSONL file or the dictionary that Debian ships as ``dict-foldoc``."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from storage.errors import ConfigError

FOLDOC = Path("/usr/share/dictd/foldoc")
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_LINK = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True, slots=True)
class Passage:
    """An article or a piece of one."""

    title: str
    text: str


def read_corpus(source: str) -> list[Passage]:
    """``foldoc``, or a JSONL file with ``title`` and ``text`` (or ``contents``, title in its first line)."""
    if source == "foldoc":
        return list(foldoc())
    path = Path(source)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [_passage(json.loads(line)) for line in lines if line.strip()]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"the corpus cannot be read: {type(error).__name__} {error}",
            where=source,
            remedy='A line looks like {"title": "…", "text": "…"}',
            kind="file",
        ) from error


def foldoc(path: Path = FOLDOC) -> Iterator[Passage]:
    """The articles of the dictionary, links in braces as they stand there."""
    try:
        index = path.with_suffix(".index").read_text(encoding="utf-8").splitlines()
        with gzip.open(path.with_suffix(".dict.dz")) as file:
            data = file.read()
    except OSError as error:
        raise ConfigError(
            f"the dictionary is not there: {error}",
            where=str(path),
            remedy="apt-get install dict-foldoc, or name a JSONL corpus",
            kind="missing_package",
        ) from error
    for line in index:
        title, start, size = line.split("\t")[:3]
        if not title.startswith("00-database"):
            text = data[_number(start) : _number(start) + _number(size)].decode("utf-8", "replace")
            head, _, body = text.partition("\n")
            yield Passage(head.strip() or title, " ".join(body.split()))


def links(text: str) -> list[str]:
    """The titles that an article refers to."""
    return [found.strip() for found in _LINK.findall(text)]


def _number(text: str) -> int:
    """dictd writes offsets in base 64, the first digit highest."""
    value = 0
    for character in text:
        value = value * 64 + _DIGITS.index(character)
    return value


def _passage(values: dict[str, str]) -> Passage:
    if "contents" in values:
        title, _, text = values["contents"].partition("\n")
        return Passage(title.strip('" '), text)
    return Passage(values.get("title", ""), values["text"])
