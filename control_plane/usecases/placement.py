"""Placement: choose the pool of an experiment and check that the trials can run in the pool."""

import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from control_plane.actors.messages.pool import PoolSettings
from control_plane.checkpoint_stores.registry import store_type
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.pools import ClusterConfig, ResourcePool
from control_plane.config.resources import Resources
from control_plane.config.slot_shares import whole_slots
from control_plane.errors import RequestError, invalid
from control_plane.fleet.rows import read_instances
from control_plane.queries import agent as agents
from control_plane.queries import pool as pools
from control_plane.queries.cluster_configuration import cluster_config
from control_plane.scheduling.agent_needs import NO_NEEDS, AgentNeeds
from control_plane.scheduling.quiet_hours import moment_text
from control_plane.scheduling.sizes import can_hold, size_advice
from control_plane.services import Services
from detcloud.shared.process_settings import process_setting_notices

POOL = "resources.resource_pool"
SLOTS = "resources.slots_per_trial"
# The path of the slots in the configuration of a command, notebook or shell.
RUN_SLOTS = "resources.slots"
LABEL = "resources.agent_label"
TYPES_SHOWN_MAX = 5
"""The most instance types in a message."""


@dataclass(frozen=True)
class TrialNeeds:
    """The slots that a trial requests, and the agents that can provide the slots."""

    slots: int
    label: str = ""
    """The label of the agents; "" for agents without a label."""
    single_agent: bool = False
    """Whether a single agent must provide all slots."""
    devices: AgentNeeds = NO_NEEDS
    """The needs for devices."""


@dataclass(frozen=True)
class Destination:
    """A pool that accepts new work."""

    cluster: ClusterConfig
    """The configuration of the cluster."""
    pool: ResourcePool
    """The configuration of the pool."""
    settings: PoolSettings
    """The current settings of the pool."""

    @property
    def name(self) -> str:
        """Return the name of the pool."""
        return self.pool.pool_name


def choose_destination(
    services: Services, named: str, slots: int, place: str = POOL
) -> Destination:
    """Return the pool with the name `named`, or a default pool if `named` is empty.

    Reserve nothing, and do not check whether the slots fit: `check_fits` does.

    Args:
        services: the services with the configuration and pools.
        named: the name of the pool, or "".
        slots: the slots of each trial. The default for 0 slots is the default aux pool; otherwise
            it is the default compute pool.
        place: the path of the pool in the configuration, for errors.

    Raises:
        RequestError: invalid at `place`, if the pool does not exist or is draining.
    """
    cluster = cluster_config(services)
    shared = cluster.resource_manager
    default = shared.default_compute_resource_pool if slots else shared.default_aux_resource_pool
    name = named or default
    pool = cluster.find_pool(name)
    if pool is None or pools.find_pool(services, name) is None:
        known = ", ".join(sorted(config.pool_name for config in cluster.resource_pools))
        text = f"resource pool {name:.80} does not exist"
        raise invalid(place, text, f"existing pools: {known}")
    settings = pools.load_settings(services, name)
    if settings.draining:
        text = f"pool {name} is draining and takes no new work"
        raise invalid(place, text, "choose another pool, or wait until it is undrained")
    return Destination(cluster, pool, settings)


def trial_needs(resources: Resources) -> TrialNeeds:
    """Return the needs of an experiment's trials, given the configured resources; check nothing."""
    is_single = bool(resources.is_single_node)
    slots = whole_slots(resources.slots_per_trial)
    devices = AgentNeeds(resources.slot_type, resources.slot_memory or 0)
    return TrialNeeds(slots, resources.agent_label, is_single, devices)


def choose_destinations(
    services: Services, named: Sequence[str], slots: int
) -> tuple[Destination, ...]:
    """Return the pools with the names `named`, in this order of preference.

    An empty name stands for a default pool. `slots` are the slots of each trial.

    Raises:
        RequestError: invalid, for the first pool that does not exist or is draining.
    """
    places = pool_places(len(named))
    return tuple(
        choose_destination(services, name, slots, place)
        for name, place in zip(named, places, strict=True)
    )


def pool_places(count: int) -> tuple[str, ...]:
    """Return the paths of `count` pools in a configuration, for error messages.

    The path of a single pool is `resources.resource_pool`. The paths of several pools end with an
    index from 0, such as `resources.resource_pool[0]`.
    """
    return (POOL,) if count == 1 else tuple(f"{POOL}[{number}]" for number in range(count))


def check_fits(services: Services, to: Destination, needs: TrialNeeds, place: str = SLOTS) -> None:
    """Check that a trial fits on agents of the pool, present or launchable, if all were idle.

    A pool without agents and without a provider accepts every trial with slots, because its agents
    may still be started by hand. So does a provider that does not know its sizes. A trial without
    slots passes unless the pool allows none.

    Args:
        services: the services with the agents and instances.
        to: the pool.
        needs: the needs of the trial.
        place: the path in the configuration, for errors.

    Raises:
        RequestError: invalid at `place`, with the sizes that would fit. If no agent has the label,
            the path is the label's, unless `place` is a pool. The same applies to the needs for
            devices.
    """
    if needs.slots == 0:
        if to.settings.aux_per_agent == 0:
            text = f"pool {to.name} accepts no zero-slot trials: its agents allow none"
            raise invalid(place, text, "use at least 1 slot, or another pool")
        return
    sizes = _possible_sizes(services, to, needs, place)
    if sizes is None:
        return
    mixed = to.settings.scheduler.heterogeneous
    mixable = _mixable_sizes(services, to, needs) if mixed else Counter()
    if not can_hold(needs.slots, sizes, needs.single_agent) and not (
        mixed and can_hold(needs.slots, mixable, needs.single_agent, mixed)
    ):
        why = size_advice(needs.slots, sizes, needs.single_agent, mixed and sizes == mixable)
        why += f" (of the agents with {needs.devices.text})" if needs.devices.text else ""
        why += agents.machines_text(services, to.name, needs.label)
        if place == RUN_SLOTS:
            raise invalid(place, f"could never start in pool {to.name}: it {why}")
        hint = "a trial class runs on one machine; use a command to run on several"
        text = f"no trial could ever start in pool {to.name}: it {why}"
        raise invalid(place, text, hint if needs.single_agent else None)


