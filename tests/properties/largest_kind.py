"""The largest kind of an agent."""

from control_plane.scheduling.agent_needs import DEVICES_MAX, AgentDevice, AgentKind

MIXED_KIND = AgentKind(
    tuple(AgentDevice("cuda", "x" * 200, 2**31 - n) for n in range(DEVICES_MAX)),
    f"{'9' * 10}:{'9' * 10}",
)
