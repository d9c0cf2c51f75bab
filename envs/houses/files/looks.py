"""Splits in further looks: the episodes of a split that is drawn, in houses that look otherwise."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from envs.houses.edition import SCENES_DIR
from envs.houses.files.episode_files import json_stream
from envs.houses.files.scenes import scene_file, write_scene
from envs.houses.options import HousesConfig
from envs.houses.plan.house import make_house
from vlnbench.util.durable.files import write_bytes
from vlnbench.util.durable.limits import regular


def write_look(
    root: Path, config: HousesConfig, base: str, look: str, report: Callable[[str, int, int], None]
) -> list[Path]:
    """Scenes, episodes and ground truth of the split `{base}_{look}`; the new files below the root.

    Episodes keep their ids, so that runs in two looks are compared episode by episode.
    """
    split, folder = f"{base}_{look}", config.edition.r2r_dir
    found = json.loads(gzip.decompress(regular(root / folder / base / f"{base}.json.gz").read_bytes()))
    episodes = found.pop("episodes")
    scene_ids = sorted({episode["scene_id"] for episode in episodes})
    files, renamed = [], {}
    for done, scene_id in enumerate(scene_ids):
        report(look, done, len(scene_ids))
        scene = write_scene(root, make_house(PurePosixPath(scene_id).parent.name, config), config, look)
        files += [scene, scene.with_suffix(".navmesh")]
        renamed[scene_id] = scene_file(scene_id, look).relative_to(SCENES_DIR).as_posix()
    out, truth = (folder / split / f"{split}{end}.json.gz" for end in ("", "_gt"))
    with json_stream(root / out, '{"episodes": [', f"], {json.dumps(found)[1:]}") as add:
        for episode in episodes:
            add(json.dumps({**episode, "scene_id": renamed[episode["scene_id"]]}))
    write_bytes(root / truth, regular(root / folder / base / f"{base}_gt.json.gz").read_bytes())
    return [*files, out, truth]
