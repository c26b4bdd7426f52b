"""Addresses of actors, which are their partition keys: `kind#name`."""


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


def kind_of(address: str) -> str:
    """The kind of actor that lives at an address."""
    return address.partition("#")[0]
