"""Checkpoints on the Hugging Face hub, by names like hf:ORG/NAME@REVISION: what is fetched, and what came of it.

Files go to the hub's own cache (HF_HOME), in a folder named by the commit; without a network what lies there is
taken. Pickles and code are never fetched unasked: only text that is read beside weights, and safetensors.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.util.durable.json_stream import sha256
from vlnbench.util.durable.limits import regular

PREFIX = "hf:"
CONFIG = "config.json"
"""What every checkpoint has; where it lies, the rest does."""
ADAPTER_CONFIG = "adapter_config.json"
"""The same of adapters."""
BASE, ADAPTERS = ".base", ".adapters"
"""Links to two folders in one that joins them, see `training.family.sources`."""
TEXTS = ("*.json", "*.txt", "*.jinja", "*tokenizer.model")
TENSORS = ("*.safetensors",)
PICKLES = ("*.bin", "*.pt", "*.pth")
BESIDE = re.compile(
    r"\.|(optimizer|scheduler|scaler|rng_state|random_states|training_args|training_state|mm_projector"
    r"|adapter_model|non_lora_trainables)[\w.-]*$"
)
"""Names of files beside a model's weights that are none of these: of macOS, of trainers, of adapters."""
WHOLE = re.compile(r"(pytorch_)?model")
"""How files of a whole model begin, which a folder of adapters may hold merged."""
ADAPTER_WEIGHTS = ("adapter_model.", "non_lora_trainables.")
"""How files of adapters begin: PEFT's, and LLaVA's of weights that were trained as they are."""
POINTER = b"version https://git-lfs"
"""How a file begins that stands for one which Git has not fetched."""
LARGEST_TEXT = 64 << 20
"""Bytes: tokenizers have about a tenth of it."""
_NAME = re.compile(r"hf:(\w[\w.-]*/\w[\w.-]*)(?:@(\w[\w./-]*))?", re.ASCII)
_OF_THE_DISK = (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOLCK)
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

    @property
    def folder(self) -> str:
        """The folder that it is in, empty for the repository's own."""
        return self.name.rpartition("/")[0]

    def fits(self, patterns: Sequence[str]) -> bool:
        return any(fnmatch(self.name, pattern) for pattern in patterns)


def is_hub(name: str) -> bool:
    """Whether a checkpoint's name is one of the hub."""
    return name.startswith(PREFIX)


def could_be_hub(name: str) -> bool:
    """Whether a name is like one of the hub without what those begin with."""
    return _NAME.fullmatch(PREFIX + name) is not None


def fetch(name: str, *, weights: bool = True, trust_pickle: bool = False, config: str = CONFIG) -> Fetched:
    """The files of a checkpoint, downloaded where the cache has not got them.

    weights: False fetches only the text beside them, which says what the checkpoint is. trust_pickle: takes
    pickled weights where there are no others. config: the file that has to be there, `ADAPTER_CONFIG` of adapters.
    What is downloaded is held against the hash that the hub names.

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
        return _cached(name, repository, revision, config, error)
    chosen = sorted(_matching(files, TEXTS), key=lambda file: file.name == config)
    if large := next((file for file in chosen if (file.size or 0) > LARGEST_TEXT), None):
        raise UsageError(f"{name}: {large.name} has {large.size} bytes; expected at most {LARGEST_TEXT}")
    if config not in [file.name for file in chosen]:
        told = "expected a checkpoint in Hugging Face's layout"
        if any(file.name == ADAPTER_CONFIG for file in chosen):
            told = f"it holds adapters: name BASE+{name}, with what they were trained on as BASE"
        elif inner := next((file.folder for file in chosen if file.name.endswith(f"/{config}")), ""):
            told = f"one is in {inner}: run `hf download {repository} --include '{inner}/*'`, and name that folder"
        raise UsageError(f"{name}: holds no {config}; {told}")
    if weights:
        if config == ADAPTER_CONFIG:
            refuse_others(name, (file.name for file in files))
        wanted = [each for group in _groups(files, config) for each in _weights(name, group, trust_pickle)]
        chosen = [*wanted, *chosen]  # the config last: where it is, the rest is
    folder = _download(name, repository, revision, commit, chosen, config)
    return Fetched(f"{PREFIX}{repository}@{commit}", folder)


def spoken(folder: Path) -> str:
    """The name of a folder for a reader: hf:ORG/NAME@COMMIT if it lies in the hub's cache, else its path."""
    if (folder / ADAPTERS).is_symlink():
        return "+".join(spoken((folder / name).readlink()) for name in (BASE, ADAPTERS))
    place = folder.parent.parent.name
    if folder.parent.name == "snapshots" and place.startswith("models--") and _COMMIT.fullmatch(folder.name):
        return f"{PREFIX}{place.removeprefix('models--').replace('--', '/', 1)}@{folder.name}"
    return str(folder)


