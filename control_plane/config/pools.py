"""Resource pools, and the cluster configuration file that describes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from control_plane.config import master_fields
from control_plane.config.deletion_limit import DELETIONS_PER_SECOND, DELETIONS_PER_SECOND_MAX
from control_plane.config.durations import Duration
from control_plane.config.endpoints import endpoint_origin
from control_plane.config.environment import ImagesField, RegistryAuth, VariablesField
from control_plane.config.eras import Tree
from control_plane.config.merge import apply_override
from control_plane.config.page_origins import PAGE_ORIGINS_MAX, page_origin_fault
from control_plane.config.problems import ConfigInvalid, Problem
from control_plane.config.provider_types import AnyProvider
from control_plane.config.resources import BindMounts, DeviceField
from control_plane.config.section import REVEAL, Section, findings_of, refuse, refuse_at
from control_plane.config.storage import CheckpointStorage, Storage
from control_plane.config.yaml_document import Document, SourcePlace, line_of, parse_document
from control_plane.field_types import Count, CountOrZero
from control_plane.findings import Finding, nearest_name_hint, path_text, value_text
from control_plane.text_forms import text_form

POOL_DEFAULT: Final = "default"
POOL_NAME: Final = text_form(
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
    "at most 63 letters, digits and ._-, of which the first is a letter or a digit",
)
POOLS_MAX: Final = 200
ENDPOINTS_MAX: Final = 100

Completion = Callable[[Tree], Tree]
"""Adds to the fields of a cluster configuration, before they are checked."""

_EXAMPLE: Final = "resource_pools: [{pool_name: default}]"
_POOL_NAME: Final = re.compile(POOL_NAME)
_FORMER_NAMES: Final = {"max_cpu_containers_per_agent": "max_aux_containers_per_agent"}


def _check_pool_name(name: str) -> str:
    if not _POOL_NAME.match(name):
        refuse(
            "must be 1 to 63 letters, digits, points, underscores and hyphens, the first a letter"
            f" or digit, not {value_text(name)}"
        )
    return name


PoolName = Annotated[str, AfterValidator(_check_pool_name)]


class Scheduler(Section):
    """The scheduler of a pool, which decides who gets slots, and on which agents."""

    unknown_field_hints: ClassVar[Mapping[str, str]] = master_fields.SCHEDULER

    type: Literal["fair_share", "priority", "round_robin"] = "fair_share"
    """`fair_share` divides the slots by weight, `priority` goes by priority and place in the queue,
    `round_robin` takes jobs in turn.
    """
    preemption: bool = False
    """Whether the priority scheduler takes slots from jobs that come later in the queue. Fair share
    always does, round robin never.
    """
    default_priority: Annotated[int, Field(ge=1, le=99)] = 42
    """The priority of jobs that set none; 1 is the first."""
    fitting_policy: Literal["best", "worst"] = "best"
    """`best` fills agents one by one, `worst` spreads work over them."""
    allow_heterogeneous_fits: bool = False
    """Whether a trial on several agents may be given agents of different sizes, where they are
    started by hand: a provider's instances for one trial are of one size."""
    reserve_after: Duration = 600_000
    """How long a job without slots waits before free slots are held for it; with 0 none are ever
    held. Under `priority` they are held for several jobs. With `preemption` a job takes slots at
    once, so that none are held.
    """

    @field_validator("preemption")
    @classmethod
    def _check_preemption(cls, preemption: bool, info: ValidationInfo) -> bool:
        kind = info.data.get("type", "priority")
        if preemption and kind != "priority":
            hint = "remove it: fair_share always rebalances, round_robin never preempts"
            refuse(f"applies to the priority scheduler only, not to {kind}", hint)
        return preemption


