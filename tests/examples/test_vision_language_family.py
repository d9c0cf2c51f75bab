"""A family from outside the table is evaluated, trained and planned as those are that ship with vlnbench."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.examples.test_examples import EXAMPLES, run
from tests.examples.tiny_idefics3 import write_tiny
from tests.fakes import make_episode
from tests.training.workshop import write_walks
from vlnbench.conformance import AgentConformance, FamilyConformance
from vlnbench.errors import UsageError
from vlnbench.interfaces import Agent, Observation
from vlnbench.training.family.find import get_family
from vlnbench.training.family.sources import find_source
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.options import TrainOptions

FAMILY = "vision_language_family.options:FAMILY"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


def options_of(checkpoint: Path, sets: Path, **others: Any) -> TrainOptions:
    kind = get_family(FAMILY).check_training()
    few = {"history": 2, "side": 32, "family": FAMILY, **others}
    return kind(checkpoint=str(checkpoint), out=Path("out"), trajectories=sets, **few)


class _Example:
    @pytest.fixture(autouse=True)
    def _made(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        self.base = base


class TestFamily(_Example, FamilyConformance):
    def make_spec(self) -> FamilySpec:
        return get_family(FAMILY)

    def make_options(self, folder: Path) -> TrainOptions:
        write_walks(folder / "sets" / "R2R", [5, 4])
        return options_of(self.base, folder / "sets")


class TestAgent(_Example, AgentConformance):
    does_not_count = frozenset({"dtype", "trust_pickle"})  # float32 is the CPU's default

    def make_options(self, kind: Any) -> Any:
        return kind.options_type(checkpoint=self.base, device="cpu", max_new_tokens=4)

    def make_agent(self) -> Agent:
        from vision_language_family.agent import SeenAgent

        return SeenAgent(self.make_options(SeenAgent))


@pytest.fixture
def walks(tmp_path: Path) -> Path:
    write_walks(tmp_path / "sets" / "R2R", [6, 5, 4])
    return tmp_path / "sets"


@pytest.mark.usefixtures("_importable")
class TestTraining:
    @pytest.fixture
    def _importable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(EXAMPLES))

    def test_it_is_asked_in_training_as_when_it_acts(
        self, base: Path, walks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With inputs that are not the defaults, saved and read again: the very tensors."""
        from vision_language_family.agent import SeenAgent
        from vision_language_family.options import SeenAgentOptions

        (tmp_path / "prompt.txt").write_text("{instruction} {actions} {turn_deg}. {format}")
        options = options_of(base, walks, prompt=tmp_path / "prompt.txt", actions_per_answer=1, turn_deg=30.0)
        spec, saved = get_family(FAMILY), tmp_path / "saved"
        checkpoints, trains = spec.load_trainable()
        model = checkpoints.load(base, options, checkpoints.placement(options, torch.device("cpu")))
        checkpoints.save(model, saved, base, options)
        given = checkpoints.settled(find_source(str(saved), [spec]), options_of(saved, walks))
        content = trains.read_set(walks / "R2R", given)
        (samples,) = trains.samples([content], model, saved, given, None)
        agent = SeenAgent(SeenAgentOptions(checkpoint=saved, device="cpu"))
        asked: list[dict[str, torch.Tensor]] = []
        walk = content.trajectories[0]  # type: ignore[attr-defined]

        def generate(**inputs: Any) -> torch.Tensor:
            answer = trains.collate([samples.sample(len(asked), random.Random(0))])
            asked.append(inputs)
            return torch.cat([inputs["input_ids"], answer["labels"]], dim=1)

        monkeypatch.setattr(agent.model, "generate", generate)
        agent.reset(0, replace(make_episode(0), instruction=walk.instructions[0]), 0)
        for step, path in enumerate(walk.frames()):
            with Image.open(path) as image:
                seen = Observation(walk.instructions[0], step, rgb=np.array(image))
            assert agent.act({0: seen})[0] == walk.actions[step], "the answers of training are read"
        for index, inputs in enumerate(asked):
            batch = trains.collate([samples.sample(index, random.Random(0))])
            long = inputs["input_ids"].shape[1]
            assert torch.equal(batch["input_ids"][:, :long], inputs["input_ids"])
            assert torch.equal(batch["pixel_values"], inputs["pixel_values"])
        assert [each["pixel_values"].shape[1] for each in asked] == [1, 2, 3, 3, 3, 3]
        text = agent.processor.decode(asked[-1]["input_ids"][0])
        assert f"{walk.instructions[0]} {', '.join(each.name for each in walk.actions[:5])} 30." in text

    def test_the_loss_is_that_of_transformers(self, base: Path, walks: Path) -> None:
        """Padding on either side changes nothing, nor that only answers meet the vocabulary."""
        checkpoints, trains = get_family(FAMILY).load_trainable()
        options = options_of(base, walks, actions_per_answer=4)
        model: Any = checkpoints.load(base, options, checkpoints.placement(options, torch.device("cpu")))
        (samples,) = trains.samples([trains.read_set(walks / "R2R", options)], model, base, options, None)
        each = [samples.sample(index, random.Random(0)) for index in (0, 1, 2)]
        losses, counts = [], []
        for sample in each:
            batch = dict(trains.collate([sample]))
            answer = batch.pop("labels")
            labels = torch.full_like(batch["input_ids"], -100)
            labels[:, -answer.shape[1] :] = answer
            losses.append(model(**batch, labels=labels).loss.item())
            counts.append(answer.shape[1])
        assert len({len(sample.answer) for sample in each}) > 1
        expected = sum(a * b for a, b in zip(losses, counts, strict=True)) / sum(counts)
        assert trains.loss(model, trains.collate(each)).item() == pytest.approx(expected, abs=1e-5)

    def test_inputs_that_cannot_be_are_a_line(self, base: Path, walks: Path, tmp_path: Path) -> None:
        spec, folder = get_family(FAMILY), tmp_path / "edited"
        shutil.copytree(base, folder)
        source = find_source(str(folder), [spec])
        for text, line in (('{"history": "4"}', "history"), ('{"prompt": "{goal}"}', "unknown field {goal}")):
            (folder / "inputs.json").write_text(text)
            with pytest.raises(UsageError, match=line):
                spec.load_checkpoints().settled(source, options_of(folder, walks))

    def test_tied_embeddings_are_saved_once(self, walks: Path, tmp_path: Path) -> None:
        tied = write_tiny(tmp_path / "tied", tied=True)
        checkpoints = get_family(FAMILY).load_checkpoints()
        options = options_of(tied, walks)
        placement = checkpoints.placement(options, torch.device("cpu"))
        model, whole = (checkpoints.load(tied, options, placement) for _ in range(2))
        whole = checkpoints.shapes(whole)
        for name, parameter in model.named_parameters():  # as the trainer takes a network to host memory
            parent, _, leaf = name.rpartition(".")
            whole.get_submodule(parent).register_parameter(leaf, torch.nn.Parameter(parameter.detach() + 1))
        checkpoints.save(whole, tmp_path / "saved", tied, options)
        loaded: Any = checkpoints.load(tmp_path / "saved", options, placement)
        assert loaded.lm_head.weight is loaded.get_input_embeddings().weight
        for name, parameter in loaded.named_parameters():
            assert torch.equal(parameter, model.get_parameter(name) + 1), name


