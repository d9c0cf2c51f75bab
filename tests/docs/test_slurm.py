"""The job script of docs/how-to/your_cluster.md, with programs of our own in place of Slurm's and of vlnbench."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from tests.docs.pages import document

FAKES = {
    "srun": '#!/bin/bash\nexec "$@"\n',  # passes signals on, as Slurm's does
    "vlnbench": "#!/bin/bash\ntrap 'echo stopped >> log; exit 130' TERM\necho \"$@\" >> log\n"
    "while :; do sleep 0.05; done\n",
    "scontrol": '#!/bin/bash\necho "scontrol $@" >> log\n',
}


def test_a_job_whose_time_is_up_stops_the_run_and_queues_itself_again(tmp_path: Path) -> None:
    text = document("your_cluster.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", text, re.DOTALL)
    for name, content in FAKES.items():
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "job").write_text(script)
    given = {"SLURM_JOB_ID": "71", "SLURM_ARRAY_TASK_ID": "1", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    environment = {**os.environ, **given, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    log = tmp_path / "log"
    job = subprocess.Popen(["bash", "job"], cwd=tmp_path, env=environment)
    try:
        until = time.monotonic() + 60
        while not log.exists() and time.monotonic() < until:
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)  # what --signal=B:TERM does
        job.wait(60)
    finally:
        job.kill()
    begun, *rest = log.read_text().splitlines()
    assert begun.startswith("eval --agent streamvln")
    assert "--split val_unseen --gpus 0,1,2,3 --out /shared/runs/val_unseen" in begun
    assert rest == ["stopped", "scontrol requeue 71"]
