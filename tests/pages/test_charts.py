"""The picture of a run: valid SVG that holds every policy's curves, downsampled, and nothing that is fetched."""

import base64
import xml.etree.ElementTree as ElementTree

import pytest

from astraflow.pages.charts import COLORS, POINTS, SMOOTH, downsample, run_charts, run_picture, smooth
from astraflow.pages.svg import data_url
from astraflow.query.curves import PolicyCurves

SVG = "{http://www.w3.org/2000/svg}"


def curves(steps: int, reward: float = 0.5) -> PolicyCurves:
    return PolicyCurves(
        reward=[(step, reward) for step in range(1, steps + 1)],
        lag_mean=[(step, 1.0) for step in range(1, steps + 1)],
        wait_ratio=[(step, 0.25) for step in range(1, steps + 1)],
        response_tokens=[(step, 3.5) for step in range(1, steps + 1)],
        delta_bytes=[(step, 1000.0) for step in range(steps + 1)],
        full_bytes=[(step, 50_000.0) for step in range(steps + 1)],
    )


def texts(svg: str) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_every_chart_has_its_unit_and_every_policy_its_colour() -> None:
    svg = run_picture({"solver": curves(30), "veri<fier": curves(20, 0.9)}, max_staleness=2)
    found = texts(svg)
    for title in ("Reward", "Staleness", "Waiting for data", "Answer length", "Weights shipped"):
        assert any(text.startswith(title) and len(text) > len(title) + 5 for text in found), title
    assert found.count("optimizer step") == 5
    assert {"solver", "veri<fier", "a full copy", "allowed: 2", "100%", "50 kB"} <= set(found)
    strokes = {line.get("stroke") for line in ElementTree.fromstring(svg).iter(f"{SVG}polyline")}
    assert set(COLORS[:2]) <= strokes
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in svg


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_that_begins_has_a_picture(steps: int) -> None:
    own = curves(steps) if steps else PolicyCurves()
    svg = run_picture({"solver": own}, max_staleness=0)
    assert texts(svg).count("no steps yet") == (0 if steps else 5)
    assert len(list(ElementTree.fromstring(svg).iter(f"{SVG}circle"))) == (8 if steps else 0)


def test_the_place_of_a_point_is_its_value() -> None:
    own = PolicyCurves(reward=[(step, 0.25) for step in range(1, 11)])
    root = ElementTree.fromstring(run_picture({"solver": own}, max_staleness=2))
    line = next(line for line in root.iter(f"{SVG}polyline") if line.get("stroke-width") == "2")
    heights = {point.split(",")[1] for point in (line.get("points") or "").split()}
    grid = {
        text.text: float(text.get("y", "")) - 4
        for text in list(root.iter(f"{SVG}text"))[:9]
        if text.get("text-anchor") == "end"
    }
    assert len(heights) == 1
    assert float(heights.pop()) == pytest.approx((3 * grid["0.2"] + grid["0.4"]) / 4, abs=0.1)


def test_long_runs_are_downsampled_to_means() -> None:
    long = [(step, float(step % 2)) for step in range(10_000)]
    points = downsample(long)
    assert len(points) == POINTS
    assert {y for _, y in points} == {0.5}
    assert sum(x for x, _ in points) / POINTS == pytest.approx(4999.5)
    assert downsample([(1, 0.5)]) == [(1.0, 0.5)]
    svg = run_picture({name: curves(10_000) for name in ("a", "b", "c")}, max_staleness=2)
    assert len(data_url(svg)) < 150_000


def test_the_thick_line_is_a_moving_mean() -> None:
    curve = [(step, float(step)) for step in range(100)]
    means = smooth(curve)
    assert means[0] == (0, 0.0)
    assert means[99] == (99, pytest.approx(sum(range(100 - SMOOTH, 100)) / SMOOTH))


def test_more_policies_than_colours_differ_in_dashes() -> None:
    many = {f"policy-{index:02d}": curves(3) for index in range(len(COLORS) + 2)}
    lines = [line for line in run_charts(many, max_staleness=1)[0].lines if line.name]
    assert len({(line.color, line.dash) for line in lines}) == len(many)


def test_a_data_url_is_the_picture() -> None:
    head, _, data = data_url("<svg/>").partition(",")
    assert (head, base64.b64decode(data)) == ("data:image/svg+xml;base64", b"<svg/>")


def test_a_version_without_a_change_is_a_gap_on_the_logarithmic_axis() -> None:
    own = PolicyCurves(
        delta_bytes=[(0, 900.0), (1, 0.0), (2, 0.0), (3, 80.0), (4, 70.0)],
        full_bytes=[(step, 1000.0) for step in range(5)],
    )
    root = ElementTree.fromstring(run_picture({"solver": own}, max_staleness=2))
    lines = [line for line in root.iter(f"{SVG}polyline") if line.get("stroke") == COLORS[0]]
    assert [len((line.get("points") or "").split()) for line in lines] == [2]
    assert len(list(root.iter(f"{SVG}circle"))) == 1
