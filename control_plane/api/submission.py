"""A submitted experiment: its configuration checked, and whether this cluster can run it."""

import secrets
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Annotated, Any

from pydantic import Field

from control_plane.actors import addresses
from control_plane.actors.experiment_messages import ExperimentSubmitted
from control_plane.actors.identifiers import COUNTERS
from control_plane.actors.lengths import Lengths
from control_plane.actors.records import Retention, Status
from control_plane.agents.spec import storage_of
from control_plane.agents.storage_access import vends
from control_plane.api.archives import SHA256, model_code_key
from control_plane.api.auth import Principal
from control_plane.api.bodies import RequestBody
from control_plane.api.errors import ApiError, Code, Detail, invalid
from control_plane.api.idempotency import Beside
from control_plane.api.placement import (
    Destination,
    check_fits,
    check_mounts,
    destination,
    needs_of,
    warnings_of,
)
from control_plane.api.services import Services
from control_plane.api.template_store import stored_template
from control_plane.api.views.experiment import ExperimentWithConfig
from control_plane.api.warm_start import warm_start_of
from control_plane.config import (
    ConfigInvalid,
    ExperimentConfig,
    check,
)
from control_plane.config.images import image_warnings
from control_plane.config.pool_settings import task_defaults
from control_plane.config.trial_settings import job_of, lifecycle_of, trial_settings
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.single import SinglePlan
from control_plane.state.table import Conflict, Expect, Key, Put
from control_plane.suggestions.installed import lacking

CONFIG_CHARACTERS_MAX = 256 * 1024
DETAILS_MAX = 200
EXPERIMENT_COUNTER = Key(COUNTERS, "experiment")

_SEEDS = 2**31
_RESERVE_TRIES_MAX = 100


class Create(RequestBody):
    """The body of `POST /experiments`."""

    config: Annotated[str, Field(max_length=CONFIG_CHARACTERS_MAX)]
    model_code: Annotated[str, Field(pattern=SHA256)]
    template: Annotated[str, Field(max_length=100)] | None = None
    overrides: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(max_length=200)] = []
    paused: bool = False
    test_mode: bool = False
    validate_only: bool = False


@dataclass(frozen=True)
class Accepted:
    """What this cluster can run: the configuration, all of the message but its id, and what its
    author may be surprised by.
    """

    config: ExperimentConfig
    message: ExperimentSubmitted
    warnings: tuple[str, ...] = ()


def accepted(services: Services, asked: Create, caller: Principal) -> Accepted:
    """Checks everything and draws what is left to chance.

    Raises:
        ApiError: invalid, with every problem of the configuration.
    """
    config, to = _placed(services, asked)
    plan = _plan(services, config)
    settings = trial_settings(config, to.name, services.now_ms())
    if settings.deadline_ms is not None and settings.deadline_ms <= settings.submitted_ms:
        text = f"is over: {config.resources.deadline} is not after the submission"
        raise invalid("resources.deadline", text, "give a later time or a duration like '6h'")
    if asked.test_mode:
        plan = SearchPlan(SinglePlan(1, plan.method.rules), plan.space, plan.seed)
        settings = replace(settings, lengths=Lengths("batches"))
    _check_storage(services, config)
    check_fits(services, to, needs_of(config.resources))
    check_mounts(to, config)
    if services.objects.size(model_code_key(asked.model_code)) is None:
        text = "is not stored here; offer it with POST /model-code and upload it first"
        raise invalid("model_code", text)
    message = ExperimentSubmitted(
        experiment_id=0,
        owner=caller.user,
        name=config.name or config.description or "experiment",
        config=config.to_json().decode(),
        code_sha256=asked.model_code,
        plan=plan,
        settings=settings,
        metric=config.searcher.metric,
        searcher=config.searcher.name,
        paused=asked.paused,
        description=config.description or "",
        labels=config.labels,
        job_id=str(uuid.uuid4()),
        test_mode=asked.test_mode,
        retention=retention_of(config),
        warm_start=warm_start_of(services, config),
        rules=lifecycle_of(config),
        time_metric="" if asked.test_mode else config.time_metric,
        job=job_of(config, settings.submitted_ms),
    )
    return Accepted(config, message, (*warnings_of(to, config.resources), *image_warnings(config)))


def retention_of(config: ExperimentConfig) -> Retention:
    """How many checkpoints the configuration keeps."""
    storage = config.checkpoint_storage
    return Retention(
        storage.save_experiment_best, storage.save_trial_best, storage.save_trial_latest
    )


