"""The spans of a trial's runs, as rows that the tick exports.

Only trials of a traced submission write spans, and only in a cluster with a collector. The module
only observes: no decision of the trial depends on the spans.
"""

from collections.abc import Iterator, Mapping

from control_plane.actors.messages.trial import (
    FIRST_STEP,
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    TrialMessage,
)
from control_plane.actors.replacement import Phase
from control_plane.actors.spans import (
    KEPT_MS,
    RUN,
    SPANS,
    RunSpans,
    Span,
    encode_spans,
    spans_sort_key,
)
from control_plane.actors.step import StepContext
from control_plane.actors.trial.state import Allocation, AllocationState, TrialState

START, END = "start", "end"
_STARTED_BY_AGENT = (Phase.CODE, Phase.IMAGE, Phase.PACKAGES)
_MEASURED_BY_TRIAL = (Phase.RESTORE, Phase.FIRST_STEP)
FAILURE_CHARACTERS_MAX = 200
"""The characters of a failure that are kept."""
_ERRORED = "errored"


def write_spans(
    before: TrialState, after: TrialState, message: TrialMessage, context: StepContext
) -> None:
    """Write a row with the spans that end with a message: a start, a first step or a run.

    Write nothing for an untraced trial, and without a collector.
    """
    held, trace = before.allocation, before.settings.trace
    if trace is None or not trace.exports_spans or held is None or not held.places:
        return
    event, spans = _find_event(before, held, after, message, context.now_ms)
    if not spans:
        return
    record = RunSpans(
        traceparent=trace.traceparent,
        experiment=before.experiment_id,
        trial=before.trial_id,
        epoch=before.epoch,
        pool=held.pool,
        agents=held.agents,
        spans=spans,
    )
    sort = spans_sort_key(context.now_ms, before.trial_id, before.epoch, event)
    context.write_row(SPANS, sort, encode_spans(record), expires_ms=context.now_ms + KEPT_MS)


def _find_event(
    before: TrialState, held: Allocation, after: TrialState, message: TrialMessage, now_ms: int
) -> tuple[str, tuple[Span, ...]]:
    """Return the name of a message's event, and the spans that end with the event.

    Return no spans for a message without an event. Of a gang, the first node counts.
    """
    if isinstance(message, ContainerStateReported):
        if message.epoch != before.epoch or message.node_rank:
            return "", ()
        if message.state == FIRST_STEP:
            spans = _consecutive_spans(_MEASURED_BY_TRIAL, message.durations, held, now_ms)
            return FIRST_STEP, tuple(spans)
        # An agent that has adopted a running trial reports the state again, without durations.
        if message.state == AllocationState.RUNNING and message.durations:
            return START, _start_spans(held, message.durations, now_ms)
        return "", ()
    has_ended = after.allocation is None or after.epoch != before.epoch
    if has_ended:
        failure = _failure_of(message)[:FAILURE_CHARACTERS_MAX]
        return END, (Span(RUN, min(held.placed_ms, now_ms), now_ms, failure),)
    return "", ()


def _start_spans(held: Allocation, durations: Mapping[str, int], now_ms: int) -> tuple[Span, ...]:
    """Return the spans of a start: the queue, the start, and the phases that the agent measured."""
    requested_ms = int(held.ticket.split(".")[1])
    placed_ms = min(held.placed_ms, now_ms)
    return (
        Span(Phase.QUEUE, min(requested_ms, placed_ms), placed_ms),
        Span(Phase.START, placed_ms, now_ms),
        *_consecutive_spans(_STARTED_BY_AGENT, durations, held, now_ms),
    )


def _consecutive_spans(
    phases: tuple[Phase, ...], durations: Mapping[str, int], held: Allocation, now_ms: int
) -> Iterator[Span]:
    """Yield the spans of known phases, the last first. The last phase ends now.

    No span begins before the assignment of the slots, because durations of other clocks may be
    wrong.
    """
    end_ms = now_ms
    for phase in reversed(phases):
        if phase in durations:
            began_ms = min(max(end_ms - durations[phase], held.placed_ms), end_ms)
            yield Span(phase, began_ms, end_ms)
            end_ms = began_ms


def _failure_of(message: TrialMessage) -> str:
    """Return why a run failed, or "" for a run that ended without a failure."""
    match message:
        case AllocationLost(reason=reason):
            return reason or "the agent was lost"
        case AllocationExited(reason=reason, message=text) if reason == _ERRORED:
            return text or reason
    return ""
