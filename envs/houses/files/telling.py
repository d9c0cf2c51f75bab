"""Trajectories with instructions that were checked: candidates that are untrue or ambiguous are drawn again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from envs.embedded.navmesh.pathfinder import PathFinder
from envs.houses.edition import SPEAKER
from envs.houses.files.episode_files import Told
from envs.houses.language.checker import check_clauses, check_text
from envs.houses.language.grammar import RXR_VOICES, Clause, voice
from envs.houses.language.instructions import Noise, brief, dense, noisy
from envs.houses.options import HousesConfig
from envs.houses.plan.house import House
from envs.houses.routes.trajectories import Trajectory, trajectories

PHRASINGS = (1, 2, 3)
"""How many texts share a trajectory, drawn evenly."""
SPEAKER_PHRASINGS = 4
_TRIES = 6
_SPEAKER_STARTS = 3


def tell(house: House, pathfinder: PathFinder, config: HousesConfig, rng: random.Random) -> Iterator[Told]:
    """Trajectories of a house, each with one to three R2R-like texts and an RxR-like one in every language.

    A trajectory for which no true and unambiguous text is found is left out.
    """
    edition = config.edition
    for trajectory in trajectories(house, pathfinder, rng, config.start_heading, near_kept=edition.near_kept):
        count = rng.choice(PHRASINGS)
        texts: list[str] = []
        for _ in range(count + _TRIES):
            text = _checked(house, trajectory, edition.voice, rng, config.clause_dropout)
            if text is not None and text not in texts:
                texts.append(text)
            if len(texts) == count:
                break
        long_texts = _rxr_texts(house, trajectory, rng) if texts else None
        if long_texts is not None:
            yield Told(house.scene_id, trajectory, tuple(texts), long_texts)


def speak(house: House, pathfinder: PathFinder, noise: Noise, rng: random.Random) -> Iterator[Told]:
    """Trajectories of a house as the machine speaker tells them, four different texts each, unchecked."""
    speaker = voice(SPEAKER)
    for trajectory in trajectories(house, pathfinder, rng, starts_per_room=_SPEAKER_STARTS):
        texts: list[str] = []
        while len(texts) < SPEAKER_PHRASINGS:
            text = speaker.say(noisy(brief(house, trajectory.route, rng), noise, rng), rng)
            if text not in texts:
                texts.append(text)
        yield Told(house.scene_id, trajectory, tuple(texts))


def speak_truly(house: House, pathfinder: PathFinder, rng: random.Random) -> Iterator[Told]:
    """The same by a speaker that does not err: every text is checked, and those that are wrong are told anew."""
    for trajectory in trajectories(house, pathfinder, rng, starts_per_room=_SPEAKER_STARTS):
        said = (_checked(house, trajectory, SPEAKER, rng) for _ in range(SPEAKER_PHRASINGS + _TRIES))
        texts = tuple(dict.fromkeys(text for text in said if text is not None))[:SPEAKER_PHRASINGS]
        if texts:
            yield Told(house.scene_id, trajectory, texts)


def _checked(
    house: House, trajectory: Trajectory, name: str, rng: random.Random, dropout: float = 0.0
) -> str | None:
    """What a voice says of a trajectory; None if it is untrue or ambiguous."""
    text = voice(name).say(brief(house, trajectory.route, rng, dropout), rng)
    return None if check_text(house, text, name, trajectory.yaw, _walk(trajectory)) else text


def _rxr_texts(house: House, trajectory: Trajectory, rng: random.Random) -> tuple[str, ...] | None:
    """The same clauses in all languages; None if none are found that are true of the walk."""
    for _ in range(_TRIES):
        clauses = dense(house, trajectory.route, rng)
        if check_clauses(house, clauses, trajectory.yaw, _walk(trajectory)):
            continue
        texts = tuple(voice(name).say(clauses, rng) for name in RXR_VOICES)
        for name, text in zip(RXR_VOICES, texts, strict=True):
            read = voice(name).read(text)
            assert read is not None, f"{name} cannot read its own text: {text}"
            if _gist(read) != _gist(clauses):
                raise AssertionError(f"{name} says something else: {text}")
        return texts
    return None


def _gist(clauses: Sequence[Clause]) -> list[tuple[object, ...]]:
    """What clauses say, whether or not they name the room where they are said."""
    return [(c.kind, c.side, c.ordinal, c.next, c.object) for c in clauses]


def _walk(trajectory: Trajectory) -> tuple[tuple[int, ...], tuple[tuple[float, float, float], ...]]:
    return trajectory.walk.actions, trajectory.walk.locations
