"""Try faults on runs: `python -m tests.faults [NAME ...] [--times N] [--record FOLDER]`; all without a name."""

from __future__ import annotations

import argparse
import tempfile
import time
import traceback
from pathlib import Path

from tests.faults.all_faults import FAULTS
from tests.faults.tried import Tried, commit, write_tried


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*FAULTS, []], metavar="NAME", default=[])
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--record", type=Path, help="write what came of each to a file in this folder")
    options = parser.parse_args()
    wrong = 0
    for name in options.names or FAULTS:
        fine, start = 0, time.monotonic()
        for _ in range(options.times):
            fine += _try(name)
        print(f"{name}: {fine} of {options.times} as promised, {time.monotonic() - start:.1f} s", flush=True)
        wrong += options.times - fine
        if options.record is not None:
            happened = {"as promised": fine, "otherwise": options.times - fine}
            command = f"python -m tests.faults {name} --times {options.times}"
            tried = Tried(f"fault {name}", command, commit(), options.times, happened, options.times - fine)
            write_tried(options.record / f"fault-{name}.json", tried)
    return bool(wrong)


def _try(name: str) -> bool:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            FAULTS[name].run(Path(folder))
        except (AssertionError, OSError, ValueError):
            traceback.print_exc()
            return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
