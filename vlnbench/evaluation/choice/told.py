"""Instructions of other episodes told in place of an episode's own, which tells how far an agent follows them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from vlnbench.errors import UsageError
from vlnbench.interfaces import Episode

Told = Literal["own", "other"]
_DRAWS = 1000


def told_others(episodes: Sequence[Episode], there: Sequence[Episode]) -> tuple[Episode, ...]:
    """The episodes, each with the instruction of one of `there` in another scene and the same language.

    Which one depends on the ids alone. Raises UsageError where there is none.
    """
    pools: dict[str, list[Episode]] = defaultdict(list)
    for episode in sorted(there, key=lambda episode: episode.episode_id):
        pools[episode.language].append(episode)
    return tuple(_told(episode, pools[episode.language]) for episode in episodes)


def _told(episode: Episode, pool: Sequence[Episode]) -> Episode:
    draw = random.Random(f"{episode.episode_id}/told")
    drawn = (pool[draw.randrange(len(pool))] for _ in range(_DRAWS))
    other = next((each for each in drawn if each.scene_id != episode.scene_id), None)
    if other is None:
        raise UsageError(
            f"--told other: episode {episode.episode_id}: no instruction in {episode.language} of another scene"
        )
    return replace(
        episode,
        instruction=other.instruction,
        instruction_tokens=other.instruction_tokens,
        instruction_id=other.instruction_id,
    )
