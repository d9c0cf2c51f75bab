"""The command `vlnbench plan`."""

from __future__ import annotations

from dataclasses import dataclass

from vlnbench.training.options import PlanOptions


@dataclass(frozen=True, kw_only=True)
class PlanMemory(PlanOptions):
    """Plan the GPU memory of a training setting, without a GPU: what needs it, whether it fits, what would fit."""

    json: bool = False
    """Print JSON, without suggestions."""

    def run(self) -> None:
        import json

        from vlnbench.training.memory.plan import PlanRequest, plan
        from vlnbench.training.memory.report import format_plan
        from vlnbench.training.memory.search import suggest

        options = {name: value for name, value in vars(self).items() if name != "json"}
        planned = plan(PlanRequest(**options))
        if self.json:
            print(json.dumps(planned.to_json(), indent=2))
        else:
            print(format_plan(planned, [] if planned.fits == "yes" else suggest(planned)))
