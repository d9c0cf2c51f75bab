"""The command `vlnbench plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal

from vlnbench.rollout.agent_names import family_of
from vlnbench.training.family.find import Chosen, find_family
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.inference_options import InferenceOptions
from vlnbench.training.objectives import get_objective
from vlnbench.training.objectives.spec import ObjectiveSpec
from vlnbench.training.options import PlanOptions
from vlnbench.util.bounds import Count, Positive, check_bounds
from vlnbench.util.tables.format import Plain


@dataclass(frozen=True, kw_only=True)
class Either:
    """What both kinds of plans have in common."""

    checkpoint_option: ClassVar[str] = "model"
    chosen: ClassVar[Chosen | None] = None

    inference: bool = False
    """Plan what the model needs while it acts, which has options of its own: vlnbench plan --inference --help."""
    format: Plain = "text"
    """How it is printed; JSON is without suggestions."""

    @staticmethod
    def variant(arguments: Sequence[str]) -> type[PlanMemory] | type[PlanActing]:
        """Which of the two commands of this name is meant."""
        return PlanActing if "--inference" in arguments else PlanMemory


@dataclass(frozen=True, kw_only=True)
class Plans(Either):
    """Plans a training; its other options are a family's."""

    largest: Literal["batch", "group", "frames"] | None = None
    """Look for the largest value of this option that fits, and plan that; a group has its answers in one forward
    pass of one GPU."""
    card: str = ""
    """Which GPU, for hours: H100, A100, H20, "RTX 4090", ...; default the usual one of this size."""
    tflops: Positive | None = None
    """What a GPU computes per second in training, in 1e12 operations, as the log says; default 40 % of the card's
    peak."""
    for_windows: Count | None = None
    """Windows of which the hours are planned; default 100,000."""

    @staticmethod
    def of_family(family: FamilySpec, objective: ObjectiveSpec) -> type[PlanOptions]:
        """The family's options and the objective's. Raises UsageError where either cannot be planned."""
        return objective.plan_options(family.check_plannable())

    def run(self) -> None:
        import json

        from vlnbench.training.memory.hours import format_hours, pace_of
        from vlnbench.training.memory.plan import plan
        from vlnbench.training.memory.report import format_beside, format_plan
        from vlnbench.training.memory.search import largest, suggest

        assert isinstance(self, PlanOptions)
        check_bounds(self)
        pace = pace_of(self.gpus, self.card, self.tflops)
        chosen = self.chosen or find_family(self.family, self.model, "--model")
        kind = self.of_family(chosen.family, get_objective(self.objective))
        options = kind(**{each.name: getattr(self, each.name) for each in fields(kind)})
        if self.largest:
            value, planned = largest(options, self.largest, chosen)
            if self.format == "text":
                print(f"--{self.largest} {value} is the most that fits:\n")
        else:
            planned = plan(options, chosen)
        if self.format == "json":
            print(json.dumps(planned.to_json(), indent=2))
        elif self.as_published:
            own = plan(replace(planned.request, as_published=False), chosen)
            print(f"{format_plan(planned)}\n\n{format_beside(planned, own)}")
        else:
            print(format_plan(planned, [] if planned.fits == "yes" else suggest(planned, chosen)))
            print(format_hours(planned, chosen, pace, self.for_windows))


@dataclass(frozen=True, kw_only=True)
class Acts(Either):
    """Plans an agent at work; its other options are a family's."""

    @staticmethod
    def of_family(family: FamilySpec, objective: ObjectiveSpec | None = None) -> type[InferenceOptions]:
        """The family's options. Raises UsageError where it cannot be planned."""
        return family.check_inference()

    @staticmethod
    def family_of(agent: str) -> str:
        """The family of an agent's checkpoints. Raises UsageError for one that loads none."""
        return family_of(agent)

    def run(self) -> None:
        import json

        from vlnbench.training.memory.inference import format_inference, plan_inference, remedies

        assert isinstance(self, InferenceOptions)
        name = self.family or (family_of(self.agent) if self.agent else "")
        chosen = self.chosen or find_family(name, self.model, "--model")
        kind = self.of_family(chosen.family)
        planned = plan_inference(kind(**{each.name: getattr(self, each.name) for each in fields(kind)}), chosen)
        if self.format == "json":
            print(json.dumps(planned.to_json(), indent=2))
        else:
            print(format_inference(planned, [] if planned.fits == "yes" else remedies(planned, chosen)))


@dataclass(frozen=True, kw_only=True)
class PlanMemory(Plans, PlanOptions):
    """Plan the GPU memory of a training setting, without a GPU: what needs it, whether it fits, what would fit."""


@dataclass(frozen=True, kw_only=True)
class PlanActing(Acts, InferenceOptions):
    """Plan the GPU memory of an agent at work, without a GPU: weights, what it keeps, what a step computes."""
