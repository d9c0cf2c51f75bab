from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.family.trains import rule_of


class Whole:
    """The three parts of a family as one object, for tests that go through all of them."""

    def __init__(self, spec: FamilySpec) -> None:
        self._parts = [*spec.load_trainable(), *([spec.load_plans()] if spec.plans else [])]
        for part in reversed(self._parts):  # from Python 3.12 on `isinstance` of a protocol asks no `__getattr__`
            own = {name: getattr(part, name) for name in dir(part) if not name.startswith("_")}
            vars(self).update({name: each for name, each in own.items() if name not in vars(Whole)})

    def __getattr__(self, name: str) -> Any:
        for part in self._parts:
            if hasattr(part, name):
                return getattr(part, name)
        raise AttributeError(name)

    def load(self, path: Path, options: Any, placement: Any) -> Any:
        """The network as it is trained."""
        return self.fitted(self._parts[0].load(path, options, placement), options)

    def part_of(self, name: str) -> str:
        """Of a family whose table is the same for all its networks."""
        return rule_of(self.parts(None, SimpleNamespace(train_head=False)), name).part
