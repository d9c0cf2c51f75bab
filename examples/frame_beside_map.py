"""One moment of a recorded episode as a picture: the agent's view beside the map with its path.

    vlnbench eval --episodes 24 --out runs/first
    python examples/frame_beside_map.py runs/first --episode 292 --step 22 --out frame.png

The README's picture was drawn by this file.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

from PIL import Image

from envs.habitat_env import HabitatEnv
from vlnbench.evaluation.recorded import load_run
from vlnbench.evaluation.video import draw_frames
from vlnbench.report.data import read_run

COLORS = 256
"""A palette keeps the file small; the difference is hard to see."""


def draw(run: Path, episode_id: str, step: int, out: Path, data_root: Path) -> None:
    """Write the picture of `step` (0 is the start) of an episode that the run in a folder has recorded."""
    data = read_run(run, data_root)
    episodes = {entry.row.episode_id: entry.episode for entry in data.entries if entry.episode and entry.walk}
    if episode_id not in episodes or data.scenes_dir is None:
        raise SystemExit(data.missing or f"no episode {episode_id}; recorded are {', '.join(sorted(episodes))}")
    recorded = load_run(run).trajectories
    trajectory = next(each for (_, _, name, _), each in recorded.items() if name == episode_id)
    if not 0 <= step < len(trajectory.poses):
        raise SystemExit(f"--step {step}: expected 0 to {len(trajectory.poses) - 1}")
    env = HabitatEnv(data.run.benchmark.body, data.scenes_dir, frozenset({"rgb"}))
    try:
        frame = next(islice(draw_frames(env, episodes[episode_id], trajectory), step, None))
    finally:
        env.close()
    Image.fromarray(frame).quantize(COLORS, kmeans=1).save(out, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--episode", required=True, help="id of one of its episodes")
    parser.add_argument("--step", type=int, required=True, help="0 is the start")
    parser.add_argument("--out", type=Path, required=True, help="PNG to write")
    parser.add_argument("--data-root", type=Path, default=Path("data"), help="folder with the dataset of the run")
    given = parser.parse_args()
    draw(given.run, given.episode, given.step, given.out, given.data_root)
