from __future__ import annotations

from pathlib import Path

import pytest

from agents.uninavid.options import FAMILY
from tests.agents.recorded import base_of, goldens_of
from tests.agents.recorded import one_thread as one_thread
from tests.agents.uninavid.recordings import tiny_folder

goldens = goldens_of("uninavid")
base = base_of(FAMILY)


@pytest.fixture(scope="session")
def folder(goldens: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(goldens, tmp_path_factory.mktemp("uninavid") / "folder")
