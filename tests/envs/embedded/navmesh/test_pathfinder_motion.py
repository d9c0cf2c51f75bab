"""Body motion: every recorded walk of habitat-sim, done again."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from envs.embedded.navmesh.motion import advance
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.sample import square_room
from vlnbench.interfaces import Action

IDENTITY = (0.0, 0.0, 0.0, 1.0)
WALKS = (("walks_turn15_sliding", "r010_h150", 15.0, True), ("walks_turn30_nosliding", "r018_h088", 30.0, False))


@pytest.fixture(scope="module")
def room() -> PathFinder:
    return PathFinder.from_polymesh(*square_room())


@pytest.mark.parametrize("scene", ["house_a", "simple_room", "corridor_1LXtFkjw3qL"])
@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk[0])
def test_recorded_walks(shared: Path, scene: str, walk: tuple[str, str, float, bool]) -> None:
    name, body, turn, sliding = walk
    folder = shared / "goldens" / "habitat_sim" / scene
    pathfinder = PathFinder.load(folder / f"navmesh_{body}.navmesh")
    with np.load(folder / f"{name}.npz") as file:
        walks = dict(file)
    for k in range(len(walks["actions"])):
        position, rotation = walks["start_position"][k], walks["start_rotation"][k]
        positions, rotations, collided = [], [], []
        for action in walks["actions"][k].tolist():
            position, rotation, hit = advance(pathfinder, position, rotation, action, 0.25, turn, sliding)
            positions.append(position)
            rotations.append(rotation)
            collided.append(hit)
        np.testing.assert_allclose(positions, walks["position"][k], rtol=0, atol=1e-6)
        np.testing.assert_allclose(rotations, walks["rotation"][k], rtol=0, atol=1e-7)
        assert collided == walks["collided"][k].tolist()


def test_forward_looks_along_minus_z(room: PathFinder) -> None:
    position, rotation, collided = advance(room, (1.0, 0.0, 1.0), IDENTITY, Action.MOVE_FORWARD, 0.25, 15.0, True)
    np.testing.assert_allclose(position, (1.0, 0.0, 0.75), atol=1e-6)
    np.testing.assert_array_equal(rotation, IDENTITY)
    assert not collided
    assert position.dtype == rotation.dtype == np.float32


def test_left_turn_is_positive_about_y(room: PathFinder) -> None:
    position, rotation, collided = advance(room, (1.0, 0.0, 1.0), IDENTITY, Action.TURN_LEFT, 0.25, 30.0, True)
    half = math.radians(15.0)
    np.testing.assert_allclose(rotation, (0.0, math.sin(half), 0.0, math.cos(half)), atol=1e-6)
    np.testing.assert_array_equal(position, (1.0, 0.0, 1.0))
    assert not collided
    _, back, _ = advance(room, position, rotation, Action.TURN_RIGHT, 0.25, 30.0, True)
    np.testing.assert_allclose(back, IDENTITY, atol=1e-6)


def test_a_wall_stops_or_deflects(room: PathFinder) -> None:
    slanted = (0.0, math.sin(math.pi / 8), 0.0, math.cos(math.pi / 8))
    start = (1.0, 0.0, 0.1)
    slid, _, hit = advance(room, start, slanted, Action.MOVE_FORWARD, 0.5, 15.0, True)
    stopped, _, also_hit = advance(room, start, slanted, Action.MOVE_FORWARD, 0.5, 15.0, False)
    assert hit
    assert also_hit
    np.testing.assert_allclose(slid, (1.0 - 0.5 * math.sqrt(0.5), 0.0, 0.0), atol=1e-5)
    np.testing.assert_allclose(stopped, (0.9, 0.0, 0.0), atol=1e-5)


def test_the_first_turn_puts_the_body_on_the_navmesh(room: PathFinder) -> None:
    position, _, collided = advance(room, (1.0, 0.15, 1.0), IDENTITY, Action.TURN_LEFT, 0.25, 15.0, True)
    assert position[1] == 0.0
    assert not collided


@pytest.mark.parametrize("action", [Action.STOP, 7])
def test_only_moves_are_moves(room: PathFinder, action: int) -> None:
    with pytest.raises(ValueError, match="does not move"):
        advance(room, (1.0, 0.0, 1.0), IDENTITY, action, 0.25, 15.0, True)
