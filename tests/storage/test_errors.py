"""Errors say what, where and what to do; they survive pickling; a shell can tell them apart."""

from __future__ import annotations

import pickle

import pytest

from storage import errors
from storage.errors import AstraFlowError, ConfigError, NotFound, StoreError

TREE = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AstraFlowError)]


@pytest.mark.parametrize("kind", TREE)
def test_pickling_keeps_everything(kind: type[AstraFlowError]) -> None:
    error = kind("it broke", where="a/b", remedy="Mend it", kind="some_kind")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.what, again.where, again.remedy, again.kind) == ("it broke", "a/b", "Mend it", "some_kind")
    assert str(again) == str(error)


@pytest.mark.parametrize(
    ("where", "remedy", "text"),
    [
        ("", "", "it broke"),
        ("a/b", "", "a/b: it broke"),
        ("", "Mend it", "it broke. Mend it"),
        ("a/b", "Mend it", "a/b: it broke. Mend it"),
    ],
)
def test_text(where: str, remedy: str, text: str) -> None:
    assert str(AstraFlowError("it broke", where=where, remedy=remedy)) == text


def test_exit_codes_tell_the_user_visible_classes_apart() -> None:
    own = {kind: kind.exit_code for kind in TREE if "exit_code" in vars(kind)}
    assert len(set(own.values())) == len(own)
    assert 0 not in own.values()
    assert NotFound.exit_code == StoreError.exit_code
    assert ConfigError.exit_code == 2


def test_the_tree_stays_small() -> None:
    assert len(TREE) <= 11
    assert all(kind.__doc__ for kind in TREE)
