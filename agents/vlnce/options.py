"""Options of VLN-CE's agents. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vlnbench.rollout.agent_options import DeviceOptions

MODEL_TYPE = "vlnce"
"""What config.json of a checkpoint folder calls itself."""
PTH = ".pth"
"""How the names of released checkpoints end."""


@dataclass(frozen=True, kw_only=True)
class VLNCEOptions(DeviceOptions):
    """How a checkpoint of VLN-CE is loaded and run. It computes in float32."""

    checkpoint: Path | None = None
    """File of a released checkpoint (.pth), which is read as data, nothing in it is run; a folder that training
    wrote, also on the Hugging Face hub (hf:ORG/NAME@REVISION); or the name of one that comes with vlnbench."""
    frames: Literal["own", "gray", "other"] = "own"
    """What is shown to it: its own frames; gray ones, in which nothing is to be seen; or those of another walk.
    That tells how far it uses what it sees."""
    frames_from: Path | None = None
    """With --frames other: folder of collected walks with depth, of which every episode draws one by its seed."""
    text_features: Path | None = None
    """Folder with the BERT features of RxR instructions (RxR_VLNCE_v0/text_features), where a model reads them."""
