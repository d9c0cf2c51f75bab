"""A matrix file, checked and expanded into named settings.

The file is YAML: `name`; `train` and `evaluate`, options of `vlnbench train` and `vlnbench eval` by their names;
`axes`, of each of which every setting takes one value; and, where they are wanted, `houses` (options of `vlnbench
data houses`), `collect` (trajectory sets that are collected if they are missing, with options of `vlnbench
collect`), `offline` (sets of held-out walks to be scored on, with options of `vlnbench collect`, `split`
among them), `references` (what is evaluated beside the settings, see `references`), `contrasts` (what is compared
beside the labels of each axis with its first, see `statistics.contrasts`), `looks` (after how many seeds, see
`statistics.looks`), `run`, see `Execution`, and `hardware`, see there.

An axis is a list of values of the training option that it is named after (`evaluate.NAME`: of evaluation). A value
can be a mapping of several options with a `label`; where all are, the axis may have any name. `keep`, a list of
mappings of axes to labels, keeps those settings of the product of the axes that one of its entries matches.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from vlnbench.data.trajectory_sets import set_file
from vlnbench.defaults import BENCHMARK, GENERATORS
from vlnbench.errors import UsageError, unknown
from vlnbench.matrix.execution import Execution
from vlnbench.matrix.fields import (
    check_evaluation,
    check_known,
    checked,
    convert,
    digest,
    eval_types,
    hashed,
    make,
    mapping,
    train_types,
    types_of,
)
from vlnbench.matrix.hardware import HARDWARE, on_hardware
from vlnbench.matrix.preparation import NAME, collected, generated_data
from vlnbench.matrix.references import Reference, read_references
from vlnbench.matrix.statistics.contrasts import SEED, Contrast, read_contrasts
from vlnbench.matrix.statistics.looks import read_looks
from vlnbench.training.family.checkpoints import Source
from vlnbench.training.family.find import every_family, find_family, get_family
from vlnbench.training.family.sources import find_source
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.objectives import OBJECTIVES, get_objective
from vlnbench.training.options import TrainOptions, parse_set
from vlnbench.util.durable.fields import short
from vlnbench.util.durable.limits import MAX_SETTINGS
from vlnbench.util.durable.yaml_file import read_yaml

SECTIONS = (
    "name",
    "train",
    "evaluate",
    "axes",
    "keep",
    "contrasts",
    "looks",
    "references",
    *GENERATORS,
    "collect",
    "offline",
    "run",
    HARDWARE,
)
UNMAPPED = ("name", "keep", "contrasts", "looks", "references", HARDWARE)
"""Sections that are no mappings."""
EVALUATE = "evaluate."
"""What the names of axes over options of the evaluation begin with."""
EVALUATED: dict[str, Any] = {"benchmark": BENCHMARK, "splits": ("val_seen", "val_unseen")}
"""What is evaluated where the file does not say otherwise, by the agent of the family."""

_T = TypeVar("_T")
_LONGEST = 100
"""Characters of a label."""


@dataclass(frozen=True)
class Setting:
    """One cell: what is trained, how it is evaluated, and its value's label on every axis.

    `train` is complete but for `out`; `given` are the options that the file sets. `evaluate` has the options of
    `vlnbench eval` that are set, and `splits`. `family` is the one whose options `train` are, `source` what they
    start from; None for a folder that is not there yet.
    """

    name: str
    labels: Mapping[str, str]
    family: FamilySpec
    source: Source | None
    train: TrainOptions
    given: Mapping[str, Any]
    evaluate: Mapping[str, Any]

    @property
    def train_key(self) -> str:
        """Hash of the training: settings that share it differ in their evaluation alone and are trained once."""
        return digest(hashed(self.train, self.family))

    def eval_key(self, split: str) -> str:
        """Hash of the evaluation of a split."""
        return digest([self.train_key, {**self.evaluate, "splits": [split]}])

    @property
    def key(self) -> str:
        """Hash of the setting."""
        return digest([self.train_key, self.evaluate])


@dataclass(frozen=True)
class Matrix:
    """A matrix file. `axes`: labels by axis. `generated`, `collect`: options by generator and by set.

    `references`: what is evaluated beside the settings; `offline`: sets of walks to be scored on, with options of
    `vlnbench collect`; `contrasts`: what is compared; `looks`: after how many seeds. None changes a setting, and
    all but the looks may change when it has begun. `drawn`: options that seeds set beside the seed, such as the
    checkpoint to begin with.
    """

    path: Path
    name: str
    settings: tuple[Setting, ...]
    axes: Mapping[str, tuple[str, ...]]
    execution: Execution = field(default_factory=Execution)
    generated: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    collect: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    references: tuple[Reference, ...] = ()
    offline: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    contrasts: tuple[Contrast, ...] = ()
    looks: tuple[int, ...] = ()
    drawn: tuple[str, ...] = ()

    @property
    def held_out(self) -> Path:
        """The folder of the walks that settings are scored on: one for all matrices with the same options."""
        root = next((options["data_root"] for options in self.offline.values() if "data_root" in options), "data")
        return Path(root, "held_out", digest(self.offline))

    @property
    def key(self) -> str:
        """Hash of everything that can change a result."""
        return digest([[[each.name, each.key] for each in self.settings], self._generated, self.collect])

    @property
    def data_key(self) -> str:
        """Hash of how scenes and trajectories are made."""
        return digest([self._generated, self.collect])

    @property
    def _generated(self) -> Mapping[str, Any] | None:
        """The only generator's options without its name: as they were hashed when there was one."""
        return next(iter(self.generated.values()), None) if len(self.generated) < 2 else self.generated


