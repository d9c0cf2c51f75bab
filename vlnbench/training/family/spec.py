"""A family as the command line sees it: one record that names its three parts. Loads nothing heavy.

`agents.table` lists the families that ship with vlnbench; others are named by import string. A family is described
twice: by a `FamilySpec`, from which the command line is made, and by the classes that it names, which know the
network and are loaded when somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vlnbench.data.sets import TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.training.inference_options import InferenceOptions
from vlnbench.training.options import PlanOptions, TrainOptions
from vlnbench.util.loading import import_string

if TYPE_CHECKING:
    from vlnbench.training.family.checkpoints import Checkpoints
    from vlnbench.training.family.plans import Plans
    from vlnbench.training.family.trains import Trains


class Trainable(NamedTuple):
    """What training asks of a family."""

    checkpoints: Checkpoints
    trains: Trains


@dataclass(frozen=True, kw_only=True)
class FamilySpec:
    """A family of models: what it is called, which folders are its checkpoints, and where its parts are.

    checkpoints, trains, plans: import strings of classes that fulfill `Checkpoints`, `Trains` and `Plans`; the
    last two are None for a family that cannot be trained, or of which nothing can be planned.
    recognizes: whether a path is a checkpoint of this family; reads a few lines at most.
    agent: who evaluates its checkpoints, a name or an import string.
    training, planning, inference: classes of the options of training, of planning its memory and of planning that
    of acting; None where there is no such thing, and `unplanned` says why of planning.
    presets: names of networks that can be made with random weights. sizes: of those that can only be planned.
    set_files: files of which one says what the folder of a training set holds. launch_flags: flags that its
    published launch scripts alone have, see `training.launch_script`.
    """

    name: str
    agent: str
    recognizes: Callable[[Path], bool]
    checkpoints: str
    trains: str | None = None
    plans: str | None = None
    training: type[TrainOptions] | None = None
    planning: type[PlanOptions] | None = None
    inference: type[InferenceOptions] | None = None
    unplanned: str = ""
    presets: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    set_files: tuple[str, ...] = (TRAJECTORIES,)
    launch_flags: Mapping[str, str] = field(default_factory=dict, hash=False)

    def load_checkpoints(self) -> Checkpoints:
        """What reads and writes its checkpoints."""
        made: Checkpoints = import_string(self.checkpoints)()
        return made

    def load_trains(self) -> Trains:
        """What trains it. Raises UsageError for a family that cannot be trained."""
        if self.trains is None:
            raise UsageError(f"family {self.name!r}: cannot be trained; its checkpoints are evaluated only")
        made: Trains = import_string(self.trains)()
        return made

    def load_trainable(self) -> Trainable:
        """Both. Raises UsageError as `load_trains`."""
        return Trainable(self.load_checkpoints(), self.load_trains())

    def load_plans(self) -> Plans:
        """What plans its memory. Raises UsageError for a family that says nothing of it."""
        if self.plans is None:
            raise self._unplanned()
        made: Plans = import_string(self.plans)()
        return made

    def check_training(self) -> type[TrainOptions]:
        """The class of its training options. Raises UsageError where it cannot be trained."""
        if self.training is None or self.trains is None:
            raise UsageError(f"family {self.name!r}: cannot be trained; its checkpoints are evaluated only")
        return self.training

    def check_plannable(self) -> type[PlanOptions]:
        """The class of its planning options. Raises UsageError where memory cannot be planned."""
        if self.planning is None:
            raise self._unplanned()
        return self.planning

    def check_inference(self) -> type[InferenceOptions]:
        """The class of its options for planning to act. Raises UsageError where that cannot be planned."""
        if self.inference is None:
            raise UsageError(f"family {self.name!r}: what acting needs cannot be planned")
        return self.inference

    def _unplanned(self) -> UsageError:
        why = self.unplanned or "it does not say what a step takes in"
        return UsageError(f"the memory of family {self.name!r} cannot be planned: {why}")
