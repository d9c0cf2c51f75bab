"""The contracts of `Agent`, `Env`, `Executor` and a model family's three parts as tests to inherit.

A test class derives from one of the mixins and says how to make the thing under test; pytest then collects the
inherited tests. Only plain asserts are used, so the module imports without pytest.
"""

from vlnbench.conformance.agent import AgentConformance as AgentConformance
from vlnbench.conformance.env import EnvConformance as EnvConformance
from vlnbench.conformance.executor import ExecutorConformance as ExecutorConformance
from vlnbench.conformance.family import CheckpointsConformance as CheckpointsConformance
from vlnbench.conformance.family import FamilyConformance as FamilyConformance
from vlnbench.conformance.family import PlansConformance as PlansConformance
from vlnbench.conformance.family import TrainsConformance as TrainsConformance
