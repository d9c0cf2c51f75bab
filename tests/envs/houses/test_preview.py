from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from envs.houses.edition import HOUSES
from envs.houses.preview.preview import preview
from tests.envs.houses.conftest import Generated
from vlnbench.cli import main
from vlnbench.errors import UsageError


@pytest.mark.slow
def test_the_command_draws_a_house(tiny: Generated, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, name = tmp_path / "house.png", "s3_train_001"
    options = ["--out", str(out), "--house", name, "--split", "train", "--data-root", str(tiny.root)]
    assert main(["data", "preview", *options]) == 0
    report = capsys.readouterr().out
    assert name in report
    assert "4 episodes of train" in report
    pixels = np.asarray(Image.open(out).convert("RGB"))
    height, width, _ = pixels.shape
    assert width == 1700
    drawn = (pixels != 255).any(axis=2)
    plans, text, frames = drawn[: height // 2], drawn[820:880], drawn[-300:]
    assert plans.mean() > 0.2
    assert 0.005 < text.mean() < 0.3
    assert frames.mean() > 0.3
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 5000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"house_name": "s9_train_000"}, "s3_unseen_000"),
        ({"split": "nowhere"}, "val_unseen"),
        ({"out": Path("house.pdf")}, ".png"),
        ({"out": Path("missing/house.png")}, "existing folder"),
        ({"episodes": 0}, "1 to 8"),
        ({"data_root": Path("nothing")}, "vlnbench data houses"),
    ],
)
def test_mistakes_are_one_line(tiny: Generated, tmp_path: Path, options: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "data_root": tiny.root,
        "edition": HOUSES,
        "out": Path("house.png"),
        "split": "val_unseen",
        "house_name": None,
        "episodes": 2,
    }
    arguments |= options
    for key in ("out", "data_root"):
        arguments[key] = tmp_path / str(arguments[key])
    with pytest.raises(UsageError, match=message) as error:
        preview(**arguments)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("*.png"))
