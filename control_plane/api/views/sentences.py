"""What a journal's messages mean to people: a plain sentence for every kind of message.

Nothing of a configuration is ever in one: it may hold secrets.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from sys import float_info
from typing import Any

from control_plane.actors import agent_messages as to_agent
from control_plane.actors import experiment_messages as to_experiment
from control_plane.actors import pool_messages as to_pool
from control_plane.actors import trial_messages as to_trial
from control_plane.actors.cost import dollars_text, micros_of
from control_plane.actors.records import Place, Retention
from control_plane.actors.slots import Availability
from control_plane.searchers import method
from control_plane.searchers.method import ENDLESS

HPARAMS_CHARACTERS_MAX = 200
CAUSE_CHARACTERS_MAX = 200


@dataclass(frozen=True)
class Told:
    """What a sentence needs beside its message: whom it reached, who commanded it, "" if it was no
    command, the searcher's metric, the unit of lengths, and a trial's id by its number.
    """

    address: str
    by: str
    metric: str
    unit: str
    trial_id: Callable[[int], int | None]

    @property
    def name(self) -> str:
        """`trial 7`."""
        return self.address.replace("#", " ")

    @property
    def user(self) -> str:
        """` by ana`, or nothing."""
        return f" by {self.by}" if self.by else ""

    def trial(self, number: int) -> str:
        """`trial 7`, by its number within the experiment."""
        found = self.trial_id(number)
        return f"the trial with number {number}" if found is None else f"trial {found}"

    def allocation(self, epoch: int) -> str:
        """`allocation 7.2`."""
        return f"allocation {self.address.partition('#')[2]}.{epoch}"

    def node(self, message: to_trial.ContainerStateReported | to_trial.AllocationExited) -> str:
        """`allocation 7.2`, or `node 1 of allocation 7.2` where it has several."""
        node = f"node {message.node_rank} of " if message.nodes > 1 else ""
        return f"{node}{self.allocation(message.epoch)}"

    def measured(self, metric: float | None) -> str:
        """`accuracy 0.93`."""
        # The worst there is stands for a metric that was no number.
        if metric is None or abs(metric) >= float_info.max:
            return f"no finite {self.metric}"
        return f"{self.metric} {_number(metric)}"


Sentence = Callable[[Any, Told], str]


def sentence(message: object, told: Told) -> str:
    """What happened, in plain English."""
    return SENTENCES[type(message)](message, told)


def _submitted(message: to_experiment.ExperimentSubmitted, told: Told) -> str:
    article = "an" if message.searcher.startswith("a") else "a"
    trials = "a test run" if message.test_mode else f"{article} {message.searcher} search"
    paused = ", paused" if message.paused else ""
    by = told.by or message.owner
    return f"submitted by {by} as {message.name!r}: {trials} for {message.metric}{paused}"


def _settings(message: to_experiment.SettingsChanged, told: Told) -> str:
    given = {
        "name": message.name,
        "description": message.description,
        "labels": None if message.labels is None else ", ".join(message.labels) or "none",
    }
    changes = [f"{name} to {value!r}" for name, value in given.items() if value is not None]
    if message.max_slots_given:
        limit = "no limit" if message.max_slots is None else str(message.max_slots)
        changes.append(f"max_slots to {limit}")
    if message.max_cost_given:
        cost = "no limit" if message.max_cost is None else dollars_text(micros_of(message.max_cost))
        changes.append(f"max_cost to {cost}")
    scheduled = {
        "weight": message.weight,
        "priority": message.priority,
        "position": message.position,
    }
    changes += [f"{name} to {value}" for name, value in scheduled.items() if value is not None]
    if message.retention is not None:
        kept = message.retention
        changes.append(f"the checkpoints kept to {_retained(kept)}")
    return f"changed{told.user}: {', '.join(changes) or 'nothing'}"


def _continued(message: to_experiment.ContinueRequested, told: Told) -> str:
    restarts = message.max_restarts
    more = "" if restarts is None else f", with max_restarts {restarts}"
    return f"continued{told.user}{more}"


def _posted(message: to_experiment.OperationsPosted, told: Told) -> str:
    posted = message.posted
    kinds = Counter(operation.kind.replace("_", " ") for operation in posted.operations)
    asked = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "nothing"
    seen = f"having seen the events up to {posted.acknowledged}"
    return f"the search method asked for {asked} in post {posted.post}{told.user}, {seen}"


def _trial_ended(message: to_experiment.TrialEnded, told: Told) -> str:
    early = message.early_exit.replace("_", " ").lower()
    how = f" early ({early})" if early and early != "errored" else ""
    why = f": {_line(message.message)}" if message.message else ""
    return f"{told.trial(message.number)} ended {message.status}{how}{why}"


def _metered(message: to_experiment.TrialMetered, told: Told) -> str:
    spent = f"{told.trial(message.number)} has cost {dollars_text(message.cost_micros)}"
    if not message.holds_slots:
        return f"{spent} and holds no slots"
    return f"{spent} and costs {dollars_text(message.rate_micros)} an hour"


def _created(message: to_trial.TrialCreated, told: Told) -> str:
    listed = _hparams(message.hparams)
    given = f" with {listed}" if listed else ""
    length = message.length
    goal = "nothing to train yet" if length is None else f"to train to {_length(length, told)}"
    return f"{told.name} created{given}; {goal}"


def _work(message: to_trial.WorkAssigned, told: Told) -> str:
    if message.length is not None:
        return f"{told.name} is to train to {_length(message.length, told)}"
    if message.stopped:
        return f"{told.name} is to stop here"
    return f"{told.name} has done its part" if message.closed else f"{told.name} is to wait"


def _handed_over(message: to_trial.CheckpointHandedOver, told: Told) -> str:
    checkpoint = message.checkpoint
    if checkpoint is None:
        return f"trial {message.by} has no checkpoint for {told.name} to start from"
    return f"{told.name} starts from checkpoint {checkpoint.uuid[:8]} of trial {message.by}"


def _trial_status(message: to_trial.ExperimentStatusChanged, told: Told) -> str:
    at_once = ", to stop at once" if message.forced else ""
    return f"{told.name} heard that the experiment is {message.status}{at_once}"


def _trial_continued(message: to_trial.TrialContinued, told: Told) -> str:
    goal = "" if message.length is None else f", to {_length(message.length, told)}"
    return f"{told.name} goes on{goal}"


def _exited(message: to_trial.AllocationExited, told: Told) -> str:
    name = told.node(message)
    if message.reason in _EXITS:
        ending = f", since its machine ends: {_line(message.notice)}" if message.notice else ""
        return f"{name} {_EXITS[message.reason]}{ending}"
    code = "" if message.code is None else f"exit code {message.code}"
    cause = _line(message.message) if message.message else ""
    reason = "" if message.reason == "errored" and (code or cause) else message.reason
    return f"{name} failed: {', '.join(filter(None, (reason, code, cause)))}"


_EXITS = {
    "completed": "exited: its work is done",
    "preempted": "exited, as it was asked to",
    "idle": "exited: it had nothing to do",
    "stop_requested": "exited: the training code asked to stop",
    "invalid_hp": "exited: the training code refused the hyperparameters",
    "killed": "was killed",
    "lost": "was lost",
}


def _checkpoint(message: to_trial.CheckpointReported, told: Told) -> str:
    kept = message.checkpoint
    size = f"{message.size_bytes:,} bytes in {_count(message.files, 'file')}"
    return f"checkpoint {kept.uuid[:8]} at {_count(kept.steps_completed, 'batch')}, {size}"


def _available(given: Availability) -> str:
    if not given.enabled:
        return "draining" if given.draining else "disabled"
    closed = ", ".join(map(str, given.disabled))
    return f"enabled without slots {closed}" if closed else "enabled"


def _requested(message: to_pool.SlotsRequested, told: Told) -> str:
    name = f"allocation {message.trial_id}.{message.epoch}"
    return f"{name} asks for {_count(message.slots, 'slot')}"


def _disabled(message: to_agent.AgentDisableRequested, told: Told) -> str:
    slot = "" if message.slot is None else f" slot {message.slot} of"
    drained = "; what runs there may finish" if message.drain else ""
    return f"disabled{slot} {told.name}{told.user}{drained}"


def _enabled(message: to_agent.AgentEnableRequested, told: Told) -> str:
    slot = "" if message.slot is None else f" slot {message.slot} of"
    return f"enabled{slot} {told.name}{told.user}"


def _places(places: tuple[Place, ...]) -> str:
    return " and ".join(f"slots {_ids(place.slots)} of agent {place.agent}" for place in places)


def _collected(message: to_experiment.CollectionEnded, told: Told) -> str:
    failure = f", but for: {_line(message.failure)}" if message.failure else ""
    return f"unwanted checkpoints are deleted{failure}"


OF_EXPERIMENTS: Mapping[type, Sentence] = {
    to_experiment.ExperimentSubmitted: _submitted,
    to_experiment.ActivateRequested: lambda _, told: f"activated{told.user}",
    to_experiment.PauseRequested: lambda _, told: f"paused{told.user}",
    to_experiment.CancelRequested: lambda _, told: f"canceled{told.user}",
    to_experiment.KillRequested: lambda _, told: f"killed{told.user}",
    to_experiment.SettingsChanged: _settings,
    to_experiment.PoolChanged: lambda x, told: f"moved to resource pool {x.pool}{told.user}",
    to_experiment.JobAudited: lambda x, told: f"the job in pool {x.pool} is put right",
    to_experiment.ArchiveRequested: lambda _, told: f"archived{told.user}",
    to_experiment.UnarchiveRequested: lambda _, told: f"unarchived{told.user}",
    to_experiment.DeleteRequested: lambda _, told: f"to be deleted{told.user}",
    to_experiment.ContinueRequested: _continued,
    to_experiment.OperationsPosted: _posted,
    to_experiment.CollectionEnded: _collected,
    to_experiment.DeletionContinued: lambda _, told: "the deletion goes on",
    to_experiment.SearchContinued: lambda _, told: "the search goes on",
    method.Suggested: lambda x, told: (
        f"suggestion {x.first} came: {'; '.join(map(_hparams, x.points))}"
    ),
    method.SuggestionFailed: lambda x, told: (
        f"suggestion {x.first} is drawn at random, since it failed: {_line(x.why)}"
    ),
    to_experiment.TrialValidated: lambda x, told: (
        f"{told.trial(x.number)} validated at {_length(x.units, told)}: {told.measured(x.metric)}"
    ),
    to_experiment.TrialLengthReached: lambda x, told: (
        f"{told.trial(x.number)} reached {_length(x.length, told)} "
        + (_lacking(x.lack) or f"with {told.measured(x.metric)}")
    ),
    to_experiment.TrialEnded: _trial_ended,
    to_experiment.TrialMetered: _metered,
    to_experiment.CostLookDue: lambda _, told: "a look at what it costs is due",
}

OF_TRIALS: Mapping[type, Sentence] = {
    to_trial.TrialCreated: _created,
    to_trial.TrialContinued: _trial_continued,
    to_trial.CheckpointWanted: lambda x, told: (
        f"trial {x.by}, a copy of {told.name}, is to start from its latest checkpoint"
    ),
    to_trial.CheckpointHandedOver: _handed_over,
    to_trial.TrialKillRequested: lambda _, told: f"{told.name} killed{told.user}",
    to_trial.TrialMoved: lambda x, told: f"{told.name} is to run in resource pool {x.pool}",
    to_trial.TerminationOverdue: lambda x, told: f"{told.allocation(x.epoch)} is overdue to stop",
    to_trial.RestartDue: lambda x, told: f"{told.name} may be started again",
    to_trial.CheckpointsUnwanted: lambda x, told: f"checkpoints no longer kept: {_uuids(x.uuids)}",
    to_trial.CheckpointFilesDeleted: lambda x, told: (
        f"files deleted of checkpoints {_uuids(x.uuids)}"
    ),
    to_trial.TrialDeleted: lambda _, told: f"{told.name} deleted",
    to_trial.WorkAssigned: _work,
    to_trial.ExperimentStatusChanged: _trial_status,
    to_trial.SlotsAssigned: lambda x, told: f"{told.allocation(x.epoch)} has {_places(x.places)}",
    to_trial.PreemptionRequested: lambda x, told: (
        f"{told.allocation(x.epoch)} is {'to' if x.forced else 'asked to'} give its slots back"
        f"{' at once' if x.forced else ''}: {_line(x.reason)}"
    ),
    to_trial.AllocationLost: lambda x, told: (
        f"{told.allocation(x.epoch)} was lost: {_line(x.reason)}"
    ),
    to_trial.ContainerStateReported: lambda x, told: f"{told.node(x)} is {x.state}",
    to_trial.ValidationReported: lambda x, told: (
        f"{told.name} validated at {_count(x.steps, 'batch')}: {told.measured(x.metric)}"
    ),
    to_trial.LengthReported: lambda x, told: (
        f"{told.name} reached {_count(x.length, 'batch')} "
        + (_lacking(x.lack) or f"with {told.measured(x.metric)}")
    ),
    to_trial.CheckpointReported: _checkpoint,
    to_trial.EarlyExitReported: lambda x, told: f"{told.name} asks to end: {x.reason}",
    to_trial.AllocationExited: _exited,
}

OF_POOLS: Mapping[type, Sentence] = {
    to_pool.PoolConfigured: lambda x, told: f"pool {x.name} configured{told.user}",
    to_pool.SlotsRequested: _requested,
    to_pool.PoolRemoved: lambda _, told: f"{told.name} removed{told.user}",
    to_pool.JobChanged: lambda x, told: f"the job of experiment {x.group} changed",
    to_pool.SlotsReleased: lambda x, told: (
        f"allocation {x.trial_id}.{x.epoch} gives its slots back"
    ),
    to_pool.AgentJoined: lambda x, told: (
        f"agent {x.agent} joined with {_count(len(x.slots), 'slot')}"
    ),
    to_pool.AgentAvailabilityChanged: lambda x, told: (
        f"agent {x.agent} is {_available(x.availability)}"
    ),
    to_pool.AgentLost: lambda x, told: f"agent {x.agent} was lost: {_line(x.reason)}",
    to_pool.AuditFound: lambda x, told: (
        f"the audit found {_count(len(x.stale), 'stale allocation')}"
    ),
    to_pool.BudgetChecked: lambda x, told: (
        "the budget is used up" if x.over_budget else "the budget is not used up"
    ),
    to_pool.SchedulingContinued: lambda _, told: "the scheduling goes on",
}

OF_AGENTS: Mapping[type, Sentence] = {
    to_agent.AgentEnrolled: lambda x, told: (
        f"agent {x.agent} enrolled in pool {x.pool} with {_count(len(x.slots), 'slot')}"
    ),
    to_agent.AllocationPlaced: lambda x, told: (
        f"allocation {x.trial_id}.{x.epoch} placed on slots {_ids(x.slots)}"
        + (f" as node {x.node_rank} of {x.nodes}" if x.nodes > 1 else "")
    ),
    to_agent.AllocationRemoved: lambda x, told: f"allocation {x.trial_id}.{x.epoch} removed",
    to_agent.AgentDeclaredLost: lambda _, told: f"{told.name} was given up",
    to_agent.AgentForgotten: lambda _, told: f"{told.name} is looked after no more",
    to_agent.AgentEnableRequested: _enabled,
    to_agent.AgentDisableRequested: _disabled,
}

SENTENCES: Mapping[type, Sentence] = {**OF_EXPERIMENTS, **OF_TRIALS, **OF_POOLS, **OF_AGENTS}


def _retained(kept: Retention) -> str:
    return (
        f"{kept.save_experiment_best} best of the experiment, {kept.save_trial_best} best and"
        f" {kept.save_trial_latest} latest of each trial"
    )


def _length(length: float, told: Told) -> str:
    return "the end" if length == ENDLESS else f"{_number(length)} {told.unit}"


def _count(count: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def _number(value: float) -> str:
    """Four digits for what is no whole number: 0.93, 100, 1.5e-05."""
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def _hparams(hparams: Mapping[str, object]) -> str:
    listed = ", ".join(f"{name}={_value(value)}" for name, value in hparams.items())
    too_long = len(listed) > HPARAMS_CHARACTERS_MAX
    return listed[:HPARAMS_CHARACTERS_MAX] + "..." if too_long else listed


def _value(value: object) -> str:
    return _number(value) if isinstance(value, float) else str(value)


def _line(text: str) -> str:
    """The last line, which says most in a traceback, and not too much of it."""
    line = next(reversed(text.strip().splitlines()), "").strip()
    return line if len(line) <= CAUSE_CHARACTERS_MAX else line[:CAUSE_CHARACTERS_MAX] + "..."


def _lacking(lack: str) -> str:
    return f"without the searcher's metric: {_line(lack)}" if lack else ""


def _ids(slots: tuple[int, ...]) -> str:
    return ", ".join(map(str, slots)) or "none"


def _uuids(uuids: tuple[str, ...]) -> str:
    return ", ".join(uuid[:8] for uuid in uuids)