def read_matrix(path: Path, hardware: str = "") -> Matrix:
    """Read a matrix file and expand it. Raises UsageError naming the first field that cannot be.

    hardware: a name of the file's section of that name; default its first, if it has one.
    """
    found = read_yaml(path, "matrix", SECTIONS)
    check_known(found, SECTIONS, f"{path}: section")
    found = on_hardware(found, hardware, path)
    name = found.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UsageError(f"{path}: name {short(name)}: expected letters, digits, dots, dashes and underscores")
    sections = {key: mapping(found.get(key), f"{path}: {key}") for key in SECTIONS if key not in UNMAPPED}
    collect = {each: collected(options, each, f"{path}: collect") for each, options in sections["collect"].items()}
    offline = {each: collected(options, each, f"{path}: offline") for each, options in sections["offline"].items()}
    for each, options in offline.items():
        if "split" not in options or options.get("disturbance") or options.get("dagger"):
            raise UsageError(
                f"{path}: offline.{each}: expected a split, no disturbance and no dagger: experts do not err"
            )
    generated = {each: generated_data(each, sections[each], path) for each in GENERATORS if each in found}
    execution = make(Execution, sections["run"], f"{path}: run")
    execution.check(f"{path}: run")
    if not sections["axes"]:
        raise UsageError(f"{path}: axes: expected at least one axis with its values, or there is no matrix")
    families = _named("family", get_family, every_family(), sections["train"], sections["axes"], path)
    objectives = _named("objective", get_objective, OBJECTIVES.values(), sections["train"], sections["axes"], path)
    kinds = train_types(families, objectives)
    axes = {axis: _values(axis, values, kinds, path) for axis, values in sections["axes"].items()}
    labels = {axis: tuple(label for label, _ in values) for axis, values in axes.items()}
    if (count := math.prod(map(len, axes.values()))) > MAX_SETTINGS:
        raise UsageError(f"{path}: axes: expected at most {MAX_SETTINGS} settings, found {count}")
    keep = _keep(found["keep"], labels, path) if "keep" in found else [{}]
    settings = tuple(
        setting
        for setting in _expand(sections["train"], sections["evaluate"], axes, kinds, path)
        if any(all(setting.labels[axis] in wanted for axis, wanted in entry.items()) for entry in keep)
    )
    for setting in settings:
        _check_sets(setting, {*collect, *execution.windows}, path)
    beside = [(_trained_before(setting), setting.evaluate) for setting in settings]
    references = read_references(found.get("references"), beside, path)
    contrasts = read_contrasts(found.get("contrasts"), labels, path)
    looks = read_looks(found.get("looks"), labels, str(path))
    drawn = tuple(sorted({name for _, options in axes.get(SEED, ()) for name in options} - {SEED}))
    return Matrix(
        path, name, settings, labels, execution, generated, collect, references, offline, contrasts, looks, drawn
    )


_Spec = TypeVar("_Spec")

