from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from agents.common.sets.recurrent import WalkSamples, collate
from agents.common.sets.views import VIEWS, ViewSamples, ViewSet
from agents.common.sight.rgbd import read_frame
from agents.common.sight.semantics import read_semantics
from agents.common.towers.resnet import GRID
from agents.vlnce.checkpoint import load
from agents.vlnce.family import TABLE
from agents.vlnce.options import FAMILY as VLNCE
from agents.vlnce.options import VLNCETraining
from tests.agents.questions import OBJECTS, ROOMS, SIZE, write_questions, write_semantics
from tests.agents.vlnce.test_family import CPU, options, write_released
from tests.agents.vlnce.walks import write_walks
from tests.families import Whole
from tests.training.rewarded import rewarded
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.training.family.trains import rule_of


def said(question: str, answer: str) -> list[dict[str, str]]:
    return [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]


class Made:
    """A small network, a set of walks and one of questions."""

    def __init__(self, folder: Path, count: int = 3, **changes: Any) -> None:
        write_walks(folder / "sets", "R2R")
        write_questions(folder / "sets/Questions", count)
        self.options = replace(options(folder, **changes), sets=("R2R", "Questions"))
        self.family, self.base = Whole(VLNCE), folder / "base"
        self.sets = [self.family.read_set(folder / "sets" / name, self.options) for name in ("R2R", "Questions")]
        self.family.create("cma-tiny", self.base, (text for each in self.sets for text in each.texts()), 0)
        self.learner = self.family.load(self.base, self.options, self.family.placement(self.options, CPU))

    def samples(self) -> tuple[WalkSamples, ViewSamples]:
        walks, views = self.family.samples(self.sets, self.learner, self.base, self.options, None)
        assert isinstance(walks, WalkSamples)
        assert isinstance(views, ViewSamples)
        return walks, views


