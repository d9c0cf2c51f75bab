"""Checkpoints on the Hugging Face hub, by names like hf:ORG/NAME@REVISION: what is fetched, and what came of it.

Files go to the hub's own cache (HF_HOME), in a folder named by the commit; without a network what lies there is
taken. Pickles and code are never fetched unasked: only text that is read beside weights, and safetensors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.util.durable.json_stream import sha256

PREFIX = "hf:"
CONFIG = "config.json"
"""What every checkpoint has; where it lies, the rest does."""
TEXTS = ("*.json", "*.txt", "*.jinja")
TENSORS = ("*.safetensors",)
PICKLES = ("*.bin", "*.pt", "*.pth")
LARGEST_TEXT = 64 << 20
"""Bytes: tokenizers have about a tenth of it."""
_NAME = re.compile(r"hf:(\w[\w.-]*/\w[\w.-]*)(?:@(\w[\w./-]*))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Fetched:
    """A repository at one commit. name: hf:ORG/NAME@COMMIT; folder: where its files lie."""

    name: str
    folder: Path


@dataclass(frozen=True, slots=True)
class _File:
    """A file as the hub lists it; sha256 is known of large files, which the hub stores apart."""

    name: str
    size: int | None
    sha256: str | None


def is_hub(name: str) -> bool:
    """Whether a checkpoint's name is one of the hub."""
    return name.startswith(PREFIX)


def fetch(name: str, *, weights: bool = True, trust_pickle: bool = False) -> Fetched:
    """The files of a checkpoint, downloaded where the cache has not got them.

    weights: False fetches only the text beside them, which says what the checkpoint is. trust_pickle: takes
    pickled weights where there are no others. What is downloaded is held against the hash that the hub names.

    Raises UsageError, one line, for names that are none, repositories that are not there or not for everyone,
    pickled weights, hashes that differ, and where there is neither a network nor a copy in the cache.
    """
    matched = _NAME.fullmatch(name)
    if matched is None:
        raise UsageError(f"--checkpoint {name}: expected hf:ORG/NAME or hf:ORG/NAME@REVISION")
    repository, revision = matched[1], matched[2]
    try:
        commit, files = _list(name, repository, revision)
    except UsageError:
        raise
    except Exception as error:  # of requests or httpx, or OfflineModeIsEnabled: no answer, for whatever reason
        return _cached(name, repository, revision, error)
    chosen = sorted(_matching(files, TEXTS), key=lambda file: file.name == CONFIG)
    if large := next((file for file in chosen if (file.size or 0) > LARGEST_TEXT), None):
        raise UsageError(f"{name}: {large.name} has {large.size} bytes; expected at most {LARGEST_TEXT}")
    if CONFIG not in [file.name for file in chosen]:
        raise UsageError(f"{name}: holds no {CONFIG}; expected a checkpoint in Hugging Face's layout")
    if weights:
        chosen = [*_weights(name, files, trust_pickle), *chosen]  # the config last: where it is, the rest is
    folder = _download(name, repository, revision, commit, chosen)
    return Fetched(f"{PREFIX}{repository}@{commit}", folder)


def spoken(folder: Path) -> str:
    """The name of a folder for a reader: hf:ORG/NAME@COMMIT if it lies in the hub's cache, else its path."""
    place = folder.parent.parent.name
    if folder.parent.name == "snapshots" and place.startswith("models--") and _COMMIT.fullmatch(folder.name):
        return f"{PREFIX}{place.removeprefix('models--').replace('--', '/', 1)}@{folder.name}"
    return str(folder)


def _list(name: str, repository: str, revision: str | None) -> tuple[str, list[_File]]:
    """The commit that a revision means now, and the files in it that lie in no folder."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
    from huggingface_hub.errors import RevisionNotFoundError as Revision

    try:
        found: Any = HfApi().model_info(repository, revision=revision, files_metadata=True, timeout=10)
    except GatedRepoError as error:
        raise UsageError(_gated(name, repository)) from error
    except Revision as error:
        raise UsageError(f"{name}: the repository has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise UsageError(f"{name}: no such repository, or a private one: then run `hf auth login`") from error
    except HFValidationError as error:
        raise UsageError(f"{name}: {_first_line(error)}") from error
    listed = [
        _File(each.rfilename, each.size, each.lfs and each.lfs["sha256"])
        for each in found.siblings or ()
        if "/" not in each.rfilename
    ]
    return str(found.sha), listed


def _weights(name: str, files: Sequence[_File], trust_pickle: bool) -> list[_File]:
    if tensors := _matching(files, TENSORS):
        return tensors
    pickled = _matching(files, PICKLES)
    if not pickled:
        raise UsageError(f"{name}: holds no weights; expected *.safetensors")
    if not trust_pickle:
        raise UsageError(
            f"{name}: its weights are pickles ({pickled[0].name}), which can run code, and were not downloaded: "
            "take a repository with safetensors, or say with --trust-pickle that you trust it"
        )
    return pickled


def _matching(files: Sequence[_File], patterns: Sequence[str]) -> list[_File]:
    return [file for file in files if any(fnmatch(file.name, pattern) for pattern in patterns)]


def _download(name: str, repository: str, revision: str | None, commit: str, files: Sequence[_File]) -> Path:
    """The folder of the commit, with at least these files in it."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError

    for file in files:
        if isinstance(try_to_load_from_cache(repository, file.name, revision=commit), str) and file.name != CONFIG:
            continue
        try:  # with the revision as it was given, the cache remembers what it means, for a time without a network
            wanted = revision if file.name == CONFIG else commit
            path = Path(hf_hub_download(repository, file.name, revision=wanted))
        except GatedRepoError as error:
            raise UsageError(_gated(name, repository)) from error
        except Exception as error:  # the network, the disk or a file of the repository
            reason = _first_line(error)
            raise UsageError(f"{name}: {file.name} cannot be downloaded ({reason}); try again") from error
        if path.parent.name != commit:
            raise UsageError(f"{name}: changed while it was downloaded; try again")
        if file.sha256 is not None and sha256(path) != file.sha256:
            raise UsageError(f"{path}: is not what the hub says {name} holds (sha256); delete it and try again")
    return path.parent


def _cached(name: str, repository: str, revision: str | None, error: Exception) -> Fetched:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE

    config = try_to_load_from_cache(repository, CONFIG, revision=revision)
    if not isinstance(config, str):
        wanted = f"{repository} --revision {revision}" if revision else repository
        raise UsageError(
            f"{name}: the hub does not answer ({_first_line(error)}) and {HF_HUB_CACHE} has no copy; run "
            f"`hf download {wanted}` where there is a network, or name a folder"
        ) from error
    folder = Path(config).parent
    return Fetched(f"{PREFIX}{repository}@{folder.name}", folder)


def _gated(name: str, repository: str) -> str:
    return f"{name}: its owners ask for consent; give it at https://huggingface.co/{repository}, `hf auth login`"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
