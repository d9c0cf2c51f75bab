"""The zip archives of PyTorch: what their members may be, before any is unpacked."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

from vlnbench.errors import UsageError

MAX_PICKLE = 8 << 20
"""Bytes of a checkpoint's pickle, which holds names and settings, about 0.3 MB."""


def check_archive(path: Path) -> None:
    """Raise UsageError for an archive that could unpack to more than the file; BadZipFile for none."""
    with zipfile.ZipFile(path) as archive:
        check_members(path, {info.filename: info for info in archive.infolist()})


def check_members(path: Path, members: Mapping[str, zipfile.ZipInfo]) -> None:
    """Refuse what could unpack to more than the file: PyTorch stores its members as they are."""
    size = path.stat().st_size
    for name, info in members.items():
        limit = MAX_PICKLE if name.endswith("data.pkl") else size
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > limit or info.flag_bits & 1:
            shown = ascii(name)[1:-1][:100]
            raise UsageError(
                f"{path}: {shown} is packed or longer than a checkpoint's; torch.save writes none such"
            )
    if sum(info.file_size for info in members.values()) > size:
        raise UsageError(f"{path}: its members claim more bytes than the file has")
