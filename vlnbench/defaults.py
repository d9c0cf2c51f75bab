"""What ships with vlnbench, by name and import string: what is taken where a user names nothing.

No other module of the core may name an agent, a simulator or a generator (tests/test_imports.py holds it): whoever
replaces one changes a line here. Benchmarks have a table of their own, `vlnbench.data.shipped`.
"""

from __future__ import annotations

AGENT = "streamvln-tiny"
"""What `vlnbench eval` evaluates."""
DRIVER = "streamvln"
"""Whose options `vlnbench collect --dagger` shows where no agent is named."""
BENCHMARK = "houses-r2r"
"""What is evaluated and collected on: needs no download."""

ENVS = {"habitat": "envs.habitat_env:HabitatEnv"}
"""Import strings of environments. One is called with body, folder of scenes, sensors, name of the simulator and
number of the GPU to draw on; the last two have defaults."""
ENV = ENVS["habitat"]

SIMULATOR = "embedded"
"""The simulator that shows the same bytes everywhere; `envs.backends` has the table of all."""
SIMULATOR_CHECKS = "envs.doctor:CHECKS"
"""What `vlnbench doctor` looks at of simulators: functions that yield findings, by name."""

GPU_EVIDENCE = "benchmarks.gpu_evidence.measure:measure"
"""What `vlnbench doctor --gpu-evidence` calls with a folder: comes with a checkout alone."""

GENERATORS = {"houses": "envs.houses.generator:GENERATOR", "houses2": "envs.houses.generator:GENERATOR_2"}
"""Import strings of `vlnbench.data.generator.Generator`s: `vlnbench data NAME`, section NAME of a matrix file."""
