"""Check the instructions of generated episode files against their houses and ground-truth walks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from envs.houses.edition import Edition
from envs.houses.files.manifest import read_config
from envs.houses.language.checker import check_text
from envs.houses.language.grammar import RXR_VOICES
from envs.houses.plan.house import House, make_house
from vlnbench.interfaces import Episode


@dataclass(frozen=True)
class Verdict:
    """How many instructions were checked and have a problem, by kind of clause, and the first such problem."""

    checked: int
    wrong: int
    problems: dict[str, int]
    first: str


def verify(root: Path, edition: Edition, episodes: Sequence[Episode], voice: str | None = None) -> Verdict:
    """Check every instruction of some episodes with ground truth; their houses are made anew from the manifest.

    `voice`: the grammar to read with; default that of the episode's language. Raises UsageError if the manifest
    does not tell the configuration.
    """
    config = read_config(root, edition)

    @cache
    def house_of(scene_id: str) -> House:
        return make_house(PurePosixPath(scene_id).parent.name, config)

    wrong, first = 0, ""
    problems: Counter[str] = Counter()
    for episode in episodes:
        assert episode.ground_truth is not None
        _, y, _, w = episode.start_rotation
        walk = episode.ground_truth.actions, episode.ground_truth.locations
        name = voice or (episode.language if episode.language in RXR_VOICES else edition.voice)
        found = check_text(
            house_of(episode.scene_id), episode.instruction, name, 2 * math.degrees(math.atan2(y, w)), walk
        )
        problems.update({problem.partition(":")[0] for problem in found})
        if found:
            first = first or f"episode {episode.episode_id}: {found[0]}"
            wrong += 1
    return Verdict(len(episodes), wrong, dict(sorted(problems.items())), first)
