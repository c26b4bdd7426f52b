"""Properties of the phases of replacements, for any times and reported durations."""

from hypothesis import given
from hypothesis import strategies as st

from control_plane.actors.replacement import (
    RUN_PHASES,
    Cause,
    NewMachine,
    Phase,
    Replacement,
    ReplacementRecord,
    decode_replacement,
    encode_replacement,
    phase_durations,
)

TIMES = st.integers(0, 10**6)
# Clocks of machines may be wrong, but durations are never negative.
ANY_TIMES = st.integers(-(10**7), 10**7)
DURATIONS = st.dictionaries(
    st.sampled_from([phase.value for phase in RUN_PHASES]), st.integers(0, 10**7)
)


@st.composite
def replacements(draw: st.DrawFn) -> Replacement:
    return Replacement(
        cause=draw(st.sampled_from(Cause)).value,
        reason="",
        epoch=1,
        agent="",
        begun_ms=draw(TIMES),
        released_ms=draw(TIMES),
        requested_ms=draw(TIMES),
        attempts=draw(st.integers(0, 2)),
        machine=draw(st.none() | st.builds(NewMachine, ANY_TIMES, ANY_TIMES, ANY_TIMES)),
        durations=draw(DURATIONS),
    )


@given(replacements(), TIMES, TIMES)
def test_phases_are_not_negative_and_add_up(
    replacement: Replacement, assigned_ms: int, until_ms: int
) -> None:
    phases = phase_durations(replacement, assigned_ms, until_ms)
    assert all(duration_ms >= 0 for duration_ms in phases.values())
    # Without a release, only the phase of the run that still has its slots counts.
    assert sum(phases.values()) == max(0, until_ms - replacement.begun_ms)


@given(replacements(), TIMES, TIMES)
def test_phases_are_in_the_order_of_the_timeline(
    replacement: Replacement, assigned_ms: int, until_ms: int
) -> None:
    order = [phase.value for phase in Phase]
    phases = list(phase_durations(replacement, assigned_ms, until_ms))
    assert phases == sorted(phases, key=order.index)


@given(replacements(), TIMES, st.integers(0, 10**7))
def test_unreported_durations_are_missing(
    replacement: Replacement, assigned_ms: int, until_ms: int
) -> None:
    phases = phase_durations(replacement, assigned_ms, until_ms)
    unreported = {phase.value for phase in RUN_PHASES} - replacement.durations.keys()
    assert not unreported & phases.keys()
    if replacement.machine is None:
        assert not {"launch", "boot"} & phases.keys()


@given(replacements(), st.lists(st.text(max_size=5), max_size=3), st.booleans())
def test_rows_keep_all_fields(
    replacement: Replacement, agents: list[str], has_first_step: bool
) -> None:
    record = ReplacementRecord(
        experiment=1,
        trial=4,
        cause=replacement.cause,
        reason="ünïcode \x00",
        from_epoch=1,
        epoch=2,
        from_agent="",
        agents=tuple(agents),
        begun_ms=replacement.begun_ms,
        ended_ms=replacement.requested_ms,
        attempts=replacement.attempts,
        phases=phase_durations(replacement, 0, replacement.requested_ms),
        has_first_step=has_first_step,
    )
    assert decode_replacement(encode_replacement(record)) == record
