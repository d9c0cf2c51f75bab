"""`python -m vlnbench`, which launchers of several processes need."""

import os
import sys
from pathlib import Path

if sys.path[0] == os.getcwd() != str(Path(__file__).parents[1]):
    del sys.path[0]  # as with the command `vlnbench`: a folder agents/ or envs/ that lies here is not ours

from vlnbench.cli import main

raise SystemExit(main())
