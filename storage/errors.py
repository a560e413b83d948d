"""The one error tree of the project, grouped by what a handler would do.

Every error says what was wrong, where, and what to do about it; handlers match classes and
the ``kind`` attribute, never text. It lives in ``storage`` because that is the lowest layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class AstraFlowError(Exception):
    """Base of all errors raised on purpose.

    ``what`` is one clause without a full stop, ``where`` names the key, file, field or record,
    ``remedy`` says what the reader can do. ``kind`` is a stable machine-readable word.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", remedy: str = "", kind: str = "") -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        self.kind = kind
        super().__init__(what, where, remedy, kind)

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}. {self.remedy}" if self.remedy else text

    def __reduce__(self) -> tuple[object, ...]:
        state = {"what": self.what, "where": self.where, "remedy": self.remedy, "kind": self.kind}
        return (_rebuild, (type(self), state))


def _rebuild(cls: type[AstraFlowError], state: dict[str, str]) -> AstraFlowError:
    return cls(state["what"], where=state["where"], remedy=state["remedy"], kind=state["kind"])


class ConfigError(AstraFlowError):
    """The user's input is wrong (config, recipe, problem file, command line): fix it and start again."""

    exit_code = 2


class StoreError(AstraFlowError):
    """The object store refused or could not be reached.

    Kinds: ``unreachable`` (worth a retry), ``denied``, ``no_bucket``, ``unsafe`` (no conditional create).
    """

    exit_code = 3


@contextmanager
def in_section(where: str) -> Iterator[None]:
    """What a store raises inside says also in which section of the config it is named."""
    try:
        yield
    except StoreError as error:
        raise StoreError(error.what, where=f"{where}: {error.where}", remedy=error.remedy, kind=error.kind) from error


class NotFound(StoreError):
    """There is no object under that key."""


class ServiceError(AstraFlowError):
    """The Prefect server or a runner is not there or refused the call."""

    exit_code = 4


class Fenced(AstraFlowError):
    """Another holder (a newer manager epoch or trainer incarnation) took over: exit, change nothing."""

    exit_code = 5


class DataError(AstraFlowError):
    """Stored or produced data is wrong: undecodable, wrong digest, non-finite. Never used, never retried as it is."""

    exit_code = 6


class EpisodeError(AstraFlowError):
    """One episode failed; ``kind`` says how. The group is handed back, the pool goes on."""


class EngineError(AstraFlowError):
    """The inference engine is dead: the pool ends with this error."""

    exit_code = 7


class DeadlineError(AstraFlowError):
    """Something that was waited for did not come in time."""

    exit_code = 8
