"""The command `vlnbench plan`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from vlnbench.training.family import FamilySpec
from vlnbench.training.options import PlanOptions


@dataclass(frozen=True, kw_only=True)
class Plans:
    """Plans a training; its other options are a family's."""

    checkpoint_option: ClassVar[str] = "model"

    json: bool = False
    """Print JSON, without suggestions."""

    @staticmethod
    def of_family(family: FamilySpec) -> type[PlanOptions]:
        """The family's options. Raises UsageError where it cannot be planned."""
        return family.check_plannable()

    def run(self) -> None:
        import json

        from vlnbench.training.families import find_family
        from vlnbench.training.memory.plan import plan
        from vlnbench.training.memory.report import format_plan
        from vlnbench.training.memory.search import suggest

        assert isinstance(self, PlanOptions)
        kind = self.of_family(find_family(self.family, self.model, "--model")[0])
        planned = plan(kind(**{each.name: getattr(self, each.name) for each in fields(kind)}))
        if self.json:
            print(json.dumps(planned.to_json(), indent=2))
        else:
            print(format_plan(planned, [] if planned.fits == "yes" else suggest(planned)))


@dataclass(frozen=True, kw_only=True)
class PlanMemory(Plans, PlanOptions):
    """Plan the GPU memory of a training setting, without a GPU: what needs it, whether it fits, what would fit."""
