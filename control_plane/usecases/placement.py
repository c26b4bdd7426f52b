"""The pool that an experiment goes to, and the checks that its trials can ever run there."""

import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from control_plane.actors.messages.pool import PoolSettings
from control_plane.checkpoint_stores.registry import store_type
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.pools import ClusterConfig, ResourcePool
from control_plane.config.resources import Resources
from control_plane.errors import invalid
from control_plane.fleet.rows import read_instances
from control_plane.queries import agent as agents
from control_plane.queries import pool as pools
from control_plane.queries.cluster_configuration import cluster_config
from control_plane.scheduling.sizes import can_hold, size_advice
from control_plane.services import Services
from detcloud.shared.process_settings import process_setting_notices

POOL = "resources.resource_pool"
SLOTS = "resources.slots_per_trial"
# The same of a command or notebook.
RUN_SLOTS = "resources.slots"
LABEL = "resources.agent_label"


@dataclass(frozen=True)
class TrialNeeds:
    """The slots that a trial of an experiment asks for, and the agents that may give them."""

    slots: int
    label: str = ""
    single_agent: bool = False


@dataclass(frozen=True)
class Destination:
    """A pool that takes new work: its configuration and its settings."""

    cluster: ClusterConfig
    pool: ResourcePool
    settings: PoolSettings

    @property
    def name(self) -> str:
        return self.pool.pool_name


def choose_destination(
    services: Services, named: str, slots: int, place: str = POOL
) -> Destination:
    """Return the pool of that name; without a name the default for trials of so many slots.

    Raises:
        RequestError: invalid at `place`, if it does not exist or takes no new work.
    """
    cluster = cluster_config(services)
    shared = cluster.resource_manager
    default = shared.default_compute_resource_pool if slots else shared.default_aux_resource_pool
    name = named or default
    pool = cluster.find_pool(name)
    if pool is None or pools.find_pool(services, name) is None:
        known = ", ".join(sorted(one.pool_name for one in cluster.resource_pools))
        raise invalid(place, f"resource pool {name:.80} does not exist", f"there is {known}")
    settings = pools.load_settings(services, name)
    if settings.draining:
        text = f"pool {name} is draining and takes no new work"
        raise invalid(place, text, "choose another pool, or wait until it is undrained")
    return Destination(cluster, pool, settings)


def trial_needs(resources: Resources) -> TrialNeeds:
    """The needs of each trial of an experiment with these resources."""
    is_single = bool(resources.is_single_node)
    return TrialNeeds(resources.slots_per_trial, resources.agent_label, is_single)


def choose_destinations(
    services: Services, named: Sequence[str], slots: int
) -> tuple[Destination, ...]:
    """Return the pools of these names, in the order of preference.

    Raises:
        RequestError: invalid at the place of the first that does not exist or takes no new work.
    """
    places = pool_places(len(named))
    return tuple(
        choose_destination(services, name, slots, place)
        for name, place in zip(named, places, strict=True)
    )


def pool_places(count: int) -> tuple[str, ...]:
    """The places of so many pools in a configuration: one is no list."""
    return (POOL,) if count == 1 else tuple(f"{POOL}[{number}]" for number in range(count))


def check_fits(services: Services, to: Destination, needs: TrialNeeds, place: str = SLOTS) -> None:
    """Check that agents which the pool has or may get could hold a trial, used by nobody else.

    A pool that has none and launches none takes anything: its agents are still to come.

    Raises:
        RequestError: invalid at `place`, with the sizes that would fit; for a label that no agent
            has, where the configuration asks for it, unless `place` is that of one pool of several.
    """
    if needs.slots == 0:
        if to.settings.aux_per_agent == 0:
            text = f"pool {to.name} accepts no zero-slot trials: its agents allow none"
            raise invalid(place, text, "use at least 1 slot, or another pool")
        return
    present = agents.agent_sizes_in_pool(services, to.name)
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
        raise invalid(place if place.startswith(POOL) else LABEL, text)
    mixed = to.settings.scheduler.heterogeneous
    # Fixed agents may be mixed. Instances are launched of one size for a trial, and may end.
    there = present.get(needs.label, Counter())
    if mixed and provider is not None:
        instances = {row.id for row in read_instances(services.table, to.name)}
        fixed = agents.agent_sizes_in_pool(services, to.name, without=instances)
        there = fixed.get(needs.label, Counter())
    if not can_hold(needs.slots, sizes, needs.single_agent) and not (
        mixed and can_hold(needs.slots, there, needs.single_agent, mixed)
    ):
        why = size_advice(needs.slots, sizes, needs.single_agent, mixed and sizes == there)
        if place == RUN_SLOTS:
            raise invalid(place, f"could never start in pool {to.name}: it {why}")
        hint = "a trial class runs on one machine; use a command to run on several"
        text = f"no trial could ever start in pool {to.name}: it {why}"
        raise invalid(place, text, hint if needs.single_agent else None)


