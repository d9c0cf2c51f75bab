"""VLN-CE's CMA and Seq2Seq as agents: checkpoints, and what is said of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from agents.common.batch_times import measured
from agents.common.checkpoints.placement import place
from agents.common.threads import Threads
from agents.vlnce.config import FEATURES, Kind
from agents.vlnce.folder import folder_files, load_folder
from agents.vlnce.loop import EpisodeLoop, Running
from agents.vlnce.options import PTH, VLNCEOptions
from agents.vlnce.policy import Decisions
from agents.vlnce.released import Loaded, load
from agents.vlnce.sight import Sight
from agents.vlnce.spec import FAMILY
from agents.vlnce.views import TextFeatures
from vlnbench.errors import UsageError
from vlnbench.interfaces import Conventions, Scalar, Sensor
from vlnbench.training.family.sources import find_checkpoint, shipped
from vlnbench.util.hub import spoken

NAMES: dict[Kind, str] = {"cma": "vlnce-cma", "seq2seq": "vlnce-seq2seq"}
REHEARSED = 30
"""Words of the instructions with which the network is timed."""


class VLNCEAgent(EpisodeLoop):
    """A checkpoint: greedy, or sampling with the episode's seed where it says so.

    kind: the only one that is taken, None for both.
    """

    kind: Kind | None = None
    sensors: frozenset[Sensor] = frozenset({"rgb", "depth"})
    privileged = False
    options_type = VLNCEOptions
    expects: Conventions
    identity: Mapping[str, Scalar]

    def __init__(self, options: VLNCEOptions) -> None:
        """Load the checkpoint of `options`. Raises UsageError if that cannot be done as they say."""
        if options.checkpoint is None:
            name = "vlnce" if self.kind is None else NAMES[self.kind]
            raise UsageError(
                f"agent {name!r} needs a trained model: name its file (.pth) or folder with --checkpoint"
            )
        placement = place(options.device, "float32", "eager", torch.float32)
        path = options.checkpoint
        path = path if path.suffix == PTH else find_checkpoint(path, FAMILY)
        loaded = load(path) if path.suffix == PTH else Loaded(*load_folder(path), folder_files(path))
        config = loaded.config
        if self.kind not in (None, config.network.kind):
            raise UsageError(f"{options.checkpoint} holds another model: use --agent {NAMES[config.network.kind]}")
        texts = _texts(options, config.network.reads == FEATURES)
        sight = Sight(options, config.views)
        super().__init__(loaded.policy.to(placement.device), config, sight, options.batch, texts)
        self.files = (*loaded.files, *sight.files)
        self.expects = config.expects
        self.identity = {
            "checkpoint": loaded.sha256,
            "device": placement.device.type,
            "actions": "sampled" if config.samples else "greedy",
            "torch": torch.__version__,
            **sight.identity,
        }
        self._threads = Threads(placement.device, self._rehearse)
        timed = placement.device.type == "cpu" and options.max_batch is None
        self.batch_seconds: Mapping[int, float] = measured(self._rehearse) if timed else {}
        count = sum(parameter.numel() for parameter in loaded.policy.parameters())
        self.description = "\n".join(
            (
                f"checkpoint {spoken(path)}: {config.network.kind}, {count / 1e6:,.1f} M parameters, "
                f"{config.network.num_actions} actions, {self.identity['actions']}; float32 on {placement.device}",
                *self._threads.description,
            )
        )

    @property
    def remarks(self) -> str:
        """What a reader of the results should know of the threads; empty if nothing."""
        return "; ".join(self._threads.remarks)

    def _decide(self, running: Sequence[Running], rgb: Tensor, depth: Tensor) -> Decisions:
        with self._threads.acting(len(running)):
            return super()._decide(running, rgb, depth)

    @torch.no_grad()
    def _rehearse(self, episodes: int = 1) -> None:
        """Decide on a step of so many made-up episodes, in which all is black."""
        channels, grid = self._model.net.instruction_encoder.output_size, self._config.network.kind == "cma"
        instruction = torch.zeros(1, channels, *([REHEARSED] if grid else []), device=self._device)
        one = Running(instruction, 0, random.Random(0), self._model.new_states(1))
        frame, depth_frame = self._config.views.inputs
        black = torch.zeros(episodes, *frame, 3, dtype=torch.uint8), torch.zeros(episodes, *depth_frame)
        super()._decide([one] * episodes, *black)

    def close(self) -> None:
        """Forget all episodes and give the model's memory back to the device."""
        super().close()
        self._threads.close()
        torch.cuda.empty_cache()


class _ShippedAgent(VLNCEAgent):
    """A small network that comes with vlnbench."""

    checkpoint: str

    def __init__(self, options: VLNCEOptions) -> None:
        if options.checkpoint is not None:
            raise UsageError(f"agent {self.checkpoint!r} has its own checkpoint: use --agent vlnce for another")
        super().__init__(replace(options, checkpoint=shipped()[self.checkpoint]))


class CMATinyAgent(_ShippedAgent):
    """The small CMA."""

    checkpoint = "cma-tiny"


class Seq2SeqTinyAgent(_ShippedAgent):
    """The small Seq2Seq."""

    checkpoint = "seq2seq-tiny"


class CMAAgent(VLNCEAgent):
    """Cross-modal attention."""

    kind: Kind = "cma"


class Seq2SeqAgent(VLNCEAgent):
    """Sequence to sequence."""

    kind: Kind = "seq2seq"


def _texts(options: VLNCEOptions, rxr: bool) -> TextFeatures | None:
    """Where RxR's features are read, for a checkpoint that reads them."""
    if not rxr:
        if options.text_features is not None:
            raise UsageError(f"--text-features: {options.checkpoint} reads tokens of R2R; leave the option out")
        return None
    if options.text_features is None:
        raise UsageError(
            f"{options.checkpoint} reads the BERT features of RxR's instructions: name their folder, "
            "RxR_VLNCE_v0/text_features, with --text-features"
        )
    return TextFeatures(options.text_features)