Value = tuple[str, Mapping[str, Any]]
"""A value of an axis: label and options."""


def _values(axis: str, values: Any, kinds: Mapping[str, Any], path: Path) -> list[Value]:
    """An axis's values, checked as far as they can be one by one. `kinds`: types of options of training."""
    where = f"{path}: axes.{axis}"
    if not isinstance(values, list) or not values:
        raise UsageError(f"{where}: expected a list of at least one value, or nothing would be run")
    bundles = [value for value in values if isinstance(value, dict)]
    if axis not in kinds and not axis.startswith(EVALUATE) and len(bundles) < len(values):
        raise UsageError(f"{path}: {unknown('axis', axis, kinds)}; an axis of another name has mappings as values")
    found: list[Value] = []
    for number, value in enumerate(values, start=1):
        if not isinstance(value, dict):
            text = _label(axis, value, kinds.get(axis))
            if len(text) > _LONGEST:
                raise UsageError(f"{where}: value {number}: {short(text)}: give it a label beside its options")
            found.append((text, {axis: value}))
            continue
        label = value.get("label")
        if not isinstance(label, str) or not label.strip() or not label.isprintable() or len(label) > _LONGEST:
            raise UsageError(
                f"{where}: value {number}: expected a label of 1 to {_LONGEST} characters beside its options"
            )
        found.append((label, {name: each for name, each in value.items() if name != "label"}))
    for label, options in found:
        trained = [name for name in options if not name.startswith(EVALUATE)]  # the others depend on the agent
        check_known(trained, kinds, f"{where}: {label}: option")
        if not options:
            raise UsageError(f"{where}: {label}: expected options beside the label")
    return found


def _label(axis: str, value: Any, kind: Any) -> str:
    """A value as it is shown: lists joined, and what is no name, such as a number, with its option."""
    if isinstance(value, list):
        return "+".join(map(str, value))
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if kind in (str, tuple[str, ...]) else f"{axis}={text}"


def _keep(entries: Any, axes: Mapping[str, Sequence[str]], path: Path) -> list[dict[str, list[str]]]:
    """The entries of the section keep: labels by axis."""
    where = f"{path}: keep"
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{where}: expected a list of mappings of axes to labels, or nothing would be run")
    result = []
    for number, entry in enumerate(entries, start=1):
        given = mapping(entry, f"{where}: entry {number}")
        check_known(given, axes, f"{where}: axis")
        wanted = {axis: value if isinstance(value, list) else [value] for axis, value in given.items()}
        for axis, labels in wanted.items():
            if not labels:
                raise UsageError(f"{where}: entry {number}: {axis}: expected at least one label")
            check_known(labels, axes[axis], f"{where}: {axis}: label")
        result.append(wanted)
    return result


def _expand(
    train: Mapping[str, Any],
    evaluate: Mapping[str, Any],
    axes: Mapping[str, list[Value]],
    kinds: Mapping[str, Any],
    path: Path,
) -> Iterable[Setting]:
    """The product of the axes, the last one fastest. Raises UsageError for settings that cannot be told apart."""
    check_known(train, kinds, f"{path}: train: option")
    owners: dict[str, str] = {}
    for axis, values in axes.items():
        for option in {option for _, options in values for option in options}:
            if owners.setdefault(option, axis) != axis:
                raise UsageError(f"{path}: axes {owners[option]} and {axis} both set {option}")
    names: dict[str, int] = {}
    for number, chosen in enumerate(itertools.product(*axes.values()), start=1):
        labels = {axis: label for axis, (label, _) in zip(axes, chosen, strict=True)}
        name = ", ".join(labels.values())
        if names.setdefault(name, number) != number:
            raise UsageError(f"{path}: settings {names[name]} and {number} are both named {name!r}; label them")
        options = {key: value for _, each in chosen for key, value in each.items()}
        yield _setting(name, labels, (train, evaluate, options), path)


