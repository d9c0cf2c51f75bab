"""What agents and environments may have beyond their contracts: small protocols, looked for with isinstance.

`vlnbench.interfaces` says what each of them must have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vlnbench.interfaces import Action, Answer, Observation, StandsFor


@runtime_checkable
class Describes(Protocol):
    """Trait of an agent that has something to say before a run: lines about its model, precision, device."""

    @property
    def description(self) -> str:
        """What is printed before a run; empty for nothing."""
        ...


@runtime_checkable
class Remarks(Protocol):
    """Trait of an agent that has something to say after a run."""

    @property
    def remarks(self) -> str:
        """What a reader of the results should know of the episodes so far; empty for nothing."""
        ...


@runtime_checkable
class Reports(Protocol):
    """Trait of an agent that counts, e.g. tokens or refused answers."""

    def report(self, slot: int) -> Mapping[str, float]:
        """Counts about the episode in a slot; they go into its row and are summed in the summary."""
        ...


@runtime_checkable
class TellsAnswers(Protocol):
    """Trait of an agent that has a model which answers, and can repeat what it said."""

    def answered(self, slot: int) -> Sequence[Answer]:
        """What decided on the action just given in a slot: none where that was decided before, several where the
        model was asked again. It is asked once after `act`, or not at all, and changes nothing that is done."""
        ...


@runtime_checkable
class MadeOf(Protocol):
    """Trait of an agent that can name every file from which it was made, beside code."""

    @property
    def files(self) -> Sequence[Path]:
        """While none of them changes, the agent that the same options make has the same identity."""
        ...


@runtime_checkable
class Reads(Protocol):
    """Trait of an agent whose answers depend on files which its identity does not name, such as weights."""

    @property
    def reads(self) -> Sequence[str | Path]:
        """Their paths; what is in them becomes part of the run's identity, with the agent's code."""
        ...


@runtime_checkable
class Represents(Protocol):
    """Trait of an agent that passes on to another one."""

    @property
    def stands_for(self) -> StandsFor:
        """The agent that acts, as which runs are recorded."""
        ...


@runtime_checkable
class Watches(Protocol):
    """Trait of an agent that can be overruled."""

    def watch(self, observations: Mapping[int, Observation]) -> None:
        """See observations on which somebody else acts; the episode goes on, even if the agent has said STOP."""
        ...


@runtime_checkable
class FeelsActions(Protocol):
    """Trait of an agent that remembers what it did, and can be told that something else was done."""

    def feel(self, slot: int, action: Action) -> None:
        """Take in that `action` is done in a slot, instead of what `act` has just returned for it."""
        ...


@runtime_checkable
class ActsAhead(Protocol):
    """Trait of an agent that decides on several actions at once and does not look at what it sees in between.

    Frames that nobody looks at need not be drawn or sent. What is done is the same with this trait and without it.
    """

    def ahead(self, slot: int) -> Sequence[Action]:
        """What is done in a slot after the action just given, without looking: none, or some actions.

        Whoever asks does them all and shows the observation that follows the last of them.
        """
        ...


@runtime_checkable
class Resizes(Protocol):
    """Trait of an agent that makes RGB frames smaller before it looks at them, and keeps nothing else of them.

    Whoever shows it a frame may have done that already. What is done is the same with this trait and without it.
    """

    @property
    def rgb_size(self) -> tuple[int, int]:
        """(height, width) to which it resizes, as Pillow's bicubic filter does; it takes that size as it is."""
        ...


@runtime_checkable
class TimesBatches(Protocol):
    """Trait of an agent that acts on the cores on which simulators run, and has been timed."""

    @property
    def batch_seconds(self) -> Mapping[int, float]:
        """Seconds that it takes for 1, 2, 4 and so on episodes at once; empty where that is not known."""
        ...


@runtime_checkable
class KeepsMemory(Protocol):
    """Trait of an agent whose episodes take memory of a GPU while they run, also while others are acted on."""

    @property
    def episode_bytes(self) -> int:
        """Bytes of one episode, at most."""
        ...


@runtime_checkable
class GrowsOnGpu(Protocol):
    """Trait of an agent that takes the more memory the longer an episode lasts, up to a step."""

    @property
    def fullest_step(self) -> int:
        """By this step of an episode, from 0 on, it has taken the most that it will."""
        ...


@runtime_checkable
class SkipsFrames(Protocol):
    """Trait of an environment that can leave frames out."""

    def step_unseen(self, action: Action) -> Observation:
        """As `Env.step`, but `rgb` and `depth` of the observation are None."""
        ...


@runtime_checkable
class Shrinks(Protocol):
    """Trait of an environment that resizes frames for an agent (`Resizes`), so that they need not travel whole."""

    def shrink(self, frame: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
        """An RGB frame as uint8 (height, width, 3), equal to what Pillow's bicubic filter makes of it."""
        ...


@runtime_checkable
class LoadsAhead(Protocol):
    """Trait of a class of environments whose libraries take long to import."""

    def load_ahead(self) -> object:
        """Import them; called on the class in each simulator's process, while agent and data load."""
        ...
