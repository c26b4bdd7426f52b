"""The sentences for messages to a trial."""

from collections.abc import Mapping

from control_plane.actors.messages import trial as to_trial
from control_plane.actors.messages.trial_alerts import AlertReported
from control_plane.actors.messages.trial_deletions import (
    PartialDeletionEnded,
    PartialDeletionRequested,
)
from control_plane.actors.messages.trial_expiry import DataExpired
from control_plane.actors.messages.trial_gang_checks import GangCheckReported, GangMeetingDelayed
from control_plane.actors.messages.trial_hangs import HangReported, HangTimeOver, StacksReported
from control_plane.actors.messages.trial_logs import LogPolicyMatched
from control_plane.actors.messages.trial_use import LowUseReported, UseReported
from control_plane.actors.records import Place
from control_plane.queries.sentences.context import Sentence, SentenceContext
from control_plane.queries.sentences.phrases import (
    count_text,
    hparams_text,
    last_line,
    missing_metric_text,
    slots_text,
    uuids_text,
)


def _creation_sentence(message: to_trial.TrialCreated, context: SentenceContext) -> str:
    """Return the hyperparameters of the new trial, and the length to train to, if any."""
    listed = hparams_text(message.hparams)
    hparams = f" with {listed}" if listed else ""
    length = message.length
    goal = "nothing to train yet"
    if length is not None:
        goal = f"to train to {context.length_text(length)}"
    return f"{context.name} created{hparams}; {goal}"


def _work_sentence(message: to_trial.WorkAssigned, context: SentenceContext) -> str:
    """Return the search's decision: the next length, to stop, that the trial is complete, or to
    wait.
    """
    if message.length is not None:
        return f"{context.name} is to train to {context.length_text(message.length)}"
    if message.stopped:
        return f"{context.name} stops at this length"
    return f"{context.name} has completed its length" if message.closed else f"{context.name} waits"


def _handover_sentence(message: to_trial.CheckpointHandedOver, context: SentenceContext) -> str:
    """Return which checkpoint of another trial this trial starts from, or that no checkpoint
    exists.
    """
    checkpoint = message.checkpoint
    if checkpoint is None:
        return f"trial {message.parent_id} has no checkpoint that {context.name} could start from"
    return (
        f"{context.name} starts from checkpoint {checkpoint.uuid[:8]} of trial {message.parent_id}"
    )


def _trial_status_sentence(
    message: to_trial.ExperimentStatusChanged, context: SentenceContext
) -> str:
    """Return the experiment's new status, and whether the trial is to stop at once."""
    at_once = ", to stop at once" if message.forced else ""
    return f"{context.name} was notified that the experiment is {message.status}{at_once}"


def _trial_continuation_sentence(message: to_trial.TrialContinued, context: SentenceContext) -> str:
    """Return that the trial continues, with the new length if the user changed the length."""
    goal = "" if message.length is None else f", to {context.length_text(message.length)}"
    return f"{context.name} goes on{goal}"


def _exit_sentence(message: to_trial.AllocationExited, context: SentenceContext) -> str:
    """Return how a node exited. An idle run that its agent has ended has the agent's reason.

    A known reason other than an error has its own phrase, followed by an interruption notice, if
    any. For a failure, list the reason, the exit code and the last line of the error, as far as
    known.
    """
    name = context.node(message)
    if message.limit:
        return f"{name} was ended by its agent: {message.message}"
    if message.reason in _EXITS:
        ending = (
            f", since its machine is being taken away: {last_line(message.notice)}"
            if message.notice
            else ""
        )
        return f"{name} {_EXITS[message.reason]}{ending}"
    code = "" if message.code is None else f"exit code {message.code}"
    cause = last_line(message.message) if message.message else ""
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


def _checkpoint_sentence(
    message: to_trial.CheckpointReported | to_trial.CheckpointUploaded, context: SentenceContext
) -> str:
    """Return a checkpoint's batch, size in bytes and number of files."""
    checkpoint = message.checkpoint
    size = f"{message.size_bytes:,} bytes in {count_text(message.files, 'file')}"
    steps = count_text(checkpoint.steps_completed, "batch")
    return f"checkpoint {checkpoint.uuid[:8]} at {steps}, {size}"


def _expired_text(message: DataExpired) -> str:
    """Return the names of the expired data: `logs`, `detailed metrics`, or both."""
    names = [("logs", message.logs), ("detailed metrics", message.metrics)]
    return " and ".join(name for name, is_expired in names if is_expired)


def _places_text(places: tuple[Place, ...]) -> str:
    """Return the slots and the agent of each place; "" without places."""
    texts = [f"slots {slots_text(place.slots)} of agent {place.agent}" for place in places]
    return " and ".join(texts)


def _check_sentence(message: GangCheckReported, context: SentenceContext) -> str:
    """Return whether the machines of an allocation passed the check, and otherwise the fault."""
    machines = f"the machines of {context.allocation(message.epoch)}"
    if message.bad_nodes or message.bad_links:
        return f"{machines} failed the check: {last_line(message.text)}"
    return f"{machines} passed the check with {message.bandwidth:.0f} MB/s"


