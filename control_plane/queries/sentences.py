"""Sentences for messages in an experiment's history, without values of its secret configuration."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from sys import float_info
from typing import Any

from control_plane.actors.cost import render_dollars, to_micros
from control_plane.actors.messages import agent as to_agent
from control_plane.actors.messages import experiment as to_experiment
from control_plane.actors.messages import pool as to_pool
from control_plane.actors.messages import trial as to_trial
from control_plane.actors.records import Availability, JobKind, Place, Retention
from control_plane.actors.trial.training import COPY_WITHOUT_CHECKPOINT
from control_plane.searchers import method
from control_plane.searchers.method import ENDLESS
from detcloud.shared.dotted_paths import join_names, nested_leaves

HPARAMS_CHARACTERS_MAX = 200
CAUSE_CHARACTERS_MAX = 200
_SINGULARS = {"batches": "batch", "records": "record", "epochs": "epoch", "steps": "step"}


@dataclass(frozen=True)
class SentenceContext:
    """The facts that a sentence needs in addition to the message."""

    address: str
    """The address of the actor that received the message."""
    by: str
    """The user whose command the message is; "" for messages between actors."""
    metric: str
    """The name of the searcher metric."""
    unit: str
    """The unit of lengths, in the plural."""
    trial_id: Callable[[int], int | None]
    """Returns the id of the experiment's trial with a number, or None if it does not exist."""
    target_noun: str = "batch"
    """The unit, in the singular, of the length that a trial reports."""

    @property
    def name(self) -> str:
        """The actor's name in sentences, like `trial 7`."""
        return self.address.replace("#", " ")

    @property
    def user(self) -> str:
        """The user at the end of a sentence, like ` by ana`; "" without a user."""
        return f" by {self.by}" if self.by else ""

    def trial(self, number: int) -> str:
        """Return the name of the experiment's trial with this number, like `trial 7`."""
        trial_id = self.trial_id(number)
        return f"the trial with number {number}" if trial_id is None else f"trial {trial_id}"

    def allocation(self, epoch: int) -> str:
        """Return the name of the trial's allocation with this epoch, like `allocation 7.2`."""
        return f"allocation {self.address.partition('#')[2]}.{epoch}"

    def node(self, message: to_trial.ContainerStateReported | to_trial.AllocationExited) -> str:
        """Return the name of the node, or of a one-node allocation: `node 1 of allocation 7.2`."""
        node = f"node {message.node_rank} of " if message.nodes > 1 else ""
        return f"{node}{self.allocation(message.epoch)}"

    def metric_text(self, metric: float | None) -> str:
        """Return the searcher metric with a value, like `accuracy 0.93`."""
        # The largest float stands for a metric that was not a finite number.
        if metric is None or abs(metric) >= float_info.max:
            return f"no finite {self.metric}"
        return f"{self.metric} {_number_text(metric)}"


Sentence = Callable[[Any, SentenceContext], str]
"""Renders a message of one type as a sentence."""


def sentence(message: object, context: SentenceContext) -> str:
    """Return a sentence that describes the message. KeyError for another object."""
    return SENTENCES[type(message)](message, context)


def _submission_sentence(
    message: to_experiment.ExperimentSubmitted, context: SentenceContext
) -> str:
    article = "an" if message.searcher.startswith("a") else "a"
    trials = "a test run" if message.test_mode else f"{article} {message.searcher} search"
    paused = ", paused" if message.paused else ""
    by = context.by or message.owner
    if message.kind is not JobKind.EXPERIMENT:
        return f"submitted by {by} as {message.name!r}: a {message.kind}{paused}"
    return f"submitted by {by} as {message.name!r}: {trials} for {message.metric}{paused}"


def _settings_sentence(message: to_experiment.SettingsChanged, context: SentenceContext) -> str:
    texts = {
        "name": message.name,
        "description": message.description,
        "labels": None if message.labels is None else ", ".join(message.labels) or "none",
        "workspace": message.workspace,
        "project": message.project,
    }
    changes = [f"{name} to {value!r}" for name, value in texts.items() if value is not None]
    if message.metadata is not None:
        changes.append("the metadata")
    if message.max_slots_given:
        limit = "no limit" if message.max_slots is None else str(message.max_slots)
        changes.append(f"max_slots to {limit}")
    if message.max_cost_given:
        cost = (
            "no limit" if message.max_cost is None else render_dollars(to_micros(message.max_cost))
        )
        changes.append(f"max_cost to {cost}")
    scheduled = {
        "weight": message.weight,
        "priority": message.priority,
        "position": message.position,
    }
    changes += [f"{name} to {value}" for name, value in scheduled.items() if value is not None]
    if message.retention is not None:
        changes.append(f"the checkpoints kept to {_retention_text(message.retention)}")
    return f"changed{context.user}: {', '.join(changes) or 'nothing'}"


