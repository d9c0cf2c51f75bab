from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from envs.embedded.assets import SceneAssets, check_container
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from vlnbench.errors import UsageError


@pytest.fixture
def scene(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recorded scene without its navmesh, and an empty cache."""
    monkeypatch.setenv("VLNBENCH_CACHE", str(tmp_path / "cache"))
    target = tmp_path / "room.glb"
    shutil.copy(shared / "goldens" / "habitat_sim" / "corridor_1LXtFkjw3qL" / "1LXtFkjw3qL.glb", target)
    return target


def test_a_navmesh_is_built_once_and_kept(scene: Path, tmp_path: Path) -> None:
    settings = NavMeshSettings()
    built = SceneAssets(scene).pathfinder(settings)
    (kept,) = (tmp_path / "cache" / "navmeshes").iterdir()
    before = kept.stat().st_mtime_ns
    again = SceneAssets(scene).pathfinder(settings)
    assert again.navigable_area == built.navigable_area > 50
    assert kept.stat().st_mtime_ns == before
    SceneAssets(scene).pathfinder(NavMeshSettings(agent_radius=0.2))
    assert len(list((tmp_path / "cache" / "navmeshes").iterdir())) == 2


def test_a_damaged_cache_entry_is_made_again(scene: Path, tmp_path: Path) -> None:
    area = SceneAssets(scene).pathfinder(NavMeshSettings()).navigable_area
    (kept,) = (tmp_path / "cache" / "navmeshes").iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    assert SceneAssets(scene).pathfinder(NavMeshSettings()).navigable_area == area


def test_a_shipped_navmesh_is_used_only_for_its_body(scene: Path, shared: Path) -> None:
    folder = shared / "goldens" / "habitat_sim" / "corridor_1LXtFkjw3qL"
    shutil.copy(folder / "navmesh_r020_h150.navmesh", scene.with_suffix(".navmesh"))
    wide = SceneAssets(scene).pathfinder(NavMeshSettings(agent_radius=0.2))
    narrow = SceneAssets(scene).pathfinder(NavMeshSettings())
    assert np.isclose(wide.settings.agent_radius, 0.2)
    assert np.isclose(narrow.settings.agent_radius, 0.1)
    assert narrow.navigable_area > wide.navigable_area


def test_a_broken_shipped_navmesh_is_an_error(scene: Path) -> None:
    scene.with_suffix(".navmesh").write_bytes(b"nonsense")
    with pytest.raises(UsageError, match=r"room\.navmesh"):
        SceneAssets(scene).pathfinder(NavMeshSettings())


def test_a_missing_scene_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.glb: scene file is missing"):
        SceneAssets(tmp_path / "nowhere.glb")


def test_a_sound_container_passes(scene: Path) -> None:
    check_container(scene)


@pytest.mark.parametrize("body", ["r010_h150", "r018_h088", "r020_h150"])
def test_a_built_navmesh_answers_like_the_recorded_one(
    shared: Path, tmp_path: Path, body: str, scene: Path
) -> None:
    """Scene file to geodesic distances, navmesh built on the way, against what habitat-sim answered."""
    folder = shared / "goldens" / "habitat_sim" / "corridor_1LXtFkjw3qL"
    radius, height = int(body[1:4]) / 100, int(body[6:9]) / 100
    pathfinder = SceneAssets(scene).pathfinder(NavMeshSettings(agent_radius=radius, agent_height=height))
    queries = np.load(folder / f"queries_{body}.npz")
    ours = [
        pathfinder.geodesic_distance(a, b) for a, b in zip(queries["pair_start"], queries["pair_end"], strict=True)
    ]
    np.testing.assert_allclose(ours, queries["pair_geodesic"], rtol=1e-5)
