"""The states of an alarm: one notification when raised, and one when cleared."""

from hypothesis import given
from hypothesis import strategies as st

from control_plane.alarms.records import AlarmRow, Finding
from control_plane.alarms.transitions import (
    CLAIM_MS,
    claimed_row,
    due_change,
    next_row,
    notified_row,
)

MINUTE = 60_000
FOUND = Finding("lag", "gpus", "slow")


def test_condition_must_last_before_the_alarm_is_raised() -> None:
    row = next_row(None, FOUND, 1_000, 4 * MINUTE)
    assert row == AlarmRow("lag", "gpus", "slow", 1_000)
    assert due_change(row, 1_000) is None
    assert next_row(row, FOUND, 1_000 + 4 * MINUTE - 1, 4 * MINUTE) == row
    assert next_row(row, None, 2_000, 4 * MINUTE) is None
    raised = next_row(row, FOUND, 1_000 + 4 * MINUTE, 4 * MINUTE)
    assert raised is not None
    assert due_change(raised, 1_000 + 4 * MINUTE) == "raised"


def test_alarm_is_raised_at_once_if_the_condition_need_not_last() -> None:
    row = next_row(None, FOUND, 1_000, 0)
    assert row is not None
    assert (row.raised_ms, due_change(row, 1_000)) == (1_000, "raised")


def test_raise_is_notified_before_the_end() -> None:
    row = next_row(None, FOUND, 1_000, 0)
    cleared = next_row(row, None, 2_000, 0)
    assert cleared is not None
    assert due_change(cleared, 2_000) == "raised"
    notified = notified_row(cleared, "raised")
    assert notified is not None
    assert due_change(notified, 3_000) == "cleared"
    assert notified_row(notified, "cleared") is None


def test_condition_that_returns_before_the_end_was_notified_notifies_nobody() -> None:
    row = next_row(None, FOUND, 1_000, 0)
    assert row is not None
    notified = notified_row(row, "raised")
    cleared = next_row(notified, None, 2_000, 0)
    returned = next_row(cleared, FOUND, 3_000, 0)
    assert returned == notified
    assert returned is not None
    assert due_change(returned, 3_000) is None


def test_claimed_notification_is_left_to_its_process_for_a_while() -> None:
    row = next_row(None, FOUND, 1_000, 0)
    assert row is not None
    claimed = claimed_row(row, 1_000)
    assert due_change(claimed, 1_000 + CLAIM_MS - 1) is None
    assert next_row(claimed, None, 2_000, 0) is claimed
    assert due_change(claimed, 1_000 + CLAIM_MS) == "raised"


def test_claim_of_a_clock_that_was_ahead_does_not_count() -> None:
    row = AlarmRow("lag", "", "slow", 1_000, raised_ms=1_000, claimed_ms=10**15)
    assert due_change(row, 2_000) == "raised"


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60))
def test_notifications_alternate_and_end_with_the_condition(
    checks: list[tuple[bool, bool]],
) -> None:
    """Each check finds the condition or not, and its notification is accepted or not."""
    row: AlarmRow | None = None
    sent: list[str] = []
    now_ms = 0
    for is_true, is_accepted in [*checks, (False, True), (False, True), (False, True)]:
        now_ms += 5 * MINUTE
        row = next_row(row, FOUND if is_true else None, now_ms, 0)
        change = None if row is None else due_change(row, now_ms)
        if row is None or change is None:
            continue
        claimed = claimed_row(row, now_ms)
        row = notified_row(claimed, change) if is_accepted else claimed
        sent += [change] if is_accepted else []
    assert row is None
    assert sent == ["raised", "cleared"] * (len(sent) // 2)
    assert bool(sent) == any(is_true for is_true, _ in checks)