def _continuation_sentence(
    message: to_experiment.ContinueRequested, context: SentenceContext
) -> str:
    restarts = message.max_restarts
    more = "" if restarts is None else f", with max_restarts {restarts}"
    return f"continued{context.user}{more}"


def _post_sentence(message: to_experiment.OperationsPosted, context: SentenceContext) -> str:
    posted = message.posted
    kinds = Counter(operation.kind.replace("_", " ") for operation in posted.operations)
    operations = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "nothing"
    acknowledged = f"having handled the events up to {posted.acknowledged}"
    asked = f"asked for {operations} in post {posted.post}{context.user}"
    return f"the search method {asked}, {acknowledged}"


def _trial_end_sentence(message: to_experiment.TrialEnded, context: SentenceContext) -> str:
    early = message.early_exit.replace("_", " ").lower()
    how = f" early ({early})" if early and early != "errored" else ""
    why = f": {_last_line(message.message)}" if message.message else ""
    return f"{context.trial(message.number)} ended {message.status}{how}{why}"


def _metering_sentence(message: to_experiment.TrialMetered, context: SentenceContext) -> str:
    spent = f"{context.trial(message.number)} has cost {render_dollars(message.cost_micros)}"
    if not message.holds_slots:
        return f"{spent} and holds no slots"
    return f"{spent} and costs {render_dollars(message.rate_micros)} an hour"


def _creation_sentence(message: to_trial.TrialCreated, context: SentenceContext) -> str:
    listed = _hparams_text(message.hparams)
    hparams = f" with {listed}" if listed else ""
    length = message.length
    goal = "nothing to train yet"
    if length is not None:
        goal = f"to train to {_length_text(length, context)}"
    return f"{context.name} created{hparams}; {goal}"


def _work_sentence(message: to_trial.WorkAssigned, context: SentenceContext) -> str:
    if message.length is not None:
        return f"{context.name} is to train to {_length_text(message.length, context)}"
    if message.stopped:
        return f"{context.name} stops at this length"
    return f"{context.name} has completed its length" if message.closed else f"{context.name} waits"


def _handover_sentence(message: to_trial.CheckpointHandedOver, context: SentenceContext) -> str:
    checkpoint = message.checkpoint
    if checkpoint is None:
        return f"trial {message.parent_id} has no checkpoint that {context.name} could start from"
    return (
        f"{context.name} starts from checkpoint {checkpoint.uuid[:8]} of trial {message.parent_id}"
    )


def _trial_status_sentence(
    message: to_trial.ExperimentStatusChanged, context: SentenceContext
) -> str:
    at_once = ", to stop at once" if message.forced else ""
    return f"{context.name} was notified that the experiment is {message.status}{at_once}"


def _trial_continuation_sentence(message: to_trial.TrialContinued, context: SentenceContext) -> str:
    goal = "" if message.length is None else f", to {_length_text(message.length, context)}"
    return f"{context.name} goes on{goal}"


def _exit_sentence(message: to_trial.AllocationExited, context: SentenceContext) -> str:
    name = context.node(message)
    if message.reason in _EXITS:
        ending = (
            f", since its machine is being taken away: {_last_line(message.notice)}"
            if message.notice
            else ""
        )
        return f"{name} {_EXITS[message.reason]}{ending}"
    code = "" if message.code is None else f"exit code {message.code}"
    cause = _last_line(message.message) if message.message else ""
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


_NOTICE_OUTCOMES = {
    "saved": "saved its work",
    "finished": "finished the checkpoint that was in progress",
    "kept": "exited and kept its last checkpoint",
    "cut": "was cut short",
}


def _checkpoint_sentence(
    message: to_trial.CheckpointReported | to_trial.CheckpointUploaded, context: SentenceContext
) -> str:
    checkpoint = message.checkpoint
    size = f"{message.size_bytes:,} bytes in {_count_text(message.files, 'file')}"
    steps = _count_text(checkpoint.steps_completed, "batch")
    return f"checkpoint {checkpoint.uuid[:8]} at {steps}, {size}"


