"""Reads of the facts that the conversion of an agent's reports depends on."""

from collections.abc import Collection, Iterable, Mapping

from control_plane.actors import addresses
from control_plane.actors.agent.actor import AgentState
from control_plane.actors.experiment.state import ExperimentState
from control_plane.agents.actor_states import ActorStateReader
from control_plane.agents.reports import (
    Report,
    ReportContext,
    announced_checkpoint,
    damaged_checkpoint,
)
from control_plane.checkpoint_gc.checkpoint_inventory import fallback_uuids
from control_plane.engine.engine import Engine
from control_plane.state.table import Key, Row


def read_report_contexts(
    engine: Engine,
    state_reader: ActorStateReader,
    state: AgentState,
    reports: Iterable[Report],
    other_key: Key,
) -> tuple[dict[str, ReportContext], Row | None]:
    """Read the context of each reporting allocation that is assigned to the agent.

    Return the contexts by allocation name (`TRIAL.EPOCH`), and the row with `other_key` or None. An
    allocation has no context if the allocation is not assigned, or the trial or experiment does not
    exist. The row and the states of the experiments are read in one request. The reader's first
    look-up of a trial, and a report of a damaged checkpoint, cost more requests. Raises TableError.

    Args:
        engine: the engine of the cluster.
        state_reader: knows the experiments of trials.
        state: the agent's state.
        reports: the reports. Without reports, only the row is read.
        other_key: the key of a row to read as well.
    """
    reporting = {(report.trial_id, report.epoch) for report in reports}
    damaged = {report.trial_id: uuid for report in reports if (uuid := damaged_checkpoint(report))}
    assigned = [entry for entry in state.desired if (entry.trial_id, entry.epoch) in reporting]
    experiment_ids = state_reader.find_experiment_ids({entry.trial_id for entry in assigned})
    numbers = sorted(set(experiment_ids.values()))
    states, (row,) = engine.read_states_and_rows(
        [addresses.experiment(number) for number in numbers], (other_key,)
    )
    experiments = dict(zip(numbers, states, strict=True))
    contexts: dict[str, ReportContext] = {}
    for desired in assigned:
        head = experiments.get(experiment_ids.get(desired.trial_id, 0))
        if isinstance(head, ExperimentState):
            contexts[f"{desired.trial_id}.{desired.epoch}"] = ReportContext(
                head.metric,
                head.time_metric,
                desired.node_rank,
                desired.nodes,
                head.is_open_ended or head.counts_epochs,
                _find_fallbacks(engine, desired.trial_id, damaged),
            )
    return contexts, row


def find_announcing_trials(
    engine: Engine, reports: Iterable[Report], contexts: Mapping[str, ReportContext]
) -> Collection[int]:
    """Return the ids of existing trials that announce checkpoints in allocations without a context.

    Such an allocation is no longer assigned to the agent. Return [] if no report is such an
    announcement. Raises TableError.
    """
    announced = {
        report.trial_id
        for report in reports
        if f"{report.trial_id}.{report.epoch}" not in contexts
        and announced_checkpoint(report.line) is not None
    }
    ids = sorted(announced)
    trials = engine.read_states([addresses.trial(trial_id) for trial_id in ids])
    return [number for number, trial in zip(ids, trials, strict=True) if trial]


def _find_fallbacks(engine: Engine, trial_id: int, damaged: Mapping[int, str]) -> tuple[str, ...]:
    """Return the UUIDs of the checkpoints that can replace a trial's damaged checkpoint.

    Return (), without a read, if the trial reported no damage. Raises TableError.

    Args:
        engine: the engine of the cluster.
        trial_id: the trial.
        damaged: the UUID of the damaged checkpoint of each trial that reports one.
    """
    uuid = damaged.get(trial_id)
    return () if uuid is None else fallback_uuids(engine.table, trial_id, uuid)
