"""A plain Qwen2.5-VL (arXiv 2502.13923), or a fine-tune of it, as an agent that is asked in words."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch

from agents.common.checkpoints.placement import place
from agents.common.prompts.navigation import FORWARD_M
from agents.common.qwen2_5_vl.tokens import generation_settings
from agents.qwen_vl import checkpoint
from agents.qwen_vl.config import read_config
from agents.qwen_vl.decode import Answerer
from agents.qwen_vl.loop import EpisodeLoop
from agents.qwen_vl.options import QwenVLOptions
from agents.qwen_vl.prompt import Prompts, Wording
from agents.qwen_vl.spec import FAMILY
from vlnbench.errors import UsageError
from vlnbench.interfaces import Conventions, Scalar, Sensor
from vlnbench.training.sources import find_checkpoint


class QwenVLAgent(EpisodeLoop):
    """A checkpoint in `EpisodeLoop`."""

    sensors: frozenset[Sensor] = frozenset({"rgb"})
    privileged = False
    options_type = QwenVLOptions

    def __init__(self, options: QwenVLOptions) -> None:
        """Load the checkpoint of `options`. Raises UsageError if that cannot be done as they say."""
        if options.checkpoint is None:
            raise UsageError("agent 'qwen_vl' needs a model: name its folder with --checkpoint")
        options.check()
        folder = find_checkpoint(options.checkpoint, FAMILY)
        config = read_config(folder)
        attn = "sdpa" if options.attn == "auto" else options.attn
        placement = place(options.device, options.dtype, attn, config.dtype)
        tokenizer = checkpoint.load_tokenizer(folder, config, options.tokenizer)
        settings = generation_settings(folder, tokenizer)
        wording = Wording(options.prompt, options.actions_per_answer, options.answers, options.turn_deg)
        prompts = Prompts(tokenizer, wording)
        model = checkpoint.load(
            folder,
            dtype=placement.dtype,
            device=placement.device,
            eager=placement.attn == "eager",
            trust_pickle=options.trust_pickle,
        )
        answerer = Answerer(
            model,
            settings,
            max_new_tokens=options.max_new_tokens,
            max_batch=options.batch,
            allowed=prompts.allowed() if options.constrained else None,
        )
        super().__init__(prompts, answerer, options.history, options.max_pixels)
        self.expects = Conventions(forward_m=FORWARD_M, turn_deg=options.turn_deg)
        self.identity: Mapping[str, Scalar] = {
            "checkpoint": checkpoint.content_hash(
                folder, tokenizer=options.tokenizer, trust_pickle=options.trust_pickle
            ),
            "device": placement.device.type,
            "dtype": placement.dtype_name,
            "attn": placement.attn,
            "prompt": hashlib.sha256(prompts.template.text.encode()).hexdigest()[:12],
            "answers": options.answers,
            "constrained": options.constrained,
            "history": options.history,
            "actions_per_answer": options.actions_per_answer,
            "max_pixels": options.max_pixels,
            "max_new_tokens": options.max_new_tokens,
            "torch": torch.__version__,
        }
        count = sum(parameter.numel() for parameter in model.parameters())
        self.description = (
            f"checkpoint {folder}: {count / 1e6:,.1f} M parameters; {placement.dtype_name} on {placement.device}, "
            f"{placement.attn} attention"
        )

    @property
    def remarks(self) -> str:
        """What a reader of the results should know about the answers so far; empty if nothing."""
        return f"{self.unreadable} answers could not be read and counted as STOP" if self.unreadable else ""

    def close(self) -> None:
        """Give the model's memory back to the device."""
        super().close()
        torch.cuda.empty_cache()