def _setting(name: str, labels: dict[str, str], given: Sequence[Mapping[str, Any]], path: Path) -> Setting:
    """One combination; `given`: options of training, of evaluation, and those of the axes."""
    train, evaluate, options = given
    where = f"{path}: setting {name!r}"
    own = {key: value for key, value in options.items() if not key.startswith(EVALUATE)}
    family, source = _chosen({**train, **own}, where)
    kind = _kind({**train, **own}, family, where)
    merged = _trained({**train, **own}, own, kind, where)
    trained = kind(**merged, out=Path())
    others = {key.removeprefix(EVALUATE): value for key, value in options.items() if key.startswith(EVALUATE)}
    evaluation = {"agent": family.agent, **EVALUATED, **evaluate, **others}
    types = checked(lambda: eval_types(str(evaluation["agent"])), where)
    check_known(evaluation, types, f"{where}: evaluate: option")
    evaluated = convert(evaluation, types, where)
    checked(trained.check, where)
    checked(lambda: check_evaluation(evaluated), where)
    return Setting(name, labels, family, source, trained, merged, evaluated)


def _chosen(options: Mapping[str, Any], where: str) -> tuple[FamilySpec, Source | None]:
    """The family that a setting trains, and what it starts from."""
    named, checkpoint = options.get("family", ""), options.get("checkpoint", "")
    if not isinstance(checkpoint, str) or not checkpoint:
        raise UsageError(f"{where}: checkpoint: expected a folder or a name in the section train")
    if not named:
        return checked(lambda: find_family("", checkpoint), where)
    family = checked(lambda: get_family(named), where)
    try:
        return family, find_source(checkpoint, [family])
    except UsageError:  # a folder that is not here yet
        return family, None


def _kind(options: Mapping[str, Any], family: FamilySpec, where: str) -> type[TrainOptions]:
    """The options that a setting can have: the family's and the objective's. Raises UsageError for any other."""
    name = str(options.get("objective", TrainOptions.objective))
    kind = checked(lambda: get_objective(name), where).train_options(family.check_training())
    types = types_of(kind, without=("out",))
    strange = [option for option in options if option not in types]
    if not strange:
        return kind
    owners = [each.name for each in OBJECTIVES.values() if strange[0] in types_of(each.training)]
    whose = f"no option of the family {family.name}" if not owners else f"for objective: {' or '.join(owners)}"
    raise UsageError(f"{where}: {strange[0]}: {whose}; leave it out there")


def _trained(
    options: Mapping[str, Any], own: Mapping[str, Any], kind: type[TrainOptions], where: str
) -> dict[str, Any]:
    """A setting's options of training, without learning rates of parts that it does not train.

    `own`: those of its axes, which are kept, so that what makes no sense is noticed.
    """
    merged = convert(options, types_of(kind, without=("out",)), where)
    parts = kind(**merged, out=Path()).parts
    part_of = {name: part for part, name in kind.RATES.items()}
    return {key: value for key, value in merged.items() if key in own or part_of.get(key, "") in ("", *parts)}


def _trained_before(setting: Setting) -> str:
    """The checkpoint that a setting starts from, empty for random weights."""
    begins = setting.source is None or setting.source.path is not None
    return setting.train.checkpoint if begins else ""


def _check_sets(setting: Setting, collect: Iterable[str], path: Path) -> None:
    """Every set is there, will be collected, or is known to be still to come: `run.windows` has its windows."""
    options, files = setting.train, setting.family.set_files
    if options.learns_from == "walks":
        return
    counted = (parse_set(text)[0] for text in options.steps_of)
    for name in [*options.mixture, *counted, *options.vocabulary_of]:
        folder = options.trajectories / name
        if name not in collect and set_file(folder, files) is None:
            hint = unknown("set", name, collect) if collect else "name it in the section collect, or collect it"
            raise UsageError(f"{path}: setting {setting.name!r}: {folder} holds no {files[0]}; {hint}")


def _named(
    option: str,
    get: Callable[[str], _Spec],
    known: Iterable[_Spec],
    train: Mapping[str, Any],
    axes: Mapping[str, Any],
    path: Path,
) -> list[_Spec]:
    """The families or objectives whose options a file may use: those that are listed, and those that it names."""
    values = [value for each in axes.values() if isinstance(each, list) for value in each]
    bundles = [train, *(value for value in values if isinstance(value, dict))]
    named = [bundle[option] for bundle in bundles if option in bundle]
    own = axes.get(option)
    named += [each for each in own if not isinstance(each, dict)] if isinstance(own, list) else []
    found = [*known]
    for name in named:
        if not isinstance(name, str):
            raise UsageError(f"{path}: {option} {name!r}: expected a name or an import string")
        found.append(checked(partial(get, name), str(path)))
    return found