def check_mounts(to: Destination, config: ExperimentConfig, place: str = "") -> None:
    """Check that trials there may mount the folders of their machines that the configuration names.
    The agents check again: they know where links lead.

    Raises:
        RequestError: invalid at `place`, or where the configuration asks for it.
    """
    allowed = to.pool.provider.mounts_allowed if to.pool.provider else None
    for field, path in _host_paths(config) if allowed is not None else ():
        normal = posixpath.normpath(path)
        if not any(posixpath.commonpath((normal, folder)) == folder for folder in allowed or ()):
            text = f"{path:.200} may not be mounted by trials in pool {to.name}: "
            text += ", ".join(allowed or ()) or "nothing"
            hint = (
                "its provider.allowed_mounts lists the allowed folders; trials can also read "
                "data from S3"
            )
            raise invalid(place or field, text, hint)


def placement_warnings(to: Destination, resources: Resources) -> Iterator[str]:
    """Warnings of settings that are accepted but do not do what their author may think."""
    kind = to.settings.scheduler.kind
    if resources.priority is not None and kind != "priority":
        yield f"resources.priority has no effect in pool {to.name}, {_scheduler_rule(kind)}"
    if resources.weight != 1 and kind != "fair_share":
        yield f"resources.weight has no effect in pool {to.name}, {_scheduler_rule(kind)}"
    if to.pool.provider is None:
        reason = f"in pool {to.name}, whose agents are started by hand"
        if resources.max_cost is not None:
            yield f"resources.max_cost has no effect {reason} and have no price"
        if resources.deadline is not None:
            yield f"resources.deadline has no effect {reason}: it chooses spot instances"
    if to.settings.over_budget:
        yield f"the budget of pool {to.name} is used up: nothing starts there until it is raised"


def process_warnings(
    services: Services, to: Destination, config: ExperimentConfig
) -> Iterator[str]:
    """Warnings of settings that containers alone have, where every agent that could run the
    experiment runs trials as processes.
    """
    reason = f"agents of pool {to.name} run trials as processes"
    values = config.masked_values()
    found = {
        cuda: tuple(process_setting_notices(values, cuda=cuda, reason=reason))
        for cuda in (False, True)
    }
    # Most experiments have no such setting, and then nobody needs to read the pool's agents.
    if not any(found.values()):
        return
    devices = agents.process_devices_in_pool(services, to.name, config.resources.agent_label)
    warnings = (warning for device in sorted(devices) for warning in found[device == "cuda"])
    yield from dict.fromkeys(warnings)


def _scheduler_rule(kind: str) -> str:
    match kind:
        case "fair_share":
            return "which divides its slots by resources.weight"
        case "priority":
            return "which goes by resources.priority and the order of the queue"
        case _:
            return "which takes jobs in turn"


def _host_paths(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """The paths on its trials' machines that a configuration names, each behind its field."""
    for number, mount in enumerate(config.bind_mounts):
        yield f"bind_mounts[{number}].host_path", mount.host_path
    for number, device in enumerate(config.resources.devices):
        yield f"resources.devices[{number}].host_path", device.host_path
    for name in ("host_storage_path", "local_cache_host_path"):
        if path := getattr(config.data_layer, name, None):
            yield f"data_layer.{name}", path
    storage = config.checkpoint_storage
    if storage.type is not None:
        for name, path in store_type(storage.type).host_paths(storage).items():
            yield f"checkpoint_storage.{name}", path
