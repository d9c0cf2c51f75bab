"""Questions about views as training samples: which action comes first on the way to what a view shows.

Of a set of questions (`data questions --depth`) the instructions are taken, which actions answer ("Face the red
sofa.", "←←"): each is the first step of a walk. They tie words to what is seen, which whole walks teach slowly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from agents.common.sets.conversations import SYMBOLS, TAG, read_conversations
from agents.common.sight.pictures import beside, check_there
from agents.common.sight.semantics import Semantics, read_semantics
from agents.common.sight.shown import Shown
from agents.vlnce.config import Config
from agents.vlnce.resnet import GRID
from agents.vlnce.training.frames import Files, Packed, PackedFeatures
from agents.vlnce.training.samples import Sample, SetSamples
from vlnbench.data.sets import CONVERSATIONS
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.training.family.trains import Known

VIEWS = 8
"""How many views an album holds at most."""


@dataclass(frozen=True, slots=True)
class View:
    """RGB and depth image, what is asked with the action that comes first, where the semantic image would be."""

    files: tuple[Path, Path]
    asked: tuple[tuple[str, Action], ...]
    semantic: Path


@dataclass(frozen=True)
class AlbumSet:
    """Views of which a window holds several, from all houses. semantics: what their pixels may belong to. packed:
    their frames, where they are kept decoded."""

    file: Path
    views: tuple[View, ...]
    semantics: Semantics | None = None
    packed: Packed | PackedFeatures | None = None

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
        return [(1, sum(len(view.asked) for view in self.album(index))) for index in range(self.windows)]

    def album(self, window: int) -> tuple[View, ...]:
        """Views that lie far apart in the set, so that they are of many houses."""
        return self.views[window :: self.windows]

    def frame_counts(self) -> list[int]:
        """How many views each window has."""
        return [len(self.album(window)) for window in range(self.windows)]

    def files(self, window: int) -> Files:
        """RGB and depth image of every view of a window."""
        return [view.files for view in self.album(window)]

    @property
    def shown(self) -> Shown | None:
        """What the cells of every window's views show, if that is known."""
        if self.semantics is None:
            return None
        albums = map(self.album, range(self.windows))
        return Shown(self.semantics, [[view.semantic for view in album] for album in albums], GRID)


def read_albums(folder: Path) -> AlbumSet:
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
    return AlbumSet(file, tuple(views), semantics)


class AlbumSamples(SetSamples):
    """The windows of a set of views, as samples of walks of one step."""

    def __init__(
        self,
        content: AlbumSet,
        config: Config,
        known: Known | None,
        mirror: float = 0.0,
        shown: Shown | None = None,
    ) -> None:
        """shown: what is to be told. Raises UsageError for a network that reads no words; see `SetSamples`."""
        super().__init__(config, known, mirror)
        if not config.vocabulary:
            raise UsageError(
                f"{content.file}: questions in words, and the checkpoint reads tokens of R2R; leave the set out"
            )
        self._content, self._shown = content, shown

    def __len__(self) -> int:
        return self._content.windows

    def _sample(self, index: int) -> Sample:
        album = self._content.album(index)
        asked = [(row, *pair) for row, view in enumerate(album) for pair in view.asked]
        rows, questions, actions = zip(*asked, strict=True)
        labels = torch.tensor(actions)[:, None]
        return Sample(
            words=[self._numbered(question) for question in questions],
            walk_of=torch.arange(len(asked)),
            frames=self._frames(index, self._content, self._content.packed),
            rows=torch.tensor(rows)[:, None],
            previous=torch.zeros_like(labels),
            labels=labels,
            weights=torch.ones_like(labels, dtype=torch.float32),
            progress=torch.zeros_like(labels, dtype=torch.float32),
            shown=None if self._shown is None else self._shown.of(index),
        )
