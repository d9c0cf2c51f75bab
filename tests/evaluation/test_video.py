"""Where the file of a video may not go. What it shows is tested with the commands that make one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.fakes import PlaneEnv, make_episode
from vlnbench.errors import UsageError
from vlnbench.evaluation.video import write_video
from vlnbench.interfaces import Action, Observation, Pose, Trajectory


class Seen(PlaneEnv):
    def _observe(self) -> Observation:
        return replace(super()._observe(), rgb=np.zeros((48, 64, 3), np.uint8))


EPISODE = make_episode(1)
POSE = Pose(EPISODE.start_position, EPISODE.start_rotation)
WALK = Trajectory((POSE, POSE), (Action.STOP,), (False,), (1.0, 1.0))


def test_a_link_in_the_place_of_half_a_video_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / ".a.gif.part.gif").symlink_to(target)
    write_video(tmp_path / "a.gif", Seen(), EPISODE, WALK)
    assert target.read_text() == "mine"
    assert (tmp_path / "a.gif").read_bytes()[:4] == b"GIF8"


def test_a_link_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "videos").symlink_to(elsewhere)
    with pytest.raises(UsageError, match="videos: a link, through which nothing is written"):
        write_video(tmp_path / "videos" / "a.gif", Seen(), EPISODE, WALK)
    assert list(elsewhere.iterdir()) == []
