"""Where the wall-clock time of a run went."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Times:
    """Seconds of one attempt, from its first episode to its last.

    total: of the attempt. simulators and agents: what they took, added up over their processes. waiting: in which
    an agent had nothing to do but wait for simulators, added up over agents. records: scoring and writing.
    """

    episodes: int = 0
    total: float = 0.0
    simulators: float = 0.0
    agents: float = 0.0
    waiting: float = 0.0
    records: float = 0.0

    def describe(self, n_agents: int, n_simulators: int) -> str:
        """Shares of the attempt: of the time of the agents' processes, and of that of the simulators'.

        Several agents act beside the process that keeps the records, a single one in it.
        """
        agents, simulators = self.total * n_agents, self.total * n_simulators
        parts = {"agent": self.agents, "wait for simulators": self.waiting}
        if n_agents == 1:
            parts["records"] = self.records
        parts["other"] = max(0.0, agents - sum(parts.values()))
        shares = ", ".join(f"{name} {_percent(seconds, agents)}" for name, seconds in parts.items())
        beside = "" if n_agents == 1 else f"; records {_percent(self.records, self.total)} beside them"
        who = "" if n_agents == 1 else f" of {n_agents} agents"
        return (
            f"where {self.total:.1f} s{who} went: {shares}{beside}; "
            f"{n_simulators} simulators at work {_percent(self.simulators, simulators)} of the time; "
            f"{self.episodes} episodes, {3600 * self.episodes / self.total:.0f} episodes/h"
        )


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %"
