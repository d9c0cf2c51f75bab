"""Steps of the original StreamVLN's training for `original`: its dataset, collator and network, on a CPU.

Runs with the interpreter of an environment that has the transformers of its time, and imports nothing of vlnbench.
A line of JSON on stdin, {"step": [indices]}, is answered by one on stdout.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from types import SimpleNamespace
from typing import Any

SEED = 7000
"""The phrases of window i are drawn from this number + i."""


def main(code: str, checkpoint: str, trajectories: str, frozen: str) -> None:
    """`code`: the original's checkout. The working directory has the vision tower's folder, by its name."""
    sys.path[:0] = [code, os.path.join(code, "streamvln")]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    import torch
    from llava import conversation  # type: ignore[import-not-found]
    from llava.model.multimodal_encoder.siglip_encoder import SigLipVisionConfig, SigLipVisionModel  # type: ignore[import-not-found]
    from streamvln.dataset.vln_action_dataset import VLNActionDataset, collate_fn  # type: ignore[import-not-found]
    from streamvln.model.stream_video_vln import StreamVLNForCausalLM  # type: ignore[import-not-found]
    from transformers import AutoTokenizer

    with open(os.path.join(checkpoint, "config.json")) as file:
        config = json.load(file)
    tower = config["mm_vision_tower"]
    if not os.path.exists(tower):  # it wants weights there, which the checkpoint's then replace
        SigLipVisionModel(SigLipVisionConfig(**config["vision_config"])).save_pretrained(tower)
    conversation.default_conversation = conversation.conv_templates["qwen_1_5"]
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, padding_side="right")
    asked = SimpleNamespace(
        image_size=384,
        transform_train=None,
        num_frames=32,
        num_history=8,
        num_future_steps=4,
        remove_init_turns=False,
        video_folder=trajectories,
    )
    dataset = VLNActionDataset(tokenizer, asked, 0)
    network = StreamVLNForCausalLM.from_pretrained(
        checkpoint, attn_implementation="sdpa", torch_dtype=torch.float32
    )
    network.train().requires_grad_(True)
    network.get_model().get_vision_tower().requires_grad_(frozen != "frozen")
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)

    def sample(index: int) -> Any:
        random.seed(SEED + index)
        return dataset[index]

    for line in sys.stdin:
        began = time.process_time()
        batch = collate_fn([sample(index) for index in json.loads(line)["step"]], tokenizer)
        loss = network(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        answer = {"loss": loss.item(), "seconds": time.process_time() - began}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
