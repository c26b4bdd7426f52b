"""A trial whose log matches log policies: signals, canceled retries and excluded agents."""

from dataclasses import replace
from typing import Any

import pytest

from control_plane.actors.messages.experiment import TrialEnded, TrialSignaled
from control_plane.actors.messages.experiment_events import TrialLogMatched
from control_plane.actors.messages.pool import SlotsRequested
from control_plane.actors.messages.trial import (
    AllocationExited,
    AllocationLost,
    CheckpointDamageReported,
    ContainerStateReported,
    SlotsAssigned,
    TrialContinued,
    TrialDeleted,
    TrialKillRequested,
)
from control_plane.actors.messages.trial_logs import (
    CANCEL_RETRIES,
    EXCLUDE_NODE,
    LogPolicyMatched,
)
from control_plane.actors.records import Place, Status
from control_plane.actors.trial.log_policies import EXCLUDED_MAX, MATCHES_KEPT
from control_plane.searchers.method import ExitReason
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import (
    checkpoint_reported,
    experiment_submitted,
    trial_created,
    trial_settings,
)

POOL, EXPERIMENT = "pool#default", "experiment#1"
LINE = "CUDA out of memory"
REASON = f"log policy OOM matched: {LINE}"


def running_trial(*agents: str, max_restarts: int = 5) -> ActorHarness:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(closed=True, of=trial_settings(max_restarts=max_restarts)))
    return place_trial(actor, *(agents or ("a",)))


def place_trial(actor: ActorHarness, *agents: str) -> ActorHarness:
    epoch = actor.state.epoch
    places = tuple(Place(agent, (0, 1)) for agent in agents)
    actor.deliver(
        SlotsAssigned(epoch, places), ContainerStateReported(epoch, "RUNNING", 0, len(agents))
    )
    return actor


def log_match(*actions: str, epoch: int = 1, **fields: Any) -> LogPolicyMatched:
    values = {"pattern": ".*memory.*", "line": LINE, "name": "OOM", **fields}
    return LogPolicyMatched(epoch, actions=actions, **values)


def fail(actor: ActorHarness, **fields: Any) -> None:
    actor.deliver(AllocationExited(actor.state.epoch, "errored", message="out", **fields))


def requests(actor: ActorHarness) -> list[SlotsRequested]:
    return [one for one in actor.messages_to(POOL) if isinstance(one, SlotsRequested)]


def test_failure_after_cancel_retries_is_the_last() -> None:
    actor = running_trial()
    actor.deliver(log_match(CANCEL_RETRIES))
    assert status(actor) is Status.ACTIVE
    fail(actor)
    assert (actor.state.status, actor.state.restarts) == (Status.ERROR, 1)
    assert actor.state.message == f"no restart: {REASON}\nout"
    assert actor.reasons == [f"no restart: {REASON}"]
    assert actor.messages_to(EXPERIMENT) == [
        TrialEnded(3, Status.ERROR, ExitReason.ERRORED, f"no restart: {REASON}\nout")
    ]


def test_first_line_cancels_retries() -> None:
    actor = running_trial()
    actor.deliver(log_match(CANCEL_RETRIES), log_match(CANCEL_RETRIES, name="other", line="later"))
    assert actor.state.retries_canceled == REASON


def status(actor: ActorHarness) -> Status:
    found: Status = actor.state.status
    return found


def test_canceled_retries_also_end_failures_of_later_runs() -> None:
    actor = running_trial()
    actor.deliver(log_match(CANCEL_RETRIES), AllocationLost(1, "agent a was lost"))
    assert status(actor) is Status.ACTIVE
    place_trial(actor, "b")
    fail(actor)
    assert status(actor) is Status.ERROR


@pytest.mark.parametrize("reason", ["lost", "preempted", "start_failed"])
def test_ends_that_are_no_failures_start_again(reason: str) -> None:
    actor = running_trial()
    actor.deliver(log_match(CANCEL_RETRIES), AllocationExited(1, reason))
    assert status(actor) is Status.ACTIVE


def test_completed_run_completes_after_a_match() -> None:
    actor = running_trial()
    actor.deliver(log_match(CANCEL_RETRIES), AllocationExited(1, "completed"))
    assert status(actor) is Status.COMPLETED


def test_damaged_checkpoint_does_not_excuse_after_cancel_retries() -> None:
    actor = running_trial()
    actor.deliver(checkpoint_reported(40), AllocationExited(1, "preempted"))
    place_trial(actor, "a")
    uuid = checkpoint_reported(40).checkpoint.uuid
    actor.deliver(CheckpointDamageReported(2, uuid, "cut"), log_match(CANCEL_RETRIES, epoch=2))
    fail(actor)
    assert status(actor) is Status.ERROR


def test_match_without_actions_changes_no_restart() -> None:
    actor = running_trial(max_restarts=1)
    actor.deliver(log_match(signal="OOM"))
    fail(actor)
    assert (actor.state.status, actor.state.epoch) == (Status.ACTIVE, 2)
    assert requests(actor)[0].excluded_agents == ()


