"""The tracking of a trial's replacement, by the state before and after each message.

A replacement begins when a run loses its slots, and counts only if the trial requests slots again
at once, or after the delay of a failed start. It ends with the first step of a later run, which
writes a row for the trial, the experiment and the pool. A paused, killed or ended trial drops it.

The module only observes: no other decision of the trial depends on the replacement.
"""

import json
from collections.abc import Mapping
from dataclasses import replace

from control_plane.actors import addresses
from control_plane.actors.messages.trial import (
    FIRST_STEP,
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    PreemptionRequested,
    TrialMessage,
    TrialMoved,
)
from control_plane.actors.replacement import (
    AGENT_AGE,
    KEPT_MS,
    MACHINE_AGE,
    REASON_CHARACTERS_MAX,
    RUN_PHASES,
    Cause,
    NewMachine,
    Replacement,
    ReplacementRecord,
    encode_replacement,
    experiment_sort_key,
    phase_durations,
    pool_sort_key,
    replacements_partition,
    trial_sort_key,
)
from control_plane.actors.step import StepContext
from control_plane.actors.trial import gang
from control_plane.actors.trial.state import Allocation, AllocationState, DesiredState, TrialState
from control_plane.evolve import evolve
from control_plane.fleet.records import instances_partition


def track_replacement(
    before: TrialState, after: TrialState, message: TrialMessage, context: StepContext
) -> TrialState:
    """Return the state after a message, with the replacement updated.

    The end of a replacement writes the rows of `ReplacementRecord`. The start of a node reads the
    row of the node's instance.
    """
    if after is before and not isinstance(message, ContainerStateReported):
        return after
    if after.status.is_final or after.deleted:
        return _with_replacement(after, None)
    state = _begin(before, after, message, context)
    if state.allocation is None or state.epoch > before.epoch:
        return _follow_request(before, state, context)
    if state.replacement is None or not state.replacement.released_ms:
        return state
    return _follow_run(state, state.allocation, message, context)


def _with_replacement(state: TrialState, replacement: Replacement | None) -> TrialState:
    """Return the state with a replacement. An equal replacement returns the state unchanged."""
    if state.replacement == replacement:
        return state
    return evolve(state, replacement=replacement)


def _begin(
    before: TrialState, after: TrialState, message: TrialMessage, context: StepContext
) -> TrialState:
    """Return the state `after` with a begun replacement, if the message takes the run's slots away.

    A replacement that has begun already stays.
    """
    held = before.allocation
    if before.replacement is not None or held is None or not held.places:
        return after
    agent = held.agents[0] if len(held.agents) == 1 else ""
    found = _find_loss(held, message, before.epoch, context.now_ms)
    if found is None and held.desired_state is DesiredState.RUN:
        found = _find_preemption(after, message, before.epoch, context.now_ms)
    if found is None:
        return after
    cause, reason, begun_ms = found
    reason = reason[:REASON_CHARACTERS_MAX]
    begun = Replacement(cause.value, reason, before.epoch, agent, begun_ms)
    return _with_replacement(after, begun)


def _find_loss(
    held: Allocation, message: TrialMessage, epoch: int, now_ms: int
) -> tuple[Cause, str, int] | None:
    """Return the cause, the reason and the begin in epoch ms of a loss of the run.

    Return None if the message is no loss of the run of this epoch. A gang is lost with its first
    node.
    """
    match message:
        case AllocationLost(reason=reason, last_contact_ms=contact_ms) if message.epoch == epoch:
            begun_ms = now_ms if contact_ms is None else min(now_ms, contact_ms)
            # A broken clock of the last contact must not precede the run.
            return Cause.LOSS, reason, max(begun_ms, held.placed_ms)
        case AllocationExited() if message.epoch == epoch:
            # The nodes of a broken gang are killed, which is no loss.
            is_killed = message.reason == "killed" and not message.notice
            desired = held.desired_state if is_killed else gang.desired_state(held)
            if not gang.is_loss(message, desired):
                return None
            cause = Cause.NOTICE if message.notice else Cause.LOSS
            age_ms = message.notice_age_ms if message.notice else 0
            begun_ms = max(now_ms - age_ms, held.placed_ms)
            return cause, gang.exit_cause(message), begun_ms
    return None


def _find_preemption(
    after: TrialState, message: TrialMessage, epoch: int, now_ms: int
) -> tuple[Cause, str, int] | None:
    """Return the cause, the reason and the begin in epoch ms of a preemption by the cluster.

    Return None if the message has not asked for the slots of the run of this epoch.
    """
    asked = after.allocation
    if not isinstance(message, PreemptionRequested | TrialMoved) or asked is None:
        return None
    if after.epoch != epoch or asked.desired_state is DesiredState.RUN:
        return None
    return Cause.PREEMPTION, asked.desired_state_reason, now_ms