def config_invalid(
    error: ConfigInvalid, message: str = "the configuration is not valid"
) -> ApiError:
    """The answer to a configuration that is not valid, with everything that is wrong with it up to
    DETAILS_MAX problems.
    """
    details = [
        Detail(problem.path, problem.message, problem.line, problem.hint or None)
        for problem in error.problems[:DETAILS_MAX]
    ]
    if len(error.problems) > DETAILS_MAX:
        message += f": {len(error.problems)} problems, of which these are the first {DETAILS_MAX}"
    return ApiError(Code.INVALID, message, details)


def submit(services: Services, submitted: Accepted, by: str, beside: Beside) -> object:
    """Creates the experiment under the next free id for user `by`, and returns that.

    The counter moves in the same commit, so that no id is skipped or used twice.
    """
    for _ in range(_RESERVE_TRIES_MAX):
        row = services.table.get(EXPERIMENT_COUNTER)
        number = int(row.body) if row else 1
        revision = row.revision if row else 0
        counted = Put(
            EXPERIMENT_COUNTER, revision + 1, b"%d" % (number + 1), revision or Expect.ABSENT
        )
        message = replace(submitted.message, experiment_id=number)
        try:
            return services.engine.command(
                addresses.experiment(number), message, by=by, beside=_both(counted, beside)
            )
        except Conflict as conflict:
            if conflict.key.partition != COUNTERS:
                raise
    raise ApiError(Code.UNAVAILABLE, "too many experiments are created at once; try again")


def preview(services: Services, submitted: Accepted) -> ExperimentWithConfig:
    """The experiment that would be created."""
    message = submitted.message
    return ExperimentWithConfig(
        id=None,
        name=message.name,
        description=message.description,
        state=Status.PAUSED if message.paused else Status.ACTIVE,
        user=message.owner,
        resource_pool=message.settings.pool,
        searcher=message.searcher,
        metric=message.metric,
        smaller_is_better=message.settings.smaller_is_better,
        created_ms=message.settings.submitted_ms,
        labels=list(message.labels),
        job_id=message.job_id,
        seed=message.plan.seed,
        max_slots=message.job.max_slots,
        weight=message.job.weight,
        priority=message.job.priority,
        max_cost=message.settings.max_cost,
        warnings=list(submitted.warnings),
        **asdict(message.retention),
        code_sha256=message.code_sha256,
        config=submitted.config.public(),
    )


def _both(counted: Put, beside: Beside) -> Beside:
    return lambda reply: (counted, *beside(reply))


def _placed(services: Services, asked: Create) -> tuple[ExperimentConfig, Destination]:
    """The configuration over what its pool has for those who say nothing."""
    template = None
    if asked.template is not None:
        stored = stored_template(services.table, asked.template) if asked.template else None
        if stored is None:
            raise invalid("template", f"there is no template {asked.template!r:.80} here")
        template = stored.config
    seed = secrets.randbelow(_SEEDS)

    def checked(cluster: Mapping[str, Any]) -> ExperimentConfig:
        try:
            return check(
                asked.config,
                template=template,
                cluster=cluster,
                overrides=asked.overrides,
                seed_default=seed,
            )
        except ConfigInvalid as error:
            raise config_invalid(error) from None

    config = checked({})
    to = destination(services, config.job.resource_pool, config.job.slots_per_trial)
    defaults = task_defaults(to.pool, to.cluster)
    return checked(defaults) if defaults else config, to


def _plan(services: Services, config: ExperimentConfig) -> SearchPlan:
    if not services.suggests and (why := lacking(config.searcher.name)):
        raise invalid("searcher.name", why)
    return config.search_plan()


def _check_storage(services: Services, config: ExperimentConfig) -> None:
    """Whether there is a store that the trials can use and the cluster can look after."""
    kind = config.checkpoint_storage.type
    if kind == "s3" and find_spec("boto3") is None:
        text = "s3 needs a package that this cluster lacks"
        raise invalid("checkpoint_storage.type", text, "pip install 'detcloud[aws]' there")
    storage = storage_of(config.checkpoint_storage, services.checkpoints)
    elsewhere = getattr(config.checkpoint_storage, "endpoint_url", None)
    if elsewhere and services.vendor is not None and vends(storage):
        # Somebody else's server would be shown what the cluster's own credentials sign.
        text = "another store than Amazon's needs access_key and secret_key here"
        raise invalid("checkpoint_storage.endpoint_url", text)
    if storage is None:
        text = f"{kind} is not available on this cluster yet; available: directory, s3, shared_fs"
        raise invalid("checkpoint_storage.type", text)
