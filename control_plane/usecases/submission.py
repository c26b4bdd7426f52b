"""Submission of experiments: check the configuration and create the experiment."""

import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

from pydantic_core import to_json

from control_plane.access.agent_users import agent_user_ids
from control_plane.access.principals import Principal
from control_plane.actors import addresses
from control_plane.actors.identifiers import COUNTERS
from control_plane.actors.job_row import JobRow
from control_plane.actors.lengths import Lengths
from control_plane.actors.messages.experiment import ExperimentSubmitted
from control_plane.actors.projects import UNCATEGORIZED
from control_plane.actors.records import (
    JobKind,
    Retention,
    SnapshotSettings,
    TrialSettings,
)
from control_plane.config.advice import config_warnings
from control_plane.config.check import (
    check_config,
    find_run_limits,
    find_snapshots,
    find_stated_fields,
)
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.integrations import source_commit, webhook_choice
from control_plane.config.pool_settings import task_defaults
from control_plane.config.problems import ConfigInvalid
from control_plane.config.retention import stored_retention
from control_plane.config.run_limits import RunLimits
from control_plane.config.schedule import SECTION as SCHEDULE
from control_plane.config.template import Template, drop_template_secrets
from control_plane.config.trial_settings import (
    job_of,
    lifecycle_of,
    pool_preferences,
    trial_settings,
)
from control_plane.engine.actor_types import encode_message_for
from control_plane.errors import Code, RequestError, invalid
from control_plane.objects.store import model_code_key
from control_plane.searchers.methods.single import SinglePlan
from control_plane.searchers.search import SearchPlan
from control_plane.services import Services
from control_plane.state.table import Conflict, Expect, Key, Put
from control_plane.suggestions.availability import missing_package_reason
from control_plane.usecases.config_errors import config_error
from control_plane.usecases.entrypoint_check import check_entrypoint
from control_plane.usecases.idempotency import ExtraWrites
from control_plane.usecases.placement import (
    Destination,
    choose_destinations,
    placement_warnings,
    process_warnings,
)
from control_plane.usecases.restored_files import RestoredFiles, find_restored_files
from control_plane.usecases.run_checks import check_limits
from control_plane.usecases.schedule_check import without_schedule
from control_plane.usecases.submission_parts import check_parts
from control_plane.usecases.templates import load_template
from control_plane.usecases.traces import with_trace
from control_plane.usecases.warm_start import find_warm_start

# The most bytes of a stored submission. A row of 400 KiB must hold the message.
STORED_BYTES_MAX = 400_000
EXPERIMENT_COUNTER = Key(COUNTERS, "experiment")

NAMED_SECRETS_MAX = 8
"""The most secrets of a template that a warning names."""

_SEEDS = 2**31
_RESERVE_TRIES_MAX = 100


@dataclass(frozen=True)
class Submission:
    """A user's submission of an experiment, command, notebook or shell."""

    config: str
    """The text of the configuration."""
    model_code: str | None
    """The SHA-256 of the uploaded model code; None if the configuration is only checked."""
    template: str | None = None
    """The name of a template, whose values the configuration overrides."""
    overrides: Sequence[str] = ()
    """Values that override the configuration, as `path=value`."""
    paused: bool = False
    """Whether the experiment starts paused."""
    test_mode: bool = False
    """Whether the experiment is a test run: a single trial of one batch."""
    kind: JobKind = JobKind.EXPERIMENT
    forked_from: int | None = None
    """The id of the experiment that is forked. None: the experiment is no fork."""
    restored_from: int | None = None
    """The id of the notebook or shell with whose files a notebook or shell starts. None: it starts
    with the model code.
    """
    traceparent: str = ""
    """The header `traceparent` of the request, or "" without the header."""
    may_be_scheduled: bool = False
    """Whether the configuration may have the section `schedule`. The experiment lacks the section.
    """


class _Placement(NamedTuple):
    """A checked configuration with the chosen pools."""

    config: ExperimentConfig
    """The configuration with all defaults."""
    pools: tuple[Destination, ...]
    """The pools for the experiment, in the order of preference."""
    warnings: tuple[str, ...]
    """At most one warning, which names the secrets of the template that were left out."""
    stated_fields: Mapping[str, object]
    """The fields that the user or the template set, without the section `schedule`. {} for
    commands, notebooks and shells.
    """
    limits: RunLimits
    """The limits of the job."""
    snapshots: SnapshotSettings | None
    """How the files of a notebook or shell are kept. None: they are lost with the run."""
    restored: RestoredFiles | None
    """The files of another run with which a notebook or shell starts, or None."""