def _follow_request(before: TrialState, state: TrialState, context: StepContext) -> TrialState:
    """Return the state of a trial without an allocation, or with a new request, with the
    replacement updated.

    A trial that does not request slots, and does not wait for a restart delay, drops the
    replacement. So does a trial that requests slots after a rest, for example after a pause.
    """
    replacement = state.replacement
    if replacement is None:
        return state
    rested = before.allocation is None and not before.awaits_restart_delay
    if rested or (state.allocation is None and not state.awaits_restart_delay):
        return _with_replacement(state, None)
    now_ms = context.now_ms
    if not replacement.released_ms:
        replacement = replace(replacement, released_ms=now_ms, requested_ms=now_ms)
    elif before.allocation is not None and before.allocation.places:
        replacement = replace(replacement, requested_ms=now_ms, attempts=replacement.attempts + 1)
    # The machine and the durations belong to the run that has ended.
    cleared = replace(replacement, machine=None, durations={}, early_pull_failure="")
    return _with_replacement(state, cleared)


def _follow_run(
    state: TrialState, allocation: Allocation, message: TrialMessage, context: StepContext
) -> TrialState:
    """Return the state after a message about the run of a replacement, with the replacement
    updated or ended.
    """
    replacement = state.replacement
    assert replacement is not None
    if isinstance(message, ContainerStateReported):
        if message.epoch != state.epoch or not allocation.places:
            return state
        if message.state == FIRST_STEP:
            return _end(state, allocation, message.durations, context, has_first_step=True)
        if message.state == AllocationState.RUNNING:
            return _with_replacement(state, _with_start(replacement, allocation, message, context))
        return state
    if state.steps > allocation.from_steps:
        return _end(state, allocation, {}, context, has_first_step=False)
    return state


def _launched_ms(agent: str, allocation: Allocation, context: StepContext) -> int:
    """Return the launch time of an agent's machine in epoch ms, 0 without an instance row."""
    row = context.row(instances_partition(allocation.pool), agent)
    return int(json.loads(row.body).get("launched_ms", 0)) if row.body else 0


def _with_start(
    replacement: Replacement,
    allocation: Allocation,
    message: ContainerStateReported,
    context: StepContext,
) -> Replacement:
    """Return the replacement with the reported start of a node.

    Of several nodes, the machine whose agent enrolled last counts, and the durations with the
    largest sum. Without ages or without an instance row, the launch and the boot stay unknown.
    """
    ages, now_ms, latest = message.durations, context.now_ms, replacement.machine
    if MACHINE_AGE in ages and AGENT_AGE in ages and message.node_rank < len(allocation.agents):
        booted_ms, enrolled_ms = now_ms - ages[MACHINE_AGE], now_ms - ages[AGENT_AGE]
        is_new = enrolled_ms > replacement.requested_ms
        if is_new and (latest is None or enrolled_ms > latest.enrolled_ms):
            agent = allocation.agents[message.node_rank]
            if launched_ms := _launched_ms(agent, allocation, context):
                machine = NewMachine(launched_ms, booted_ms, enrolled_ms)
                replacement = replace(replacement, machine=machine)
    durations = {str(name): ages[name] for name in RUN_PHASES if name in ages}
    known = replacement.durations
    if durations and (not known or sum(durations.values()) > sum(known.values())):
        replacement = replace(replacement, durations=durations)
    if message.early_pull_failure:
        replacement = replace(replacement, early_pull_failure=message.early_pull_failure)
    return replacement


def _end(
    state: TrialState,
    allocation: Allocation,
    durations: Mapping[str, int],
    context: StepContext,
    *,
    has_first_step: bool,
) -> TrialState:
    """End the replacement now: write the rows of the trial, the experiment and the pool.

    Return the state without the replacement.

    Args:
        durations: the reported durations of the run's last phases, in ms.
        has_first_step: whether the run reported its first step.
    """
    replacement = state.replacement
    assert replacement is not None
    now_ms = context.now_ms
    run = {str(name): durations[name] for name in RUN_PHASES if name in durations}
    replacement = replace(replacement, durations={**replacement.durations, **run})
    record = ReplacementRecord(
        experiment=state.experiment_id,
        trial=state.trial_id,
        cause=replacement.cause,
        reason=replacement.reason,
        from_epoch=replacement.epoch,
        epoch=state.epoch,
        from_agent=replacement.agent,
        agents=allocation.agents,
        begun_ms=replacement.begun_ms,
        ended_ms=max(now_ms, replacement.begun_ms),
        attempts=replacement.attempts,
        phases=phase_durations(replacement, allocation.placed_ms, now_ms),
        has_first_step=has_first_step,
        early_pull_failure=replacement.early_pull_failure,
    )
    body = encode_replacement(record)
    context.write_row(addresses.trial(state.trial_id), trial_sort_key(record), body)
    context.write_row(addresses.experiment(state.experiment_id), experiment_sort_key(record), body)
    context.write_row(
        replacements_partition(allocation.pool),
        pool_sort_key(record),
        body,
        expires_ms=now_ms + KEPT_MS,
    )
    seconds = (record.ended_ms - record.begun_ms) / 1000
    context.add_reason(f"it trains again {seconds:.1f} s after the {replacement.cause}")
    return _with_replacement(state, None)
