from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.common.sight.reader import FrameReader
from agents.streamvln.agent import Prompts
from agents.streamvln.family import samples_of
from agents.streamvln.options import FAMILY, StreamVLNTraining
from tests.agents.streamvln.test_conversations import write_set
from tests.agents.streamvln.test_prompt import Letters
from tests.agents.streamvln.test_samples import make_folder
from tests.families import Whole
from vlnbench.errors import UsageError
from vlnbench.training import data

STREAMVLN = Whole(FAMILY)
LENGTHS = [5, 40, 70, 9, 100, 33]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sets: R2R of trajectories and Questions of conversations."""
    root = tmp_path_factory.mktemp("sets")
    make_folder(root / "R2R", LENGTHS, ["Go.", "Go to the door and stop there."])
    write_set(root / "Questions")
    return root


def options(folders: Path, **changes: Any) -> StreamVLNTraining:
    settings = {"checkpoint": "streamvln-tiny", "out": folders / "out", "trajectories": folders, "workers": 0}
    usual = StreamVLNTraining.BEFORE
    return StreamVLNTraining(**{**settings, **usual, "sets": ("R2R", "Questions:5"), **changes})


def test_two_sets_of_one_name_lie_in_two_folders(folders: Path) -> None:
    """As StreamVLN's and JanusVLN's downloads have them: trajectory_data/R2R and dagger_data/R2R."""
    make_folder(folders / "dagger_data" / "R2R", LENGTHS[:2], ["Go."])
    root = folders.name
    asked = options(folders, sets=("R2R", f"../{root}/dagger_data/R2R:2"))
    sets = data.read_sets(asked, STREAMVLN)
    assert [each.name for each in sets] == ["R2R", f"../{root}/dagger_data/R2R"]
    assert [each.weight for each in sets] == [1.0, 2.0]
    assert data.count(sets)["R2R"]["trajectories"] == len(LENGTHS)
    assert data.count(sets)[f"../{root}/dagger_data/R2R"]["trajectories"] == 2


@pytest.mark.parametrize(("weight", "times"), [("", 1), (":3", 3), (":0.5", 0.5)])
@pytest.mark.parametrize("sets", [("R2R:2", "Questions"), ("Questions",)])
def test_steps_of_counts_sets_as_often_as_it_says(
    folders: Path, sets: tuple[str, ...], weight: str, times: float
) -> None:
    """Whether or not they are trained on, and how often."""
    asked = options(folders, sets=sets, steps_of=(f"R2R{weight}",), batch=1, accumulation=1)
    windows = 2 * sum(-(-length // 32) for length in LENGTHS)
    assert data.make_schedule(asked, STREAMVLN, data.read_sets(asked, STREAMVLN), 1).steps == times * windows


def test_a_conversation_counts_as_a_window(folders: Path) -> None:
    sets = data.read_sets(options(folders), STREAMVLN)
    windows = 2 * sum(-(-length // 32) for length in LENGTHS)
    assert [(each.windows, each.per_epoch) for each in sets] == [(windows, windows), (2, 10)]
    assert data.count(sets)["Questions"] == {
        "trajectories": 0,
        "instructions": 0,
        "conversations": 2,
        "windows": 2,
        "weight": 5.0,
    }
    schedule = data.make_schedule(options(folders), STREAMVLN, sets, 1)
    assert schedule == data.Schedule((windows + 10) // 4, 4, windows + 10)
    table = data.format_sets(sets, schedule)
    assert f"{windows + 10} windows" in table
    assert "Questions" in table
    assert set(sets[1].content.texts()) == {
        "<image>\nWhat do you see?",
        "red ball",
        "Face it.",
        "←←",
        "<image>\n<image>\nSame?",
        "no",
    }
    seen = Counter(data.order(sets, 0, 0))
    assert seen == {**dict.fromkeys(range(windows), 1), windows: 5, windows + 1: 5}


def test_the_digest_changes_with_the_conversations(folders: Path, tmp_path: Path) -> None:
    sets = data.read_sets(options(folders, sets=("Questions",)), STREAMVLN)
    write_set(tmp_path / "Questions", id="other")
    assert data.digest(sets) != data.digest(data.read_sets(options(tmp_path, sets=("Questions",)), STREAMVLN))


def test_a_folder_with_both_is_refused(tmp_path: Path) -> None:
    make_folder(write_set(tmp_path / "both"), [5])
    with pytest.raises(UsageError, match=r"both: holds both annotations.json and conversations.json; move one"):
        data.read_sets(options(tmp_path, sets=("both",)), STREAMVLN)


def batches(asked: StreamVLNTraining, world: int = 1, rank: int = 0, start: int = 0) -> list[list[data.Position]]:
    sets = data.read_sets(asked, STREAMVLN)
    return list(data.RankBatches(sets, data.make_schedule(asked, STREAMVLN, sets, world), asked, rank, start))


def frames(asked: StreamVLNTraining) -> list[int]:
    """How many images each window has, by what the dataset builds."""
    sets = data.read_sets(asked, STREAMVLN)
    prompts, reader = Prompts(Letters()), FrameReader(8)
    mixture = data.Mixture([samples_of(each.content, prompts, asked, reader) for each in sets])
    return [len(mixture[0, index].images) for index in range(len(mixture))]


@pytest.mark.parametrize("grouped", [False, True])
def test_every_window_is_seen_once_per_epoch_in_whole_batches(folders: Path, grouped: bool) -> None:
    asked = options(
        folders, group_by_length=grouped, epochs=6.0, batch=3, accumulation=2, sets=("R2R", "Questions")
    )
    found = batches(asked)
    assert {len(batch) for batch in found} == {3}
    seen = Counter(position for batch in found for position in batch)
    assert set(seen.values()) == {1}
    size = sum(each.windows for each in data.read_sets(asked, STREAMVLN))
    assert len(seen) == 6 * size
    assert set(Counter(epoch for epoch, _ in seen).values()) == {size}


def test_batches_of_like_length_waste_little_and_come_in_no_order(folders: Path) -> None:
    asked = options(folders, group_by_length=True, epochs=20.0)
    lengths = frames(asked)

    def padding(found: list[list[data.Position]]) -> float:
        sizes = [[lengths[index] for _, index in batch] for batch in found]
        return sum(len(batch) * max(batch) - sum(batch) for batch in sizes) / sum(map(sum, sizes))

    grouped, plain = batches(asked), batches(dataclasses.replace(asked, group_by_length=False))
    assert sorted(map(tuple, grouped)) != sorted(map(tuple, plain))
    assert padding(grouped) < 0.02
    assert padding(plain) > 0.2
    longest = [max(lengths[index] for _, index in batch) for batch in grouped]
    falls = sum(after < before for before, after in pairwise(longest))
    assert 0.25 * len(longest) < falls < 0.75 * len(longest)
    assert batches(asked) == grouped
    assert batches(dataclasses.replace(asked, seed=1)) != grouped


@pytest.mark.parametrize("grouped", [False, True])
def test_ranks_share_every_step_and_a_resumed_run_goes_on(folders: Path, grouped: bool) -> None:
    one = options(folders, group_by_length=grouped, epochs=3.0, batch=2, accumulation=4)
    alone = batches(one)
    two = dataclasses.replace(one, accumulation=2)
    ranks = [batches(two, world=2, rank=rank) for rank in (0, 1)]
    assert [batch for pair in zip(*ranks, strict=True) for batch in pair] == alone
    assert batches(one, start=3) == alone[3 * 4 :]
    assert batches(two, world=2, rank=1, start=3) == ranks[1][3 * 2 :]


@given(costs=st.lists(st.floats(0.1, 100), min_size=2, max_size=24), ranks=st.integers(1, 4))
def test_windows_are_dealt_so_that_no_rank_has_much_more_to_do(costs: list[float], ranks: int) -> None:
    takers = data.dealt(costs, ranks)
    load = [sum(cost for cost, taker in zip(costs, takers, strict=True) if taker == rank) for rank in range(ranks)]
    assert set(takers) == set(range(min(ranks, len(costs))))
    assert max(load) - min(load) <= max(costs) + 1e-9


def test_dealt_batches_hold_the_windows_of_all_ranks_once_under_their_owners(folders: Path) -> None:
    asked = options(folders, epochs=6.0, batch=3, accumulation=2, sets=("R2R", "Questions"))
    sets = data.read_sets(asked, STREAMVLN)
    schedule = data.make_schedule(asked, STREAMVLN, sets, 2)
    everyones = [data.RankBatches(sets, schedule, asked, rank, 1) for rank in range(2)]
    costs = [1.0 + length[0] for each in sets for length in each.content.lengths()]
    dealt = [data.DealtBatches(everyones, costs, rank) for rank in range(2)]
    owned = [list(batches) for batches in everyones]
    assert len(dealt[0]) == len(dealt[1]) == len(owned[0]) > 0
    for number in range(len(owned[0])):
        found = []
        for each in dealt:
            windows = list(each)[number]
            assert windows
            found += zip(each.owners[number], windows, strict=True)
        assert sorted(found) == sorted((owner, window) for owner in range(2) for window in owned[owner][number])


def test_ranks_have_windows_of_like_length_at_the_same_time(folders: Path) -> None:
    """Or else one of them has a peak of its own, and the others wait for it."""
    sets = data.read_sets(options(folders), STREAMVLN)
    lengths = [length for each in sets for length in each.content.lengths()]

    def difference(**changes: Any) -> int:
        asked = options(folders, epochs=5.0, batch=1, accumulation=2, group_by_length=True, **changes)
        found = [batches(asked, world=2, rank=rank) for rank in range(2)]
        pairs = zip(*([lengths[batch[0][1]][0] for batch in each] for each in found), strict=True)
        return sum(abs(one - other) for one, other in pairs)

    assert difference(group_ranks=True) < difference() / 3
    with pytest.raises(UsageError, match="--group-ranks: needs --group-by-length"):
        options(folders, group_ranks=True).check()
