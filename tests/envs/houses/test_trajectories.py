"""Trajectories of a house: their lengths are spread as far as the house allows."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from itertools import islice

from envs.embedded.navmesh.pathfinder import PathFinder
from envs.houses.plan.house import make_house
from envs.houses.routes.trajectories import LENGTH_BANDS_M, trajectories
from tests.envs.houses.conftest import Generated


def test_the_first_trajectories_are_of_all_lengths(tiny: Generated) -> None:
    name = "s3_train_000"
    house = make_house(name, tiny.config)
    pathfinder = PathFinder.load(tiny.root / f"scene_datasets/houses/{name}/{name}.navmesh")
    bands = len(LENGTH_BANDS_M) - 1
    found = [
        bisect_right(LENGTH_BANDS_M, trajectory.geodesic) - 1
        for trajectory in islice(trajectories(house, pathfinder, random.Random(5)), 3 * bands)
    ]
    assert sorted(set(found[:bands])) == sorted(found[:bands]), "one of each before a second of any"
    counts = Counter(found)
    assert set(counts) <= set(range(bands))
    assert len(counts) >= 7, "this house is large"
    assert max(counts.values()) - sorted(counts.values())[len(counts) // 2] <= 1
