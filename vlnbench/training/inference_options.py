"""Options of planning what an agent needs while it acts. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vlnbench.errors import UsageError
from vlnbench.util.bounds import Count, Natural, check_bounds


@dataclass(frozen=True, kw_only=True)
class InferenceOptions:
    """One way of letting a model act. What only one family knows is in its options, which derive from these."""

    family: str = ""
    """Kind of model: a name from `vlnbench list` or an import string package.module:OBJECT; default what --agent
    runs, or what the checkpoint is."""
    agent: str = ""
    """Agent that acts; it says which family."""
    model: str
    """What is planned: published sizes by their name, preset:NAME, a checkpoint that comes with vlnbench, by its
    name, or a folder (only its config and the shapes of its tensors are read)."""
    gpus: str = "1x24GB"
    """The GPU of one copy of the model; more of them hold more copies."""
    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    """Precision of weights and activations."""
    quantize: Literal["int8", "nf4"] | None = None
    """Bits of the weights in the language model's blocks, as `eval --quantize` keeps them: eight or four."""
    max_batch: Count = 1
    """Episodes that the agent acts on in one pass."""
    envs: Count = 1
    """Episodes under way, each with caches of its own, whether the agent acts on it or not: `eval --envs`, which
    is up to 4 where it is not given."""
    simulators: Natural = 1
    """Simulators of habitat-sim that render on the same GPU; 0 for the embedded one, which needs none."""

    @property
    def episodes(self) -> int:
        """Episodes whose memory is kept."""
        return max(self.envs, self.max_batch)

    def check(self) -> None:
        """Raise UsageError for the first option that cannot be. Families add checks."""
        check_bounds(self)
        if self.dtype not in ("bf16", "fp16", "fp32"):
            raise UsageError(f"--dtype {self.dtype}: expected bf16, fp16 or fp32")