@dataclass(frozen=True)
class CheckedSubmission:
    """A submission that this cluster can run."""

    config: ExperimentConfig
    """The configuration with the template, `Submission.overrides` and defaults applied. Includes
    the section `schedule`, which the configuration in `message` lacks.
    """
    message: ExperimentSubmitted
    """The message that creates the experiment; its `experiment_id` is still 0."""
    warnings: tuple[str, ...] = ()
    """Warnings to the user."""


def check_submission(
    services: Services, submission: Submission, caller: Principal
) -> CheckedSubmission:
    """Check that this cluster can run the submission; return the message that creates the job.

    Nothing is stored. The job's UUID is drawn at random, and so is the seed if the configuration
    has none. The secrets of another user's template are left out, and a warning names them.

    Raises:
        RequestError: invalid, if the configuration has problems, the template, the model code, the
            forked experiment or a pool does not exist, or no trial could run. invalid also if the
            deadline has passed, the checkpoint store or the warm start cannot be used, or the
            configuration is too large.
    """
    _check_kind(services, submission)
    placement, kind = _place(services, submission, caller), submission.kind
    pools, restored = placement.pools, placement.restored
    config = without_schedule(placement.config, submission.may_be_scheduled)
    code = restored.code_sha256 if restored else submission.model_code
    plan = _search_plan(services, config)
    settings = trial_settings(
        config, pools[0].name, services.now_ms(), kind, placement.limits, placement.snapshots
    )
    settings = with_trace(settings, submission.traceparent, services)
    _check_deadline(config, settings)
    if submission.test_mode:
        plan = SearchPlan(SinglePlan(1, plan.method.rules), plan.space, plan.seed)
        settings = replace(settings, lengths=Lengths("batches"))
    check_parts(services, config, pools, kind)
    _check_model_code(services, code)
    message = ExperimentSubmitted(
        experiment_id=0,
        owner=caller.user,
        name=config.name or config.description or kind,
        config=config.to_json().decode(),
        code_sha256=code or "",
        plan=plan,
        settings=settings,
        metric=config.searcher.metric,
        searcher=config.searcher.name,
        paused=submission.paused,
        description=config.description or "",
        labels=config.labels,
        job_id=str(uuid.uuid4()),
        test_mode=submission.test_mode,
        retention=config_retention(config),
        warm_start=restored.snapshot if restored else find_warm_start(services, config),
        rules=lifecycle_of(config),
        time_metric="" if submission.test_mode else config.time_metric,
        job=_job_row(services, config, settings.submitted_ms, kind, caller),
        pools=pool_preferences(config),
        workspace=config.workspace or UNCATEGORIZED,
        project=config.project or UNCATEGORIZED,
        kind=kind,
        listing_has_figures=True,
        listing_has_failures=True,
        has_growing_id_blocks=True,
        has_values_row=kind is JobKind.EXPERIMENT,
        forked_from=submission.forked_from,
        stated_fields=placement.stated_fields,
        restored_from=submission.restored_from,
        raises_events=True,
        webhooks=webhook_choice(config.integrations),
        data_retention=stored_retention(config.retention_policy),
        source=source_commit(config.integrations),
    )
    _check_size(config, message)
    warnings = _find_warnings(services, submission, config, pools)
    return CheckedSubmission(placement.config, message, (*placement.warnings, *warnings))


def _job_row(
    services: Services, config: ExperimentConfig, now_ms: int, kind: JobKind, caller: Principal
) -> JobRow:
    """Return the job row of a submission, with the present agent user of the caller."""
    workspace = config.workspace or UNCATEGORIZED
    user = agent_user_ids(services.table, caller.user, workspace)
    return replace(job_of(config, now_ms, kind), agent_user=user)


def _check_deadline(config: ExperimentConfig, settings: TrialSettings) -> None:
    """Raise RequestError invalid for a deadline that has passed."""
    if settings.deadline_ms is not None and settings.deadline_ms <= settings.submitted_ms:
        text = f"has passed: {config.resources.deadline} is not after the submission"
        raise invalid("resources.deadline", text, "use a later time or a duration like '6h'")


