"""The session of an agent: the offsets up to which its reports and logs were accepted, stored in
the commit that accepted them.

A report counts once: the offset of a writer moves in the transaction that mails the messages, so a
repeated call, a lost answer or a restarted agent changes nothing.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pydantic_core import to_json

from control_plane.actors import addresses
from control_plane.actors.agent.actor import SESSIONS
from control_plane.actors.metadata_edits import METADATA_EDITS, decode_edit
from control_plane.actors.step import CommandRefused
from control_plane.adapters import lazy_adapter
from control_plane.agents.metric_rows import Stream, is_group_name, segment_writes
from control_plane.agents.reports import (
    Report,
    ReportContext,
    announced_checkpoint,
    to_message,
    trial_metadata,
)
from control_plane.engine import mailbox
from control_plane.engine.actor_types import EncodedMessage, encode_message_for, parse_json
from control_plane.metrics.columns import MetricReport, parse_report
from control_plane.state.table import GET_MAX, Expect, Key, Put, Row, StateTable, Write

ENVIRONMENT = "E#"
TRIAL_METADATA = "U#"
INTENTS = "I#"
LOGS = "L#"
# The line of metrics that a process which is not the chief keeps apart; its writer is its rank.
RANK_METRICS_KIND = "rank_metrics"
RANK = re.compile(r"[0-9]{1,5}")
# An allocation's rows of metrics are merged when so many were written; at its exit, earlier.
MERGE_FROM_ROWS = 48
MERGE_FROM_ROWS_AT_EXIT = 16
# Writers of one allocation on a node, which are ranks, beside the agent itself. A session is one
# row, which this bounds.
WRITERS_MAX = 256


@dataclass(frozen=True, slots=True)
class Session:
    """An agent's session, as stored.

    `acked` are the bytes accepted by allocation and writer, `logs` those of each allocation's log;
    `exited` are allocations whose exit was accepted; `sent` is the last row mailed for each
    allocation, `rows` the number of its rows of metrics written since they were last merged.
    `call` is the number of the latest call that changed the session.
    """

    epoch: int = 0
    clock: int = 0
    call: int = 0
    acked: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    logs: Mapping[str, int] = field(default_factory=dict)
    exited: tuple[str, ...] = ()
    sent: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)


class AcceptedReports(NamedTuple):
    """The outcome of accepting reports: the session after them, their writes, the addresses of the
    trials that have mail, and the allocations whose rows of metrics are to be merged.
    """

    session: Session
    writes: list[Write]
    receivers: tuple[str, ...]
    allocations_to_merge: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Text of an allocation's log from byte `offset` on, in the log of its node of rank `node_rank`
    among `nodes`. `marks` are offsets and the times (epoch ms) at which bytes from there on were
    first seen.
    """

    allocation: str
    offset: int
    text: bytes
    marks: tuple[tuple[int, int], ...] = ()
    node_rank: int = 0
    nodes: int = 1


_SESSION = lazy_adapter(Session)


def decode_session(row: Row | None) -> Session:
    """Decode a stored session; an empty one for no row."""
    return Session() if row is None else _SESSION().validate_json(row.body)


def session_write(agent: str, session: Session, row: Row | None) -> Put:
    """The write of a session, guarded by the revision it was read at."""
    revision = row.revision if row else 0
    body = _SESSION().dump_json(session)
    return Put(Key(SESSIONS, agent), revision + 1, body, revision or Expect.ABSENT)


def accept_reports(
    agent: str,
    session: Session,
    reports: Sequence[Report],
    contexts: Mapping[str, ReportContext],
    now_ms: int,
    other_trials: Collection[int] = (),
) -> AcceptedReports:
    """Accept reports: convert them into messages and rows, and move the session's offsets.

    `contexts` has the allocations that belong to the agent; lines of others are acknowledged and
    dropped, but for the checkpoints that they announce for `other_trials`, which exist: a run that
    went on after its trial was given to another agent left files, which are removed by this row.
    Lines at or before an acknowledged offset were accepted before.

    Raises CommandRefused: invalid, for an allocation with too many writers.
    """
    if not reports:
        # Nearly every call of an agent has none.
        return AcceptedReports(session, [], (), ())
    acked = {allocation: dict(writers) for allocation, writers in session.acked.items()}
    mail: dict[str, list[EncodedMessage]] = {}
    streams: dict[tuple[int, Stream], list[MetricReport]] = {}
    stored_lines: dict[Key, Write] = {}
    exited = session.exited
    for report in reports:
        allocation = f"{report.trial_id}.{report.epoch}"
        if not _acknowledge_line(report, acked.setdefault(allocation, {})):
            continue
        kind = report.line.get("kind")
        if report.writer == "agent" and kind == "exited":
            exited = (*exited, allocation)
        is_ours = allocation in contexts
        if put := _stored_line_write(report, is_ours=is_ours, other_trials=other_trials):
            stored_lines[put.key] = put
        if not is_ours:
            continue
        message = to_message(report, contexts[allocation])
        if message is not None:
            to = addresses.trial(report.trial_id)
            mail.setdefault(allocation, []).append(encode_message_for(to, message))
        if kind in ("metrics", RANK_METRICS_KIND):
            _add_metric_report(report, streams)
    writes = list(stored_lines.values())
    rows = dict(session.rows)
    for (trial_id, stream), metric_reports in streams.items():
        written = list(segment_writes(trial_id, stream, metric_reports))
        allocation = f"{trial_id}.{stream.epoch}"
        rows[allocation] = rows.get(allocation, 0) + len(written)
        writes += written
    rows, to_merge = _take_allocations_to_merge(rows, exited[len(session.exited) :])
    session = replace(session, acked=acked, exited=exited, rows=rows)
    session, mailed = _mail_messages(agent, session, mail, now_ms)
    receivers = tuple(dict.fromkeys(put.key.partition for put in mailed))
    return AcceptedReports(session, [*writes, *mailed], receivers, to_merge)