def _availability_text(availability: Availability) -> str:
    if not availability.enabled:
        return "draining" if availability.draining else "disabled"
    closed = ", ".join(map(str, availability.disabled))
    return f"enabled without slots {closed}" if closed else "enabled"


def _request_sentence(message: to_pool.SlotsRequested, context: SentenceContext) -> str:
    name = f"allocation {message.trial_id}.{message.epoch}"
    return f"{name} asks for {_count_text(message.slots, 'slot')}"


def _disable_sentence(message: to_agent.AgentDisableRequested, context: SentenceContext) -> str:
    slot = "" if message.slot is None else f" slot {message.slot} of"
    drained = "; what runs there may finish" if message.drain else ""
    return f"disabled{slot} {context.name}{context.user}{drained}"


def _enable_sentence(message: to_agent.AgentEnableRequested, context: SentenceContext) -> str:
    slot = "" if message.slot is None else f" slot {message.slot} of"
    return f"enabled{slot} {context.name}{context.user}"


def _places_text(places: tuple[Place, ...]) -> str:
    texts = [f"slots {_slots_text(place.slots)} of agent {place.agent}" for place in places]
    return " and ".join(texts)


def _collection_sentence(message: to_experiment.CollectionEnded, context: SentenceContext) -> str:
    failure = f", except: {_last_line(message.failure)}" if message.failure else ""
    return f"checkpoints marked for deletion were deleted{failure}"


OF_EXPERIMENTS: Mapping[type, Sentence] = {
    to_experiment.ExperimentSubmitted: _submission_sentence,
    to_experiment.ActivateRequested: lambda _, context: f"activated{context.user}",
    to_experiment.PauseRequested: lambda _, context: f"paused{context.user}",
    to_experiment.CancelRequested: lambda _, context: f"canceled{context.user}",
    to_experiment.KillRequested: lambda _, context: f"killed{context.user}",
    to_experiment.SettingsChanged: _settings_sentence,
    to_experiment.PoolChanged: lambda m, context: f"moved to resource pool {m.pool}{context.user}",
    to_experiment.WaitEnded: lambda m, context: (
        f"can move from resource pool {m.pool} to the next one: {_last_line(m.reason)}"
    ),
    to_experiment.JobAudited: lambda m, context: f"the job in pool {m.pool} is corrected",
    to_experiment.ArchiveRequested: lambda _, context: f"archived{context.user}",
    to_experiment.UnarchiveRequested: lambda _, context: f"unarchived{context.user}",
    to_experiment.DeleteRequested: lambda _, context: f"deletion requested{context.user}",
    to_experiment.ContinueRequested: _continuation_sentence,
    to_experiment.OperationsPosted: _post_sentence,
    to_experiment.CollectionEnded: _collection_sentence,
    to_experiment.DeletionContinued: lambda _, context: "the deletion continues",
    to_experiment.ClusterRestored: lambda _, context: (
        "the cluster was restored from an older copy of its state"
    ),
    to_experiment.SearchContinued: lambda _, context: "the search continues",
    method.SuggestedPoints: lambda m, context: (
        f"suggestion {m.first} came: {'; '.join(map(_hparams_text, m.points))}"
    ),
    method.SuggestionFailed: lambda m, context: (
        f"suggestion {m.first} failed and is drawn at random: {_last_line(m.why)}"
    ),
    to_experiment.TrialValidationReported: lambda m, context: (
        f"{context.trial(m.number)} validated at {_length_text(m.units, context)}:"
        f" {context.metric_text(m.metric)}"
    ),
    to_experiment.TrialProgressReported: lambda m, context: (
        f"{context.trial(m.number)} is {m.share:.0%} done"
        if m.units is None
        else f"{context.trial(m.number)} has trained {_length_text(m.units, context)}"
    ),
    to_experiment.TrialMetricsDiscarded: lambda m, context: (
        f"{context.trial(m.number)} discarded metrics of lost work; its best is now"
        f" {context.metric_text(m.best)}"
    ),
    to_experiment.TrialLengthReached: lambda m, context: (
        f"{context.trial(m.number)} cannot begin: {_last_line(m.missing_metric_reason)}"
        if m.missing_metric_reason.startswith(COPY_WITHOUT_CHECKPOINT)
        else f"{context.trial(m.number)} reached {_length_text(m.length, context)} "
        + (_missing_metric_text(m.missing_metric_reason) or f"with {_result_text(m, context)}")
    ),
    to_experiment.TrialEnded: _trial_end_sentence,
    to_experiment.TrialMetered: _metering_sentence,
    to_experiment.NoticeEnded: lambda m, context: (
        f"{context.trial(m.number)}, notified that its machine is being taken away, "
        f"{_NOTICE_OUTCOMES[m.outcome]}"
    ),
    to_experiment.CostCheckDue: lambda _, context: "a check of its cost is due",
}

