from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from vlnbench.errors import UsageError
from vlnbench.training import kept_frames
from vlnbench.training.kept_frames import keep_frames


def test_frames_that_are_kept_are_read_by_those_who_may_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = np.arange(6, dtype=np.uint8).reshape(3, 2)
    kept = keep_frames(tmp_path / "kept", "a", [3], 2, lambda item: frames)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["a.frames"]

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(kept_frames, "held", refuse)
    again = keep_frames(tmp_path / "kept", "a", [3], 2, lambda item: frames)
    assert (again.frames(0) == kept.frames(0)).all()
    with pytest.raises(UsageError, match=r"kept: cannot be written \(Read-only file system\)"):
        keep_frames(tmp_path / "kept", "b", [3], 2, lambda item: frames)
