"""Creating a run: what is checked, what is written, and in which order."""

import json
import time
from pathlib import Path

import pytest

from astraflow.bootstrap import check_config, create_run
from astraflow.config import RunConfig
from astraflow.problems import data_hash, problems_from_table
from astraflow.recipe import load_run_config
from storage import open_store
from storage.errors import ConfigError, StoreError
from storage.keys import RunKeys
from storage.memory import MemoryStore
from storage.store import Created
from storage.tables import read_table


def config(name: str = "first", **changes: object) -> RunConfig:
    table: dict[str, object] = {
        "name": name,
        "store": "memory://bootstrap",
        "policies": {"solver": {"model": "tiny-qwen3"}},
        "problems": {"source": "addition", "options": {"digits": 1, "count": 20}},
    }
    return RunConfig.model_validate(table | changes)


class Recorder(MemoryStore):
    """A memory store that remembers the order of writes, and may die before ``run.toml``."""

    def __init__(self, url: str, *, dies: bool = False) -> None:
        super().__init__(url)
        self.written: list[str] = []
        self.dies = dies

    def put(self, key: str, data: bytes) -> None:
        super().put(key, data)
        self.written.append(key)

    def create(self, key: str, data: bytes) -> Created:
        if self.dies and key.endswith("run.toml"):
            raise StoreError("the process died here", where=key, kind="unreachable")
        found = super().create(key, data)
        self.written.append(key)
        return found


def test_creates_problems_then_config() -> None:
    store = Recorder("memory://create")
    frozen = create_run(store, config())
    keys = RunKeys("first")
    problems = problems_from_table(read_table(store, keys.problems(frozen.data_hash)))
    assert (frozen.problem_count, data_hash(problems)) == (20, frozen.data_hash)
    assert load_run_config(store, "first") == frozen
    own = [key for key in store.written if key.startswith("first/")]
    assert own == [keys.problems(frozen.data_hash), keys.config]


def test_a_name_that_is_taken() -> None:
    store = MemoryStore("memory://taken")
    create_run(store, config())
    before = store.get("first/run.toml")
    with pytest.raises(ConfigError, match="already") as caught:
        create_run(store, config(seed=5))
    assert caught.value.kind == "run_exists"
    assert "--resume first" in caught.value.remedy
    assert store.get("first/run.toml") == before


def test_a_start_that_died_half_way_is_no_run() -> None:
    dying = Recorder("memory://half", dies=True)
    with pytest.raises(StoreError):
        create_run(dying, config())
    with pytest.raises(ConfigError, match="no run"):
        load_run_config(dying, "first")
    dying.dies = False
    assert create_run(dying, config()).problem_count == 20


def test_of_two_starts_at_once_one_creates() -> None:
    store = MemoryStore("memory://race")

    class Behind(Recorder):
        """Another start creates the run between the checks and the last write."""

        def create(self, key: str, data: bytes) -> Created:
            if key.endswith("run.toml"):
                super().create(key, b"# another\n")
            return super().create(key, data)

    with pytest.raises(ConfigError, match="already"):
        create_run(Behind("memory://behind"), config())
    assert create_run(store, config()).name == "first"


def refused(table: RunConfig) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_config(table)
    return caught.value


def test_no_such_model_folder(tmp_path: Path) -> None:
    error = refused(config(policies={"solver": {"model": str(tmp_path / "nowhere")}}))
    assert error.where == "policies.solver.model"
    assert "nowhere" in error.what


def test_model_folder_without_config(tmp_path: Path) -> None:
    assert "config.json" in refused(config(policies={"solver": {"model": str(tmp_path)}})).what