def fetched(path: Path) -> Path:
    """The same path. Raises UsageError for a file that only says where Git would fetch it from."""
    try:
        with regular(path).open("rb") as file:
            begins = file.read(len(POINTER))
    except OSError:  # whoever opens it says why it cannot be
        return path
    if begins == POINTER:
        raise UsageError(
            f"{path} is a pointer of Git LFS, not the file itself: run `git lfs install && git lfs pull` in "
            f"{path.parent}, or download the checkpoint with `hf download`"
        )
    return path


def _list(name: str, repository: str, revision: str | None) -> tuple[str, list[_File]]:
    """The commit that a revision means now, and the files of the checkpoint in it.

    Where the repository's own folder has no weights, those of a model in parts are in folders with a config each.
    """
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
        if not each.rfilename.rpartition("/")[2].startswith(".")
    ]
    folders = {""}
    if not any(file.folder == "" and file.fits((*TENSORS, *PICKLES)) for file in listed):
        folders |= {file.folder for file in listed if file.name == f"{file.folder}/{CONFIG}"}
    return str(found.sha), [file for file in listed if file.folder in folders]


def _groups(files: Sequence[_File], config: str) -> list[list[_File]]:
    """The files that may be weights, of which each group needs some: those of a model or of each of its parts, or
    those of adapters and of what was trained whole beside them."""
    if config == CONFIG:
        mine = [file for file in files if not BESIDE.match(file.name.rpartition("/")[2])]
        parts = sorted({file.folder for file in files} - {""}) or [""]
        return [[file for file in mine if file.folder == part] for part in parts]
    low_rank, whole = ([file for file in files if file.name.startswith(stem)] for stem in ADAPTER_WEIGHTS)
    return [low_rank, whole] if whole else [low_rank]


def refuse_others(where: str, names: Iterable[str]) -> None:
    """Raise UsageError where weights lie beside adapters that are neither theirs nor a whole model's, such as a
    vision tower that a trainer saved apart: without them the network is another."""
    others = (each for each in sorted(names) if any(fnmatch(each, kind) for kind in (*TENSORS, *PICKLES)))
    for each in others:
        if not BESIDE.match(each) and not WHOLE.match(each):
            raise UsageError(
                f"{where}: {each} is not merged with the adapters beside it: merge both with the program that "
                "saved them and give what that writes, or remove the file where it is none of the network's"
            )


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
    return [file for file in files if file.fits(patterns)]


def _download(
    name: str, repository: str, revision: str | None, commit: str, files: Sequence[_File], config: str
) -> Path:
    """The folder of the commit, with at least these files in it."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError

    for file in files:
        if isinstance(try_to_load_from_cache(repository, file.name, revision=commit), str) and file.name != config:
            continue
        try:  # with the revision as it was given, the cache remembers what it means, for a time without a network
            wanted = revision if file.name == config else commit
            path = Path(hf_hub_download(repository, file.name, revision=wanted))
        except GatedRepoError as error:
            raise UsageError(_gated(name, repository)) from error
        except Exception as error:  # the network, the disk or a file of the repository
            reason = _first_line(error)
            ours = getattr(error, "errno", None) in _OF_THE_DISK
            advice = "set HF_HOME to another folder" if ours else "try again"
            raise UsageError(f"{name}: {file.name} cannot be downloaded ({reason}); {advice}") from error
        folder = path.parents[file.name.count("/")]
        if folder.name != commit:
            raise UsageError(f"{name}: changed while it was downloaded; try again")
        if file.sha256 is not None and sha256(path) != file.sha256:
            raise UsageError(f"{path}: is not what the hub says {name} holds (sha256); delete it and try again")
    return folder


def _cached(name: str, repository: str, revision: str | None, config: str, error: Exception) -> Fetched:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE

    kept = try_to_load_from_cache(repository, config, revision=revision)
    if not isinstance(kept, str):
        wanted = f"{repository} --revision {revision}" if revision else repository
        raise UsageError(
            f"{name}: the hub does not answer ({_first_line(error)}) and {HF_HUB_CACHE} has no copy; run "
            f"`hf download {wanted}` where there is a network, or name a folder"
        ) from error
    folder = Path(kept).parent
    return Fetched(f"{PREFIX}{repository}@{folder.name}", folder)


def _gated(name: str, repository: str) -> str:
    return f"{name}: its owners ask for consent; give it at https://huggingface.co/{repository}, `hf auth login`"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
