"""Adapters over a base: those of PEFT, and what LLaVA saves beside them, added to the base's weights when read.

`vlnbench.training.family.sources` makes one folder of BASE+ADAPTERS, with the adapters in a folder of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from agents.common.checkpoints.files import Fields, read_json
from agents.common.checkpoints.tied import EMBEDDINGS, HEAD
from vlnbench.errors import UsageError
from vlnbench.util.hub import ADAPTER_CONFIG, ADAPTERS, refuse_others

LOW_RANK = ("adapter_model.safetensors", "adapter_model.bin")
WHOLE = ("non_lora_trainables.safetensors", "non_lora_trainables.bin")
"""What LLaVA's trainers save of the weights that were trained as they are, such as the projector's."""
NAMED = re.compile(r"(.+)\.lora_(embedding_)?([AB])(?:\.default)?(?:\.weight)?")
STARTS = (True, False, "gaussian", "eva")
"""Ways to begin a training of adapters (init_lora_weights) that leave the base as it was."""
OTHER_KINDS = ("alora_invocation_tokens", "layer_replication", "use_qalora")
"""Fields of adapters that no sum of base and product stands for."""


def adapter_files(folder: Path) -> list[Path]:
    """The files of the adapters over a checkpoint folder or over what it is a part of, their settings first; none
    where there are none."""
    if (folder.parent / ADAPTERS).is_symlink():
        folder = folder.parent
    if not (folder / ADAPTERS).is_symlink():
        return []
    refuse_others(str((folder / ADAPTERS).resolve()), (path.name for path in (folder / ADAPTERS).iterdir()))
    places = ([folder / ADAPTERS / name for name in names] for names in (LOW_RANK, WHOLE))
    low_rank, whole = (next(filter(Path.is_file, paths), None) for paths in places)
    if low_rank is None:
        raise UsageError(f"{(folder / ADAPTERS).resolve()} has no adapters: expected {' or '.join(LOW_RANK)}")
    return [folder / ADAPTERS / ADAPTER_CONFIG, low_rank, *([whole] if whole else [])]


def is_adapter(path: Path) -> bool:
    """Whether a file is of adapters and not of a model's own weights."""
    return path.name in (ADAPTER_CONFIG, *LOW_RANK, *WHOLE)


