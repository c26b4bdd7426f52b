"""Addresses of actors, which are their partition keys: `type#name`."""

from functools import lru_cache

# Each message asks several times for the types of the actors that it concerns.
_ADDRESSES_KNOWN_MAX = 4_096


def experiment(experiment_id: int) -> str:
    """The address of an experiment."""
    return f"experiment#{experiment_id}"


def trial(trial_id: int) -> str:
    """The address of a trial."""
    return f"trial#{trial_id}"


def pool(name: str) -> str:
    """The address of a resource pool."""
    return f"pool#{name}"


def agent(agent_id: str) -> str:
    """The address of an agent."""
    return f"agent#{agent_id}"


@lru_cache(_ADDRESSES_KNOWN_MAX)
def actor_type_name(address: str) -> str:
    """The name of the type of the actor at an address: experiment, trial, pool or agent."""
    return address.partition("#")[0]
