"""The rules of the embedded shortest-path follower, in a square room of 2 m."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from envs.embedded.follower import GreedyFollower, _headings
from envs.embedded.navmesh.motion import advance
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.sample import square_room
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.interfaces import Action, Embodiment, Pose, Vec3

ROOM = PathFinder.from_polymesh(*square_room())
BODY = get_benchmark("r2r-ce").body
MIDDLE: Vec3 = (1.0, 0.0, 1.1)
"""Off the edge between the room's two triangles: on it, Detour's moves (and so habitat-sim's) can jump."""
LEFT: Vec3 = (0.1, 0.0, 1.1)
RIGHT: Vec3 = (1.9, 0.0, 1.1)
inside = st.floats(0.0625, 1.9375, width=32)


def facing(position: Vec3, yaw_deg: float = 0.0) -> Pose:
    """A body at a position; yaw 0 looks along -z, positive yaw turns left."""
    half = math.radians(yaw_deg) / 2
    return Pose(position, (0.0, math.sin(half), 0.0, math.cos(half)))


def first_action(pose: Pose, goal: Vec3, body: Embodiment = BODY) -> Action:
    return GreedyFollower(ROOM, body, 0.5).next_action(pose, [goal])


@pytest.mark.parametrize(("distance", "action"), [(0.49, Action.STOP), (0.51, Action.MOVE_FORWARD)])
def test_it_stops_inside_the_goal_radius(distance: float, action: Action) -> None:
    assert first_action(facing(MIDDLE), (1.0, 0.0, 1.1 - distance)) == action


def test_it_stops_where_no_goal_can_be_reached() -> None:
    assert first_action(facing(MIDDLE), (900.0, 0.0, 0.0)) == Action.STOP


@pytest.mark.parametrize(("goal", "action"), [(LEFT, Action.TURN_LEFT), (RIGHT, Action.TURN_RIGHT)])
def test_it_turns_to_the_side_of_the_goal(goal: Vec3, action: Action) -> None:
    assert first_action(facing(MIDDLE), goal) == action


def test_it_goes_to_the_nearest_of_several_goals() -> None:
    follower = GreedyFollower(ROOM, BODY, 0.5)
    assert follower.next_action(facing(MIDDLE), [LEFT, (1.8, 0.0, 1.1)]) == Action.TURN_RIGHT


@pytest.mark.parametrize(
    ("x", "action"), [(0.17, Action.TURN_RIGHT), (1.0, Action.MOVE_FORWARD), (1.83, Action.TURN_LEFT)]
)
def test_it_leaves_a_wall_that_it_would_walk_along(x: float, action: Action) -> None:
    body = Embodiment(camera=BODY.camera, turn_deg=10.0)
    assert first_action(facing((x, 0.0, 1.9)), (x, 0.0, 0.2), body) == action


def test_after_sixteen_alternating_turns_it_carries_one_plan_through() -> None:
    here, beyond = facing(MIDDLE, yaw_deg=0.0), facing(MIDDLE, yaw_deg=180.0)
    follower = GreedyFollower(ROOM, BODY, 0.5)
    pushed_about = [follower.next_action(pose, [LEFT]) for pose in [here, beyond] * 8]
    assert pushed_about == [Action.TURN_LEFT, Action.TURN_RIGHT] * 8
    plan = [follower.next_action(pose, [LEFT]) for pose in [here, beyond] * 3 + [here]]
    assert plan == [Action.TURN_LEFT] * 6 + [Action.MOVE_FORWARD]


def test_another_goal_ends_the_plan() -> None:
    here, beyond = facing(MIDDLE, yaw_deg=0.0), facing(MIDDLE, yaw_deg=180.0)
    follower = GreedyFollower(ROOM, BODY, 0.5)
    for pose in [*[here, beyond] * 8, here]:
        follower.next_action(pose, [LEFT])
    assert follower.next_action(here, [RIGHT]) == Action.TURN_RIGHT


@pytest.mark.parametrize(("turn_deg", "headings"), [(10, 19), (15, 13), (30, 7), (45, 4), (60, 3), (90, 2)])
def test_headings_are_counted_in_single_precision(turn_deg: float, headings: int) -> None:
    assert _headings(turn_deg) == headings


@settings(max_examples=60, deadline=None)
@given(start=st.tuples(inside, inside), goal=st.tuples(inside, inside), yaw_deg=st.floats(-180.0, 180.0))
def test_it_arrives_from_anywhere(start: tuple[float, float], goal: tuple[float, float], yaw_deg: float) -> None:
    target: Vec3 = (goal[0], 0.0, goal[1])
    pose = facing((start[0], 0.0, start[1]), yaw_deg)
    follower = GreedyFollower(ROOM, BODY, 0.5)
    for _ in range(40):  # half a turn, and the diagonal with a detour
        assume(abs(pose.position[0] - pose.position[2]) > 1e-4)  # see MIDDLE
        action = follower.next_action(pose, [target])
        if action == Action.STOP:
            break
        position, rotation, _ = advance(ROOM, pose.position, pose.rotation, action, 0.25, 15.0, True)
        x, y, z = map(float, position)
        i, j, k, w = map(float, rotation)
        pose = Pose((x, y, z), (i, j, k, w))
    assert action == Action.STOP
    assert ROOM.geodesic_distance(np.array(pose.position), target) < 0.5