@dataclass(frozen=True)
class Factors:
    """The factors of one weight's change, (rank, columns) and (rows, rank), and how much their product counts."""

    first: Tensor
    second: Tensor
    scale: float
    turned: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight."""
        size = (len(self.second), self.first.shape[1])
        return size[::-1] if self.turned else size

    def product(self) -> Tensor:
        """What is added to the weight, float32."""
        found = self.scale * (self.second.float() @ self.first.float())
        return found.T if self.turned else found


@dataclass
class Adapters:
    """What files of adapters do to the weights of their base, by the model's names."""

    path: Path
    changes: dict[str, Factors] = field(default_factory=dict)
    replaced: dict[str, Tensor] = field(default_factory=dict)
    tied: list[tuple[str, str, Factors | Tensor | None]] = field(default_factory=list)

    def add(self, stored: str, name: str, each: Factors | Tensor) -> None:
        """Take what is done to a weight, or to a layer that the base ties to a weight of another name."""
        if stored.split(".")[-2:] != name.split(".")[-2:]:
            self.tied.append((stored, name, each))
        elif isinstance(each, Tensor):
            self.replaced[name] = each
        else:
            self.changes[name] = each

    def over(self, name: str, tensor: Tensor) -> Tensor:
        """A weight of the base with its adapters."""
        tensor = self.replaced.get(name, tensor)
        return tensor.float() + self.changes[name].product() if name in self.changes else tensor

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise UsageError unless the base, whose weights have these shapes, has all that is adapted, and tied
        layers stay tied."""
        for stored, name, each in self.tied:
            if not _same(each, (self.replaced if isinstance(each, Tensor) else self.changes).get(name)):
                raise UsageError(
                    f"{self.path}: adapts {ascii(stored)[1:-1]:.120} otherwise than {name}, to which the base "
                    "ties it (tie_word_embeddings): untie and merge them with peft, and give what that saves"
                )
        for name, each in (self.changes | self.replaced).items():
            whole = isinstance(each, Tensor) and not each.is_floating_point()
            if whole or shapes.get(name) != tuple(each.shape):
                found = list(shapes[name]) if name in shapes else "no such weight"
                numbers = " with whole numbers" if whole else ""
                raise UsageError(
                    f"{self.path}: adapts {ascii(name)[1:-1]:.120} {list(each.shape)}{numbers}, the base has "
                    f"{found}: expected the base that the adapters were trained on"
                )


def _same(one: Factors | Tensor | None, other: Factors | Tensor | None) -> bool:
    if one is None or other is None or one.shape != other.shape:
        return False
    first, second = (each if isinstance(each, Tensor) else each.product() for each in (one, other))
    return torch.allclose(first.float(), second.float(), atol=1e-6)


def read_adapters(
    files: Sequence[Path],
    tensors: Callable[[Path], Iterable[tuple[str, Tensor]]],
    named: Callable[[str], str],
) -> Adapters | None:
    """What the adapters among weight files do; None where there are none. named: the model's name of one.

    Files of a part of a model, a folder below that of the adapters, are adapted by what begins with its name.
    Raises UsageError for adapters of another kind than low-rank ones, and for factors that do not fit together.
    """
    chosen = [path for path in files if is_adapter(path)]
    if not chosen:
        return None
    said, *chosen = chosen
    settings, found = _Settings(said), Adapters(chosen[0])
    home = said.parent.parent
    part = next((f"{path.parent.name}." for path in files if path.parent not in (home, said.parent)), "")
    pairs: dict[str, dict[str, Tensor]] = {}
    embeddings = set()

    def bare(name: str) -> str:
        while part and name.startswith(part):  # VILA's modules have their part's name twice
            name = name.removeprefix(part)
        return name

    for path in chosen:
        for stored, tensor in tensors(path):
            name = stored.removeprefix("base_model.model.")
            if not name.startswith(part):
                if not (home / name.partition(".")[0]).is_dir():
                    raise UsageError(f"{path}: {ascii(stored)[1:-1]:.120}: expected the name of a part before it")
                continue
            matched = NAMED.fullmatch(name)
            if matched is None:
                whole = bare(name.replace(".modules_to_save.default.", ".").replace(".base_layer.", "."))
                found.add(whole, named(whole), tensor)
                continue
            pairs.setdefault(matched[1], {})[matched[3]] = tensor
            if matched[2]:
                embeddings.add(matched[1])
    for module, pair in pairs.items():
        first, second = pair.get("A"), pair.get("B")
        if (
            first is None
            or second is None
            or not first.ndim == second.ndim == 2
            or not 0 < len(first) == second.shape[1]
        ):
            raise UsageError(f"{found.path}: {ascii(module)[1:-1]:.120}: expected lora_A and lora_B of one rank")
        scale, turned = settings.scale(module, len(first)), module in embeddings or settings.turned
        weight = f"{bare(module)}.weight"
        found.add(weight, named(weight), Factors(first, second, scale, turned))
    apart = EMBEDDINGS in found.changes or (EMBEDDINGS in found.replaced and settings.part_embeddings)
    if named(HEAD) == EMBEDDINGS and apart and not found.tied:  # trained with the base's own as output layer
        found.tied.append((HEAD, EMBEDDINGS, None))
    return found


class _Settings:
    """How adapters count, by adapter_config.json. Raises UsageError for kinds that are not merged here."""

    def __init__(self, path: Path) -> None:
        self._path, self._fields = path, Fields(read_json(path), str(path))
        self._fields.choice("peft_type", "LORA")
        self._fields.choice("use_dora", False, default=False)
        for name in OTHER_KINDS:
            if self._fields.values.get(name):
                raise self._fields.error(name, "nothing, for such adapters are not merged here")
        start = self._fields.values.get("init_lora_weights")
        if start is not None and start not in STARTS:
            raise self._fields.error("init_lora_weights", "a start that leaves the base as it is; merge with peft")
        self.turned: bool = self._fields.choice("fan_in_fan_out", False, True, default=False)
        whole = self._fields.values.get("modules_to_save")
        self.part_embeddings = EMBEDDINGS.split(".")[1] in (whole if isinstance(whole, list) else ())
        """Whether embeddings were trained as a copy; else they are tied as before, with rows added."""
        self._root: bool = self._fields.choice("use_rslora", False, True, default=False)

    def scale(self, module: str, rank: int) -> float:
        """By how much the product of a module's factors counts."""
        patterns = self._fields.values.get("alpha_pattern") or {}
        if not isinstance(patterns, dict):
            raise self._fields.error("alpha_pattern", "an object")
        try:  # as PEFT reads them
            own = [value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)]
        except (re.error, OverflowError, RecursionError) as error:
            expected = f"names or regular expressions of modules, not one that is invalid ({error})"
            raise self._fields.error("alpha_pattern", expected) from None
        alpha = Fields({"alpha_pattern": own[0]}, str(self._path)).number("alpha_pattern") if own else None
        alpha = self._fields.number("lora_alpha") if alpha is None else alpha
        return alpha / (rank**0.5 if self._root else rank)
