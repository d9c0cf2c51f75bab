"""Options of VLN-CE's agents. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agents.common.sight.options import FramesOptions
from vlnbench.rollout.agent_options import DeviceOptions

MODEL_TYPE = "vlnce"
"""What config.json of a checkpoint folder calls itself."""
PTH = ".pth"
"""How the names of released checkpoints end."""


@dataclass(frozen=True, kw_only=True)
class VLNCEOptions(FramesOptions, DeviceOptions):
    """How a checkpoint of VLN-CE is loaded and run. It computes in float32."""

    checkpoint: Path | None = None
    """File of a released checkpoint (.pth), which is read as data, nothing in it is run; a folder that training
    wrote, also on the Hugging Face hub (hf:ORG/NAME@REVISION); or the name of one that comes with vlnbench."""
    text_features: Path | None = None
    """Folder with the BERT features of RxR instructions (RxR_VLNCE_v0/text_features), where a model reads them."""