def test_bad_problem_line_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n{oops\n")
    assert f"{path}:2" in refused(config(problems={"source": str(path)})).where


def test_unknown_workflow_and_reward() -> None:
    assert "workflow.name" in refused(config(workflow={"name": "sovle"})).where
    problems = {"source": "addition", "reward": {"name": "exakt"}}
    assert "problems.reward" in refused(config(problems=problems)).where


def test_role_without_policy() -> None:
    error = refused(config(workflow={"name": "solve_and_verify"}))
    assert "verifier" in error.what


def test_pools_that_cannot_play_the_workflow() -> None:
    error = refused(
        config(
            workflow={"name": "solve_and_verify"},
            policies={"solver": {"model": "tiny-qwen3"}, "verifier": {"model": "tiny-qwen3"}},
            pools={"a": {"policies": ["solver"]}, "b": {"policies": ["verifier"]}},
        )
    )
    assert error.kind == "unplayable"
    assert "solver, verifier" in error.what


def test_policy_that_nobody_plays() -> None:
    error = refused(config(policies={"solver": {"model": "tiny-qwen3"}, "extra": {"model": "tiny-qwen3"}}))
    assert error.kind == "idle_policy"
    assert "extra" in error.what


@pytest.mark.parametrize(
    ("section", "where"),
    [
        ({"dataflow": {"curator": {"name": "shufled"}}}, "dataflow.curator.name"),
        ({"dataflow": {"filters": [{"name": "overlong"}]}}, "dataflow.filters[0].options"),
        ({"dataflow": {"replay": {"name": "latest", "options": {"ratio": 2}}}}, "dataflow.replay.options"),
        ({"trainer": {"loss": {"name": "nope"}}}, "policies.solver.trainer.loss.name"),
        ({"trainer": {"loss": {"name": "grpo", "options": {"clip": 1}}}}, "policies.solver.trainer.loss.options"),
    ],
)
def test_wrong_algorithms_are_found_before_anything_is_written(section: dict[str, object], where: str) -> None:
    store = MemoryStore()
    with pytest.raises(ConfigError) as caught:
        create_run(store, config(**section))
    assert caught.value.where == where
    assert list(store.list("")) == []


def test_evaluations_are_frozen_with_the_run() -> None:
    store = MemoryStore()
    problems = {"source": "addition", "options": {"digits": 1, "count": 20}}
    frozen = create_run(store, config(evaluations={"held": {"problems": problems, "repeats": 2}}))
    held = frozen.evaluations["held"]
    assert held.problem_count == 20 and held.data_hash not in ("", frozen.data_hash)
    assert len(problems_from_table(read_table(store, RunKeys("first").problems(held.data_hash)))) == 20
    assert load_run_config(store, "first") == frozen
    wrong = config(evaluations={"held": {"problems": problems, "role": "judge"}})
    assert refused(wrong).where == "evaluations.held.role"


def regional(**stores: str) -> RunConfig:
    return config(regions={name: {"store": url} for name, url in stores.items()})


def test_the_stores_of_regions_are_tried_like_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    store, near = Recorder("memory://regions"), Recorder("memory://region-tried")
    create_run(store, regional(home=store.url, near=near.url))
    assert near.written and all(key.startswith("probes/") for key in near.written)
    assert not list(near.list(""))

    def refuse(key: str, data: bytes) -> Created:
        raise StoreError("access was refused", where=f"{near.url}/{key}", remedy="Ask for write access", kind="denied")

    monkeypatch.setattr(near, "create", refuse)
    with pytest.raises(StoreError) as caught:
        create_run(Recorder("memory://regions-2"), regional(near=near.url))
    error = caught.value
    assert error.where.startswith(f"regions.near.store: {near.url}/")
    assert (error.kind, error.remedy) == ("denied", "Ask for write access")


def test_a_region_with_objects_of_another_run_of_the_name_is_refused() -> None:
    near = Recorder("memory://region-used")
    create_run(Recorder("memory://regions-3"), regional(near=near.url))
    near.put("first/trajectories/policy=solver/version=0/pool-a-1.parquet", b"rows of another root's run")
    with pytest.raises(ConfigError) as caught:
        create_run(Recorder("memory://regions-4"), regional(near=near.url))
    assert (caught.value.kind, caught.value.where) == ("region_taken", "regions.near.store")
    near.delete("first/trajectories/policy=solver/version=0/pool-a-1.parquet")
    near.put("first-2/trajectories/x", b"a run whose name begins alike")
    create_run(Recorder("memory://regions-4"), regional(near=near.url))


class Forgetful:
    """An own curator whose state no snapshot can hold."""

    def __init__(self, *, problem_count: int, seed: int) -> None:
        self.count = problem_count

    def state(self) -> dict[str, object]:
        return {"seen": {1, 2}}

    def restore(self, state: dict[str, object]) -> None:
        pass


def test_a_curator_that_no_snapshot_can_hold_is_found_before_anything_is_written() -> None:
    store = MemoryStore()
    with pytest.raises(ConfigError, match="does not go into a snapshot and back: TypeError") as caught:
        create_run(store, config(dataflow={"curator": {"name": f"{__name__}:Forgetful"}}))
    assert caught.value.where == "dataflow.curator.name"
    assert list(store.list("")) == []


@pytest.mark.parametrize(
    "key",
    ["first/trajectories/policy=solver/version=0/pool-a-1.parquet", "first/weights/solver/00000000/manifest.json"],
)
def test_a_run_does_not_begin_where_another_root_has_its_region(key: str) -> None:
    """It would take that run's weights for its own, and its maintenance the rows for what nobody needs."""
    store = MemoryStore()
    store.put(key, b"a region's")
    with pytest.raises(ConfigError) as caught:
        create_run(store, config())
    assert (caught.value.kind, caught.value.where) == ("run_exists", "name")
    assert key in caught.value.what and [info.key for info in store.list("")] == [key]


@pytest.mark.s3
def test_a_place_has_one_url_in_a_run(s3_store_url: str) -> None:
    """Records name rows' stores by URL: under a second one a region's rows would look as if nobody had named them."""
    store, again = open_store(s3_store_url), f"{s3_store_url}?region=us-east-1"
    for stores, region, owner in (
        ({"near": again}, "near", "the run"),
        ({"east": f"{s3_store_url}/east", "west": f"{s3_store_url}/east?region=us-east-1"}, "west", "'east'"),
    ):
        with pytest.raises(ConfigError) as caught:
            create_run(store, regional(**stores))
        assert (caught.value.kind, caught.value.where) == ("region_alias", f"regions.{region}.store")
        assert owner in caught.value.what
        assert list(store.list("")) == []
    create_run(store, regional(east=f"{s3_store_url}/east", west=f"{s3_store_url}/west", home=s3_store_url))


def test_a_store_that_loses_races_carries_no_run() -> None:
    class Racy(MemoryStore):
        """Checks, then writes; far away."""

        @property
        def url(self) -> str:
            return "s3://bucket"

        def create(self, key: str, data: bytes) -> Created:
            if any(True for _ in self.list(key)):
                return Created.EXISTED
            time.sleep(0.05)
            self.put(key, data)
            return Created.CREATED

    with pytest.raises(StoreError, match="let 2 of 2 writers") as caught:
        create_run(Racy(), config())
    assert caught.value.kind == "unsafe"
