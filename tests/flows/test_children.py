"""What a run consists of, and what the end of each part means."""

from __future__ import annotations

from astraflow.config import RunConfig
from flows.children import Need, children_of
from tests.flows.supervised import World


def test_children_of_a_run() -> None:
    specs = children_of(World(("east", "west")).config)
    assert [spec.key for spec in specs] == ["manager", "trainer-solver", "pool-east", "pool-west"]
    assert specs[1].parameters["policy"] == "solver"
    assert "policy:solver" in specs[2].tags


def test_what_a_childs_end_means() -> None:
    frozen = {"solver": {"model": "tiny-qwen3"}, "judge": {"model": "tiny-qwen3", "frozen": True}}
    needs = {spec.key: spec.need for spec in children_of(World(policies=frozen).config)}
    assert needs == {
        "manager": Need.THROUGHOUT,
        "trainer-judge": Need.ONCE,
        "trainer-solver": Need.THROUGHOUT,
        "pool-local": Need.SPARE,
    }


def test_only_a_region_with_a_store_has_a_mirror() -> None:
    base = World().config
    regions = {"east": {"store": "s3://east/x"}, "west": {"work_pool": "gpus"}, "idle": {"store": "s3://idle/x"}}
    pools = {"a": {"region": "east"}, "b": {"region": "west"}}
    config = RunConfig.model_validate({**base.model_dump(), "regions": regions, "pools": pools})
    specs = {spec.key: spec.deployments for spec in children_of(config)}
    assert specs["mirror-east"] == specs["pool-a"] == ("east", "local")
    assert specs["pool-b"] == ("west", "local")
    assert [key for key in specs if key.startswith("mirror")] == ["mirror-east"]


def test_more_pools_are_copies_of_the_regions_sections_in_turn() -> None:
    config = RunConfig.model_validate(
        {
            "name": "run",
            "policies": {"solver": {"model": "tiny-qwen3"}},
            "problems": {"source": "addition"},
            "pools": {"a": {"region": "west"}, "b": {"region": "west"}, "c": {}},
        }
    )

    def pools(counts: dict[str, int] | None) -> list[tuple[str, str, str]]:
        specs = children_of(config, counts)
        return [(spec.key, spec.label, spec.parameters["pool"]) for spec in specs if spec.role == "pool"]

    assert pools(None) == pools({"west": 2})
    assert pools({"west": 4, "local": 0}) == [
        ("pool-a", "pool/west/a", "a"),
        ("pool-b", "pool/west/b", "b"),
        ("pool-a/2", "pool/west/a/2", "a"),
        ("pool-b/2", "pool/west/b/2", "b"),
    ]
