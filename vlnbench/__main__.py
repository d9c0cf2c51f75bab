"""`python -m vlnbench`, which launchers of several processes need."""

from vlnbench.cli import main

raise SystemExit(main())
