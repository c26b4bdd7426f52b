import pytest

from control_plane.actors.messages.trial import WorkAssigned
from control_plane.engine.actor_types import ACTOR_TYPES, actor_type_at, encode_message_for
from control_plane.engine.head import HEAD, PARTS
from control_plane.engine.mailbox import (
    FIRST,
    MAIL,
    MAIL_END,
    TICKS_PER_MS,
    TIMERS,
    UNKNOWN,
    attempt_write,
    mail_key,
    mail_write,
    next_clock,
    read_mail,
    timer_key,
)
from control_plane.state.table import Delete, Expect, Put, Row

NOW_MS = 1_700_000_000_000


def to_row(put: Put) -> Row:
    return Row(put.key, put.revision, put.body, put.due_ms)


def a_mail(due_ms: int = NOW_MS) -> Put:
    encoded = [encode_message_for("trial#1", WorkAssigned(n, False)) for n in (4, 8)]
    key = mail_key("trial#1", 77, "experiment#1")
    return mail_write(key, "experiment#1", UNKNOWN, 77, encoded, due_ms)


def test_clock_follows_the_wall_clock() -> None:
    assert next_clock(0, NOW_MS) == NOW_MS * TICKS_PER_MS


def test_clock_increases_if_the_wall_clock_stops_or_goes_back() -> None:
    first = next_clock(0, NOW_MS)
    assert next_clock(first, NOW_MS) == first + 1
    assert next_clock(first, NOW_MS - 60_000) == first + 1


def test_clock_is_later_than_a_clock_that_is_ahead() -> None:
    ahead = next_clock(0, NOW_MS + 3_600_000)
    assert next_clock(ahead, NOW_MS) == ahead + 1


def test_mail_keys_sort_by_clock() -> None:
    clocks = [0, 1, 15, 16, 255, 4096, NOW_MS * TICKS_PER_MS, (1 << 63) - 1]
    keys = [mail_key("trial#1", clock, "z") for clock in clocks]
    assert keys == sorted(keys)


def test_mail_keys_of_two_senders_differ() -> None:
    assert mail_key("trial#1", 5, "pool#a") != mail_key("trial#1", 5, "pool#b")


def test_timer_keys_sort_by_due_time() -> None:
    keys = [timer_key("trial#1", due_ms, clock) for due_ms, clock in ((9, 5), (10, 1), (10, 2))]
    assert keys == sorted(keys)


def test_range_of_head_and_mail_contains_no_other_rows() -> None:
    mail, timer = mail_key("t", 1, "s").sort, timer_key("t", 1, 1).sort
    assert HEAD < MAIL < mail < MAIL_END
    for other in (timer, TIMERS, PARTS, "Z#0", "D#", "E#", "I#", "L#", "R#"):
        assert not HEAD <= other < MAIL_END


def test_mail_is_read_unchanged() -> None:
    mail = read_mail(to_row(a_mail()))
    assert (mail.sender, mail.previous, mail.clock, mail.attempts) == (
        "experiment#1",
        UNKNOWN,
        77,
        0,
    )
    decoded = [
        actor_type_at("trial#1").decode_message(name, fields) for name, fields in mail.messages
    ]
    assert decoded == [WorkAssigned(4, False), WorkAssigned(8, False)]


def test_mail_write_expects_no_row() -> None:
    assert a_mail().expect is Expect.ABSENT


def test_removal_expects_the_row() -> None:
    mail = read_mail(to_row(a_mail()))
    assert mail.removal(NOW_MS) == Delete(mail.key, Expect.PRESENT)


def test_each_attempt_doubles_the_delay() -> None:
    mail = read_mail(to_row(a_mail()))
    waits = []
    for _ in range(5):
        revision = mail.revision
        mail, put = attempt_write(mail, NOW_MS)
        assert put.expect == revision
        assert read_mail(to_row(put)) == mail
        assert put.due_ms is not None
        waits.append(put.due_ms - NOW_MS)
    assert mail.attempts == 5
    assert waits == [2_000, 4_000, 8_000, 16_000, 32_000]


def test_attempt_changes_only_the_header() -> None:
    """The message contains the text of the header field that counts the attempts."""
    encoded = [encode_message_for("trial#1", WorkAssigned(4, False))]
    name, fields = encoded[0]
    tricky = (name, fields[:-1] + b',"note":"\\"attempts\\":0,"}')
    put = mail_write(mail_key("trial#1", 1, "s"), "s", FIRST, 1, [tricky], NOW_MS)
    mail, raised = attempt_write(read_mail(to_row(put)), NOW_MS)
    assert read_mail(to_row(raised)).messages == read_mail(to_row(put)).messages
    assert mail.attempts == 1


def test_unknown_message_and_wrong_fields_are_errors() -> None:
    with pytest.raises(KeyError):
        actor_type_at("trial#1").decode_message("NobodyKnows", {})
    with pytest.raises(ValueError, match="WorkAssigned"):
        actor_type_at("trial#1").decode_message("WorkAssigned", {"length": "long"})


@pytest.mark.parametrize("kind", ACTOR_TYPES)
def test_every_actor_type_has_named_messages(kind: str) -> None:
    names = ACTOR_TYPES[kind].message_names
    assert names
    assert all(name[0].isupper() for name in names)
