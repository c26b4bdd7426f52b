"""An agent's session: what of its stream was taken, in the commit that took it.

A report counts once: the offset up to which a writer was read moves in the transaction that mails
the messages, so a repeated call, a lost answer or a restarted agent changes nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pydantic_core import to_json

from control_plane.actors import addresses
from control_plane.actors.agent import SESSIONS
from control_plane.actors.step import Refused
from control_plane.adapters import adapter
from control_plane.agents.reports import Measures, Report, begun_checkpoint, message_of
from control_plane.agents.segments import Stream, is_group, puts
from control_plane.dispatch import mailbox
from control_plane.dispatch.kinds import Encoded, encode_for
from control_plane.metrics.columns import Reported, reported
from control_plane.state.table import Expect, Key, Put, Row, Write

ENVIRONMENT = "E#"
INTENTS = "I#"
LOGS = "L#"
# An allocation's rows of metrics are merged when so many were written, and at its exit if they
# are not few.
ROWS_MAX = 48
ROWS_AT_EXIT = 16
# Ranks of a gang on one node; its agent comes on top. A session is one row.
WRITERS_MAX = 256


@dataclass(frozen=True, slots=True)
class Session:
    """`acked`: bytes taken by allocation and writer; `sent`: the last row mailed about each;
    `rows`: rows of metrics written about each since they were merged.

    `call` is the number of the latest call that changed it.
    """

    epoch: int = 0
    clock: int = 0
    call: int = 0
    acked: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    logs: Mapping[str, int] = field(default_factory=dict)
    exited: tuple[str, ...] = ()
    sent: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)


class Taken(NamedTuple):
    """What reports come to: the session after them, their writes, the trials that have mail, and
    the allocations whose rows of metrics have become many.
    """

    session: Session
    writes: list[Write]
    mailed: tuple[str, ...]
    crowded: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Text of an allocation's log from byte `offset` on, as its node of that rank among `nodes`
    has it. `marks`: offsets, and the times, epoch ms, at which bytes from there on were first seen.
    """

    allocation: str
    offset: int
    text: bytes
    marks: tuple[tuple[int, int], ...] = ()
    node_rank: int = 0
    nodes: int = 1


_SESSION = adapter(Session)


def session_of(row: Row | None) -> Session:
    """The session as stored."""
    return Session() if row is None else _SESSION().validate_json(row.body)


def put_session(agent: str, session: Session, row: Row | None) -> Put:
    """The write of a session, guarded by the row it was read from."""
    revision = row.revision if row else 0
    body = _SESSION().dump_json(session)
    return Put(Key(SESSIONS, agent), revision + 1, body, revision or Expect.ABSENT)


def take_reports(
    agent: str,
    session: Session,
    reports: Sequence[Report],
    measures: Mapping[str, Measures],
    now_ms: int,
) -> Taken:
    """Takes reports.

    `measures` gives what counts of each allocation that belongs to the agent; lines of others are
    acknowledged and dropped. Lines at or before the acknowledged offset were taken before.

    Raises Refused: invalid; one of the allocations has too many writers.
    """
    if not reports:
        # As nearly every call of an agent.
        return Taken(session, [], (), ())
    acked = {allocation: dict(writers) for allocation, writers in session.acked.items()}
    mail: dict[str, list[Encoded]] = {}
    streams: dict[tuple[int, Stream], list[Reported]] = {}
    kept: dict[Key, Write] = {}
    exited = session.exited
    for report in reports:
        allocation = f"{report.trial_id}.{report.epoch}"
        if not _is_new(report, acked.setdefault(allocation, {})):
            continue
        kind = report.line.get("kind")
        if report.writer == "agent" and kind == "exited":
            exited = (*exited, allocation)
        if allocation not in measures:
            continue
        message = message_of(report, measures[allocation])
        if message is not None:
            to = addresses.trial(report.trial_id)
            mail.setdefault(allocation, []).append(encode_for(to, message))
        if kind == "metrics":
            _sort_in(report, streams)
        elif (put := _kept_line(report)) is not None:
            kept[put.key] = put
    writes = list(kept.values())
    rows = dict(session.rows)
    for (trial_id, stream), found in streams.items():
        written = list(puts(trial_id, stream, found))
        allocation = f"{trial_id}.{stream.epoch}"
        rows[allocation] = rows.get(allocation, 0) + len(written)
        writes += written
    rows, crowded = _crowded(rows, exited[len(session.exited) :])
    session = replace(session, acked=acked, exited=exited, rows=rows)
    session, mailed = _mailed(agent, session, mail, now_ms)
    receivers = tuple(dict.fromkeys(put.key.partition for put in mailed))
    return Taken(session, [*writes, *mailed], receivers, crowded)


