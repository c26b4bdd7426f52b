"""Lines of the log that matched a log policy: the signal, canceled retries and excluded agents.

The effects on later runs last until the experiment is continued. A match of an earlier run has no
effect, because the agent reports all matches of a run before the run's exit.
"""

from dataclasses import replace

from control_plane.actors import addresses
from control_plane.actors.messages.experiment import TrialSignaled
from control_plane.actors.messages.experiment_events import TrialLogMatched
from control_plane.actors.messages.pool import ExclusionRequested
from control_plane.actors.messages.trial_logs import CANCEL_RETRIES, EXCLUDE_NODE, LogPolicyMatched
from control_plane.actors.step import StepContext
from control_plane.actors.trial.state import Allocation, LogMatch, TrialState
from control_plane.evolve import evolve

MATCHES_KEPT = 4
EXCLUDED_MAX = 64
SHOWN_CHARACTERS_MAX = 200
"""The characters of the pattern of a policy without a name that the state keeps."""


def record_match(
    state: TrialState, allocation: Allocation, message: LogPolicyMatched, context: StepContext
) -> TrialState:
    """Record the line, and apply the actions of the policy. A repeated report changes nothing.

    - The experiment gets a TrialLogMatched, for webhooks.
    - The signal becomes the trial's signal, and the experiment gets a TrialSignaled.
    - `cancel_retries` lets the next failure end the trial. Only the first line counts.
    - `exclude_node` excludes the agent of the line from later runs. Above EXCLUDED_MAX agents, the
      oldest exclusions end. The pool gets an ExclusionRequested, and decides by its settings.
    """
    places = allocation.places
    agent = places[message.node_rank].agent if message.node_rank < len(places) else ""
    match = LogMatch(
        at_ms=context.now_ms,
        epoch=message.epoch,
        name=message.name or message.pattern[:SHOWN_CHARACTERS_MAX],
        line=message.line,
        actions=message.actions,
        signal=message.signal,
        agent=agent,
        rank=message.rank,
    )
    if any(_is_same(match, earlier) for earlier in state.log_matches):
        return state
    state = evolve(state, log_matches=(*state.log_matches, match)[-MATCHES_KEPT:])
    matched = TrialLogMatched(
        state.trial_id, message.pattern, message.line, message.webhook, state.run_generation
    )
    context.send(addresses.experiment(state.experiment_id), matched)
    if match.signal and match.signal != state.signal:
        state = evolve(state, signal=match.signal)
        signaled = TrialSignaled(state.number, match.signal, state.run_generation)
        context.send(addresses.experiment(state.experiment_id), signaled)
    if CANCEL_RETRIES in match.actions and not state.retries_canceled:
        context.add_reason("a failure is not retried from now on")
        state = evolve(state, retries_canceled=match_text(match))
    if EXCLUDE_NODE in match.actions and agent and agent not in state.excluded_agents:
        context.add_reason(f"later runs do not start on agent {agent}")
        excluded = (*state.excluded_agents, agent)[-EXCLUDED_MAX:]
        state = evolve(state, excluded_agents=excluded)
        reason = f"trial {state.trial_id}: {match_text(match)}"
        requested = ExclusionRequested(agent, reason, message.name)
        context.send(addresses.pool(allocation.pool), requested)
    return state


def match_text(match: LogMatch) -> str:
    """Return the policy and the line, for users."""
    return f"log policy {match.name} matched: {match.line}"


def _is_same(match: LogMatch, earlier: LogMatch) -> bool:
    """Return whether two matches have equal runs, policies, agents, ranks and lines."""
    return replace(match, at_ms=earlier.at_ms) == earlier
