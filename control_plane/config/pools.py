"""The cluster configuration file and the resource pools."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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

from control_plane.actors.records import JobKind
from control_plane.config import master_fields
from control_plane.config.alarms import Alarms
from control_plane.config.deletion_limit import DELETIONS_PER_SECOND, DELETIONS_PER_SECOND_MAX
from control_plane.config.durations import Duration
from control_plane.config.endpoints import endpoint_origin
from control_plane.config.eras import Tree
from control_plane.config.machine_checks import GangCheck, LogExclusion
from control_plane.config.masks import mask_findings
from control_plane.config.merge import apply_override
from control_plane.config.page_origins import PAGE_ORIGINS_MAX, page_origin_fault
from control_plane.config.problems import ConfigInvalid, Problem
from control_plane.config.provider_types import AnyProvider
from control_plane.config.quiet_hours import RULES_MAX, QuietHoursRule
from control_plane.config.retention import RetentionRules
from control_plane.config.run_limits import ExperimentLimitRules, LimitRules, RunLimitRules
from control_plane.config.section import REVEAL, Section, findings_of, refuse, refuse_at
from control_plane.config.storage import CheckpointStorage, Storage
from control_plane.config.task_container_defaults import TaskContainerDefaults
from control_plane.config.webhooks import Webhooks
from control_plane.config.yaml_document import Document, SourcePlace, line_of, parse_document
from control_plane.field_types import CountOrZero
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
"""Returns the fields of a cluster configuration with additions, before the check."""

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
    """The scheduler of a pool, which assigns the slots of agents to the trials of jobs."""

    unknown_field_hints: ClassVar[Mapping[str, str]] = master_fields.SCHEDULER

    type: Literal["fair_share", "priority", "round_robin"] = "fair_share"
    """`fair_share` divides the slots by weight. `priority` serves jobs by priority, then by their
    place in the queue. `round_robin` serves jobs in turn.
    """
    preemption: bool = False
    """Whether the priority scheduler preempts trials of jobs that are later in the queue. Fair
    share always preempts, round robin never.
    """
    default_priority: Annotated[int, Field(ge=1, le=99)] = 42
    """The priority of jobs without a priority; 1 is the most important."""
    fitting_policy: Literal["best", "worst"] = "best"
    """`best` prefers the agent with the fewest free slots, so that agents are filled. `worst`
    prefers the agent with the largest free share, so that work spreads over all agents.
    """
    allow_heterogeneous_fits: bool = False
    """Whether a trial on several agents may use agents of different sizes. Applies to agents that
    are started by hand: a provider launches instances of a single size for a trial.
    """
    reserve_after: Duration = 600_000
    """How long a job without slots waits before the pool holds free slots for the job. With 0, the
    pool never holds slots.

    Under `priority`, the pool holds slots only for jobs that wait for several slots. With
    `preemption`, the scheduler makes room for a job at once, so that the pool holds no slots.
    """

    @field_validator("preemption")
    @classmethod
    def _check_preemption(cls, preemption: bool, info: ValidationInfo) -> bool:
        kind = info.data.get("type", "priority")
        if preemption and kind != "priority":
            hint = "remove it: fair_share always rebalances, round_robin never preempts"
            refuse(f"applies to the priority scheduler only, not to {kind}", hint)
        return preemption


class PoolFields(Section):
    """The fields of a resource pool except the name."""

    unknown_field_hints: ClassVar[Mapping[str, str]] = master_fields.POOL

    description: str = ""
    """A description for users."""
    scheduler: Scheduler | None = None
    """The pool's scheduler, which replaces all fields of the cluster's scheduler. If absent, the
    pool has the cluster's scheduler. See Schedulers.
    """
    max_aux_containers_per_agent: CountOrZero = 100
    """The largest number of trials without slots that an agent runs concurrently. Formerly
    `max_cpu_containers_per_agent`.
    """
    provider: AnyProvider | None = None
    """The provider that launches instances; see Providers. If absent, agents are started by hand.
    """
    budget: Annotated[float, Field(gt=0)] | None = None
    """The most dollars that the pool's instances may cost in a calendar month (UTC). Above the
    budget, no work starts and no instance is launched.
    """
    quiet_hours: Annotated[
        tuple[QuietHoursRule, ...], Field(strict=False, max_length=RULES_MAX)
    ] = ()
    """Times of the week at which no work starts and no instance is launched; see Quiet hours."""
    task_container_defaults: TaskContainerDefaults | None = None
    """The pool's defaults, merged over the cluster's; see Task container defaults."""
    gang_check: GangCheck | None = None
    """The check of machines before a trial on several machines starts. If absent, the resource
    manager's check; see Gang checks.
    """
    log_exclusion: LogExclusion | None = None
    """The exclusion of machines by log policies. If absent, the resource manager's section; see Log
    exclusions.
    """
    agent_reconnect_wait: Duration = 25_000
    """Accepted, but has no effect: an agent is lost when its lease lapses."""
    agent_reattach_enabled: bool = True
    """Accepted, but has no effect: agents always continue their running trials."""

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
    """A resource pool: a group of agents with a queue of work."""

    pool_name: PoolName
    """The pool's name: up to 63 letters, digits, points, underscores and hyphens."""

    def submission_findings(self) -> list[Finding]:
        """Return the findings of `Provider.submission_findings`, with paths from the pool."""
        found = self.provider.submission_findings() if self.provider else ()
        return [replace(finding, loc=("provider", *finding.loc)) for finding in found]

    def masked_values(self) -> dict[str, Any]:
        """Return all fields, defaults included, as JSON values with secrets masked."""
        return self.model_dump(mode="json")

    def to_json(self) -> bytes:
        """Return all fields that are not None as JSON for the state table, secrets unmasked."""
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
    """The kind of resource manager, which is always `agent`."""
    scheduler: Scheduler = Field(default_factory=Scheduler)
    """The scheduler of pools that configure no scheduler; see Schedulers."""
    gang_check: GangCheck = Field(default_factory=GangCheck)
    """The check of gangs in pools without a section `gang_check`; see Gang checks."""
    log_exclusion: LogExclusion | None = None
    """The exclusion of machines by log policies, in pools without a section `log_exclusion`. If
    absent, log policies exclude machines only for the trial of the log; see Log exclusions.
    """
    default_aux_resource_pool: PoolName = POOL_DEFAULT
    """The pool of experiments without slots that name no pool."""
    default_compute_resource_pool: PoolName = POOL_DEFAULT
    """The pool of experiments with slots that name no pool."""


