"""Navmesh: building it, storing it, and the queries of habitat-sim's PathFinder."""

from __future__ import annotations

from collections.abc import Iterator

from vlnbench.interfaces import Action


def warm_up() -> Iterator[str]:
    """Compile every query kernel on a tiny navmesh, yielding a short label before each part.

    Machine code is cached on disk, so only the first run on a machine takes long.
    """
    from envs.embedded.navmesh.motion import advance
    from envs.embedded.navmesh.pathfinder import PathFinder
    from envs.embedded.navmesh.sample import square_room

    yield "navmesh tile"
    pathfinder = PathFinder.from_polymesh(*square_room())
    a, b = (0.5, 0.0, 0.5), (1.5, 0.0, 1.5)
    yield "navmesh projection"
    pathfinder.snap_point(a)
    pathfinder.is_navigable(a)
    yield "navmesh paths"
    pathfinder.find_path(a, b)
    pathfinder.geodesic_distances([a], [b])
    yield "navmesh steps"
    pathfinder.try_step(a, b)
    yield "navmesh body motion"
    for action in (Action.MOVE_FORWARD, Action.TURN_LEFT):
        advance(pathfinder, a, (0.0, 0.0, 0.0, 1.0), action, 0.25, 15.0, True)
    yield "navmesh obstacles"
    pathfinder.distance_to_closest_obstacle(a)
    yield "navmesh maps"
    pathfinder.get_topdown_view(0.5, 0.0)
    pathfinder.get_random_navigable_point()
