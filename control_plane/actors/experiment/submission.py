"""The creation of an experiment: the state, the parts, and the first trials of the search."""

from control_plane.actors.experiment.events import set_deadline_timer
from control_plane.actors.experiment.job import write_job_row
from control_plane.actors.experiment.listing import write_listing_row
from control_plane.actors.experiment.search import apply_operations, expand_backlog
from control_plane.actors.experiment.state import (
    Definition,
    ExperimentState,
    SearchParts,
    forks_partition,
    listing_sort_key,
)
from control_plane.actors.experiment.values import write_values_row
from control_plane.actors.messages.experiment import ExperimentSubmitted
from control_plane.actors.pins import add_pin
from control_plane.actors.pool_moves import PoolMoves
from control_plane.actors.records import Status
from control_plane.actors.step import StepContext
from control_plane.searchers import method, search
from control_plane.searchers.randomness import Generator


def submit_experiment(message: ExperimentSubmitted, context: StepContext) -> ExperimentState:
    """Create the experiment's state, the parts `definition` and `generator`, and the first trials.

    Each trial gets a TrialCreated. The job row, the values row and the listing row are written, and
    the pool gets a JobChanged. A fork has a row among the forks of its original. If the search has
    more to create than fits into the commit, the experiment gets a SearchContinued. A search
    without any trial ends the experiment at once. A warm start is pinned.

    Raises:
        CommandRefused: conflict; the checkpoint of the warm start was deleted.
    """
    if message.warm_start is not None:
        add_pin(message.warm_start.uuid, message.experiment_id, context)
    begun = search.begin_search(message.plan, SearchParts(context))
    state = ExperimentState(
        experiment_id=message.experiment_id,
        owner=message.owner,
        name=message.name,
        metric=message.metric,
        smaller_is_better=message.settings.smaller_is_better,
        searcher=message.searcher,
        pool=message.settings.pool,
        created_ms=context.now_ms,
        status=Status.PAUSED if message.paused else Status.ACTIVE,
        search=begun.state,
        time_metric=message.time_metric,
        is_open_ended=message.plan.method.max_length == method.ENDLESS,
        counts_epochs=message.settings.lengths.counts_epochs,
        pool_moves=None if message.pools is None else PoolMoves(),
        kind=message.kind,
        listing_has_figures=message.listing_has_figures,
        listing_has_failures=message.listing_has_failures,
        has_growing_id_blocks=message.has_growing_id_blocks,
        has_values_row=message.has_values_row,
        raises_events=message.raises_events,
    )
    context.write_part("definition", _definition_of(message))
    generator = Generator.from_seed(message.plan.seed)
    context.write_part("generator", generator.key)
    state = apply_operations(state, begun, context)
    if begun.more:
        state = expand_backlog(state, context)
    set_deadline_timer(state, message.settings.deadline_ms, context)
    # The job row follows the trials, so that the pool can read their requests immediately.
    write_job_row(state, context)
    write_values_row(state, context)
    if message.forked_from is not None:
        sort = listing_sort_key(state.experiment_id)
        context.write_row(forks_partition(message.forked_from), sort, b"")
    return write_listing_row(state, context)


def _definition_of(message: ExperimentSubmitted) -> Definition:
    """Return the definition of a submitted experiment."""
    return Definition(
        plan=message.plan,
        settings=message.settings,
        config=message.config,
        code_sha256=message.code_sha256,
        description=message.description,
        labels=message.labels,
        job_id=message.job_id,
        test_mode=message.test_mode,
        retention=message.retention,
        warm_start=message.warm_start,
        rules=message.rules,
        job=message.job,
        pools=message.pools,
        workspace=message.workspace,
        project=message.project,
        forked_from=message.forked_from,
        stated_fields=message.stated_fields,
        restored_from=message.restored_from,
        webhooks=message.webhooks,
        source=message.source,
        schedule_id=message.schedule_id,
        data_retention=message.data_retention,
    )