def _check_endpoint(url: str) -> str:
    if endpoint_origin(url) is None:
        refuse("must be a URL like https://host:port, with a port up to 65535 and without a login")
    return url


def _check_page_origin(origin: str) -> str:
    if fault := page_origin_fault(origin):
        refuse(fault, "scheme, host and port alone, without a path or a / at the end")
    return origin


class ClusterConfig(Section):
    """A checked cluster configuration file, which `check_cluster` returns."""

    unknown_field_hints: ClassVar[Mapping[str, str]] = master_fields.CLUSTER

    resource_manager: ResourceManager = Field(default_factory=ResourceManager)
    """Settings that the pools share; see Resource manager."""
    resource_pools: Annotated[
        tuple[ResourcePool, ...], Field(strict=False, max_length=POOLS_MAX)
    ] = Field(default_factory=lambda: (ResourcePool(pool_name=POOL_DEFAULT),))
    """The pools; see Resource pools. If absent, the cluster has a single pool, `default`."""
    task_container_defaults: TaskContainerDefaults | None = None
    """Defaults for the trials of all pools; see Task container defaults."""
    checkpoint_storage: Storage | None = None
    """The checkpoint storage of experiments whose configuration names no `type`, and the number of
    checkpoints to keep; as in [configurations](configuration.md#checkpoint-storage). If absent,
    checkpoints are stored in the cluster's own folder or bucket.

    An experiment keeps the storage that was configured at its creation. Its trials can read the
    keys of the storage.
    """
    checkpoint_endpoints: Annotated[
        tuple[Annotated[str, AfterValidator(_check_endpoint)], ...],
        Field(strict=False, max_length=ENDPOINTS_MAX),
    ] = ()
    """The allowed stores other than Amazon's, Google's and Azure's, as `https://host:port`: the
    values of `endpoint_url`, `hdfs_url` and `account_url` in experiments' `checkpoint_storage`.

    A cluster in a cloud calls no other stores; a cluster on a machine calls any store. The cluster
    follows the redirects of these stores, for example to HDFS's datanodes.
    """
    page_origins: Annotated[
        tuple[Annotated[str, AfterValidator(_check_page_origin)], ...],
        Field(strict=False, max_length=PAGE_ORIGINS_MAX),
    ] = ()
    """The origins that serve the web page besides the cluster, for example
    `https://page.example.com`. Only pages of these origins may call the API. See
    [hosting the page elsewhere](web-page.md#hosting-the-page-elsewhere).
    """
    checkpoint_deletions_per_second: Annotated[int, Field(ge=1, le=DELETIONS_PER_SECOND_MAX)] = (
        DELETIONS_PER_SECOND
    )
    """The largest number of files of checkpoints, logs and TensorBoard that the cluster deletes per
    second, over all experiments. If a store asks for fewer requests, the cluster deletes fewer.
    """
    allow_root_agent_users: bool = False
    """Whether trials may run as root by an agent user with the id 0. See
    [users of the machines](manage.md#users-of-the-machines).
    """
    run_limits: RunLimitRules = Field(default_factory=RunLimitRules)
    """The limits of commands, notebooks and shells; see Run limits."""
    experiment_limits: ExperimentLimitRules = Field(default_factory=ExperimentLimitRules)
    """The limits of experiments; see Experiment limits."""
    retention_policy: RetentionRules = Field(default_factory=RetentionRules)
    """The retention of logs and metrics; see Retention policy."""
    alarms: Alarms = Field(default_factory=Alarms)
    """The thresholds of the cluster's alarms; see Alarms."""
    webhooks: Webhooks = Field(default_factory=Webhooks)
    """The rules for the receivers of [webhooks](webhooks.md); see Webhooks."""

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
        """Return the pool called `name`, or None if the configuration lacks the pool."""
        return next((pool for pool in self.resource_pools if pool.pool_name == name), None)

    def limit_rules(self, kind: JobKind) -> LimitRules:
        """Return the rules for the limits of a job of this kind."""
        return self.experiment_limits if kind is JobKind.EXPERIMENT else self.run_limits

    def scheduler_of(self, pool: ResourcePool) -> Scheduler:
        """Return the scheduler in the pool's configuration, or else the cluster's scheduler."""
        return pool.scheduler or self.resource_manager.scheduler

    def submission_findings(self) -> list[Finding]:
        """Return the findings of all pools, with paths from the root."""
        return [
            replace(finding, loc=("resource_pools", place, *finding.loc))
            for place, pool in enumerate(self.resource_pools)
            for finding in pool.submission_findings()
        ]

    def masked_values(self) -> dict[str, Any]:
        """Return all fields, pools and defaults included, as JSON values with secrets masked."""
        return self.model_dump(mode="json")

    def to_json(self) -> bytes:
        """Return all fields that are not None as JSON for the state table, secrets unmasked."""
        return self.model_dump_json(context=REVEAL, exclude_none=True).encode()


