"""Names of the config become code, or an error that says where the name stands and what there is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from astraflow.component import check_options, find, use_code
from storage.errors import ConfigError

BUILT_IN = {"exact": 1, "contains": 2}


def wrong(name: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        find(name, BUILT_IN, where="problems.reward.name")
    assert caught.value.where == "problems.reward.name"
    return caught.value


def test_built_in_and_import_paths() -> None:
    assert find("exact", BUILT_IN, where="x") == 1
    assert find("os.path:sep", BUILT_IN, where="x") == "/"


def test_a_near_miss_is_guessed() -> None:
    assert "Did you mean 'exact'?" in wrong("exakt").remedy
    assert "Did you mean" not in wrong("zzz").remedy and "contains, exact" in wrong("zzz").remedy


@pytest.mark.parametrize("name", ["nowhere:thing", "os.path:nothing"])
def test_what_cannot_be_imported(name: str) -> None:
    assert wrong(name).kind == "import"


def test_own_code_is_found_behind_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_module_of_a_test.py").write_text("value = 7\n")
    (tmp_path / "broken_module_of_a_test.py").write_text("def (:\n")
    use_code([str(tmp_path), str(tmp_path), str(tmp_path / "nowhere")])
    assert sys.path.count(str(tmp_path)) == 1 and sys.path[-1] == str(tmp_path)
    assert find("own_module_of_a_test:value", {}, where="x") == 7
    assert "invalid syntax" in wrong("broken_module_of_a_test:x").what


def target(first: object, second: object, *, depth: int, width: int = 1) -> None:
    """Takes options."""


def test_options_are_checked_against_the_signature() -> None:
    check_options(target, {"depth": 1}, given=2, where="x")
    check_options(dict, {"anything": 1}, given=0, where="x")
    for options in ({}, {"depth": 1, "hight": 2}):
        with pytest.raises(ConfigError) as caught:
            check_options(target, options, given=2, where="x.options")
        assert (caught.value.where, caught.value.remedy) == ("x.options", "It takes: depth, width")
