"""A choice of episodes: what it takes of a split, what it is called, and how this differs from the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vlnbench.errors import UsageError, unknown
from vlnbench.evaluation.choice.conditions import parse_conditions
from vlnbench.evaluation.choice.shape import SHAPES, average, scene_name
from vlnbench.util.durable.fields import TEXT, Kind, check_fields

if TYPE_CHECKING:  # the command line has a choice, and numpy is heavy
    from vlnbench.interfaces import Episode

CHOICE = ("episode_ids", "scenes", "languages", "where")
"""Options of an evaluation that make a choice."""

_MOST_NAMED = 3
_FIELDS = CHOICE[:3]
_NAMES = Kind("a list of names", lambda value: type(value) is list and all(map(TEXT.fits, value)))


@dataclass(frozen=True, slots=True)
class Choice:
    """Which episodes of a split are taken; what is empty leaves none out. All parts have to hold.

    scenes: scene ids, or the names of their files without ending. languages: codes such as en-US, or their first
    two letters. where: conditions, see `conditions`.
    """

    episode_ids: tuple[str, ...] = ()
    scenes: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    where: str = ""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Choice:
        """The choice that options of an evaluation make."""
        return cls(**{name: options[name] for name in CHOICE if name in options})

    def __bool__(self) -> bool:
        return any((self.episode_ids, self.scenes, self.languages, self.where.strip()))

    def check(self) -> None:
        """Raise UsageError for what can be no choice of any split."""
        parse_conditions(self.where)
        for name in _FIELDS:
            counts = Counter(getattr(self, name))
            twice = next((value for value, count in counts.items() if count > 1), None)
            if twice is not None or "" in counts:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option}: {f'{twice!r} stands there twice' if twice else 'an empty name'}")

    def select(self, episodes: Sequence[Episode]) -> tuple[Episode, ...]:
        """The chosen ones, in the order of the file. Raises UsageError for unknown names and an empty choice."""
        self.check()
        self._check_names(episodes)
        ids, scenes, languages = set(self.episode_ids), set(self.scenes), set(self.languages)
        conditions = parse_conditions(self.where)
        found = tuple(
            episode
            for episode in episodes
            if (not ids or episode.episode_id in ids)
            and (not scenes or not scenes.isdisjoint((episode.scene_id, scene_name(episode.scene_id))))
            and (not languages or not languages.isdisjoint(_codes(episode)))
            and all(condition.holds(episode) for condition in conditions)
        )
        if not found:
            raise UsageError(f"no episode of the {len(episodes)} of the split is left by {self.label}")
        return found

    def _check_names(self, episodes: Sequence[Episode]) -> None:
        """Raise UsageError for the first name that no episode has."""
        ids = {episode.episode_id for episode in episodes}
        scenes = {scene_name(episode.scene_id) for episode in episodes}
        languages = {code for episode in episodes for code in _codes(episode)}
        for name in self.episode_ids:
            if name not in ids:
                raise UsageError(f"unknown episode {name!r}: none of the {len(episodes)} of the split has this id")
        for name in self.scenes:
            if name not in scenes | _scene_ids(episodes):
                raise UsageError(unknown("scene of the split", name, scenes))
        for name in self.languages:
            if name not in languages:
                raise UsageError(unknown("language of the split", name, languages))

    @property
    def label(self) -> str:
        """What tables call it; empty for the whole split."""
        parts = [f"{len(self.episode_ids)} chosen by id"] if self.episode_ids else []
        parts += [_named("scene", self.scenes)] if self.scenes else []
        parts += [_named("language", self.languages)] if self.languages else []
        parts += [", ".join(map(str, parse_conditions(self.where)))] if self.where.strip() else []
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """For a manifest: everything that is needed to make the same choice again."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}


def read_choice(found: object, where: str) -> Choice:
    """The choice in a manifest; the whole split for None. Raises UsageError naming the field."""
    if found is None:
        return Choice()
    if not isinstance(found, dict):
        raise UsageError(f"{where}: field 'choice': expected an object")
    check_fields(found, {**dict.fromkeys(_FIELDS, _NAMES), "where": TEXT}, where, inside="choice.")
    names = {name: tuple(found.get(name, ())) for name in _FIELDS}
    return Choice(**names, where=found.get("where", ""))


def is_first(chosen: Sequence[Episode], episodes: Sequence[Episode]) -> bool:
    """Whether these are just the first ones of a file, which holds more."""
    return len(chosen) < len(episodes) and all(a is b for a, b in zip(chosen, episodes, strict=False))


def differences(chosen: Sequence[Episode], episodes: Sequence[Episode]) -> str:
    """In what the chosen episodes differ from those of the split, as far as the dataset tells, in one line."""
    parts = [f"{len(_scene_ids(chosen))} of {len(_scene_ids(episodes))} scenes"]
    for name, unit in zip(SHAPES, (" m", "", ""), strict=True):
        ours, whole = average(name, chosen), average(name, episodes)
        if ours is not None and whole is not None:
            parts.append(f"mean {name} {ours:.1f}{unit} (split {whole:.1f}{unit})")
    return ", ".join(parts)


def _named(noun: str, names: Sequence[str]) -> str:
    if len(names) > _MOST_NAMED:
        return f"{len(names)} {noun}s"
    return f"{noun}{'s' * (len(names) > 1)} {', '.join(names)}"


def _scene_ids(episodes: Iterable[Episode]) -> set[str]:
    return {episode.scene_id for episode in episodes}


def _codes(episode: Episode) -> set[str]:
    return {episode.language, episode.language[:2]}