def check_cluster(text: str, complete: Completion = lambda tree: tree) -> ClusterConfig:
    """Return the checked configuration of a cluster configuration file.

    Args:
        text: the file as YAML. An empty text has the defaults.
        complete: adds fields before the check.

    Raises:
        ConfigInvalid: the configuration is invalid or contains masks. The error contains every
            problem, sorted by line.
    """
    tree, document = _read_map(text, _EXAMPLE)
    return _validate_document(ClusterConfig, complete(tree), document, [])


def complete_cluster(text: str, complete: Completion) -> str:
    """Return the text of a cluster configuration file with the additions of `complete`, as JSON.

    Return `text` itself if `complete` adds nothing. The fields are not checked.

    Raises:
        ConfigInvalid: the text is not readable YAML, or not a map.
    """
    tree, _ = _read_map(text, _EXAMPLE)
    completed = complete(tree)
    return text if completed == tree else json.dumps(completed)


def keep_deployed_fields(tree: Tree, present: ClusterConfig) -> Tree:
    """Return the fields of a cluster configuration with the deployed fields of present pools.

    Deployed fields are provider fields that a deployment has filled in. They are added to pools
    with the same name and provider type, unless `tree` sets them. Return `tree` itself if it has no
    list of pools. Other invalid values stay for the check.

    Args:
        tree: the new fields. Not changed.
        present: the present configuration of the cluster.
    """
    pools = tree.get("resource_pools")
    if not isinstance(pools, list):
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
    fields = set(former.deployed_fields)
    deployed = former.model_dump(mode="json", include=fields, context=REVEAL)
    return {**tree, "provider": {**deployed, **provider}}


def check_pool(
    name: str, text: str | None, overrides: Sequence[str], present: ResourcePool | None
) -> ResourcePool:
    """Return the checked configuration of a pool that is created or changed.

    Args:
        name: the name of the pool.
        text: the pool's fields as YAML, which replace all fields except deployed fields. None: the
            pool keeps the fields of `present`.
        overrides: assignments `a.b=VALUE` with VALUE in YAML, which are applied last.
        present: the present configuration of the pool, or None for a new pool.

    Raises:
        ConfigInvalid: the fields or overrides are invalid, contain masks, or name another pool. The
            error contains every problem, sorted by line.
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


S = TypeVar("S", "ResourcePool", "ClusterConfig")


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
    found = [*document.findings, *findings, *mask_findings(tree)]
    try:
        valid = model.model_validate(tree)
    except ValidationError as error:
        unread = {finding.loc for finding in found}
        found += [finding for finding in findings_of(error) if finding.loc not in unread]
    else:
        found += valid.submission_findings()
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