def config_retention(config: ExperimentConfig) -> Retention:
    """Return the numbers of checkpoints to keep, from the configuration.

    These are the best of the experiment, and the best and the latest of each trial.
    """
    storage = config.checkpoint_storage
    return Retention(
        storage.save_experiment_best, storage.save_trial_best, storage.save_trial_latest
    )


def submit_experiment(
    services: Services, submission: CheckedSubmission, by: str, extra_writes: ExtraWrites
) -> object:
    """Create the experiment under the next free id, and return the id.

    The commit creates the experiment's actor, increments the counter of ids, and includes the extra
    writes. So no id is skipped or used twice. The trials are created in the same commit or soon
    after.

    Args:
        services: the services with the engine and the state table.
        submission: the checked submission.
        by: the user, for the journal.
        extra_writes: returns further writes of the commit, given the id.

    Raises:
        RequestError: unavailable, if too many experiments are created at the same time.
        CommandRefused: too_large, if the experiment is too large to store; conflict, if the
            checkpoint of the warm start was deleted; unavailable, if the experiment is too busy.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    for _ in range(_RESERVE_TRIES_MAX):
        row = services.table.get(EXPERIMENT_COUNTER)
        number = int(row.body) if row else 1
        revision = row.revision if row else 0
        counter_put = Put(
            EXPERIMENT_COUNTER, revision + 1, b"%d" % (number + 1), revision or Expect.ABSENT
        )
        message = replace(submission.message, experiment_id=number)
        try:
            return services.engine.execute_command(
                addresses.experiment(number),
                message,
                by=by,
                extra_writes=_with_counter(counter_put, extra_writes),
            )
        except Conflict as conflict:
            if conflict.key.partition != COUNTERS:
                raise
    raise RequestError(
        Code.UNAVAILABLE, "too many experiments are being created at the same time; try again"
    )


def _with_counter(counter_put: Put, extra_writes: ExtraWrites) -> ExtraWrites:
    """Return a function that returns the write of the counter, followed by the extra writes."""
    return lambda reply: (counter_put, *extra_writes(reply))


def _find_warnings(
    services: Services,
    submission: Submission,
    config: ExperimentConfig,
    pools: Sequence[Destination],
) -> tuple[str, ...]:
    """Return the warnings about the entrypoint, the pools and the configuration."""
    return (
        *check_entrypoint(services, config, submission.model_code),
        *chain.from_iterable(placement_warnings(pool, config.resources) for pool in pools),
        *config_warnings(config),
        *chain.from_iterable(process_warnings(services, pool, config) for pool in pools),
    )


def _check_kind(services: Services, submission: Submission) -> None:
    """Check that only experiments are test runs or forks, and that the forked experiment exists.

    Raises:
        RequestError: invalid, if a test run, fork or forked job is no experiment, or the forked
            experiment does not exist or was deleted.
    """
    original_id = submission.forked_from
    if submission.test_mode and submission.kind is not JobKind.EXPERIMENT:
        raise invalid("test_mode", f"is for experiments, and this is a {submission.kind}")
    if original_id is None:
        return
    if submission.kind is not JobKind.EXPERIMENT:
        raise invalid("forked_from", f"is for experiments, and this is a {submission.kind}")
    found = services.experiments.read_experiment(original_id)
    if found is None:
        text = f"is {original_id}, and there is no such experiment here"
        raise invalid("forked_from", text, "`detcloud list` shows the experiments")
    if found[0].kind is not JobKind.EXPERIMENT:
        raise invalid("forked_from", f"is {found[0].title}; only experiments can be forked")


def _place(services: Services, submission: Submission, caller: Principal) -> _Placement:
    """Return the configuration with all defaults, and the pools for the experiment.

    The configuration contains the template, the values of `submission.overrides` and the defaults
    of the first pool. The secrets of another user's template are left out, unless `caller` is an
    admin. Without a seed in the configuration, draw a random seed.

    Raises:
        RequestError: invalid, if the configuration or the template has problems, or a template or
            pool does not exist. invalid also if a pool is draining.
    """
    template, left_out = _find_template(services, submission.template, caller)
    seed = secrets.randbelow(_SEEDS)

    def check_over(cluster: Mapping[str, Any]) -> ExperimentConfig:
        try:
            return check_config(
                submission.config,
                template=template,
                cluster=cluster,
                overrides=submission.overrides,
                seed_default=seed,
                kind=submission.kind,
            )
        except ConfigInvalid as error:
            raise config_error(error) from None

    config = check_over({})
    pools = choose_destinations(services, config.job.resource_pools, config.job.slots_per_trial)
    rules = pools[0].cluster.limit_rules(submission.kind)
    defaults = {
        **task_defaults(pools[0].pool, pools[0].cluster),
        **rules.config_layer(submission.kind),
        **pools[0].cluster.retention_policy.config_layer(),
    }
    config = check_over(defaults) if defaults else config
    limits = RunLimits(config.idle_timeout, config.max_duration, config.max_trial_duration)
    snapshots = None
    if submission.kind is not JobKind.EXPERIMENT:
        limits = find_run_limits(
            submission.config, template=template, cluster=defaults, overrides=submission.overrides
        )
        snapshots = find_snapshots(
            submission.config,
            submission.kind,
            template=template,
            cluster=defaults,
            overrides=submission.overrides,
        )
    check_limits(rules, submission.kind, limits)
    stated_fields: Mapping[str, object] = {}
    if submission.kind is JobKind.EXPERIMENT:
        stated_fields = {
            name: value
            for name, value in find_stated_fields(
                submission.config, template, submission.overrides, config.era
            ).items()
            if name != SCHEDULE
        }
    restored = find_restored_files(
        services, submission.restored_from, submission.kind, config, caller
    )
    if restored is not None and snapshots is not None:
        snapshots = replace(snapshots, is_restored=True)
    return _Placement(config, pools, left_out, stated_fields, limits, snapshots, restored)


def _find_template(
    services: Services, name: str | None, caller: Principal
) -> tuple[Template | str | None, tuple[str, ...]]:
    """Load the template of a submission.

    Returns:
        The template, or None if `name` is None; and the warnings. The template of another user is
        parsed and lacks its secrets; a warning names them. An admin sees all secrets.

    Raises:
        RequestError: invalid, if the template does not exist or can no longer be read.
    """
    if name is None:
        return None, ()
    record = load_template(services.table, name) if name else None
    if record is None:
        raise invalid("template", f"there is no template {name!r:.80} here")
    if record.shows_secrets_to(caller):
        return record.config, ()
    try:
        template, places = drop_template_secrets(record.config)
    except ConfigInvalid as error:
        raise config_error(error) from None
    if not places:
        return template, ()
    more = " and more" if len(places) > NAMED_SECRETS_MAX else ""
    text = f"{', '.join(places[:NAMED_SECRETS_MAX])}{more}"
    return template, (
        f"template {name} belongs to {record.user}, and its secrets were left out: {text}. Set them"
        " yourself if the experiment needs them",
    )


def _search_plan(services: Services, config: ExperimentConfig) -> SearchPlan:
    """Return the plan of the configured search.

    Raises:
        RequestError: invalid, if this process must compute suggestions and a Python package is
            missing.
    """
    if not services.suggests and (why := missing_package_reason(config.searcher.name)):
        raise invalid("searcher.name", why)
    return config.search_plan()


def _check_model_code(services: Services, model_code: str | None) -> None:
    """Check that model code with this digest is stored. None passes.

    Raises:
        RequestError: invalid, if the object store lacks the model code.
    """
    if model_code is not None and services.objects.size(model_code_key(model_code)) is None:
        text = "is not stored here; register it with POST /model-code and upload it first"
        raise invalid("model_code", text)


def _check_size(config: ExperimentConfig, message: ExperimentSubmitted) -> None:
    """Check that the message, encoded with the configuration, has at most STORED_BYTES_MAX bytes.

    Raises:
        RequestError: invalid, naming the largest section of the configuration.
    """
    _, stored = encode_message_for(addresses.experiment(0), message)
    if len(stored) <= STORED_BYTES_MAX:
        return
    sections = {name: len(to_json(item)) for name, item in config.model_dump(mode="json").items()}
    largest = max(sections, key=sections.__getitem__)
    raise invalid(
        largest,
        f"is {sections[largest]:,} bytes of a configuration that takes {len(stored):,} as it is"
        f" stored, and {STORED_BYTES_MAX:,} at most are stored",
        "store long constants in a file with the model code",
    )
