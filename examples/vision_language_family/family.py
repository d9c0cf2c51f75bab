"""Vision-language models of transformers as a family: how they are read, trained and planned."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from vision_language import read
from vision_language_family.options import (
    HEAD,
    LANGUAGE,
    PROJECTOR,
    VISION,
    Seen,
    SeenInference,
    SeenPlanning,
    SeenStep,
    SeenTraining,
    inputs_of,
    recognizes,
)
from vision_language_family.samples import IGNORED, Prompts, QuestionDataset, collate

from agents.common.checkpoints.files import CONFIG
from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.placement import place
from agents.common.checkpoints.weights import write_folder
from agents.common.inputs import INPUTS
from agents.common.language.planning import part_changes
from agents.common.sets.answers import AnswerSet, Asked, read_answers
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.training.family.changes import Change
from vlnbench.training.family.checkpoints import Checkpoints, Placement, Source
from vlnbench.training.family.plans import Acting, Plans, Probe
from vlnbench.training.family.trains import Known, PartRule, Samples, Stretches, Trains, rule_of

TABLE = (
    PartRule(r"(.*\.)?(connector|multi_modal_projector|merger|aligner)\.", PROJECTOR),
    PartRule(r"(.*\.)?(vision_\w+|visual)\..*embed", VISION, hidden=False),
    PartRule(r"(.*\.)?(vision_\w+|visual)\.", VISION),
    PartRule(r"lm_head\.", HEAD, hidden=False),
    PartRule(r".*embed_tokens\.", LANGUAGE, hidden=False),
    PartRule("", LANGUAGE),
)
"""Names that models of transformers give their parts; with tied embeddings there is no head of its own.

Of towers whose last layers no projector takes (LLaVA's), these go first, with `trains="never"`.
"""

BESIDE = (".json", ".jinja", ".model", ".txt")
"""Endings of the files of a processor, which are copied."""

FRAME, LATE, WORDS = (640, 480), 100, 60
"""Of the question that is planned: pixels of the camera, steps before it, words of its instruction."""

Model = transformers.AutoModelForImageTextToText


class SeenCheckpoints(Checkpoints):
    """Folders as transformers writes them."""

    def config(self, source: Source, options: SeenStep | SeenInference) -> Any:
        if not recognizes(source.path):  # a folder: there are neither presets nor sizes
            raise UsageError(f"{source.name}: config.json is not of a tower and a language model")
        return read(transformers.AutoConfig, source.path)

    def settled(self, source: Source, options: Any) -> Any:
        inputs = asdict(inputs_of(source.path, options))
        return replace(options, **inputs | {"prompt": options.prompt})

    def content_hash(self, path: Path, options: SeenTraining) -> str:
        return content_hash(sorted(each for each in path.iterdir() if each.is_file()))

    def placement(self, options: SeenTraining, device: torch.device) -> Placement:
        return Placement(place(str(device), options.dtype, "sdpa", torch.bfloat16).dtype, {})

    def load(self, path: Path, options: SeenTraining, placement: Placement) -> nn.Module:
        return read(Model, path, dtype=placement.dtype, use_safetensors=True)

    def shapes(self, model: Any) -> nn.Module:
        return _in_shapes(model.config)

    def save(self, model: Any, folder: Path, base: Path, options: SeenTraining) -> None:
        model.tie_weights()
        known = (*base.glob("*.index.json"), base / CONFIG, base / INPUTS)
        copied = [each for each in base.iterdir() if each.suffix in BESIDE and each not in known]
        config = json.loads(model.config.to_json_string())
        write_folder(model, folder, config, copied, "5GB", inputs_of(base, options))


class SeenTrains(Trains):
    """All of a network, or parts of it, on answers to questions along walks."""

    def parts(self, model: nn.Module, options: SeenStep) -> Sequence[PartRule]:
        return TABLE

    def adapted(self, model: nn.Module) -> list[str]:
        return [
            name
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and rule_of(TABLE, f"{name}.weight").part == LANGUAGE
        ]

    def enable_checkpointing(self, model: Any) -> None:
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()

    def read_set(self, folder: Path, options: SeenTraining) -> AnswerSet:
        return read_answers(folder, options.actions_per_answer)

    def samples(
        self, sets: Sequence[Any], model: nn.Module, base: Path, options: SeenTraining, known: Known | None
    ) -> list[Samples]:
        prompts = Prompts(base, inputs_of(base, options))
        return [QuestionDataset(each, prompts) for each in sets]

    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        return collate(samples)

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Tensor:
        """Mean cross entropy of the answers' tokens; nothing else meets the vocabulary."""
        given = _placed(batch, next(model.parameters()))
        labels = given.pop("labels")
        logits = model(**given, use_cache=False, logits_to_keep=labels.shape[1] + 1).logits[:, :-1]
        return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED)

    def stretches(self, model: nn.Module, cached: bool) -> Stretches:
        return Stretches(("vision", "language"), _first(model, VISION), _first(model, PROJECTOR))


