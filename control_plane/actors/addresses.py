"""Addresses of actors. The address `type#name` is also the partition key of the actor's rows."""

from functools import lru_cache

from control_plane.rows import actor_rows

# The types of the same actors are looked up several times for each message.
_ADDRESSES_KNOWN_MAX = 4_096


def experiment(experiment_id: int) -> str:
    """Return the address of an experiment, for example `experiment#7`."""
    return f"{actor_rows.EXPERIMENT}{experiment_id}"


def trial(trial_id: int) -> str:
    """Return the address of a trial, for example `trial#7`."""
    return f"{actor_rows.TRIAL}{trial_id}"


def pool(name: str) -> str:
    """Return the address of a resource pool, for example `pool#default`."""
    return f"{actor_rows.POOL}{name}"


def agent(agent_id: str) -> str:
    """Return the address of an agent, for example `agent#node-1`."""
    return f"{actor_rows.AGENT}{agent_id}"


@lru_cache(_ADDRESSES_KNOWN_MAX)
def actor_type_name(address: str) -> str:
    """Return the type of the actor with this address: experiment, trial, pool or agent.

    The text before the "#" is not checked: an unknown type is returned as well.
    """
    return address.partition("#")[0]