def take_logs(session: Session, chunks: Sequence[LogChunk]) -> tuple[Session, list[LogChunk]]:
    """The session after these chunks, and what of each is new."""
    if not chunks:
        return session, []
    logs = dict(session.logs)
    fresh: list[LogChunk] = []
    for chunk in chunks:
        taken = logs.get(chunk.allocation, 0)
        end = chunk.offset + len(chunk.text)
        if chunk.offset <= taken < end:
            text = chunk.text[taken - chunk.offset :]
            fresh.append(LogChunk(chunk.allocation, taken, text, chunk.marks))
            logs[chunk.allocation] = end
    return replace(session, logs=logs), fresh


def forget(session: Session, known: Iterable[str]) -> Session:
    """Drops what was kept about allocations the agent no longer has."""
    kept = set(known)
    if kept.issuperset((*session.acked, *session.logs, *session.sent, *session.rows)):
        return session
    return replace(
        session,
        acked={name: value for name, value in session.acked.items() if name in kept},
        logs={name: value for name, value in session.logs.items() if name in kept},
        exited=tuple(name for name in session.exited if name in kept),
        sent={name: value for name, value in session.sent.items() if name in kept},
        rows={name: value for name, value in session.rows.items() if name in kept},
    )


def _mailed(
    agent: str, session: Session, mail: Mapping[str, list[Encoded]], now_ms: int
) -> tuple[Session, list[Put]]:
    clock, writes, sent = session.clock, list[Put](), dict(session.sent)
    sender = addresses.agent(agent)
    for allocation, messages in mail.items():
        clock = mailbox.next_clock(clock, now_ms)
        to = addresses.trial(int(allocation.partition(".")[0]))
        key = mailbox.mail_key(to, clock, sender)
        previous = sent.get(allocation, mailbox.FIRST)
        due_ms = now_ms + mailbox.BACKSTOP_MS
        writes.append(mailbox.put_mail(key, sender, previous, clock, messages, due_ms))
        sent[allocation] = key.sort
    return replace(session, clock=clock, sent=sent), writes


def _sort_in(report: Report, streams: dict[tuple[int, Stream], list[Reported]]) -> None:
    """Puts a line of metrics to those of its stream, unless it is malformed."""
    group, line = report.line.get("group"), reported(report.offset, report.line)
    if line is not None and isinstance(group, str) and is_group(group):
        stream = Stream(group, report.epoch, report.writer)
        streams.setdefault((report.trial_id, stream), []).append(line)


def _crowded(rows: dict[str, int], exited: Iterable[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Counts of rows from which on they are merged begin anew: whoever commits this merges."""
    ended = set(exited)
    crowded = tuple(
        name for name, n in rows.items() if n >= (ROWS_AT_EXIT if name in ended else ROWS_MAX)
    )
    return {name: n for name, n in rows.items() if name not in crowded}, crowded


def _is_new(report: Report, writers: dict[str, int]) -> bool:
    """Whether the line was not taken before; it is, from now on. Refused: a writer too many."""
    if report.offset <= writers.get(report.writer, 0):
        return False
    known = report.writer in writers or report.writer == "agent"
    if not known and len(writers) >= WRITERS_MAX:
        text = f"allocation {report.trial_id}.{report.epoch} has more than {WRITERS_MAX} writers"
        raise Refused("invalid", text)
    writers[report.writer] = report.offset
    return True


def _kept_line(report: Report) -> Put | None:
    """The row of what is kept of a line beside metrics: the writer's environment, where the last
    one counts, and the checkpoints it has begun, so that their files are found.
    """
    begun = begun_checkpoint(report.line)
    if report.line.get("kind") == "environment":
        sort, kept = f"{ENVIRONMENT}{report.epoch:08d}#{report.writer}", report.line
    elif begun is not None:
        sort = f"{INTENTS}{report.epoch:08d}#{report.writer}#{report.offset:014d}"
        kept = {"uuid": begun}
    else:
        return None
    return Put(Key(addresses.trial(report.trial_id), sort), 1, to_json(kept), Expect.ANYTHING)
