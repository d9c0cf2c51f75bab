"""`vlnbench train` of the checkout that PYTHONPATH names, with every step's CPU seconds, for `checkouts`.

    timed.py FILE ARGUMENTS…

writes them to FILE.RANK. Waiting for the other processes takes no CPU time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main(file: str, *arguments: str) -> None:
    from vlnbench.cli import main as run
    from vlnbench.training import trainer

    taken: list[float] = []
    step = trainer._Run._step

    def timed(self: Any, number: int) -> Any:
        began = time.process_time()
        loss = step(self, number)
        taken.append(time.process_time() - began)
        return loss

    setattr(trainer._Run, "_step", timed)  # noqa: B010  # the type checker would not have it
    run(list(arguments))
    Path(f"{file}.{os.environ['RANK']}").write_text(json.dumps(taken))


if __name__ == "__main__":
    main(*sys.argv[1:])