def _possible_sizes(
    services: Services, to: Destination, needs: TrialNeeds, place: str
) -> Counter[int] | None:
    """Count the agents of the pool, present or launchable, that a trial may use, by slots.

    Return None if the sizes are unknown. Raises the errors of `check_fits` for a label and for
    needs that no agent meets.
    """
    present = agents.agent_sizes_in_pool(services, to.name)
    able = present
    if needs.devices != NO_NEEDS:
        able = agents.agent_sizes_in_pool(services, to.name, needs=needs.devices)
    sizes = Counter(able.get(needs.label, Counter()))
    provider = None if needs.label else to.pool.provider
    if provider is not None:
        if not provider.slots_offered():
            return None
        offered = provider.slots_offered_with(needs.devices)
        sizes.update({slots: provider.max_instances for slots in offered})
    if sizes or (not present and to.pool.provider is None):
        return sizes or None
    if needs.devices != NO_NEEDS and (provider is not None or needs.label in present):
        raise _devices_missing(services, to, needs, place)
    known = ", ".join(sorted(label for label in present if label)) or "none"
    text = f"no agent of pool {to.name} has the label {needs.label!r:.60}; known: {known}"
    raise invalid(place if place.startswith(POOL) else LABEL, text)


def _mixable_sizes(services: Services, to: Destination, needs: TrialNeeds) -> Counter[int]:
    """Count the agents that a gang of different sizes may use, by slots.

    A heterogeneous pool mixes sizes only for agents that were started by hand. The instances of a
    trial are launched with equal sizes, and an instance may end at any time.
    """
    launched: set[str] = set()
    if to.pool.provider is not None:
        launched = {row.id for row in read_instances(services.table, to.name)}
    fixed = agents.agent_sizes_in_pool(services, to.name, launched, needs.devices)
    return fixed.get(needs.label, Counter())


def _devices_missing(
    services: Services, to: Destination, needs: TrialNeeds, place: str
) -> RequestError:
    """Return the error about needs for devices that no agent of the pool meets.

    Its path is the first need, unless `place` is a pool.
    """
    field = "slot_type" if needs.devices.slot_type else "slot_memory"
    path = place if place.startswith(POOL) else f"resources.{field}"
    machines = agents.machines_text(services, to.name, needs.label)
    provider = to.pool.provider
    if provider is not None and (types := provider.types_offered()):
        machines += f"; it launches {', '.join(types[:TYPES_SHOWN_MAX])}"
    text = f"no agent of pool {to.name} has {needs.devices.text}{machines}"
    return invalid(path, text, "`detcloud slot list` shows the devices; choose one of them")


def check_mounts(to: Destination, config: ExperimentConfig, place: str = "") -> None:
    """Check that trials in the pool may mount all host folders that the configuration names.

    The agents check again, because only they can resolve symbolic links.

    Args:
        to: the pool. All folders are allowed without a provider and without a list of allowed
            folders.
        config: the configuration.
        place: the path for errors; "" for the path of the folder in the configuration.

    Raises:
        RequestError: invalid, for the first folder that the pool does not allow.
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
    """Yield warnings about resource settings without effect in the pool, a used-up budget and
    quiet hours.

    The settings are the priority, the weight, the cost limit and the deadline. Yield nothing if
    each set one has an effect.
    """
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
    if to.settings.is_quiet and to.settings.quiet_periods:
        period = to.settings.quiet_periods[0]
        urgent = period.urgent_priority
        works = "nothing starts" if urgent is None else f"only jobs up to priority {urgent} start"
        end = moment_text(period.until_ms)
        yield f"pool {to.name} has quiet hours until {end}: {works} before"


def process_warnings(
    services: Services, to: Destination, config: ExperimentConfig
) -> Iterator[str]:
    """Yield warnings about settings that only apply to containers, each warning once.

    Yield nothing unless all agents that could run the experiment run trials as processes.
    """
    reason = f"agents of pool {to.name} run trials as processes"
    values = config.masked_values()
    notices = {
        device: tuple(process_setting_notices(values, device=device, reason=reason))
        for device in ("cpu", "cuda", "rocm", "mps")
    }
    # Most experiments have no container settings, so that the pool's agents need not be read.
    if not any(notices.values()):
        return
    devices = agents.process_devices_in_pool(services, to.name, config.resources.agent_label)
    warnings = (warning for device in sorted(devices) for warning in notices[device])
    yield from dict.fromkeys(warnings)


def _scheduler_rule(kind: str) -> str:
    """Return a relative clause for a warning, about how a scheduler of this kind serves jobs.

    Any kind but `fair_share` and `priority` takes jobs in turn.
    """
    match kind:
        case "fair_share":
            return "which divides its slots by resources.weight"
        case "priority":
            return "which serves jobs by resources.priority and the order of the queue"
        case _:
            return "which takes jobs in turn"


def _host_paths(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """Yield the field and the path of each host folder or device that a configuration names.

    These are mounts, devices, the data layer's folders and the folders of the checkpoint store.
    """
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