def test_instructions_that_actions_answer_are_followed(tmp_path: Path) -> None:
    made = Made(tmp_path)
    _, views = made.samples()
    sample, (_, content) = views.sample(0, random.Random(0)), made.sets
    assert isinstance(content, ViewSet)
    assert content.counts == {"conversations": 3, "questions": 6}
    assert list(content.texts())[:2] == ["Face the red sofa.", "Face the door number 0."]
    forward, left, right = Action.MOVE_FORWARD, Action.TURN_LEFT, Action.TURN_RIGHT
    assert sample.labels[:, 0].tolist() == [right, forward, left, forward, right, forward]
    assert sample.rows[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert content.lengths() == [(1, 6)]
    files = (tmp_path / "sets/Questions/images/house/0001.jpg", tmp_path / "sets/Questions/depth/house/0001.png")
    rgb, depth = read_frame(*files, made.learner.whole.views)
    assert isinstance(sample.frames, tuple)
    assert torch.equal(sample.frames[0][1], rgb)
    assert torch.equal(sample.frames[1][1], depth)


def test_a_window_holds_views_from_all_over(tmp_path: Path) -> None:
    _, content = Made(tmp_path, count=2 * VIEWS + 1).sets
    assert isinstance(content, ViewSet)
    names = [[files[0].stem for files in content.files(window)] for window in range(content.windows)]
    assert len(names) == 3
    assert names[1][:3] == ["0001", "0004", "0007"]
    assert sorted(name for each in names for name in each) == [f"{i:04d}" for i in range(2 * VIEWS + 1)]
    assert max(map(len, names)) <= VIEWS


def test_a_batch_of_walks_and_views_costs_what_its_parts_do(tmp_path: Path) -> None:
    made = Made(tmp_path)
    both = [each.sample(0, random.Random(0)) for each in made.samples()]
    counts = [len(each.words) for each in both]
    alone = [made.learner(**collate([each])).item() for each in both]
    assert made.learner(**collate(both)).item() == pytest.approx(np.average(alone, weights=counts), abs=1e-5)
    assert made.learner(**collate(both[::-1])).item() == pytest.approx(np.average(alone, weights=counts), abs=1e-5)


def test_mirrored_views(tmp_path: Path) -> None:
    _, views = Made(tmp_path, mirror=1.0).samples()
    seen, plain = views.sample(0, random.Random(0)), views._sample(0)
    turned = torch.tensor([0, 1, 3, 2])
    assert torch.equal(seen.labels, turned[plain.labels])
    assert torch.equal(seen.frames[0], plain.frames[0].flip(2))  # type: ignore[union-attr]


def test_packed_views_and_kept_features_are_those_of_the_files(tmp_path: Path) -> None:
    plain = Made(tmp_path).samples()[1].sample(0, random.Random(0))
    made = Made(tmp_path / "other", packed=tmp_path / "packed")
    for one, other in zip(made.samples()[1].sample(0, random.Random(0)).frames, plain.frames, strict=True):
        assert torch.equal(one, other)  # type: ignore[arg-type]
    _, views = made.family.samples(made.sets, made.learner, made.base, options(tmp_path), lambda key: None)
    frames = views.sample(0, random.Random(0)).frames
    assert [frame.features for frame in frames] == [None] * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": False}, "3 of 3 depth images are missing, first"),
        ({"count": 1, "conversations": []}, "field 'conversations': expected turns of human and gpt by turns"),
        (
            {
                "count": 1,
                "conversations": [{"from": "human", "value": "<image> What?"}, {"from": "gpt", "value": "no"}],
            },
            "no instruction about one image that actions answer; make it with data questions",
        ),
    ],
)
def test_sets_that_do_not_serve(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write_questions(tmp_path / "Questions", **changes)
    with pytest.raises(UsageError, match=re.escape(message)):
        Whole(VLNCE).read_set(folder, options(tmp_path))


def test_a_folder_holds_walks_or_questions(tmp_path: Path) -> None:
    folder = write_questions(write_walks(tmp_path, "R2R") / "R2R")
    with pytest.raises(UsageError, match=r"R2R: holds both annotations.json and conversations.json; move one"):
        Whole(VLNCE).read_set(folder, options(tmp_path))


def test_other_objectives_and_networks_have_no_use_for_questions(tmp_path: Path) -> None:
    folder = write_questions(tmp_path / "sets/Questions")
    chosen = rewarded(VLNCETraining)(checkpoint="", out=tmp_path, objective="grpo")
    with pytest.raises(UsageError, match=re.escape("conversations.json: questions; for --objective grpo")):
        Whole(VLNCE).read_set(folder, chosen)
    write_released(tmp_path)
    family, chosen = Whole(VLNCE), options(tmp_path, str(tmp_path / "cma.pth"))
    learner = family.load(tmp_path / "cma.pth", chosen, family.placement(chosen, CPU))
    content = family.read_set(folder, chosen)
    with pytest.raises(UsageError, match="questions in words, and the checkpoint reads tokens of R2R"):
        family.samples([content], learner, tmp_path / "cma.pth", chosen, None)


def auxiliary(folder: Path, **changes: Any) -> Made:
    write_semantics(write_questions(folder / "sets/Questions"))
    return Made(folder, semantic_weight=5.0, **changes)


def test_cells_show_what_has_a_twentieth_of_their_pixels(tmp_path: Path) -> None:
    folder = write_semantics(write_questions(tmp_path / "Questions"))
    semantics = read_semantics(folder)
    assert semantics is not None
    shown = semantics.shown(folder / "semantic/house/0000.png", GRID)
    assert shown.shape == (OBJECTS + ROOMS, 4, 4)
    assert [tuple(at) for at in shown[:OBJECTS].nonzero().tolist()] == [(0, 3, 3), (2, 0, 0)]
    assert bool(shown[OBJECTS + 1].all())
    assert not bool(shown[OBJECTS].any())


def test_what_is_told_joins_the_loss_of_views_alone(tmp_path: Path) -> None:
    made = auxiliary(tmp_path)
    walk, view = (each.sample(0, random.Random(0)) for each in made.samples())
    assert walk.shown is None
    assert view.shown is not None
    learner, heads = made.learner, made.learner.auxiliary
    assert heads is not None
    for both in ([walk, view], [view, walk]):
        batch = collate(both)
        learner.auxiliary = None
        plain = learner(**batch).item()
        learner.auxiliary = heads
        assert isinstance(view.frames, tuple)
        rgb, depth = learner.see(view.frames[0], view.frames[1].float() / 255)
        told = functional.binary_cross_entropy_with_logits(
            heads.parts[0](rgb) + heads.parts[1](depth), view.shown.float(), pos_weight=torch.tensor(5.0)
        )
        assert learner(**batch).item() == pytest.approx(plain + 5 * told.item(), abs=1e-4)
    assert "shown" not in collate([walk])


def test_what_is_shown_is_kept_as_it_is(tmp_path: Path) -> None:
    plain = auxiliary(tmp_path, mirror=1.0).samples()[1].sample(0, random.Random(0)).shown
    made = auxiliary(tmp_path / "other", mirror=1.0, packed=tmp_path / "packed")
    views = made.samples()[1]
    for path in (tmp_path / "other/sets/Questions/semantic").rglob("*.png"):
        path.write_bytes(b"not read again")
    kept = views.sample(0, random.Random(0)).shown
    assert plain is not None
    assert kept is not None
    assert torch.equal(kept, plain)


def test_what_tells_is_made_from_the_seed_and_not_kept(tmp_path: Path) -> None:
    made = auxiliary(tmp_path)
    again = made.family.load(made.base, made.options, made.family.placement(made.options, CPU))
    for one, other in zip(made.learner.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert rule_of(TABLE, "auxiliary.parts.0.weight").part == "rgb_encoder"
    whole = made.family.shapes(made.learner)
    assert set(whole.state_dict()) == set(made.learner.state_dict())
    whole.load_state_dict(made.learner.state_dict(), assign=True)
    made.family.save(whole, tmp_path / "saved", made.base, made.options)
    assert load(tmp_path / "saved")[0].state_dict().keys() == load(made.base)[0].state_dict().keys()


def test_a_mirrored_view_shows_the_same_on_the_other_side(tmp_path: Path) -> None:
    _, views = auxiliary(tmp_path, mirror=1.0).samples()
    shown = views.sample(0, random.Random(0)).shown
    assert shown is not None
    assert [tuple(at) for at in shown[0, :OBJECTS].nonzero().tolist()] == [(0, 3, 0), (2, 0, 3)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"object": []}, "categories.json: expected lists of 1 to 255 names, by channel"),
        ({"image": np.zeros(SIZE, np.uint8)}, "0000.png: expected 2 channels of 8 bits, see categories.json"),
        ({"image": np.full((*SIZE, 2), 4, np.uint8)}, "numbers up to [4, 4], categories.json names [3, 2]"),
    ],
)
def test_semantics_that_do_not_serve(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write_semantics(write_questions(tmp_path / "Questions"), **changes)
    with pytest.raises(UsageError, match=re.escape(message)):
        read_semantics(folder).shown(folder / "semantic/house/0000.png", GRID)  # type: ignore[union-attr]


def test_semantic_images_have_to_be_there(tmp_path: Path) -> None:
    folder = write_semantics(write_questions(tmp_path / "Questions"))
    (folder / "semantic/house/0001.png").unlink()
    with pytest.raises(
        UsageError, match=r"1 of 3 semantic images are missing, first .*0001.png; make the set with"
    ):
        Whole(VLNCE).read_set(folder, options(tmp_path))


def test_sets_name_the_same(tmp_path: Path) -> None:
    family = Whole(VLNCE)
    for name, objects in (("One", ["bed"]), ("Same", ["bed"]), ("Other", ["sofa"])):
        folder = write_semantics(
            write_questions(tmp_path / name), image=np.zeros((*SIZE, 2), np.uint8), object=objects
        )
        if name != "Other":
            family.read_set(folder, options(tmp_path))
    with pytest.raises(
        UsageError, match=r"Other/categories.json: other names than .*One/categories.json; leave one"
    ):
        family.read_set(tmp_path / "Other", options(tmp_path))


def test_an_image_larger_than_any_camera_s(tmp_path: Path) -> None:
    folder = write_semantics(write_questions(tmp_path / "Questions"), image=np.zeros((1, 5000, 2), np.uint8))
    with pytest.raises(UsageError, match=r"0000.png: 5000x1 pixels, expected at most 4096"):
        read_semantics(folder).shown(folder / "semantic/house/0000.png", GRID)  # type: ignore[union-attr]


def test_nothing_to_tell(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--semantic-weight: no set knows what its frames show"):
        Made(tmp_path, semantic_weight=5.0)
