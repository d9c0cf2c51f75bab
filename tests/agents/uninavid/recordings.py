"""The folder of the reference recordings of the published code, as the tests read it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.agents.recorded import traces

FOLDER = "model_zoo/uninavid-7b-full-224-video-fps-1-grid-2"
TOWER = "model_zoo/eva_vit_g.pth"


def tiny_folder(goldens: Path, made: Path) -> Path:
    """The recorded folder, whose config.json says the sizes of its small tower, too: published ones do not."""
    made.mkdir()
    for path in (goldens / FOLDER).iterdir():
        if path.name != "config.json":
            (made / path.name).symlink_to(path)
    sizes = traces(goldens)["meta"]["tower_geometry"]
    tower = {
        "hidden_size": sizes["width"],
        "intermediate_size": sizes["mlp_hidden"],
        "num_hidden_layers": sizes["blocks_in_file"],
        "num_attention_heads": sizes["heads"],
        "image_size": 224,
        "patch_size": 14,
        "hidden_act": "gelu",
    }
    raw = json.loads((goldens / FOLDER / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**raw, "vision_config": tower}))
    return made
