"""Retrievers: BM25 in memory (bm25s), SQLite's FTS5 where that package is not there, or any server's ``/retrieve``.

Titles are indexed apart from texts and count more: a question names what it is about. An index is made once, in a
thread, by the first who asks; queries run in threads too, so that a pool's loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from astraflow.workloads.packages import need
from astraflow.workloads.search.corpus import Passage, read_corpus
from storage.errors import EpisodeError

TITLE_BOOST = 2.0
_WORD = re.compile(r"\w+")
_SERVER_S = 20.0

BUILT_IN = {
    "foldoc": "astraflow.workloads.search.retrieve:CorpusRetriever",
    "corpus": "astraflow.workloads.search.retrieve:CorpusRetriever",
    "http": "astraflow.workloads.search.retrieve:HttpRetriever",
}


class Retriever(Protocol):
    """Finds passages for a query."""

    async def search(self, query: str, count: int) -> list[Passage]:
        """The best passages, best first. Raises ``EpisodeError`` if the retriever failed."""
        ...


class Index(Protocol):
    """What a corpus is searched with."""

    def best(self, query: str, count: int) -> list[int]:
        """Numbers of the best passages."""
        ...


class CorpusRetriever:
    """Searches a corpus in this process. ``index``: ``bm25s``, ``fts5``, or ``auto`` (the first that is there)."""

    def __init__(self, *, source: str = "foldoc", index: str = "auto") -> None:
        self._source = source
        kind = index if index != "auto" else "bm25s" if importlib.util.find_spec("bm25s") else "fts5"
        kinds: dict[str, Callable[[Sequence[Passage]], Index]] = {"bm25s": Bm25sIndex, "fts5": Fts5Index}
        self._kind = kinds[kind]
        self._made: dict[asyncio.AbstractEventLoop, asyncio.Task[tuple[Index, list[Passage]]]] = {}

    async def search(self, query: str, count: int) -> list[Passage]:
        loop = asyncio.get_running_loop()
        task = self._made.get(loop)
        if task is None:
            task = self._made[loop] = loop.create_task(asyncio.to_thread(self._make))
        index, passages = await asyncio.shield(task)
        return [passages[number] for number in await asyncio.to_thread(index.best, query, count)]

    def _make(self) -> tuple[Index, list[Passage]]:
        passages = read_corpus(self._source)
        return self._kind(passages), passages


class Bm25sIndex:
    """BM25 over titles and over texts, their scores added."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        bm25s = need("bm25s", "search")
        self._size = len(passages)
        self._parts: list[tuple[float, Any, dict[str, int]]] = []
        for boost, texts in ((TITLE_BOOST, [p.title for p in passages]), (1.0, [p.text for p in passages])):
            made = bm25s.BM25()
            words = [_words(text) for text in texts]
            vocabulary: dict[str, int] = {}
            ids = [[vocabulary.setdefault(word, len(vocabulary)) for word in line] for line in words]
            made.index((ids, vocabulary), show_progress=False)
            self._parts.append((boost, made, vocabulary))

    def best(self, query: str, count: int) -> list[int]:
        import numpy as np  # noqa: PLC0415

        scores = np.zeros(self._size, dtype=np.float32)
        for boost, made, vocabulary in self._parts:
            known = [word for word in _words(query) if word in vocabulary]
            if known:
                scores += boost * made.get_scores(known)
        count = min(count, self._size)
        top = np.argpartition(-scores, count - 1)[:count] if count < self._size else np.arange(self._size)
        ranked = sorted(top.tolist(), key=lambda number: (-scores[number], number))
        return [number for number in ranked if scores[number] > 0]


class Fts5Index:
    """SQLite's full-text search, which Python brings along."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute("create virtual table passages using fts5(title, text, tokenize='porter unicode61')")
        rows = ((number, p.title, p.text) for number, p in enumerate(passages))
        self._database.executemany("insert into passages(rowid, title, text) values (?, ?, ?)", rows)
        self._database.commit()

    def best(self, query: str, count: int) -> list[int]:
        words = dict.fromkeys(_words(query))
        if not words:
            return []
        asked = " OR ".join(f'"{word}"' for word in words)
        order = f"select rowid from passages where passages match ? order by bm25(passages, {TITLE_BOOST}, 1.0) limit ?"
        return [int(number) for (number,) in self._database.execute(order, (asked, count))]


class HttpRetriever:
    """Asks a server: ``POST url {"queries": [q], "topk": n}``, the interface that search agents' servers share."""

    def __init__(self, *, url: str, timeout_s: float = _SERVER_S) -> None:
        self._url = url if url.rstrip("/").endswith("/retrieve") else f"{url.rstrip('/')}/retrieve"
        self._timeout_s = timeout_s

    async def search(self, query: str, count: int) -> list[Passage]:
        httpx = need("httpx", "search")
        order = {"queries": [query], "topk": count, "return_scores": True}
        try:
            async with httpx.AsyncClient(timeout=self._timeout_s) as client:
                answer = await client.post(self._url, json=order)
                answer.raise_for_status()
                return [_passage_of(entry) for entry in answer.json()["result"][0][:count]]
        except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
            raise EpisodeError(
                f"the retriever failed: {type(error).__name__} {error}", where=self._url, kind="retriever"
            ) from error


def _passage_of(entry: dict[str, Any]) -> Passage:
    """A result, with or without its score: ``{"document": {"contents": "title\\ntext"}, "score": s}``."""
    document = entry.get("document", entry)
    contents = document.get("contents")
    if contents is None:
        return Passage(str(document.get("title", "")), str(document["text"]))
    title, _, text = str(contents).partition("\n")
    return Passage(title.strip('" '), text)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