class TaskContainerDefaults(Section):
    """Defaults of trials in a pool, below their own configuration."""

    unknown_field_hints: ClassVar[Mapping[str, str]] = master_fields.TASK_CONTAINER_DEFAULTS

    preemption_timeout: Count | None = None
    """Seconds that a trial has for its checkpoint when it is asked to stop; then it is killed."""
    shm_size_bytes: CountOrZero | None = None
    """Bytes of /dev/shm."""
    image: ImagesField | None = None
    """The container image, or a map of one for each of `cpu`, `cuda` and `rocm`."""
    environment_variables: VariablesField | None = None
    """A list of NAME=VALUE, or a map from each kind of device to such a list; a configuration adds
    its own.
    """
    registry_auth: RegistryAuth | None = None
    """The login for the registry `server`; without `server` for the registry of `image`, and
    without either for Docker Hub. It is sent to no other registry, whatever image a configuration
    names.
    """
    force_pull_image: bool | None = None
    """Whether the image is pulled even if it is present."""
    bind_mounts: BindMounts = ()
    """Directories of the host; a configuration adds its own."""
    devices: Annotated[tuple[DeviceField, ...], Field(strict=False)] = ()
    """Devices of the host; a configuration adds its own."""

    def config_layer(self) -> dict[str, Any]:
        """Return the layer of an experiment's configuration that is merged below its user's."""
        given = self.model_dump(mode="json", context=REVEAL, exclude_defaults=True)
        resources = {
            ours: given.pop(name)
            for name, ours in (("shm_size_bytes", "shm_size"), ("devices", "devices"))
            if name in given
        }
        kept = {
            name: given.pop(name) for name in ("preemption_timeout", "bind_mounts") if name in given
        }
        parts = {"resources": resources, "environment": given}
        return kept | {name: part for name, part in parts.items() if part}