@pytest.mark.slow
def test_it_is_trained_and_planned_and_what_was_trained_is_evaluated(
    base: Path, walks: Path, houses: Path, tmp_path: Path
) -> None:
    """The commands of the documents, with adapters; every default of an evaluation is what was trained."""
    pytest.importorskip("deepspeed", reason="needs deepspeed: pip install -e '.[test]'")
    run_folder, model = tmp_path / "run", tmp_path / "run" / "model"
    what = ("--checkpoint", base, "--trajectories", walks, "--tunable-parts", "projector", "--lora-rank", "2")
    how = ("--history", "1", "--side", "32", "--learning-rate", "0.01", "--steps", "2", "--out", run_folder)
    run("-m", "vlnbench", "train", "--family", FAMILY, *what, *how, cwd=tmp_path)
    before, after = (load_file(each / "model.safetensors") for each in (base, model))
    changed = {name for name, each in before.items() if not torch.equal(each, after[name])}
    assert "model.connector.modality_projection.proj.weight" in changed
    assert "model.text_model.layers.0.self_attn.q_proj.weight" in changed
    assert not any("vision_model" in name or "lm_head" in name for name in changed)
    agent = ("--agent", "vision_language_family.agent:SeenAgent", "--checkpoint", model, "--max-new-tokens", "4")
    where = ("--data-root", houses, "--episodes", "2", "--envs", "1", "--device", "cpu")
    run("-m", "vlnbench", "eval", *agent, *where, "--out", tmp_path / "rows", cwd=tmp_path)
    identity = json.loads((tmp_path / "rows" / "manifest.json").read_text())["identity"]["agent_identity"]
    assert (identity["history"], identity["side"]) == (1, 32)
    for kind in ((), ("--inference",)):
        plan = ("-m", "vlnbench", "plan", *kind, "--family", FAMILY, "--model", model, "--gpus", "1x8GB")
        planned = json.loads(run(*plan, "--format", "json", cwd=tmp_path))
        assert planned["request"]["history"] == 1
        assert planned["fits"] == "yes"


def test_it_is_five_files_of_at_most_600_lines() -> None:
    files = [EXAMPLES / "vision_language.py", *(EXAMPLES / "vision_language_family").glob("*.py")]
    assert len(files) <= 5
    assert sum(len(each.read_text(encoding="utf-8").splitlines()) for each in files) <= 600
