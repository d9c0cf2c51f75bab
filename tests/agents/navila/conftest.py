from __future__ import annotations

from agents.navila.options import FAMILY
from tests.agents.recorded import base_of, goldens_of
from tests.agents.recorded import one_thread as one_thread

goldens = goldens_of("navila")
base = base_of(FAMILY)
