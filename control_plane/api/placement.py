"""Where a submitted experiment goes, and whether its trials can ever run there."""

import posixpath
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from control_plane.actors.pool_messages import PoolSettings
from control_plane.api.errors import invalid
from control_plane.api.pool_store import cluster_config
from control_plane.api.services import Services
from control_plane.api.views import agent as agents
from control_plane.api.views import pool as pools
from control_plane.config import ExperimentConfig
from control_plane.config.pools import ClusterConfig, ResourcePool
from control_plane.config.resources import Resources
from control_plane.config.storage import SharedFs
from control_plane.scheduling.sizes import advice, can_hold

POOL = "resources.resource_pool"
SLOTS = "resources.slots_per_trial"


@dataclass(frozen=True)
class Needs:
    """What a trial of an experiment asks for."""

    slots: int
    label: str = ""
    single_agent: bool = False


@dataclass(frozen=True)
class Destination:
    """A pool that takes new work: its configuration and what it goes by."""

    cluster: ClusterConfig
    pool: ResourcePool
    settings: PoolSettings

    @property
    def name(self) -> str:
        return self.pool.pool_name


def destination(services: Services, named: str, slots: int, place: str = POOL) -> Destination:
    """The pool of that name; without one the default for trials of so many slots.

    Raises:
        ApiError: invalid at `place`, if it does not exist or takes no new work.
    """
    cluster = cluster_config(services)
    shared = cluster.resource_manager
    default = shared.default_compute_resource_pool if slots else shared.default_aux_resource_pool
    name = named or default
    pool = cluster.pool(name)
    if pool is None or pools.found(services, name) is None:
        known = ", ".join(sorted(one.pool_name for one in cluster.resource_pools))
        raise invalid(place, f"resource pool {name:.80} does not exist", f"there is {known}")
    settings = pools.settings(services, name)
    if settings.draining:
        text = f"pool {name} is draining and takes no new work"
        raise invalid(place, text, "name another one, or wait until it is undrained")
    return Destination(cluster, pool, settings)


def needs_of(resources: Resources) -> Needs:
    """What each trial asks for."""
    single = bool(resources.is_single_node)
    return Needs(resources.slots_per_trial, resources.agent_label, single)


def check_fits(services: Services, to: Destination, needs: Needs, place: str = SLOTS) -> None:
    """Whether agents that the pool has or may get could hold a trial, if nobody else used them.

    A pool that has none and launches none takes anything: its agents are still to come.

    Raises:
        ApiError: invalid at `place`, with the sizes that would fit.
    """
    if needs.slots == 0:
        if to.settings.aux_per_agent == 0:
            text = f"pool {to.name} takes no trials without slots: it allows none on its agents"
            raise invalid(place, text, "use at least 1 slot, or another pool")
        return
    present = agents.sizes_in_pool(services, to.name)
    sizes = Counter(present.get(needs.label, Counter()))
    provider = to.pool.provider
    if provider is not None and not needs.label:
        if not provider.slots_offered():
            return
        sizes.update({slots: provider.max_instances for slots in provider.slots_offered()})
    if not present and provider is None:
        return
    if not sizes:
        known = ", ".join(sorted(label for label in present if label)) or "none"
        text = f"no agent of pool {to.name} has the label {needs.label!r:.60}; known: {known}"
        raise invalid("resources.agent_label", text)
    mixed = to.settings.scheduler.heterogeneous
    if not can_hold(needs.slots, sizes, needs.single_agent, mixed):
        why = advice(needs.slots, sizes, needs.single_agent, mixed)
        hint = "a trial class runs on one machine; a command may run on several"
        text = f"no trial could ever start in pool {to.name}: it {why}"
        raise invalid(place, text, hint if needs.single_agent else None)


def check_mounts(to: Destination, config: ExperimentConfig, place: str = "") -> None:
    """Whether trials there may have what the configuration mounts of their machines. The agents
    look again: they know where links lead.

    Raises:
        ApiError: invalid at `place`, or where the configuration asks for it.
    """
    allowed = to.pool.provider.mounts_allowed if to.pool.provider else None
    for field, path in _host_paths(config) if allowed is not None else ():
        found = posixpath.normpath(path)
        if not any(posixpath.commonpath((found, folder)) == folder for folder in allowed or ()):
            text = f"{path:.200} is not in what trials in pool {to.name} may mount: "
            text += ", ".join(allowed or ()) or "nothing"
            hint = "its provider.allowed_mounts names the folders; data for trials may lie in S3"
            raise invalid(place or field, text, hint)


def warnings_of(to: Destination, resources: Resources) -> Iterator[str]:
    """What is accepted but does not do what its author may think."""
    kind = to.settings.scheduler.kind
    if resources.priority is not None and kind != "priority":
        yield f"resources.priority has no effect in pool {to.name}, {_rule(kind)}"
    if resources.weight != 1 and kind != "fair_share":
        yield f"resources.weight has no effect in pool {to.name}, {_rule(kind)}"
    if to.settings.over_budget:
        yield f"the budget of pool {to.name} is used up: nothing starts there until it is raised"


def _rule(kind: str) -> str:
    match kind:
        case "fair_share":
            return "which divides its slots by resources.weight"
        case "priority":
            return "which goes by resources.priority and the order of the queue"
        case _:
            return "which takes jobs in turns"


def _host_paths(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """What of its trials' machines a configuration names, and where."""
    for number, mount in enumerate(config.bind_mounts):
        yield f"bind_mounts[{number}].host_path", mount.host_path
    for number, device in enumerate(config.resources.devices):
        yield f"resources.devices[{number}].host_path", device.host_path
    if isinstance(config.checkpoint_storage, SharedFs):
        yield "checkpoint_storage.host_path", config.checkpoint_storage.host_path
