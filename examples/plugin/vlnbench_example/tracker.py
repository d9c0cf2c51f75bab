"""A tracker."""

from __future__ import annotations

import json

from vlnbench.util.trackers import TrackedRun, Values


class Lines:
    """One line of JSON for every point, in lines.jsonl of the run folder."""

    def __init__(self, run: TrackedRun) -> None:
        self._file = (run.folder / "lines.jsonl").open("a", encoding="utf-8")

    def log(self, values: Values, step: int) -> None:
        """Write a point."""
        print(json.dumps({"step": step, **values}), file=self._file, flush=True)

    def finish(self, summary: Values) -> None:
        """Write the final values."""
        print(json.dumps({"summary": dict(summary)}), file=self._file)
        self._file.close()
