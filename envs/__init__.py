"""Environments: the habitat-lab environment, the embedded simulator and the generated houses benchmark."""

VLNBENCH = True  # lets vlnbench tell its own top-level package from another distribution's `envs`
