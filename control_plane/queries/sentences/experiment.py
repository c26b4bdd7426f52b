"""The sentences for messages to an experiment, without secrets of the configuration."""

from collections import Counter
from collections.abc import Mapping

from control_plane.actors.cost import render_dollars, to_micros
from control_plane.actors.messages import experiment as to_experiment
from control_plane.actors.messages.experiment_events import (
    BestValidationDue,
    DeadlineNear,
    TrialAlerted,
    TrialLogMatched,
    WebhooksChanged,
)
from control_plane.actors.messages.experiment_expiry import ExpiryDue, ExpiryRequested
from control_plane.actors.messages.experiment_use import TrialUsedLittle
from control_plane.actors.records import DataRetention, JobKind, Retention
from control_plane.actors.trial.training import COPY_WITHOUT_CHECKPOINT
from control_plane.queries.sentences.context import Sentence, SentenceContext
from control_plane.queries.sentences.phrases import hparams_text, last_line, missing_metric_text
from control_plane.searchers import method
from detcloud.shared.plurals import count_text


def _submission_sentence(
    message: to_experiment.ExperimentSubmitted, context: SentenceContext
) -> str:
    """Return the submitter, the experiment's name, and the search with the metric or the kind of
    job.

    A paused experiment and a test run are marked.
    """
    article = "an" if message.searcher.startswith("a") else "a"
    trials = "a test run" if message.test_mode else f"{article} {message.searcher} search"
    paused = ", paused" if message.paused else ""
    by = context.by or message.owner
    if message.kind is not JobKind.EXPERIMENT:
        return f"submitted by {by} as {message.name!r}: a {message.kind}{paused}"
    return f"submitted by {by} as {message.name!r}: {trials} for {message.metric}{paused}"


def _settings_sentence(message: to_experiment.SettingsChanged, context: SentenceContext) -> str:
    """Return the list of the changed settings with the new values, `nothing` if no setting changed.

    Metadata is named without its value.
    """
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
    changes += _data_retention_changes(message)
    return f"changed{context.user}: {', '.join(changes) or 'nothing'}"


def _continuation_sentence(
    message: to_experiment.ContinueRequested, context: SentenceContext
) -> str:
    """Return who continued the experiment, with max_restarts if the user changed that limit."""
    restarts = message.max_restarts
    more = "" if restarts is None else f", with max_restarts {restarts}"
    return f"continued{context.user}{more}"


def _post_sentence(message: to_experiment.OperationsPosted, context: SentenceContext) -> str:
    """Return the count of each kind of operation that the user's search method posted.

    The sentence also has the number of the post, and the last event that the method acknowledged.
    """
    posted = message.posted
    kinds = Counter(operation.kind.replace("_", " ") for operation in posted.operations)
    operations = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "nothing"
    acknowledged = f"having handled the events up to {posted.acknowledged}"
    asked = f"asked for {operations} in post {posted.post}{context.user}"
    return f"the search method {asked}, {acknowledged}"


def _trial_end_sentence(message: to_experiment.TrialEnded, context: SentenceContext) -> str:
    """Return the trial's final status, with the kind of an early exit and the cause, if any."""
    early = message.early_exit.replace("_", " ").lower()
    how = f" early ({early})" if early and early != "errored" else ""
    why = f": {last_line(message.message)}" if message.message else ""
    return f"{context.trial(message.number)} ended {message.status}{how}{why}"


def _metering_sentence(message: to_experiment.TrialMetered, context: SentenceContext) -> str:
    """Return the cost of the trial so far, and the hourly rate if the trial holds slots."""
    spent = f"{context.trial(message.number)} has cost {render_dollars(message.cost_micros)}"
    if not message.holds_slots:
        return f"{spent} and holds no slots"
    return f"{spent} and costs {render_dollars(message.rate_micros)} an hour"


def _collection_sentence(message: to_experiment.CollectionEnded, context: SentenceContext) -> str:
    """Return that the marked checkpoints were deleted, with the cause of any failure.

    The sentence also says if the deletion of logs and metrics waits for the cluster's schedule.
    """
    failure = f", except: {last_line(message.failure)}" if message.failure else ""
    waits = "; expired logs and metrics wait for the schedule" if message.expires_ms else ""
    return f"checkpoints marked for deletion were deleted{failure}{waits}"