class PoolFields(Section):
    """The fields of a resource pool except its name."""

    unknown_field_hints: ClassVar[Mapping[str, str]] = master_fields.POOL

    description: str = ""
    """A description for users."""
    scheduler: Scheduler | None = None
    """The pool's scheduler, which replaces the cluster's as a whole; the cluster's if absent. See
    Schedulers.
    """
    max_aux_containers_per_agent: CountOrZero = 100
    """The largest number of trials without slots that an agent runs at a time; formerly
    max_cpu_containers_per_agent.
    """
    provider: AnyProvider | None = None
    """How instances are launched; see Providers. If absent, agents are started by hand."""
    budget: Annotated[float, Field(gt=0)] | None = None
    """Dollars that the pool's instances may cost in a month (UTC); beyond them no work starts and
    no instance is launched.
    """
    task_container_defaults: TaskContainerDefaults | None = None
    """See Task container defaults; merged over the cluster's."""
    agent_reconnect_wait: Duration = 25_000
    """Accepted, but has no effect: an agent is lost when its lease lapses."""
    agent_reattach_enabled: bool = True
    """Accepted, but has no effect: agents always continue what they run."""

    @model_validator(mode="before")
    @classmethod
    def _accept_former_names(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        renamed = dict(value)
        for former, name in _FORMER_NAMES.items():
            if former in renamed:
                if renamed.get(name) is not None:
                    refuse_at(
                        (former,),
                        f"must not be used together with {name}",
                        "it is the former name of that field",
                    )
                renamed[name] = renamed.pop(former)
        return renamed


class ResourcePool(PoolFields):
    """A resource pool: agents, and a queue of work for them."""

    pool_name: PoolName
    """The pool's name: up to 63 letters, digits, points, underscores and hyphens."""

    def masked_values(self) -> dict[str, Any]:
        """Return all fields as JSON values, secrets masked."""
        return self.model_dump(mode="json")

    def to_json(self) -> bytes:
        """Encode all fields that are set, with secrets, for the state table."""
        return self.model_dump_json(context=REVEAL, exclude_none=True).encode()


def _check_manager(kind: object) -> object:
    if kind in ("kubernetes", "slurm", "pbs"):
        hint = "agents run on machines that a pool's provider starts, or that you start"
        refuse(f"must be agent, not {kind}", hint)
    return kind


class ResourceManager(Section):
    """Settings that the pools share."""

    unknown_field_hints: ClassVar[Mapping[str, str]] = master_fields.RESOURCE_MANAGER

    type: Annotated[Literal["agent"], BeforeValidator(_check_manager)] = "agent"
    """The only kind there is."""
    scheduler: Scheduler = Field(default_factory=Scheduler)
    """The scheduler of pools that have none of their own; see Schedulers."""
    default_aux_resource_pool: PoolName = POOL_DEFAULT
    """The pool of experiments without slots that name none."""
    default_compute_resource_pool: PoolName = POOL_DEFAULT
    """The pool of all other experiments that name none."""


def _check_endpoint(url: str) -> str:
    if endpoint_origin(url) is None:
        refuse("must be a URL like https://host:port, without a login")
    return url


def _check_page_origin(origin: str) -> str:
    if fault := page_origin_fault(origin):
        refuse(fault, "scheme, host and port alone, without a path or a / at the end")
    return origin


class ClusterConfig(Section):
    """A cluster configuration file; `check_cluster` reads them."""

    unknown_field_hints: ClassVar[Mapping[str, str]] = master_fields.CLUSTER

    resource_manager: ResourceManager = Field(default_factory=ResourceManager)
    """See Resource manager."""
    resource_pools: Annotated[
        tuple[ResourcePool, ...], Field(strict=False, max_length=POOLS_MAX)
    ] = Field(default_factory=lambda: (ResourcePool(pool_name=POOL_DEFAULT),))
    """The pools; see Resource pools. If absent, there is one pool, `default`."""
    task_container_defaults: TaskContainerDefaults | None = None
    """See Task container defaults."""
    checkpoint_storage: Storage | None = None
    """The checkpoint storage of experiments whose configuration names no `type`, and how many
    checkpoints they keep; as in [configurations](configuration.md#checkpoint-storage). An
    experiment keeps the setting that was in force when it was created, and its trials can read the
    keys. If absent, checkpoints go to a folder or bucket of the cluster's own.
    """
    checkpoint_endpoints: Annotated[
        tuple[Annotated[str, AfterValidator(_check_endpoint)], ...],
        Field(strict=False, max_length=ENDPOINTS_MAX),
    ] = ()
    """The stores other than Amazon's, Google's and Azure's that `endpoint_url`, `hdfs_url` and
    `account_url` of experiments' `checkpoint_storage` may name, as `https://host:port`; where they
    redirect to, HDFS's datanodes, is called too. A cluster in a cloud calls no others; one on a
    machine calls any.
    """
    page_origins: Annotated[
        tuple[Annotated[str, AfterValidator(_check_page_origin)], ...],
        Field(strict=False, max_length=PAGE_ORIGINS_MAX),
    ] = ()
    """The origins that serve the web page besides the cluster, such as
    `https://page.example.com`. Only pages of these origins may call the API. See
    [hosting the page elsewhere](web-page.md#hosting-the-page-elsewhere).
    """
    checkpoint_deletions_per_second: Annotated[int, Field(ge=1, le=DELETIONS_PER_SECOND_MAX)] = (
        DELETIONS_PER_SECOND
    )
    """The largest number of files of checkpoints, logs and TensorBoard that are deleted per second,
    over all experiments. A store that asks for fewer requests gets fewer.
    """

    @field_validator("resource_pools")
    @classmethod
    def _check_names(cls, pools: tuple[ResourcePool, ...]) -> tuple[ResourcePool, ...]:
        if not pools:
            refuse("must not be empty", "leave it out for one pool, named default")
        names = [pool.pool_name for pool in pools]
        for place, name in enumerate(names):
            if name in names[:place]:
                refuse_at((place, "pool_name"), f"names two pools alike: {name}")
        return pools

    @field_validator("checkpoint_storage")
    @classmethod
    def _check_type(cls, storage: CheckpointStorage | None) -> CheckpointStorage | None:
        if storage is not None and storage.type is None:
            refuse_at(("type",), "is required", "name the type of the store")
        return storage

    @model_validator(mode="after")
    def _check_defaults(self) -> ClusterConfig:
        names = [pool.pool_name for pool in self.resource_pools]
        for field in ("default_aux_resource_pool", "default_compute_resource_pool"):
            name = getattr(self.resource_manager, field)
            if name not in names:
                text = f"must be one of resource_pools, which has no {name}"
                refuse_at(("resource_manager", field), text, nearest_name_hint(name, names), name)
        return self

    def find_pool(self, name: str) -> ResourcePool | None:
        """Return the pool of that name, None if there is none."""
        return next((pool for pool in self.resource_pools if pool.pool_name == name), None)

    def scheduler_of(self, pool: ResourcePool) -> Scheduler:
        """Return the scheduler of a pool: its own or the cluster's."""
        return pool.scheduler or self.resource_manager.scheduler

    def masked_values(self) -> dict[str, Any]:
        """Return all fields as JSON values, secrets masked."""
        return self.model_dump(mode="json")

    def to_json(self) -> bytes:
        """Encode all fields that are set, with secrets, for the state table."""
        return self.model_dump_json(context=REVEAL, exclude_none=True).encode()


def check_cluster(text: str, complete: Completion = lambda tree: tree) -> ClusterConfig:
    """Check a cluster configuration file, with what `complete` adds to it.

    Raises:
        ConfigInvalid: with every problem, sorted by line.
    """
    tree, document = _read_map(text, _EXAMPLE)
    return _validate_document(ClusterConfig, complete(tree), document, [])


def complete_cluster(text: str, complete: Completion) -> str:
    """Return a cluster configuration file with what `complete` adds to it; the same text where that
    is nothing. Raises ConfigInvalid.
    """
    tree, _ = _read_map(text, _EXAMPLE)
    completed = complete(tree)
    return text if completed == tree else json.dumps(completed)


def keep_deployed_fields(tree: Tree, present: ClusterConfig) -> Tree:
    """Return a cluster configuration in which pools that are there have the fields that a
    deployment filled in, where it has none.
    """
    pools = tree.get("resource_pools")
    if not isinstance(pools, Sequence):
        return tree
    kept = [
        _keep_pool_fields(pool, present.find_pool(str(pool.get("pool_name"))))
        if isinstance(pool, Mapping)
        else pool
        for pool in pools
    ]
    return {**tree, "resource_pools": kept}


def _keep_pool_fields(tree: Tree, present: ResourcePool | None) -> Tree:
    provider, former = tree.get("provider"), present.provider if present else None
    if former is None or not isinstance(provider, Mapping) or provider.get("type") != former.type:
        return tree
    deployed = former.model_dump(mode="json", include=set(former.deployed_fields))
    return {**tree, "provider": {**deployed, **provider}}


def check_pool(
    name: str, text: str | None, overrides: Sequence[str], present: ResourcePool | None
) -> ResourcePool:
    """Check a pool of that name with the fields of a YAML text, or without one those that it has,
    and the overrides `a.b=VALUE` on top.

    Raises: ConfigInvalid: with every problem, sorted by line.
    """
    known = json.loads(present.to_json()) if present is not None else {}
    tree, document = known, Document(known, SourcePlace(1))
    if text is not None:
        tree, document = _read_map(text, "description: mine")
        tree = _keep_pool_fields(tree, present)
    findings, tree = list[Finding](), {"pool_name": name, **tree}
    for override in overrides:
        tree, _, finding = apply_override(tree, override)
        findings += [finding] if finding else []
    if tree["pool_name"] != name:
        message = f"must be {name}, as the pool that it is for, or absent"
        findings.append(Finding(("pool_name",), message, value=tree["pool_name"]))
    return _validate_document(ResourcePool, tree, document, findings)


S = TypeVar("S", bound=Section)


def _read_map(text: str, example: str) -> tuple[Tree, Document]:
    document = parse_document(text)
    tree = {} if document.tree is None else document.tree
    if not isinstance(tree, Mapping):
        hint = f"like '{example}'"
        raise ConfigInvalid([Problem("", 1, None, "must be a map of fields", hint)])
    return tree, document


def _validate_document(
    model: type[S], tree: Tree, document: Document, findings: list[Finding]
) -> S:
    found = [*document.findings, *findings]
    try:
        valid = model.model_validate(tree)
    except ValidationError as error:
        unread = {finding.loc for finding in found}
        found += [finding for finding in findings_of(error) if finding.loc not in unread]
    if found:
        raise ConfigInvalid(sorted(_locate_findings(found, document.place), key=_sort_key))
    return valid


def _locate_findings(findings: Iterable[Finding], place: SourcePlace) -> Iterator[Problem]:
    for finding in findings:
        line, _ = line_of(place, finding.loc)
        value = finding.shown_value
        yield Problem(path_text(finding.loc), line, value, finding.message, finding.hint)


def _sort_key(problem: Problem) -> tuple[int, str]:
    return problem.line or 0, problem.path