def accept_logs(session: Session, chunks: Sequence[LogChunk]) -> tuple[Session, list[LogChunk]]:
    """Accept log chunks; returns the session after them, and the new part of each chunk."""
    if not chunks:
        return session, []
    logs = dict(session.logs)
    fresh: list[LogChunk] = []
    for chunk in chunks:
        accepted = logs.get(chunk.allocation, 0)
        end = chunk.offset + len(chunk.text)
        if chunk.offset <= accepted < end:
            text = chunk.text[accepted - chunk.offset :]
            fresh.append(LogChunk(chunk.allocation, accepted, text, chunk.marks))
            logs[chunk.allocation] = end
    return replace(session, logs=logs), fresh


def forget_allocations(session: Session, known: Iterable[str]) -> Session:
    """Drop from the session all allocations but the `known` ones, which the agent still has."""
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


def _mail_messages(
    agent: str, session: Session, mail: Mapping[str, list[EncodedMessage]], now_ms: int
) -> tuple[Session, list[Put]]:
    clock, writes, sent = session.clock, list[Put](), dict(session.sent)
    sender = addresses.agent(agent)
    for allocation, messages in mail.items():
        clock = mailbox.next_clock(clock, now_ms)
        to = addresses.trial(int(allocation.partition(".")[0]))
        key = mailbox.mail_key(to, clock, sender)
        previous = sent.get(allocation, mailbox.FIRST)
        due_ms = now_ms + mailbox.RECOVERY_DELAY_MS
        writes.append(mailbox.mail_write(key, sender, previous, clock, messages, due_ms))
        sent[allocation] = key.sort
    return replace(session, clock=clock, sent=sent), writes


def _add_metric_report(
    report: Report, streams: dict[tuple[int, Stream], list[MetricReport]]
) -> None:
    """Add a line of metrics to the reports of its stream, unless it is malformed."""
    rank = None
    if report.line.get("kind") == RANK_METRICS_KIND:
        if not RANK.fullmatch(report.writer):
            return
        rank = int(report.writer)
    group, line = report.line.get("group"), parse_report(report.offset, report.line)
    if line is not None and isinstance(group, str) and is_group_name(group):
        stream = Stream(group, report.epoch, report.writer, rank)
        streams.setdefault((report.trial_id, stream), []).append(line)


def _take_allocations_to_merge(
    rows: dict[str, int], exited: Iterable[str]
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Remove the allocations with so many rows that they are to be merged from the counts; returns
    the other counts and these allocations, which the caller merges after its commit.
    """
    ended = set(exited)
    to_merge = tuple(
        name
        for name, n in rows.items()
        if n >= (MERGE_FROM_ROWS_AT_EXIT if name in ended else MERGE_FROM_ROWS)
    )
    return {name: n for name, n in rows.items() if name not in to_merge}, to_merge


def _acknowledge_line(report: Report, writers: dict[str, int]) -> bool:
    """Acknowledge a line; False if it was acknowledged before. Raises CommandRefused if the
    allocation has too many writers.
    """
    if report.offset <= writers.get(report.writer, 0):
        return False
    known = report.writer in writers or report.writer == "agent"
    if not known and len(writers) >= WRITERS_MAX:
        text = f"allocation {report.trial_id}.{report.epoch} has more than {WRITERS_MAX} writers"
        raise CommandRefused("invalid", text)
    writers[report.writer] = report.offset
    return True


def _stored_line_write(
    report: Report, *, is_ours: bool, other_trials: Collection[int]
) -> Put | None:
    """The write of a line that is stored in a row of its own: the writer's environment and the
    trial's metadata, of which the last one counts, and a checkpoint's announcement, by which its
    files are found. None for any other line.
    """
    checkpoint_uuid = announced_checkpoint(report.line)
    if is_ours and report.line.get("kind") == "environment":
        sort, fields = f"{ENVIRONMENT}{report.epoch:08d}#{report.writer}", report.line
    elif is_ours and (metadata := trial_metadata(report.line)) is not None:
        sort, fields = TRIAL_METADATA, metadata
    elif checkpoint_uuid is not None and (is_ours or report.trial_id in other_trials):
        sort = f"{INTENTS}{report.epoch:08d}#{report.writer}#{report.offset:014d}"
        fields = {"uuid": checkpoint_uuid}
    else:
        return None
    return Put(Key(addresses.trial(report.trial_id), sort), 1, to_json(fields), Expect.ANYTHING)


def read_metadata_of(table: StateTable, trial_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Read the metadata of trials in their order: what their code has set, as users edited it."""
    sorts = (TRIAL_METADATA, METADATA_EDITS)
    keys = [Key(addresses.trial(trial_id), sort) for trial_id in trial_ids for sort in sorts]
    rows = [
        row
        for start in range(0, len(keys), GET_MAX)
        for row in table.get_many(keys[start : start + GET_MAX])
    ]
    return [
        decode_edit(edit.body if edit else None).merge_edit(
            {} if own is None else parse_json(own.body)
        )
        for own, edit in zip(rows[::2], rows[1::2], strict=True)
    ]


def read_trial_metadata(table: StateTable, trial_id: int) -> dict[str, Any]:
    """Read the metadata of a trial; empty where neither its code nor a user has set any."""
    return read_metadata_of(table, (trial_id,))[0]
