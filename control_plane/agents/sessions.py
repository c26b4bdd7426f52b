"""An agent's session: what of its stream was taken, in the commit that took it.

A report counts once: the offset up to which a writer was read moves in the transaction that mails
the messages, so a repeated call, a lost answer or a restarted agent changes nothing.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter
from pydantic_core import to_json

from control_plane.actors import addresses
from control_plane.actors.agent import SESSIONS
from control_plane.agents.reports import Report, message_of
from control_plane.dispatch import mailbox
from control_plane.dispatch.kinds import Encoded, encode_for
from control_plane.state.table import Expect, Key, Put, Row, Write

METRICS = "R#"
ENVIRONMENT = "E#"
INTENTS = "I#"
LOGS = "L#"
# A line has at most 256 KiB, so that a row of metrics always fits into the table.
SEGMENT_BYTES_MAX = 320 * 1024

_GROUP = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Session:
    """`acked`: bytes taken by allocation and writer; `sent`: the last row mailed about each.

    `call` is the number of the latest call that changed it.
    """

    epoch: int = 0
    clock: int = 0
    call: int = 0
    acked: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    logs: Mapping[str, int] = field(default_factory=dict)
    exited: tuple[str, ...] = ()
    sent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Text of an allocation's log from byte `offset` on."""

    allocation: str
    offset: int
    text: bytes


_SESSION: TypeAdapter[Session] = TypeAdapter(Session)


def session_of(row: Row | None) -> Session:
    """The session as stored."""
    return Session() if row is None else _SESSION.validate_json(row.body)


def put_session(agent: str, session: Session, row: Row | None) -> Put:
    """The write of a session, guarded by the row it was read from."""
    revision = row.revision if row else 0
    body = _SESSION.dump_json(session)
    return Put(Key(SESSIONS, agent), revision + 1, body, revision or Expect.ABSENT)


def take_reports(
    agent: str, session: Session, reports: Iterable[Report], metrics: Mapping[int, str], now_ms: int
) -> tuple[Session, list[Write], tuple[str, ...]]:
    """The session after these reports, the writes they cause, and the trials that have mail.

    `metrics` gives the searcher's metric of each trial that belongs to the agent; lines of others
    are acknowledged and dropped. Lines at or before the acknowledged offset were taken before.
    """
    acked = {allocation: dict(writers) for allocation, writers in session.acked.items()}
    mail: dict[str, list[Encoded]] = {}
    lines: dict[tuple[int, str], list[Report]] = {}
    writes: list[Write] = []
    exited = session.exited
    for report in reports:
        allocation = f"{report.trial_id}.{report.epoch}"
        writers = acked.setdefault(allocation, {})
        if report.offset <= writers.get(report.writer, 0):
            continue
        writers[report.writer] = report.offset
        kind = report.line.get("kind")
        if report.writer == "agent" and kind == "exited":
            exited = (*exited, allocation)
        if report.trial_id not in metrics:
            continue
        message = message_of(report, metrics[report.trial_id])
        if message is not None:
            to = addresses.trial(report.trial_id)
            mail.setdefault(allocation, []).append(encode_for(to, message))
        group = report.line.get("group")
        if kind == "metrics" and isinstance(group, str) and _GROUP.fullmatch(group):
            lines.setdefault((report.trial_id, group), []).append(report)
        elif kind in ("environment", "checkpoint_intent"):
            writes.append(_kept_line(report, str(kind)))
    for (trial_id, group), found in lines.items():
        writes += _segments(trial_id, group, found)
    session = replace(session, acked=acked, exited=exited)
    session, mailed = _mailed(agent, session, mail, now_ms)
    return session, [*writes, *mailed], tuple(dict.fromkeys(put.key.partition for put in mailed))


def take_logs(session: Session, chunks: Iterable[LogChunk]) -> tuple[Session, list[LogChunk]]:
    """The session after these chunks, and what of each is new."""
    logs = dict(session.logs)
    fresh: list[LogChunk] = []
    for chunk in chunks:
        taken = logs.get(chunk.allocation, 0)
        end = chunk.offset + len(chunk.text)
        if chunk.offset <= taken < end:
            text = chunk.text[taken - chunk.offset :]
            fresh.append(LogChunk(chunk.allocation, taken, text))
            logs[chunk.allocation] = end
    return replace(session, logs=logs), fresh


def forget(session: Session, known: Iterable[str]) -> Session:
    """Drops what was kept about allocations the agent no longer has."""
    kept = set(known)
    return replace(
        session,
        acked={name: value for name, value in session.acked.items() if name in kept},
        logs={name: value for name, value in session.logs.items() if name in kept},
        exited=tuple(name for name in session.exited if name in kept),
        sent={name: value for name, value in session.sent.items() if name in kept},
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


def _segments(trial_id: int, group: str, reports: list[Report]) -> Iterator[Put]:
    """Metrics of one call in the order they came, in as few rows as hold them."""
    first, bodies, size = reports[0], list[bytes](), 0
    for report in reports:
        body = to_json(report.line)
        if bodies and size + len(body) > SEGMENT_BYTES_MAX:
            yield _segment(trial_id, group, first, bodies)
            first, bodies, size = report, [], 0
        bodies.append(body)
        size += len(body) + 1
    yield _segment(trial_id, group, first, bodies)


def _segment(trial_id: int, group: str, first: Report, bodies: list[bytes]) -> Put:
    sort = f"{METRICS}{group}#{first.epoch:08d}#{first.writer}#{first.offset:014d}"
    body = b"[" + b",".join(bodies) + b"]"
    return Put(Key(addresses.trial(trial_id), sort), 1, body, Expect.ANYTHING)


def _kept_line(report: Report, kind: str) -> Put:
    prefix = ENVIRONMENT if kind == "environment" else INTENTS
    sort = f"{prefix}{report.epoch:08d}#{report.writer}#{report.offset:014d}"
    return Put(
        Key(addresses.trial(report.trial_id), sort), 1, to_json(report.line), Expect.ANYTHING
    )
