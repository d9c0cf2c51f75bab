"""The command that makes questions about images. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Questions:
    """Make a set of questions about images of the train houses to train on (LLaVA's layout). Resumable."""

    out: Path
    """Folder of the set, e.g. trajectory_data/Questions."""
    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""
    views: int = 12000
    """How many images, spread evenly over the train houses of the generated benchmark."""
    frame_width: int | None = None
    """Width of the pictures in pixels, the height follows; default the benchmark's camera."""
    seed: int = 0
    """Seed of the places and questions."""
    workers: int = 1
    """Processes that look."""

    def run(self) -> None:
        from vlnbench.training.collect.questions import QuestionsRequest, format_made, make_questions

        print(format_made(make_questions(QuestionsRequest(**vars(self))), self.out))
