"""Which episode a simulator runs next: one of the scene it has loaded, if there is one left."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from vlnbench.rollout.episode import Task


class SceneQueue:
    """Tasks by scene."""

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self._scenes: dict[str, deque[Task]] = {}
        for task in tasks:
            self.put(task)

    def __len__(self) -> int:
        return sum(map(len, self._scenes.values()))

    def put(self, task: Task) -> None:
        self._scenes.setdefault(task.episode.scene_id, deque()).append(task)

    def take(self, loaded: str | None, others: Collection[str | None]) -> Task | None:
        """The next task for a simulator with one scene `loaded`, while `others` are loaded elsewhere.

        When its scene is done it begins the largest scene that nobody has, so that the long ones are not left to
        the end, and helps with the largest remaining one when there is no such scene.
        """
        if not self._scenes:
            return None
        if loaded not in self._scenes:
            loaded = max(self._scenes, key=lambda scene: (scene not in others, len(self._scenes[scene])))
        tasks = self._scenes[loaded]
        task = tasks.popleft()
        if not tasks:
            del self._scenes[loaded]
        return task
