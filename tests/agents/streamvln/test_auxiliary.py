from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from agents.streamvln import network as checkpoint
from agents.streamvln.family import StreamVLNSet
from agents.streamvln.options import FAMILY as STREAMVLN
from agents.streamvln.options import StreamVLNTraining
from agents.streamvln.samples import collate
from tests.agents.questions import write_questions, write_semantics
from tests.agents.streamvln.test_samples import make_folder
from tests.families import Whole
from vlnbench.errors import UsageError

CPU = torch.device("cpu")


class Made:
    """A small network, a set of questions whose semantics are known and one of walks."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.options = StreamVLNTraining(
            checkpoint="preset:streamvln-tiny",
            out=folder / "out",
            trajectories=folder,
            sets=("Questions", "Walks"),
            augment=False,
            **StreamVLNTraining.BEFORE,
            **{"semantic_weight": 5.0, **changes},
        )
        write_semantics(write_questions(folder / "Questions"))
        make_folder(folder / "Walks", [5])
        self.family, self.base = Whole(STREAMVLN), folder / "base"
        self.sets: list[StreamVLNSet] = [
            self.family.read_set(folder / name, self.options) for name in self.options.sets
        ]
        self.family.create("streamvln-tiny", self.base, (text for each in self.sets for text in each.texts()), 0)
        self.model = self.load()

    def load(self, **changes: Any) -> Any:
        chosen = replace(self.options, **changes)
        return self.family.load(self.base, chosen, self.family.placement(chosen, CPU))

    def all_samples(self) -> list[Any]:
        return self.family.samples(self.sets, self.model, self.base, self.options, None)

    def samples(self) -> list[Any]:
        return [each.sample(0, random.Random(0)) for each in self.all_samples()]


def test_what_is_told_joins_the_loss_of_questions_alone(tmp_path: Path) -> None:
    made = Made(tmp_path)
    question, walk = made.samples()
    assert walk.shown is None
    grid = made.model.config.vision.grid
    assert question.shown.shape == (1, 5, grid, grid)
    heads = made.model.auxiliary
    for both in ([walk, question], [question, walk], [question, question]):
        batch = collate(both)
        made.model.auxiliary = None
        plain = made.family.loss(made.model, batch).item()
        made.model.auxiliary = heads
        patches = made.model.patch_features(question.images).transpose(1, 2).unflatten(2, (grid, grid))
        told = functional.binary_cross_entropy_with_logits(
            heads.parts[0](patches), question.shown.float(), pos_weight=torch.tensor(5.0)
        )
        loss = made.family.loss(made.model, batch)
        assert loss.item() == pytest.approx(plain + 5 * told.item(), abs=1e-4)
    assert "shown" not in collate([walk])
    loss.backward()
    assert heads.parts[0].weight.grad is not None


def test_networks_that_pad_are_told_the_same(tmp_path: Path) -> None:
    """With and without the loss that takes fewer calls."""
    made = Made(tmp_path)
    batch = collate(made.samples())
    packed = made.family.loss(made.model, batch).item()
    made.model.packed_loss = None
    assert made.family.loss(made.model, batch).item() == pytest.approx(packed, abs=1e-4)


def test_a_mirror_turns_what_is_shown_too(tmp_path: Path) -> None:
    """By the option: pictures and what their cells show, of questions and of walks."""
    plain, seen = Made(tmp_path / "plain").samples(), Made(tmp_path / "seen", mirror=1.0).samples()
    assert torch.equal(seen[0].shown, plain[0].shown.flip(3))
    assert not torch.equal(seen[0].shown, plain[0].shown)
    for one, other in zip(seen, plain, strict=True):
        assert torch.equal(one.images, other.images.flip(3))


def test_what_is_shown_is_kept_as_it_is(tmp_path: Path) -> None:
    plain = Made(tmp_path / "plain").samples()[0]
    made = Made(tmp_path / "other", packed=tmp_path / "packed")
    questions = made.all_samples()[0]
    for path in (tmp_path / "other/Questions/semantic").rglob("*.png"):
        path.write_bytes(b"not read again")
    kept = questions.sample(0, random.Random(0))
    assert torch.equal(kept.shown, plain.shown)
    assert torch.equal(kept.images, plain.images)


def test_what_tells_is_made_from_the_seed_and_not_kept(tmp_path: Path) -> None:
    made = Made(tmp_path)
    assert torch.equal(made.load().auxiliary.parts[0].weight, made.model.auxiliary.parts[0].weight)
    other = made.load(seed=1).auxiliary.parts[0].weight
    assert not torch.equal(other, made.model.auxiliary.parts[0].weight)
    assert made.family.part_of("auxiliary.parts.0.weight") == "mm_vision_tower"
    whole = made.family.shapes(made.model)
    assert set(whole.state_dict()) == set(made.model.state_dict())
    whole.load_state_dict(made.model.state_dict(), assign=True)
    made.family.save(whole, tmp_path / "saved", made.base, made.options)
    assert whole.auxiliary is not None
    assert (
        checkpoint.load(tmp_path / "saved").state_dict().keys() == checkpoint.load(made.base).state_dict().keys()
    )


def test_without_the_option_nothing_is_read_or_told(tmp_path: Path) -> None:
    made = Made(tmp_path, semantic_weight=0.0)
    assert made.model.auxiliary is None
    assert [sample.shown for sample in made.samples()] == [None, None]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tunable_parts": ("mm_language_model",)}, "mm_vision_tower is not in --tunable-parts"),
        ({"feature_cache": Path("cache")}, "leave --semantic-weight out"),
    ],
)
def test_options_that_do_not_go_with_it(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    options = StreamVLNTraining(
        checkpoint="streamvln-tiny", out=tmp_path, augment=False, **{"semantic_weight": 5.0, **changes}
    )
    with pytest.raises(UsageError, match=re.escape(message)):
        options.check_auxiliary("mm_vision_tower", options.parts, cached=options.feature_cache is not None)


def test_semantic_images_have_to_be_there(tmp_path: Path) -> None:
    made = Made(tmp_path)
    (tmp_path / "Questions/semantic/house/0002.png").unlink()
    with pytest.raises(UsageError, match="1 of 3 semantic images are missing"):
        made.family.read_set(tmp_path / "Questions", made.options)
    with pytest.raises(UsageError, match="no set knows what its frames show"):
        Whole(STREAMVLN).load(made.base, made.options, made.family.placement(made.options, CPU))
