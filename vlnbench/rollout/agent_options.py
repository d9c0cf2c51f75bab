"""Options of agents: what all agents take, and what those that load a checkpoint take.

The options of one agent are a dataclass beside it, derived from one of those here, in a module that loads nothing
heavy: the command line shows them without the agent. The agent's class names it as `options_type`, and
`agents.table` by import string.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from vlnbench.errors import UsageError
from vlnbench.util.bounds import Count, check_bounds

MAX_BATCH = 8


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """What every agent can be told."""

    max_batch: Count | None = None
    """Episodes that the agent acts on at once, at most; default 8, or fewer where the agent is timed when it is
    loaded and more are not faster."""

    @property
    def batch(self) -> int:
        """`max_batch`, where nothing is known of the agent's speed."""
        return self.max_batch or MAX_BATCH

    @property
    def device_choice(self) -> str:
        """The device on which the agent computes, as --device says it; `auto` for agents without that option."""
        return "auto"

    def check(self) -> None:
        """Raise UsageError for the first value that cannot be: a number beyond the bounds of its annotation
        (`vlnbench.util.bounds`), and what a class adds. Looks at no file and loads nothing."""
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(AgentOptions):
    """What agents that compute on a device of their choice can be told."""

    device: str = "auto"
    """auto (the first CUDA device, else the CPU), cpu, cuda or cuda:N."""
    deterministic: bool = False
    """On CUDA take kernels that add up in one order, where PyTorch has such: slower, and the same again on the
    same card. Without it close choices of two runs may differ there; on the CPU they do not."""

    @property
    def device_choice(self) -> str:
        return self.device


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(DeviceOptions):
    """What agents that load a checkpoint in Hugging Face's layout, as training writes it, can be told."""

    checkpoint: Path | None = None
    """Folder of a trained checkpoint, hf:ORG/NAME@REVISION on the Hugging Face hub, the name of one that comes
    with vlnbench, or BASE+ADAPTERS, any of these and low-rank adapters over it."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of weights and activations; auto is the checkpoint's on CUDA and float32 on the CPU. In half
    precision on CUDA close choices depend on the episodes that share a pass, too: --max-batch 1 has them alone."""
    trust_pickle: bool = False
    """Read weights from pickle files too (tensors only)."""


@runtime_checkable
class TakesOptions(Protocol):
    """Trait of a class of agents: it names the type of its options, and its constructor takes them."""

    options_type: ClassVar[type[AgentOptions]]


_Options = TypeVar("_Options", bound=AgentOptions)


def fitting(name: str, options: AgentOptions, wanted: type[_Options]) -> _Options:
    """Options as the agent wants them: the same, or those that are set, in its own type.

    Raises UsageError naming the options that are set and that the agent does not have.
    """
    known = {each.name for each in fields(wanted)}
    given = set_options(options)
    refused = [f"--{each.replace('_', '-')}" for each in given if each not in known]
    if refused:
        raise UsageError(f"agent {name!r} takes other options: leave out {', '.join(refused)}")
    return options if isinstance(options, wanted) else wanted(**given)


def set_options(options: AgentOptions) -> dict[str, Any]:
    """The options that differ from their defaults, by name."""
    found = {}
    for each in fields(options):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if getattr(options, each.name) != default:
            found[each.name] = getattr(options, each.name)
    return found
