"""The contract of a model family as tests to inherit: one class for each of its parts, and one for all of them.

A test class derives from one and says which family it tests and on what it trains; pytest collects the inherited
tests. Only plain asserts are used, and torch is imported inside, so the module loads nothing heavy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from vlnbench.conformance.walk import acted, learned, one_walk, with_other_inputs
from vlnbench.data.sets import TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.rollout.agent_names import options_type
from vlnbench.rollout.agents import load_agent
from vlnbench.training.family.checkpoints import Checkpoints, Source
from vlnbench.training.family.sources import find_source, with_weights
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.family.trains import rule_of
from vlnbench.training.options import TrainOptions


class _OfFamily:
    """Which family is tested. Override both."""

    def make_spec(self) -> FamilySpec:
        """The family under test."""
        raise NotImplementedError

    def make_options(self, folder: Path) -> TrainOptions:
        """Options of a training from a small preset or checkpoint, on sets that this writes below `folder`."""
        raise NotImplementedError


class CheckpointsConformance(_OfFamily):
    """Every `Checkpoints` passes these."""

    def test_a_folder_of_something_else_is_not_recognized(self, tmp_path: Path) -> None:
        spec = self.make_spec()
        (tmp_path / "config.json").write_text('["something else"]')
        assert not spec.recognizes(tmp_path)
        assert not spec.recognizes(tmp_path / "nothing")

    def test_shapes_are_those_of_the_network_and_hold_no_memory(self, tmp_path: Path) -> None:
        made = _Made(self.make_spec(), self.make_options(tmp_path), tmp_path)
        model = made.load()
        shapes = dict(made.checkpoints.shapes(model).named_parameters())
        assert {name: each.shape for name, each in shapes.items()} == {
            name: each.shape for name, each in model.named_parameters()
        }
        assert all(each.is_meta for each in shapes.values())

    def test_what_is_saved_is_recognized_and_loaded(self, tmp_path: Path) -> None:
        made = _Made(self.make_spec(), self.make_options(tmp_path), tmp_path)
        model, folder = made.load(), tmp_path / "saved"
        made.checkpoints.save(model, folder, made.base, made.options)
        assert made.spec.recognizes(folder)
        loaded = dict(made.checkpoints.load(folder, made.options, made.placement).named_parameters())
        for name, parameter in model.named_parameters():
            assert bool((loaded[name] == parameter).all()), name
        digest = made.checkpoints.content_hash(folder, made.options)
        assert digest == made.checkpoints.content_hash(folder, made.options)
        again = tmp_path / "again"
        next(iter(model.parameters())).data.add_(1)
        made.checkpoints.save(model, again, made.base, made.options)
        assert made.checkpoints.content_hash(again, made.options) != digest

    def test_files_that_are_missing_are_told_beforehand(self, tmp_path: Path) -> None:
        made = _Made(self.make_spec(), self.make_options(tmp_path), tmp_path)
        saved, checkpoints = tmp_path / "saved", made.checkpoints
        checkpoints.save(made.load(), saved, made.base, made.options)
        checkpoints.check_files(saved, made.options)
        if type(checkpoints).check_files is Checkpoints.check_files:
            return
        files = [path for path in saved.rglob("*") if path.is_file()]
        source, unneeded = Source("checkpoint", str(saved), saved), list[Path]()
        for path in files:
            with _without(path), suppress(UsageError):
                checkpoints.config(source, made.options)
                checkpoints.check_files(saved, made.options)
                unneeded.append(path)
        for path in unneeded:
            with _without(path):
                model = checkpoints.load(saved, made.options, made.placement)
                made.trains.samples(made.sets, model, saved, made.options, None)

    def test_what_it_was_trained_to_see_is_saved(self, tmp_path: Path) -> None:
        """Every option that a checkpoint settles where it is not given comes back from what was saved."""
        made = _Made(self.make_spec(), self.make_options(tmp_path), tmp_path)
        names = [each.name for each in fields(made.asked) if getattr(made.asked, each.name) is None]
        settled = {name: getattr(made.options, name) for name in names}
        for name, value in settled.items():
            if (options := _unlike(made.options, name, value)) is not None:
                folder = tmp_path / f"saved-{name}"
                made.checkpoints.save(made.load(options), folder, made.base, options)
                again = made.checkpoints.settled(find_source(str(folder), [made.spec]), made.asked)
                assert getattr(again, name) == getattr(options, name), f"{name} is not saved"

    def test_presets_are_the_same_bytes_every_time(self, tmp_path: Path) -> None:
        made = _Made(self.make_spec(), self.make_options(tmp_path), tmp_path)
        spec = made.spec
        texts = [text for content in made.sets for text in content.texts()]
        for preset in spec.presets:
            folders = [tmp_path / f"{preset}-{number}" for number in range(2)]
            for folder in folders:
                made.checkpoints.create(preset, folder, texts, 3)
                assert spec.recognizes(folder)
            files = [
                {
                    path: each.read_bytes()
                    for each in folder.rglob("*")
                    if each.is_file() and (path := each.relative_to(folder))
                }
                for folder in folders
            ]
            assert files[0] == files[1]


class TrainsConformance(_OfFamily):
    """Every `Trains` passes these."""

    def make_walk_options(self, options: TrainOptions) -> TrainOptions:
        """Options with which nothing is learned otherwise than it is acted, as published trainings do on purpose:
        without augmentation, say."""
        return options

    def test_the_options_agree_with_the_parts(self) -> None:
        spec = self.make_spec()
        kind = spec.check_training()
        parts, names = kind.PARTS, {each.name for each in fields(kind)}
        assert parts
        assert len(set(parts)) == len(parts)
        assert set(kind.RATES) <= set(parts)
        assert set(kind.RATES.values()) <= names
        assert kind.ADAPTED in (None, *parts)
        assert not set(kind.FROZEN) & set(parts)
        assert kind.CACHED in (None, *parts, *kind.FROZEN)
        assert spec.planning is None or parts == spec.planning.PARTS
        default = next(each.default for each in fields(kind) if each.name == "tunable_parts")
        assert default == parts, "with no --tunable-parts every part trains"

    def test_every_part_trains_alone_and_nothing_else_has_a_gradient(self, tmp_path: Path) -> None:
        from vlnbench.training.parts import freeze

        made = _Made(self.make_spec(), self.make_options(tmp_path), tmp_path)
        for part in made.options.PARTS:
            rates: dict[str, Any] = dict.fromkeys(made.options.RATES.values())
            options = replace(made.options, tunable_parts=(part,), **rates)
            model = made.load()
            freeze(model, made.trains, options)
            assert any(parameter.requires_grad for parameter in model.parameters()), part
            made.trains.loss(model.train(), made.batch(model)).backward()  # type: ignore[no-untyped-call]
            for name, parameter in model.named_parameters():
                rule = rule_of(made.trains.parts(model, options), name)
                wanted = rule.part == part and rule.trains != "never"
                assert (parameter.grad is not None) == wanted, f"{part}: {name}"
        model = made.load()
        for name, _ in model.named_parameters():
            rule = rule_of(made.trains.parts(model, made.options), name)
            if rule.part in made.options.FROZEN:
                assert rule.trains == "never", f"{name} never trains, which it has to say"

    def test_every_parameter_has_a_part_and_layers_to_adapt_are_in_theirs(self, tmp_path: Path) -> None:
        made = _Made(self.make_spec(), self.make_options(tmp_path), tmp_path)
        model = made.load()
        rules = made.trains.parts(model, made.options)
        parts = {rule_of(rules, name).part for name, _ in model.named_parameters()}
        assert parts == {*made.options.PARTS, *made.options.FROZEN}
        layers = made.trains.adapted(model)
        assert bool(layers) == (made.options.ADAPTED is not None)
        for name in layers:
            assert rule_of(rules, f"{name}.weight").part == made.options.ADAPTED

    def test_samples_are_as_many_as_windows_and_drawn_by_their_generator(self, tmp_path: Path) -> None:
        made = _Made(self.make_spec(), self.make_options(tmp_path), tmp_path)
        model = made.load()
        for content, samples in zip(made.sets, made.samples(model), strict=True):
            assert content.windows == len(samples) == len(content.lengths())
            assert content.file.is_file()
            assert all(isinstance(text, str) for text in content.texts())
            assert all(count >= 0 for count in content.counts.values())
            first, again = (samples.sample(0, random.Random(1)) for _ in range(2))
            losses = [made.trains.loss(model, made.trains.collate([each])).item() for each in (first, again)]
            assert losses[0] == losses[1]
            assert math.isfinite(losses[0])

    def test_the_forward_pass_is_timed_in_two_stretches(self, tmp_path: Path) -> None:
        from vlnbench.training.run.log import Phases

        made = _Made(self.make_spec(), self.make_options(tmp_path), tmp_path)
        model = made.load()
        phases = Phases(made.device)
        stretches = made.trains.stretches(model, cached=False)
        phases.watch(model, stretches)
        made.trains.loss(model, made.batch(model))
        taken = phases.take()
        assert all(taken[name] >= 0 for name in stretches.names)
        assert sum(taken[name] for name in stretches.names) > 0

    def test_walks_are_scored_step_by_step_or_it_says_why_not(self, tmp_path: Path) -> None:
        made = _Made(self.make_spec(), self.make_options(tmp_path), tmp_path)
        saved = tmp_path / "scored"
        made.checkpoints.save(made.load(), saved, made.base, made.options)
        try:
            scorer = made.trains.scorer(saved, made.device)
        except UsageError:
            return
        folders = [made.options.trajectories / name for name in made.options.mixture]
        folder = next(each for each in folders if (each / TRAJECTORIES).is_file())
        answers = sorted(scorer(folder, 2), key=lambda each: (each.trajectory, each.step))
        assert answers, "every set of walks has steps"
        for answer in answers:
            assert math.isfinite(answer.loss)
            assert answer.loss >= 0
            assert answer.predicted is None or isinstance(answer.predicted, Action)
            assert (answer.before is None) == (answer.step == 0)
        for name in {each.trajectory for each in answers}:
            steps = [each for each in answers if each.trajectory == name]
            followed = {each.step: each.expected for each in steps}
            assert followed[max(followed)] == Action.STOP
            for each in steps:  # what went before a step is what the walk has there
                assert each.before == followed.get(each.step - 1, each.before)
        losses, alone = sorted(each.loss for each in answers), sorted(each.loss for each in scorer(folder, 1))
        assert max(abs(a - b) for a, b in zip(losses, alone, strict=True)) < 1e-3, "batches change nothing"

    def test_it_is_asked_in_training_as_when_it_acts(self, tmp_path: Path) -> None:
        self._walked(self.make_walk_options(self.make_options(tmp_path)), tmp_path)

    def test_it_acts_with_the_inputs_that_it_was_trained_with(self, tmp_path: Path) -> None:
        options = self.make_walk_options(self.make_options(tmp_path))
        made = _Made(self.make_spec(), options, tmp_path / "settled")
        others = with_other_inputs(made.options, options_type(made.spec.agent)) if made.spec.agent else {}
        self._walked(replace(options, **others), tmp_path)

    def _walked(self, options: TrainOptions, folder: Path) -> None:
        """A walk is learned from a checkpoint that is saved, and acted out with what was saved."""
        spec = self.make_spec()
        sets = [options.trajectories / name for name in options.mixture]
        walks = next((each for each in sets if (each / TRAJECTORIES).is_file()), None)
        if not spec.agent or walks is None:
            return
        record = one_walk(walks, folder / "walk" / "one")
        options = replace(options, trajectories=folder / "walk", sets=("one",))
        made = _Made(spec, options, folder / "made")
        model, saved = made.load(), folder / "acts"
        (samples,) = made.samples(model)
        known = learned(made.trains, model, samples)
        made.checkpoints.save(model, saved, made.base, made.options)
        kind: Any = options_type(spec.agent)
        given = {"checkpoint": saved, "device": "cpu"}
        has = {each.name for each in fields(kind)}
        agent = load_agent(spec.agent, kind(**{name: value for name, value in given.items() if name in has}))
        acted(agent, known, walks, record)

    def test_what_is_drawn_by_chance_is_what_is_learned_from(self, tmp_path: Path) -> None:
        """Of a family with log-probabilities (`GivesLogProbabilities`)."""
        from vlnbench.training.family.policy import GivesLogProbabilities, Sampling
        from vlnbench.training.parts import freeze

        made = _Made(self.make_spec(), self.make_options(tmp_path), tmp_path)
        if not isinstance(made.trains, GivesLogProbabilities):
            return
        part = made.options.PARTS[-1]
        rates: dict[str, Any] = dict.fromkeys(made.options.RATES.values())
        model = made.load()
        freeze(model, made.trains, replace(made.options, tunable_parts=(part,), **rates))
        policy = made.trains.policy(model, made.base, made.options, Sampling(0.7, answer_tokens=4))
        policy.renew()
        questions = policy.questions(made.sets)
        asked = [questions.question(number, str(number)) for number in (0, 0, 1, 1)]
        assert all(each.expected for each in asked)
        assert asked[0].expected == asked[1].expected, "the same seed puts the same question"
        prompts, seeds = [each.prompt for each in asked], [1, 2, 3, 4]
        together = policy.answer(prompts, seeds)
        turned = policy.answer(prompts[::-1], seeds[::-1])[::-1]
        assert [each.actions for each in together] == [each.actions for each in turned], "seeds alone decide"
        drawn = [chance for each in together for chance in each.log_probabilities]
        assert len(drawn) == sum(sum(each.tokens) for each in together)
        batch = made.trains.collate([sample for each in together for sample in each.samples])
        found, warmer = (
            made.trains.log_probabilities(model.train(), batch, temperature) for temperature in (0.7, 2.0)
        )
        assert len(found.log_probabilities) == len(found.entropies) == len(drawn)
        apart = [abs(now - then) for now, then in zip(found.log_probabilities.tolist(), drawn, strict=True)]
        assert max(apart) < 1e-3, "it is trained on the log-probabilities that it draws from"
        assert bool((found.entropies >= 0).all())
        assert warmer.entropies.sum() > found.entropies.sum(), "a higher temperature draws more evenly"
        found.log_probabilities.sum().backward()  # type: ignore[no-untyped-call]
        rules = made.trains.parts(model, made.options)
        moved = {rule_of(rules, name).part for name, each in model.named_parameters() if each.grad is not None}
        assert moved == {part}


class PlansConformance(_OfFamily):
    """Every `Plans` passes these."""

    def test_its_memory_is_planned_or_it_says_why_not(self, tmp_path: Path) -> None:
        from vlnbench.training.family.policy import GivesLogProbabilities
        from vlnbench.training.memory.plan import plan
        from vlnbench.training.objectives import OBJECTIVES

        made = _Made(self.make_spec(), self.make_options(tmp_path), tmp_path)
        if made.spec.planning is None:
            assert made.spec.unplanned
            assert "\n" not in made.spec.unplanned
            return
        kind = made.spec.check_plannable()
        settings = {**kind.settings_of(made.options), "model": str(made.base), "gpus": "1x24GB"}
        planned = plan(kind(**settings))
        model = made.load()
        assert sum(planned.parts.values()) == sum(parameter.numel() for parameter in model.parameters())
        assert planned.usage.total > 0
        assert planned.tokens > 0
        for name, objective in OBJECTIVES.items():
            if isinstance(made.trains, GivesLogProbabilities) or not objective.needs_policy:
                under = {**settings, "objective": name, "batch": 2, "accumulation": 1}
                assert plan(objective.plan_options(kind)(**under)).usage.total > 0


class FamilyConformance(CheckpointsConformance, TrainsConformance, PlansConformance):
    """Every family that is trained and planned passes all of them."""


@contextmanager
def _without(path: Path) -> Iterator[None]:
    """A file is not there."""
    lost = path.rename(path.with_name("lost"))
    try:
        yield
    finally:
        lost.rename(path)


def _unlike(options: TrainOptions, name: str, value: object) -> TrainOptions | None:
    """The same with another number or truth value in the place of one; None where there is no other."""
    others: list[Any] = []
    if isinstance(value, bool):
        others = [not value]
    elif isinstance(value, int | float):
        others = [value + 1, value * 2]  # some have to be multiples
    for other in others:
        with suppress(UsageError):
            changed = replace(options, **{name: other})
            changed.check()
            return changed
    return None


class _Made:
    """A family with a checkpoint of it, its sets read, on the CPU."""

    def __init__(self, spec: FamilySpec, options: TrainOptions, folder: Path) -> None:
        from vlnbench.util.loading import import_string

        self.spec = spec
        self.checkpoints, self.trains = spec.load_trainable()
        self.device = import_string("torch:device")("cpu")
        source = with_weights(find_source(options.checkpoint, [spec]))
        self.asked = options
        self.options = options = self.checkpoints.settled(source, options)
        self.sets = [self.trains.read_set(options.trajectories / name, options) for name in options.mixture]
        self.checkpoints.config(source, options)
        if source.path is None:
            texts = [text for content in self.sets for text in content.texts()]
            self.base = folder / "base"
            self.checkpoints.create(source.name, self.base, texts, 0)
        else:
            self.base = source.path
        self.placement = self.checkpoints.placement(options, self.device)

    def load(self, options: TrainOptions | None = None) -> Any:
        """The network, anew, as it is trained; options: by others than its own."""
        options = options or self.options
        return self.trains.fitted(self.checkpoints.load(self.base, options, self.placement), options)

    def samples(self, model: Any) -> list[Any]:
        """The samples of every set."""
        return list(self.trains.samples(self.sets, model, self.base, self.options, None))

    def batch(self, model: Any) -> dict[str, Any]:
        """Two samples of every set."""
        samples = [
            each.sample(number % len(each), random.Random(0)) for each in self.samples(model) for number in (0, 1)
        ]
        return self.trains.collate(samples)