def _delay_sentence(message: GangMeetingDelayed, context: SentenceContext) -> str:
    """Return which nodes of an allocation a node has not met."""
    node = f"node {message.node_rank} of {context.allocation(message.epoch)}"
    missing = ", ".join(f"node {rank}" for rank in message.missing)
    return f"{node} has not met {missing} within {message.waited_ms // 1000} s"


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
    to_trial.DurationExceeded: lambda m, context: (
        f"the time that {context.allocation(m.epoch)} may take is over"
    ),
    HangReported: lambda m, context: (
        f"{context.allocation(m.epoch)} has been silent for {m.silent_ms // 1000} s"
        if m.silent_ms
        else f"{context.allocation(m.epoch)} works again"
    ),
    StacksReported: lambda m, context: (
        f"the stacks of {count_text(len(m.places), 'rank')} are in the log"
    ),
    UseReported: lambda m, context: (
        f"{context.allocation(m.epoch)} has measured {m.use.measured_ms // 1000} s of its slots"
    ),
    LowUseReported: lambda m, context: (
        f"node {m.node_rank} of {context.allocation(m.epoch)} used {m.percent:.1f} % of its slots"
        + ("" if m.is_low else ", which is enough")
    ),
    HangTimeOver: lambda m, context: (
        f"the time for stacks of {context.allocation(m.epoch)} is over"
    ),
    GangCheckReported: _check_sentence,
    GangMeetingDelayed: _delay_sentence,
    to_trial.RestartDue: lambda m, context: f"{context.name} can be started again",
    to_trial.CheckpointDeletionRequested: lambda m, context: (
        f"checkpoints marked for deletion: {uuids_text(m.uuids)}"
    ),
    to_trial.CheckpointFilesDeleted: lambda m, context: (
        f"files deleted of checkpoints {uuids_text(m.uuids)}"
    ),
    PartialDeletionRequested: lambda m, context: (
        f"files of checkpoint {m.uuid[:8]} marked for deletion: {', '.join(m.patterns):.200}"
    ),
    PartialDeletionEnded: lambda m, context: f"files deleted of checkpoint {m.uuid[:8]}",
    to_trial.TrialDeleted: lambda _, context: f"{context.name} deleted",
    DataExpired: lambda m, context: f"the retention of {_expired_text(m)} has ended",
    to_trial.WorkAssigned: _work_sentence,
    to_trial.ExperimentStatusChanged: _trial_status_sentence,
    to_trial.SlotsAssigned: lambda m, context: (
        f"{context.allocation(m.epoch)} has {_places_text(m.places)}"
    ),
    to_trial.PreemptionRequested: lambda m, context: (
        f"{context.allocation(m.epoch)} {'must' if m.forced else 'is asked to'} release its slots"
        f"{' at once' if m.forced else ''}: {last_line(m.reason)}"
    ),
    to_trial.AllocationLost: lambda m, context: (
        f"{context.allocation(m.epoch)} was lost: {last_line(m.reason)}"
    ),
    to_trial.ContainerStateReported: lambda m, context: f"{context.node(m)} is {m.state}",
    to_trial.ValidationReported: lambda m, context: (
        f"{context.name} validated at {count_text(m.steps, 'batch')}:"
        f" {context.metric_text(m.metric)}"
    ),
    to_trial.ProgressReported: lambda m, context: f"{context.name} is {m.share:.0%} done",
    to_trial.LengthReached: lambda m, context: (
        f"{context.name} reached {count_text(m.length, context.target_noun)} "
        + (missing_metric_text(m.missing_metric_reason) or f"with {context.result_text(m)}")
    ),
    to_trial.CheckpointReported: _checkpoint_sentence,
    to_trial.CheckpointUploaded: lambda m, context: (
        f"{_checkpoint_sentence(m, context)}, uploaded{context.user}"
    ),
    to_trial.CheckpointDamageReported: lambda m, context: (
        f"checkpoint {m.uuid[:8]}, which {context.allocation(m.epoch)} began from, "
        f"{'cannot be loaded' if m.is_load_failure else 'is damaged'}: {last_line(m.cause)}"
    ),
    to_trial.CheckpointVerified: lambda m, context: (
        f"checkpoint {m.uuid[:8]} is not damaged: all its files were read{context.user}"
    ),
    to_trial.EarlyExitReported: lambda m, context: f"{context.name} asked to end: {m.reason}",
    AlertReported: lambda m, context: (
        f"{context.name} raised an alert ({m.level}): {last_line(m.title or m.text)}"
    ),
    LogPolicyMatched: lambda m, context: (
        f"the log of {context.allocation(m.epoch)} matched log policy {m.name or m.pattern}: "
        f"{last_line(m.line)}"
    ),
    to_trial.AllocationExited: _exit_sentence,
}
