"""What of the houses benchmark lies below a data root, and how its files are called."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from envs.houses.edition import Edition
from envs.houses.options import CONFIGS, HousesConfig
from vlnbench.errors import UsageError
from vlnbench.util.durable.limits import regular


@dataclass(frozen=True)
class HousesManifest:
    """What a generation wrote.

    `statistics`: means over the R2R-like episodes of each split (`envs.houses.files.statistics`). `files` maps
    paths below the root to their SHA-256 and size in bytes.
    """

    version: str
    config: HousesConfig
    counts: dict[str, dict[str, int]]
    statistics: dict[str, dict[str, float]]
    files: dict[str, dict[str, str | int]]


def is_complete(root: Path, config: HousesConfig, splits: Sequence[str] = ()) -> bool:
    """Whether splits (none: all that are drawn) of exactly this configuration lie below `root`, every file with
    its recorded size."""
    found = written(root, config)
    return found is not None and set(splits or config.edition.drawn) <= set(found.counts)


def written(root: Path, config: HousesConfig) -> HousesManifest | None:
    """What was written of exactly this configuration; None if that is nothing, or a file is not as it was."""
    try:
        manifest = json.loads(regular(root / config.edition.manifest).read_text())
        same = manifest["version"] == config.edition.version and manifest["config"] == asdict(config)
        if same and all((root / name).stat().st_size == f["bytes"] for name, f in manifest["files"].items()):
            return HousesManifest(**{**manifest, "config": config})
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        pass
    return None


def generated(root: Path, edition: Edition) -> tuple[str, tuple[str, ...]] | None:
    """Version of the generator, whatever its configuration, and the splits that it finished below `root`."""
    try:
        manifest = json.loads(regular(root / edition.manifest).read_text())
        return str(manifest["version"]), tuple(manifest["counts"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{root / edition.manifest}: field 'version' or 'counts' cannot be read; run "
            f"`vlnbench data {edition.name}`"
        ) from error


def read_config(root: Path, edition: Edition) -> HousesConfig:
    """The configuration of the houses below a data root. Raises UsageError if their manifest does not tell it."""
    kind = CONFIGS[edition.name]
    try:
        options = json.loads(regular(root / edition.manifest).read_text())["config"]
        return kind(**{field.name: options[field.name] for field in fields(kind)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{root / edition.manifest}: field 'config' cannot be read; run `vlnbench data {edition.name}`"
        ) from error


def identity(root: Path, edition: Edition) -> str:
    """Hash of what decides the houses below a data root. Raises UsageError if their manifest cannot be read."""
    content = json.dumps([edition.version, asdict(read_config(root, edition))], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def house_names(config: HousesConfig) -> dict[str, list[str]]:
    """Names of the train houses (also used by val_seen) and of the val_unseen houses."""
    groups = {"train": config.train_houses, "unseen": config.val_unseen_houses}
    return {group: [f"s{config.seed}_{group}_{i:03d}" for i in range(n)] for group, n in groups.items()}
