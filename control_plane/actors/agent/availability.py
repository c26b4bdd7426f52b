"""The availability of an agent after the commands of users."""

from dataclasses import replace

from control_plane.actors.messages.agent import AgentDisableRequested, AgentEnableRequested
from control_plane.actors.records import Availability


def changed_end(
    ends_ms: int | None, message: AgentEnableRequested | AgentDisableRequested
) -> int | None:
    """Return the time at which the cloud takes the machine away, in epoch ms, after a command.

    `ends_ms` is the time before the command, or None.
    A disabling command with a time replaces the stored time. Enabling the whole agent resets the
    time to None. Any other command keeps the time.
    """
    if isinstance(message, AgentEnableRequested):
        return ends_ms if message.slot is not None else None
    return ends_ms if message.ends_ms is None else message.ends_ms


def changed_availability(
    before: Availability, message: AgentEnableRequested | AgentDisableRequested
) -> Availability:
    """Return the availability after a command. Enabling the whole agent leaves disabled slots
    disabled.

    Disabling a slot twice, or enabling an enabled slot, changes nothing.
    """
    slot = message.slot
    match message:
        case AgentEnableRequested() if slot is None:
            return replace(before, enabled=True, draining=False)
        case AgentDisableRequested(drain=drain) if slot is None:
            return replace(before, enabled=False, draining=drain)
        case AgentEnableRequested():
            return replace(before, disabled=tuple(n for n in before.disabled if n != slot))
        case AgentDisableRequested():
            assert slot is not None
            return replace(before, disabled=tuple(sorted({*before.disabled, slot})))


def render_availability(availability: Availability) -> str:
    """Return a sentence for the journal that describes the availability."""
    words = "enabled" if availability.enabled else "disabled"
    if availability.draining:
        words = "draining"
    closed = ", ".join(map(str, availability.disabled))
    return f"the agent is {words}" + (f", without slot {closed}" if closed else "")