class SeenPlans(Plans):
    """Questions late in an episode, which show all the frames they may."""

    def build(self, config: Any, options: SeenPlanning) -> nn.Module:
        return _in_shapes(config)

    def probe(self, config: Any, options: SeenPlanning, device: str) -> Probe:
        batch = _batch(config, options, options.batch)
        positions, answer = batch["input_ids"].shape[1], batch["labels"].shape[1]
        return Probe(batch, positions, answer, config.get_text_config().vocab_size)

    def changes(self, options: SeenPlanning) -> Iterator[Change]:
        yield from _fewer(options, "results")
        yield from part_changes(options, VISION, LANGUAGE, "vision tower frozen")

    def inference_network(self, config: Any, options: SeenInference) -> nn.Module:
        return _in_shapes(config)

    def inference(self, network: Any, config: Any, options: SeenInference) -> Acting:
        batch, like = _batch(config, options, 1), network.lm_head.weight  # episodes ask one after the other
        del batch["labels"]
        return Acting(caches={}, passes={"a question": lambda: network(**_placed(batch, like), logits_to_keep=1)})

    def inference_changes(self, options: SeenInference) -> Iterator[Change]:
        return _fewer(options, "answers")


def _in_shapes(config: Any) -> nn.Module:
    """A network on the meta device."""
    with torch.device("meta"):
        return Model.from_config(config)


def _placed(batch: Mapping[str, Tensor], like: Tensor) -> dict[str, Tensor]:
    """A batch where a parameter is, pixels in its precision."""
    return {name: each.to(like if each.is_floating_point() else like.device) for name, each in batch.items()}


def _first(model: nn.Module, part: str) -> nn.Module:
    """The outermost module that is a part. Raises UsageError for a network whose names do not tell."""
    for name, module in model.named_modules():
        if name and rule_of(TABLE, f"{name}.").part == part:
            return module
    raise UsageError(f"{type(model).__name__}: no {part} by the names of its modules; add its name to TABLE")


def _batch(config: Any, options: Seen, count: int) -> dict[str, Tensor]:
    """Questions late in an episode with their answers; options are settled."""
    folder = Path(config.name_or_path)
    prompts = Prompts(folder, inputs_of(folder, options))
    frames = [Image.new("RGB", FRAME)] * (options.history + 1)
    forward = (Action.MOVE_FORWARD,)
    asked = Asked("on " * WORDS, forward * LATE, (), forward * options.actions_per_answer)
    return collate([prompts.sample(asked, frames)] * count)


def _fewer(options: Seen, what: str) -> Iterator[Change]:
    """Ways to show less, after which there are other results or answers, as `what` says."""
    if options.history > 1:
        half = options.history // 2
        yield Change("history", f"--history {half}", 14, (("history", half),), f"less of the way: other {what}")
