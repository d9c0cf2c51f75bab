"""Questions about views as training samples: which action comes first on the way to what a view shows.

Of a set of questions (`data questions --depth`) the instructions are taken, which actions answer ("Face the red
sofa.", "←←"): each is the first step of a walk. They tie words to what is seen, which whole walks teach slowly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from agents.common.prompts.words import Words
from agents.common.sets.conversations import SYMBOLS, TAG, read_conversations
from agents.common.sets.recurrent import Sample, SetSamples
from agents.common.sight.options import Views
from agents.common.sight.pictures import beside, check_there
from agents.common.sight.rgbd import Files, Kept
from agents.common.sight.semantics import Semantics, read_semantics
from agents.common.sight.shown import Shown
from agents.common.towers.resnet import GRID
from vlnbench.data.sets import CONVERSATIONS
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.training.family.trains import Known

VIEWS = 8
"""How many views a window holds at most."""


@dataclass(frozen=True, slots=True)
class View:
    """RGB and depth image, what is asked with the action that comes first, where the semantic image would be."""

    files: tuple[Path, Path]
    asked: tuple[tuple[str, Action], ...]
    semantic: Path


@dataclass(frozen=True)
class ViewSet:
    """Views of which a window holds several, from all houses. semantics: what their pixels may belong to."""

    file: Path
    views: tuple[View, ...]
    semantics: Semantics | None = None
    kept: Kept | None = None

    @property
    def windows(self) -> int:
        return -(-len(self.views) // VIEWS)

    @property
    def counts(self) -> Mapping[str, int]:
        """Of each kind how many."""
        return {"conversations": len(self.views), "questions": sum(len(view.asked) for view in self.views)}

    def texts(self) -> Iterator[str]:
        """Questions."""
        for view in self.views:
            yield from (question for question, _ in view.asked)

    def lengths(self) -> list[tuple[int, ...]]:
        """(steps, questions) of every window."""
        return [(1, sum(len(view.asked) for view in self.views_of(index))) for index in range(self.windows)]

    def views_of(self, window: int) -> tuple[View, ...]:
        """Some that lie far apart in the set, so that they are of many houses."""
        return self.views[window :: self.windows]

    def files(self, window: int) -> Files:
        """RGB and depth image of every view of a window."""
        return [view.files for view in self.views_of(window)]

    @property
    def shown(self) -> Shown | None:
        """What the cells of every window's views show, if that is known."""
        if self.semantics is None:
            return None
        windows = map(self.views_of, range(self.windows))
        return Shown(self.semantics, [[view.semantic for view in window] for window in windows], GRID)


def read_views(folder: Path) -> ViewSet:
    """The views of a folder of questions about which something is asked that an action answers.

    Raises UsageError for records that break the format, missing images, and where there are no such questions.
    """
    views = []
    for each in read_conversations(folder):
        asked = tuple(
            (question.replace(TAG, "").strip(), SYMBOLS[answer[0]])
            for question, answer in each.turns
            if answer[:1] in SYMBOLS and not question.rstrip().endswith("?")
        )
        if asked and len(each.images) == 1:
            image = each.images[0]
            views.append(View((image, beside(folder, image, "depth")), asked, beside(folder, image, "semantic")))
    file, semantics = folder / CONVERSATIONS, read_semantics(folder)
    if not views:
        raise UsageError(
            f"{file}: no instruction about one image that actions answer; make it with data questions"
        )
    check_there(file, "depth", [view.files[1] for view in views])
    if semantics is not None:
        check_there(file, "semantic", [view.semantic for view in views])
    return ViewSet(file, tuple(views), semantics)


class ViewSamples(SetSamples):
    """The windows of a set of views, as samples of walks of one step."""

    def __init__(
        self,
        content: ViewSet,
        views: Views,
        words: Words,
        known: Known | None = None,
        mirror: float = 0.0,
        shown: Shown | None = None,
    ) -> None:
        """shown: what is to be told. Raises UsageError for a network that reads no words; see `SetSamples`."""
        super().__init__(content, views, words, known, mirror)
        if not words.numbers:
            raise UsageError(
                f"{content.file}: questions in words, and the checkpoint reads tokens of R2R; leave the set out"
            )
        self._views_of, self._shown = content.views_of, shown

    def _sample(self, index: int) -> Sample:
        asked = [(row, *pair) for row, view in enumerate(self._views_of(index)) for pair in view.asked]
        rows, questions, actions = zip(*asked, strict=True)
        labels = torch.tensor(actions)[:, None]
        return Sample(
            words=[torch.from_numpy(self._words.numbered(question)) for question in questions],
            walk_of=torch.arange(len(asked)),
            frames=self._frames(index),
            rows=torch.tensor(rows)[:, None],
            previous=torch.zeros_like(labels),
            labels=labels,
            weights=torch.ones_like(labels, dtype=torch.float32),
            progress=torch.zeros_like(labels, dtype=torch.float32),
            shown=None if self._shown is None else self._shown.of(index),
        )
