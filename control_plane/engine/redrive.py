"""Retries of an actor's overdue mail, with a count of the attempts in each row.

- Attempts: an attempt is counted in the row before the row is folded, so that an attempt that
  crashes the process is counted too. From ISOLATE_FROM_ATTEMPTS attempts, the row is folded alone.
  After ATTEMPTS_MAX attempts, its first message becomes a dead letter. An attempt that failed
  because the table was unavailable is withdrawn.
- Suspects: a fold begins with the first row of the mailbox, even if that row is not due. The pass
  then counts the attempt in that row, so that a later row is not blamed.
"""

from contextlib import suppress

from control_plane.actors.step import CommandRefused
from control_plane.engine.due_index import HoldsTimers, postpone
from control_plane.engine.engine import Engine
from control_plane.engine.mailbox import (
    ATTEMPTS_MAX,
    ISOLATE_FROM_ATTEMPTS,
    MAIL,
    MAIL_END,
    RECOVERY_DELAY_MS,
    MailboxRow,
    attempt_delay_ms,
    attempt_write,
    read_mail,
    timer_due_ms,
)
from control_plane.engine.reader import TornRead
from control_plane.state.table import Conflict, Unavailable


def redrive_actor(
    engine: Engine,
    address: str,
    late: list[MailboxRow],
    now_ms: int,
    budget_ms: int,
    holds_timers: HoldsTimers,
) -> int:
    """Count an attempt in each overdue row. Then advance the actor and the receivers of its
    messages.

    A row is overdue if it was not folded by its due time. A row with ATTEMPTS_MAX attempts is not
    counted: its first message becomes a dead letter. If any row has ISOLATE_FROM_ATTEMPTS or more
    attempts, only the row that the actor folds next is attempted, and the other rows are postponed.
    Without overdue rows, the actor is only advanced.

    Return the number of messages that became dead letters. Raises Unavailable after the counted
    attempts are withdrawn. These errors keep the counts: another TableError, the errors of an
    actor's `finish_fold`, and ValueError or KeyError for an unknown type of actor or a value that
    cannot be decoded or encoded.

    Args:
        late: the overdue mail and timers of the actor.
        budget_ms: the time limit for advancing.
        holds_timers: if true for the actor, its timers are not folded.
    """
    ordered = sorted(late, key=lambda mail: mail.key.sort)
    if most_attempts((address, late)) >= ISOLATE_FROM_ATTEMPTS:
        # Isolate the row that may crash the process. The rows behind are postponed until that row
        # is retried.
        suspect = _find_suspect(engine, ordered[0], now_ms)
        behind = [mail for mail in ordered if mail.key != suspect.key]
        postpone(engine, behind, now_ms + attempt_delay_ms(suspect.attempts + 1))
        ordered = [suspect]
    until = engine.seconds() + budget_ms / 1000
    attempted: list[MailboxRow] = []
    try:
        dead = sum(_count_attempt(engine, mail, now_ms, attempted) for mail in ordered)
        # The full budget starts after the attempts are counted, so that each counted attempt is
        # made.
        receivers = engine.advance(address, timers=not holds_timers(address), budget_ms=budget_ms)
        left_ms = int((until - engine.seconds()) * 1000)
        engine.advance_until_idle((address, *receivers), budget_ms=left_ms)
    except Unavailable:
        _withdraw_attempts(engine, attempted, now_ms)
        raise
    return dead


def most_attempts(item: tuple[str, list[MailboxRow]]) -> int:
    """Return the maximum number of attempts among an actor's overdue mail. 0 without mail.

    Args:
        item: the address of the actor and the mail.
    """
    return max((mail.attempts for mail in item[1]), default=0)


def _find_suspect(engine: Engine, late: MailboxRow, now_ms: int) -> MailboxRow:
    """Return the row with which a fold of the actor begins: the first row of the mailbox, or
    `late`.

    The first row of the mailbox may be due later than `late`. If `late` is a timer, new mail
    without attempts is not a suspect. Otherwise the timer would wait for ever while new mail
    arrives. Reads at most one row. Raises Unavailable.

    Args:
        late: the overdue row with the smallest sort key.
    """
    rows = engine.table.query(late.key.partition, MAIL, MAIL_END, limit=1).rows
    if not rows or rows[0].key.sort >= late.key.sort:
        return late
    first, due_ms = read_mail(rows[0]), rows[0].due_ms or 0
    is_new = not first.attempts and now_ms < due_ms <= now_ms + RECOVERY_DELAY_MS
    return late if is_new and timer_due_ms(late.key) is not None else first


def _count_attempt(
    engine: Engine, mail: MailboxRow, now_ms: int, attempted: list[MailboxRow]
) -> bool:
    """Count an attempt in the stored row and add the counted mail to `attempted`.

    A row with ATTEMPTS_MAX attempts is not counted: its first message becomes a dead letter, and
    the actor and the receivers of new mail are advanced. Return whether a dead letter was made.

    Return False without a change if another process was faster. Raises Unavailable and
    InvalidCommit.
    """
    try:
        if mail.attempts >= ATTEMPTS_MAX:
            engine.advance_until_idle(engine.dead_letter_mail(mail))
            return True
        counted, write = attempt_write(mail, now_ms)
        engine.table.commit((write,))
        attempted.append(counted)
    except (Conflict, TornRead, CommandRefused):
        # Another process was faster. The next pass checks the row again.
        return False
    return False


def _withdraw_attempts(engine: Engine, attempted: list[MailboxRow], now_ms: int) -> None:
    """Commit a number of attempts lower by 1 for each row, after the table was unavailable.

    A row that has changed, and a row for which the table is still unavailable, keep the attempt.
    Neither raises an error.

    Args:
        attempted: the mail with the counted attempt.
    """
    for mail in attempted:
        with suppress(Conflict, Unavailable):
            engine.table.commit((attempt_write(mail, now_ms, -1)[1],))