OF_TRIALS: Mapping[type, Sentence] = {
    to_trial.TrialCreated: _creation_sentence,
    to_trial.TrialContinued: _trial_continuation_sentence,
    to_trial.CheckpointRequested: lambda m, context: (
        f"trial {m.copy_id}, a copy of {context.name}, will start from {context.name}'s latest"
        f" checkpoint"
    ),
    to_trial.CheckpointHandedOver: _handover_sentence,
    to_trial.TrialKillRequested: lambda _, context: f"{context.name} killed{context.user}",
    to_trial.TrialMoved: lambda m, context: (
        f"{context.name} will run in resource pool {m.pool}"
        + (" from its next run on" if m.keeps_slots else "")
    ),
    to_trial.TerminationOverdue: lambda m, context: (
        f"the time for {context.allocation(m.epoch)} to stop is over"
    ),
    to_trial.RestartDue: lambda m, context: f"{context.name} can be started again",
    to_trial.CheckpointDeletionRequested: lambda m, context: (
        f"checkpoints marked for deletion: {_uuids_text(m.uuids)}"
    ),
    to_trial.CheckpointFilesDeleted: lambda m, context: (
        f"files deleted of checkpoints {_uuids_text(m.uuids)}"
    ),
    to_trial.PartialDeletionRequested: lambda m, context: (
        f"files of checkpoint {m.uuid[:8]} marked for deletion: {', '.join(m.patterns):.200}"
    ),
    to_trial.PartialDeletionEnded: lambda m, context: f"files deleted of checkpoint {m.uuid[:8]}",
    to_trial.TrialDeleted: lambda _, context: f"{context.name} deleted",
    to_trial.WorkAssigned: _work_sentence,
    to_trial.ExperimentStatusChanged: _trial_status_sentence,
    to_trial.SlotsAssigned: lambda m, context: (
        f"{context.allocation(m.epoch)} has {_places_text(m.places)}"
    ),
    to_trial.PreemptionRequested: lambda m, context: (
        f"{context.allocation(m.epoch)} {'must' if m.forced else 'is asked to'} release its slots"
        f"{' at once' if m.forced else ''}: {_last_line(m.reason)}"
    ),
    to_trial.AllocationLost: lambda m, context: (
        f"{context.allocation(m.epoch)} was lost: {_last_line(m.reason)}"
    ),
    to_trial.ContainerStateReported: lambda m, context: f"{context.node(m)} is {m.state}",
    to_trial.ValidationReported: lambda m, context: (
        f"{context.name} validated at {_count_text(m.steps, 'batch')}:"
        f" {context.metric_text(m.metric)}"
    ),
    to_trial.ProgressReported: lambda m, context: f"{context.name} is {m.share:.0%} done",
    to_trial.LengthReached: lambda m, context: (
        f"{context.name} reached {_count_text(m.length, context.target_noun)} "
        + (_missing_metric_text(m.missing_metric_reason) or f"with {_result_text(m, context)}")
    ),
    to_trial.CheckpointReported: _checkpoint_sentence,
    to_trial.CheckpointUploaded: lambda m, context: (
        f"{_checkpoint_sentence(m, context)}, uploaded{context.user}"
    ),
    to_trial.CheckpointDamageReported: lambda m, context: (
        f"checkpoint {m.uuid[:8]}, which {context.allocation(m.epoch)} began from, "
        f"{'cannot be loaded' if m.is_load_failure else 'is damaged'}: {_last_line(m.cause)}"
    ),
    to_trial.CheckpointVerified: lambda m, context: (
        f"checkpoint {m.uuid[:8]} is not damaged: all its files were read{context.user}"
    ),
    to_trial.EarlyExitReported: lambda m, context: f"{context.name} asked to end: {m.reason}",
    to_trial.AllocationExited: _exit_sentence,
}