def test_excluded_agent_is_in_all_later_requests() -> None:
    actor = running_trial("a")
    actor.deliver(log_match(EXCLUDE_NODE))
    fail(actor)
    assert [request.excluded_agents for request in requests(actor)] == [("a",)]
    place_trial(actor, "b").deliver(log_match(EXCLUDE_NODE, epoch=2))
    actor.deliver(AllocationExited(2, "preempted"))
    assert [request.excluded_agents for request in requests(actor)] == [("a", "b")]


def test_agent_of_the_line_is_excluded_from_a_gang() -> None:
    actor = running_trial("a", "b", "c")
    actor.deliver(log_match(EXCLUDE_NODE, node_rank=1, rank=5))
    assert actor.state.excluded_agents == ("b",)
    [match] = actor.state.log_matches
    assert (match.agent, match.rank, match.line) == ("b", 5, LINE)


def test_oldest_exclusions_end() -> None:
    actor = running_trial("agent0")
    for number in range(EXCLUDED_MAX + 1):
        epoch = number + 1
        actor.deliver(log_match(EXCLUDE_NODE, epoch=epoch), checkpoint_reported(epoch, epoch=epoch))
        actor.deliver(AllocationExited(epoch, "preempted"))
        place_trial(actor, f"agent{number + 1}")
    assert len(actor.state.excluded_agents) == EXCLUDED_MAX
    assert actor.state.excluded_agents[0] == "agent1"


def signals(actor: ActorHarness) -> list[object]:
    sent = actor.messages_to(EXPERIMENT)
    return [message for message in sent if not isinstance(message, TrialLogMatched)]


def test_each_match_is_sent_for_webhooks() -> None:
    actor = running_trial()
    match = log_match(name="OOM")
    actor.deliver(match)
    [matched] = actor.messages_to(EXPERIMENT)
    assert matched == TrialLogMatched(actor.state.trial_id, match.pattern, match.line)


def test_signal_is_sent_once_and_later_signals_replace_it() -> None:
    actor = running_trial()
    actor.deliver(log_match(signal="CUDA OOM"))
    assert signals(actor) == [TrialSignaled(3, "CUDA OOM")]
    actor.deliver(log_match(signal="CUDA OOM", line="again"))
    assert signals(actor) == []
    actor.deliver(log_match(name="ECC", signal="ECC Error"))
    assert signals(actor) == [TrialSignaled(3, "ECC Error")]
    assert actor.state.signal == "ECC Error"


def test_repeated_late_and_older_matches_change_nothing() -> None:
    actor = running_trial()
    actor.deliver(log_match(CANCEL_RETRIES, EXCLUDE_NODE, signal="s"))
    before = actor.state
    actor.deliver(log_match(CANCEL_RETRIES, EXCLUDE_NODE, signal="s"))
    assert (actor.state, actor.sent) == (before, [])
    actor.deliver(AllocationExited(1, "preempted"))
    before = actor.state
    actor.deliver(log_match(CANCEL_RETRIES, name="late", epoch=1))
    assert actor.state == before
    actor.deliver(TrialKillRequested())
    before = actor.state
    actor.deliver(log_match(CANCEL_RETRIES, name="ended", epoch=2))
    assert actor.state == before


def test_rank_without_place_excludes_nothing() -> None:
    actor = running_trial()
    actor.deliver(log_match(EXCLUDE_NODE, node_rank=7))
    assert (actor.state.excluded_agents, actor.state.log_matches[0].agent) == ((), "")


def test_latest_matches_are_kept() -> None:
    actor = running_trial()
    actor.deliver(*(log_match(name=f"p{number}") for number in range(MATCHES_KEPT + 2)))
    names = [match.name for match in actor.state.log_matches]
    assert names == [f"p{number}" for number in range(2, MATCHES_KEPT + 2)]


def test_policy_without_name_is_shown_by_pattern() -> None:
    actor = running_trial()
    actor.deliver(log_match(CANCEL_RETRIES, name=""))
    assert actor.state.retries_canceled == f"log policy .*memory.* matched: {LINE}"


def test_continued_trial_retries_on_any_agent() -> None:
    actor = running_trial("a")
    actor.deliver(log_match(CANCEL_RETRIES, EXCLUDE_NODE, signal="s"))
    fail(actor)
    settings = replace(trial_settings(), max_restarts=1)
    actor.deliver(TrialContinued(1, settings))
    assert [request.excluded_agents for request in requests(actor)] == [()]
    assert (actor.state.retries_canceled, actor.state.signal) == ("", "s")
    place_trial(actor, "a")
    fail(actor)
    assert status(actor) is Status.ACTIVE


def test_deleted_trial_keeps_no_line() -> None:
    actor = running_trial()
    actor.deliver(log_match(CANCEL_RETRIES, signal="s"))
    fail(actor)
    actor.deliver(TrialDeleted())
    assert (actor.state.log_matches, actor.state.retries_canceled, actor.state.message) == (
        (),
        "",
        "",
    )


def test_signal_of_any_trial_is_the_experiments_signal() -> None:
    actor = ActorHarness("experiment#1")
    actor.deliver(experiment_submitted())
    assert actor.state.signal == ""
    actor.deliver(TrialSignaled(0, "CUDA OOM"))
    assert actor.state.signal == "CUDA OOM"
