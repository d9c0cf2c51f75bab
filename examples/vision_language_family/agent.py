"""Acts as `vision_language` does, with the inputs that its checkpoint was trained with."""

from __future__ import annotations

from dataclasses import asdict, replace

from vision_language import VisionLanguageAgent
from vision_language_family.options import FAMILY, SeenAgentOptions, inputs_of

from agents.common.inputs import described
from vlnbench.errors import UsageError
from vlnbench.training.family.sources import find_checkpoint


class SeenAgent(VisionLanguageAgent):
    """Options that are not given are what the checkpoint says."""

    options_type = SeenAgentOptions

    def __init__(self, options: SeenAgentOptions) -> None:
        """Load the model. Raises UsageError for a checkpoint that transformers cannot load."""
        if options.checkpoint is None:
            raise UsageError("name a vision-language model with --checkpoint: a folder, or hf:ORG/NAME")
        options.check()
        folder = find_checkpoint(options.checkpoint, FAMILY, trust_pickle=options.trust_pickle)
        inputs = inputs_of(folder, options)
        resolved = replace(options, checkpoint=folder, **asdict(inputs) | {"prompt": None})
        super().__init__(resolved, inputs.prompt)
        self.description += f"\n{described(inputs, folder)}"
