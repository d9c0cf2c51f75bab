"""Trackers that misbehave in every way, and one that writes down what it is told."""

from __future__ import annotations

import json
import os
import time

from vlnbench.util.trackers import TrackedRun, Values


class Recording:
    """Writes a line per call into told.jsonl in the run folder."""

    def __init__(self, run: TrackedRun) -> None:
        self._path = run.folder / "told.jsonl"
        self._write("run", run.name, dict(run.config))

    def log(self, values: Values, step: int) -> None:
        self._write("log", step, dict(values))

    def finish(self, summary: Values) -> None:
        self._write("finish", None, dict(summary))

    def _write(self, *entry: object) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


class RaisesAtOnce(Recording):
    def __init__(self, run: TrackedRun) -> None:
        raise RuntimeError("no\nnetwork")


class RaisesInLog(Recording):
    def log(self, values: Values, step: int) -> None:
        raise KeyError("loss")


class RaisesInFinish(Recording):
    def finish(self, summary: Values) -> None:
        raise OSError("disk full")


class Exits(Recording):
    def log(self, values: Values, step: int) -> None:
        raise SystemExit(3)


class Crashes(Recording):
    def log(self, values: Values, step: int) -> None:
        os._exit(9)


class Hangs(Recording):
    def log(self, values: Values, step: int) -> None:
        time.sleep(3600)


class HangsInFinish(Recording):
    def finish(self, summary: Values) -> None:
        time.sleep(3600)


class Slow(Recording):
    def log(self, values: Values, step: int) -> None:
        time.sleep(0.05)
        super().log(values, step)
