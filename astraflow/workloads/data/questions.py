"""Questions with short answers: HotpotQA and ASearcher by their published field names.

All accepted answers stand in ``meta["answers"]`` as a JSON list; ``answer`` is the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from astraflow.workloads.data.rows import Row, first, rest, text_of


def hotpotqa(values: Mapping[str, Any]) -> Row:
    """``question``, ``answer``, ``_id`` or ``id``; ``context`` is left to the retriever."""
    return _row(values, [values["answer"]], text_of(values.get("_id", values.get("id", ""))))


def asearcher(values: Mapping[str, Any]) -> Row:
    """``question``, ``answer`` (one or several), ``aug_answer``, ``id``, ``qid`` or ``idx``."""
    answers = values["answer"]
    answers = list(answers) if isinstance(answers, list) else [answers]
    name = next((values[key] for key in ("id", "qid", "idx") if values.get(key) is not None), "")
    return _row(values, [*answers, *(values.get("aug_answer") or [])], text_of(name))


def _row(values: Mapping[str, Any], answers: list[Any], name: str) -> Row:
    texts = list(dict.fromkeys(text_of(answer) for answer in answers))
    if not texts:
        raise ValueError("there is no answer")
    return Row(
        first(values, "question"), texts[0], name, {"answers": json.dumps(texts), **rest(values, "type", "level")}
    )