OF_POOLS: Mapping[type, Sentence] = {
    to_pool.PoolConfigured: lambda m, context: f"pool {m.name} configured{context.user}",
    to_pool.SlotsRequested: _request_sentence,
    to_pool.PoolRemoved: lambda _, context: f"{context.name} removed{context.user}",
    to_pool.JobChanged: lambda m, context: f"the job of experiment {m.group} changed",
    to_pool.SlotsReleased: lambda m, context: (
        f"allocation {m.trial_id}.{m.epoch} releases its slots"
    ),
    to_pool.AgentJoined: lambda m, context: (
        f"agent {m.agent} joined with {_count_text(len(m.slots), 'slot')}"
    ),
    to_pool.AgentAvailabilityChanged: lambda m, context: (
        f"agent {m.agent} is {_availability_text(m.availability)}"
    ),
    to_pool.AgentLost: lambda m, context: f"agent {m.agent} was lost: {_last_line(m.reason)}",
    to_pool.StaleAllocationsFound: lambda m, context: (
        f"the audit found {_count_text(len(m.stale), 'stale allocation')}"
    ),
    to_pool.BudgetChecked: lambda m, context: (
        "the budget is used up" if m.over_budget else "the budget is not used up"
    ),
    to_pool.SupplyChecked: lambda m, context: (
        f"no instance can be launched now: {_last_line(m.no_supply_reason)}"
        if m.no_supply_reason
        else "instances can be launched again"
    ),
    to_pool.PatienceEnded: lambda m, context: (
        f"the job of experiment {m.group} has waited as long as its pool_patience allows"
    ),
    to_pool.SchedulingContinued: lambda _, context: "the scheduling continues",
}

OF_AGENTS: Mapping[type, Sentence] = {
    to_agent.AgentEnrolled: lambda m, context: (
        f"agent {m.agent} enrolled in pool {m.pool} with {_count_text(len(m.slots), 'slot')}"
    ),
    to_agent.AllocationPlaced: lambda m, context: (
        f"allocation {m.trial_id}.{m.epoch} placed on slots {_slots_text(m.slots)}"
        + (f" as node {m.node_rank} of {m.nodes}" if m.nodes > 1 else "")
    ),
    to_agent.AllocationRemoved: lambda m, context: f"allocation {m.trial_id}.{m.epoch} removed",
    to_agent.AgentDeclaredLost: lambda _, context: f"{context.name} was given up",
    to_agent.AgentForgotten: lambda _, context: f"{context.name} is no longer monitored",
    to_agent.AgentEnableRequested: _enable_sentence,
    to_agent.AgentDisableRequested: _disable_sentence,
}

SENTENCES: Mapping[type, Sentence] = {**OF_EXPERIMENTS, **OF_TRIALS, **OF_POOLS, **OF_AGENTS}


def _retention_text(retention: Retention) -> str:
    return (
        f"{retention.save_experiment_best} best of the experiment,"
        f" {retention.save_trial_best} best and"
        f" {retention.save_trial_latest} latest of each trial"
    )


def _length_text(length: float, context: SentenceContext) -> str:
    unit = _SINGULARS.get(context.unit, context.unit) if length == 1 else context.unit
    return "the end" if length == ENDLESS else f"{_number_text(length)} {unit}"


def _count_text(count: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("tch") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def _number_text(value: float) -> str:
    """Render a number with four significant digits, integers with all digits: 1.5e-05, 1000000."""
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def _hparams_text(hparams: Mapping[str, object]) -> str:
    listed = ", ".join(
        f"{join_names(names)}={_value_text(value)}" for names, value in nested_leaves(hparams)
    )
    too_long = len(listed) > HPARAMS_CHARACTERS_MAX
    return listed[:HPARAMS_CHARACTERS_MAX] + "..." if too_long else listed


def _value_text(value: object) -> str:
    return _number_text(value) if isinstance(value, float) else str(value)


def _last_line(text: str) -> str:
    """Return the last line of a text, at most CAUSE_CHARACTERS_MAX. In a traceback: the error."""
    line = next(reversed(text.strip().splitlines()), "").strip()
    return line if len(line) <= CAUSE_CHARACTERS_MAX else line[:CAUSE_CHARACTERS_MAX] + "..."


def _missing_metric_text(reason: str) -> str:
    return f"without the searcher's metric: {_last_line(reason)}" if reason else ""


def _result_text(
    message: to_trial.LengthReached | to_experiment.TrialLengthReached, context: SentenceContext
) -> str:
    """Return the metric, or the JSON value for a custom search, that a trial reported."""
    if message.value:
        return f"{message.value:.{CAUSE_CHARACTERS_MAX}}"
    return context.metric_text(message.metric)


def _slots_text(slots: tuple[int, ...]) -> str:
    return ", ".join(map(str, slots)) or "none"


def _uuids_text(uuids: tuple[str, ...]) -> str:
    return ", ".join(uuid[:8] for uuid in uuids)
