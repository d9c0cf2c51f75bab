"""The smallest difference that a matrix can detect, from its episodes, scenes, seeds and the variances of SR."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vlnbench.evaluation.stats import told_apart
from vlnbench.matrix.statistics.contrasts import SEED, Contrast
from vlnbench.matrix.statistics.crossed import ENOUGH_DEGREES, Array, predicted
from vlnbench.matrix.statistics.effects import effects, pooled, results_of

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Components:
    """Variances of a rate from 0 to 1.

    training: of the means of trainings that differ in their seed, over infinitely many episodes. episode: of how
    one training does in one episode, apart from the others of its setting. scene: of the difference of two
    settings in a scene, apart from that in other scenes. source: where they are from, for people.
    """

    training: float
    episode: float
    scene: float
    source: str


ASSUMED = Components(0.025**2, 0.125, 0.1**2, "assumed")
"""Where nothing has been run: trainings 2.5 points apart; SR 50 %, and two trainings of a setting agree in 3 of 4
episodes; differences of settings vary by 10 points from scene to scene."""


@dataclass(frozen=True)
class Layout:
    """How one effect is measured.

    pairs: number of like pairs in each context. seeds: of every setting that tells how trainings spread. scenes:
    number of episodes in each. trained: whether trainings are compared, not ways to evaluate the same ones.
    """

    pairs: tuple[int, ...]
    seeds: tuple[int, ...]
    scenes: tuple[int, ...]
    trained: bool = True

    @property
    def degrees(self) -> int:
        """Of the variance between trainings."""
        return sum(each - 1 for each in self.seeds)

    def more_seeds(self, times: int) -> Layout:
        """With so many times the seeds everywhere."""
        pairs, seeds = (tuple(times * each for each in counts) for counts in (self.pairs, self.seeds))
        return replace(self, pairs=pairs, seeds=seeds)

    def more_episodes(self, times: int) -> Layout:
        """With so many times the episodes in the same scenes."""
        return replace(self, scenes=tuple(times * each for each in self.scenes))

    def more_scenes(self, times: int) -> Layout:
        """With so many times the scenes, of as many episodes each."""
        return replace(self, scenes=self.scenes * times)


def components(document: Mapping[str, Any], split: str, label: str) -> Components | None:
    """The variances that a finished matrix shows; None where no setting has two seeds, or episodes differ."""
    done = results_of(document["rows"], split, label)
    spreads = pooled(document["rows"], split, label)
    if spreads is None or spreads.degrees < ENOUGH_DEGREES:
        return None
    scenes = done[0]["scenes"][label]
    n = sum(size for size, _ in scenes.values())
    single = {**document, "contrasts": []}  # those of several pairs vary less from scene to scene
    between = [effect.rest for effect in effects(single, split, label) if effect.rest is not None]
    return Components(
        training=max(float(spreads.between - spreads.common), 0.0),
        episode=float(spreads.common) * n,
        scene=max(float(np.mean(between)), 0.0) * len(scenes) if between else ASSUMED.scene,
        source=f"{document['name']}, {len(done)} settings, {spreads.degrees} degrees of freedom between seeds",
    )


def detectable(layout: Layout, found: Components, comparisons: int = 1) -> float | None:
    """The smallest difference of rates that is told from 0 in 80 % of cases, at 5 % over all comparisons.

    None where one scene or no seeds leave nothing to tell it by.
    """
    if not layout.pairs or len(layout.scenes) < 2 or not layout.degrees:
        return None
    sizes: Array = np.array(layout.scenes, dtype=np.float64)
    # Scenes of unlike size are worth fewer of one size; a difference varies by scene, noise by episode.
    effective = float(sizes.sum() ** 2 / (sizes**2).sum())
    q = 2.0 * sum(1.0 / each for each in layout.pairs) / len(layout.pairs) ** 2
    between = q * (found.training * layout.trained + found.episode / float(sizes.sum()))
    se, degrees = predicted(found.scene / effective, between, layout.degrees, sizes)
    return min(1.0, told_apart(se, degrees, 0.05 / comparisons))


def layouts(
    labels: Sequence[Mapping[str, str]],
    asked: Iterable[Contrast],
    scenes: Sequence[int],
    trained: Sequence[Hashable],
) -> dict[Contrast, Layout]:
    """How every comparison will be measured, if all settings of a matrix are done.

    labels: of every setting by axis. trained: its training; those that differ in their evaluation alone share one.
    """
    known = dict(zip(map(_without, labels), trained, strict=True))
    return {each: _layout(known, each, tuple(scenes)) for each in asked}


def _layout(known: Mapping[Labels, Hashable], asked: Contrast, scenes: tuple[int, ...]) -> Layout:
    contexts: dict[tuple[str, Labels], set[tuple[Hashable, Hashable]]] = {}
    own = set()
    for name, against in asked.pairs:
        for each in map(dict, known):
            one, other = _without(each), _without({**each, asked.axis: against})
            if each[asked.axis] == name and other in known and asked.counts(each):
                contexts.setdefault((name, _without(each, asked.axis, SEED)), set()).add(
                    (known[one], known[other])
                )
                own |= {_without(dict(one), SEED), _without(dict(other), SEED)}
    seeds = _counts({each: known[each] for each in known if _without(dict(each), SEED) in own})
    if sum(each - 1 for each in seeds) < ENOUGH_DEGREES:
        seeds = _counts(known)
    distinct = dict.fromkeys(map(frozenset, contexts.values()))
    trained = any(one != other for pairs in distinct for one, other in pairs)
    return Layout(tuple(map(len, distinct)), seeds, scenes, trained or not distinct)


def _counts(known: Mapping[Labels, Hashable]) -> tuple[int, ...]:
    """Trainings of every setting, those that are only evaluated otherwise taken as one."""
    settings: dict[Labels, set[Hashable]] = {}
    for labels, training in known.items():
        settings.setdefault(_without(dict(labels), SEED), set()).add(training)
    return tuple(map(len, dict.fromkeys(map(frozenset, settings.values()))))


def _without(labels: Mapping[str, str], *axes: str) -> Labels:
    return tuple(sorted((axis, label) for axis, label in labels.items() if axis not in axes))