def _data_retention_changes(message: to_experiment.SettingsChanged) -> list[str]:
    """Return the changes of the days of logs and metrics, for example `log retention to 7 days`."""
    retention = message.data_retention or DataRetention()
    trial_id, trial_days = message.trial_log_days or (0, None)
    days_by_name = {
        "log retention": retention.log_days,
        "metrics retention": retention.metrics_days,
        f"log retention of trial {trial_id}": trial_days,
    }
    return [
        f"{name} to {'no limit' if days < 0 else count_text(days, 'day')}"
        for name, days in days_by_name.items()
        if days is not None
    ]


def _retention_text(retention: Retention) -> str:
    """Return how many best and latest checkpoints are kept."""
    return (
        f"{retention.save_experiment_best} best of the experiment,"
        f" {retention.save_trial_best} best and"
        f" {retention.save_trial_latest} latest of each trial"
    )


_NOTICE_OUTCOMES = {
    "saved": "saved its work",
    "finished": "finished the checkpoint that was in progress",
    "kept": "exited and kept its last checkpoint",
    "cut": "was cut short",
}

OF_EXPERIMENTS: Mapping[type, Sentence] = {
    to_experiment.ExperimentSubmitted: _submission_sentence,
    to_experiment.ActivateRequested: lambda _, context: f"activated{context.user}",
    to_experiment.PauseRequested: lambda _, context: f"paused{context.user}",
    to_experiment.CancelRequested: lambda _, context: f"canceled{context.user}",
    to_experiment.KillRequested: lambda _, context: f"killed{context.user}",
    to_experiment.SettingsChanged: _settings_sentence,
    to_experiment.PoolChanged: lambda m, context: f"moved to resource pool {m.pool}{context.user}",
    to_experiment.WaitEnded: lambda m, context: (
        f"can move from resource pool {m.pool} to the next one: {last_line(m.reason)}"
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
        f"suggestion {m.first} came: {'; '.join(map(hparams_text, m.points))}"
    ),
    method.SuggestionFailed: lambda m, context: (
        f"suggestion {m.first} failed and is drawn at random: {last_line(m.why)}"
    ),
    to_experiment.TrialValidationReported: lambda m, context: (
        f"{context.trial(m.number)} validated at {context.length_text(m.units)}:"
        f" {context.metric_text(m.metric)}"
    ),
    to_experiment.TrialProgressReported: lambda m, context: (
        f"{context.trial(m.number)} is {m.share:.0%} done"
        if m.units is None
        else f"{context.trial(m.number)} has trained {context.length_text(m.units)}"
    ),
    to_experiment.TrialMetricsDiscarded: lambda m, context: (
        f"{context.trial(m.number)} discarded metrics of lost work; its best is now"
        f" {context.metric_text(m.best)}"
    ),
    to_experiment.TrialLengthReached: lambda m, context: (
        f"{context.trial(m.number)} cannot begin: {last_line(m.missing_metric_reason)}"
        if m.missing_metric_reason.startswith(COPY_WITHOUT_CHECKPOINT)
        else f"{context.trial(m.number)} reached {context.length_text(m.length)} "
        + (missing_metric_text(m.missing_metric_reason) or f"with {context.result_text(m)}")
    ),
    to_experiment.TrialEnded: _trial_end_sentence,
    to_experiment.TrialMetered: _metering_sentence,
    to_experiment.NoticeEnded: lambda m, context: (
        f"{context.trial(m.number)}, notified that its machine is being taken away, "
        f"{_NOTICE_OUTCOMES[m.outcome]}"
    ),
    to_experiment.CostCheckDue: lambda _, context: "a check of its cost is due",
    to_experiment.TrialPlaced: lambda m, context: (
        f"{context.trial(m.number)} has slots, from which max_duration counts"
    ),
    to_experiment.DurationEnded: lambda _, context: "the time of max_duration is over",
    DeadlineNear: lambda _, context: "the deadline is near",
    BestValidationDue: lambda _, context: "webhooks may announce the newest best validation",
    TrialAlerted: lambda m, context: (
        f"{context.trial(m.number)} raised an alert ({m.level}): {last_line(m.title or m.text)}"
    ),
    TrialUsedLittle: lambda m, context: f"{context.trial(m.number)} uses too little: {m.text}",
    WebhooksChanged: lambda _, context: "a webhook for metrics was created or changed",
    TrialLogMatched: lambda m, context: (
        f"the log of trial {m.trial_id} matched {last_line(m.pattern)}"
    ),
    ExpiryDue: lambda _, context: "the retention of logs or metrics may have ended",
    ExpiryRequested: lambda _, context: (
        f"deletion of expired logs and metrics requested{context.user}"
    ),
    to_experiment.TrialSignaled: lambda m, context: (
        f"the log of {context.trial(m.number)} shows {last_line(m.signal)}"
    ),
}
