"""The session of an agent: the accepted offsets of the agent's reports and logs.

A session is stored in the commit that accepts the reports. Each report counts once, because the
writer's offset advances in the transaction that mails the messages. So repeated calls, lost answers
and restarted agents have no further effect.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pydantic_core import to_json

from control_plane.actors import addresses
from control_plane.actors.agent.actor import SESSIONS
from control_plane.actors.content_revision import content_revision
from control_plane.actors.metadata_edits import METADATA_EDITS, decode_edit
from control_plane.actors.step import CommandRefused
from control_plane.adapters import RecordCodec
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
from control_plane.json_gate import readable
from control_plane.metrics.columns import MetricReport, parse_report
from control_plane.rows import agent_rows, trial_rows
from control_plane.state.table import GET_MAX, Expect, Key, Put, Row, StateTable, Write

ENVIRONMENT = trial_rows.ENVIRONMENT.sort
"""The prefix of rows with the environment of a writer, in a trial's partition."""
TRIAL_METADATA = trial_rows.TRIAL_METADATA.sort
"""The row with the metadata that a trial's code reported."""
INTENTS = trial_rows.ANNOUNCEMENT.sort
"""The prefix of rows that announce the upload of a checkpoint."""
LOGS = trial_rows.LOG_CHUNK.sort
"""The prefix of index rows of log chunks."""
RANK_METRICS_KIND = "rank_metrics"
"""The kind of lines with metrics of a process other than the chief. Its writer is its rank."""
RANK = re.compile(r"[0-9]{1,5}")
"""A writer that is a rank."""
MERGE_FROM_ROWS = 48
"""The number of new rows of metrics from which an allocation's rows are merged."""
MERGE_FROM_ROWS_AT_EXIT = 16
"""The same for an allocation that has just exited."""
WRITERS_MAX = 256
"""The writers (ranks) of an allocation on one node, without the agent. Bounds the session's row."""


@dataclass(frozen=True, slots=True)
class Session:
    """An agent's session, as stored. Its mappings have names of allocations (`TRIAL.EPOCH`) as
    keys.
    """

    epoch: int = 0
    """The number of the session. Each enrolment of the agent increases the number. Calls with an
    older number are refused.
    """
    clock: int = 0
    """The hybrid clock of the last mail that the session sent."""
    call: int = 0
    """The number of the last call that changed the session."""
    acked: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """For each allocation, the bytes accepted of each writer's reports."""
    logs: Mapping[str, int] = field(default_factory=dict)
    """The bytes accepted of each allocation's log."""
    exited: tuple[str, ...] = ()
    """The allocations whose exit was accepted."""
    sent: Mapping[str, str] = field(default_factory=dict)
    """The sort key of the last mail to the trial of each allocation."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """The rows of metrics written for each allocation since the last merge."""


class AcceptedReports(NamedTuple):
    """The outcome of accepting reports."""

    session: Session
    """The session with the new offsets."""
    writes: list[Write]
    """The writes to commit together with the session."""
    receivers: tuple[str, ...]
    """The addresses of the trials that get mail."""
    allocations_to_merge: tuple[str, ...]
    """The allocations whose rows of metrics the caller merges after the commit."""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Consecutive bytes of an allocation's log from a single node."""

    allocation: str
    """The name of the allocation, `TRIAL.EPOCH`."""
    offset: int
    """The offset of the first byte in the node's log."""
    text: bytes
    """The bytes, which may begin or end within a line or a character."""
    marks: tuple[tuple[int, int], ...] = ()
    """Offsets, each with the time (epoch ms) at which the bytes from there on were first seen.
    Empty from agents that send no times.
    """
    node_rank: int = 0
    """The rank of the node among the allocation's nodes."""
    nodes: int = 1
    """The number of nodes of the allocation."""


_SESSION = RecordCodec(agent_rows.SESSION, Session)


def decode_session(row: Row | None) -> Session:
    """Decode a stored session. Return an empty session of epoch 0 without a row.

    Raises ValueError for an invalid body.
    """
    return Session() if row is None else _SESSION.decode(row.body)


def session_write(agent: str, session: Session, row: Row | None) -> Put:
    """Return the write of a session, conditional on the revision of the `row` that was read.

    Without a row, the write expects that the agent still has no session row. Fields of newer
    releases in `row` are kept.
    """
    revision = row.revision if row else 0
    body = _SESSION.encode(session, row.body if row else None)
    return Put(Key(SESSIONS, agent), revision + 1, body, revision or Expect.ABSENT)


def accept_reports(
    agent: str,
    session: Session,
    reports: Sequence[Report],
    contexts: Mapping[str, ReportContext],
    now_ms: int,
    other_trials: Collection[int] = (),
) -> AcceptedReports:
    """Convert reports into messages and rows, and advance the session's offsets. Nothing is written
    yet.

    Lines up to an acknowledged offset were accepted by an earlier call and are skipped. Malformed
    lines are acknowledged and have no effect, but a malformed `exited` line of the agent counts as
    an exit. Lines of allocations without a context are acknowledged and discarded, except that an
    exit is recorded in the session. An announcement of a checkpoint for `other_trials` also becomes
    a row, by which the garbage collector finds the files of a run whose trial moved to another
    agent.

    The caller commits the writes, advances the receivers and merges rows of metrics. Without
    reports, the result has the same session and no writes.

    Args:
        agent: the agent's id, as sender of the mail.
        session: the session before the call.
        reports: lines of the agent's allocations, in the order of each writer's file.
        contexts: the contexts of the reporting allocations that are assigned to the agent.
        now_ms: the present time in epoch ms, for the mail.
        other_trials: ids of existing trials that other allocations announce checkpoints for.

    Raises:
        CommandRefused: "invalid" if too many processes of an allocation report.
    """
    if not reports:
        # Nearly all calls of an agent contain no reports.
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
        is_assigned = allocation in contexts
        if put := _stored_line_write(report, is_assigned=is_assigned, other_trials=other_trials):
            stored_lines[put.key] = put
        if not is_assigned:
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
    """Accept log chunks and advance the session's log offsets. Nothing is written yet.

    Return the new session, and of each chunk the bytes that no earlier call accepted. A chunk that
    leaves a gap after the accepted bytes, and a chunk without new bytes, are left out. The returned
    chunks name neither node rank nor number of nodes. Without chunks, return the same session and
    [].
    """
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
    """Return the session without the records of allocations that are not in `known`.

    The records are acknowledged offsets, log offsets, exits, mail and counts of metric rows. Return
    the same session if it has no records of other allocations.
    """
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
    """Return the session after mailing messages to trials, and the write of each allocation's mail.

    The session remembers the last mail of each allocation, which the next mail names. The session's
    clock advances. Nothing is written yet.

    Args:
        agent: the sender's id.
        session: the session before.
        mail: the messages of each allocation.
        now_ms: the present time in epoch ms.
    """
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
    """Add a line of metrics to the reports of the matching stream.

    Do nothing for a malformed line, an invalid group name, or a `rank_metrics` line whose writer is
    not a rank.

    Args:
        report: the line.
        streams: the reports by trial and stream, changed in place.
    """
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
    """Split the counts of new rows of metrics by whether the allocation's rows must be merged.

    Return the counts that stay below the limit, and the names of the allocations to merge.

    Args:
        rows: the number of new rows of metrics, by allocation.
        exited: the allocations that have just exited, which have a lower limit.
    """
    ended = set(exited)
    to_merge = tuple(
        name
        for name, n in rows.items()
        if n >= (MERGE_FROM_ROWS_AT_EXIT if name in ended else MERGE_FROM_ROWS)
    )
    return {name: n for name, n in rows.items() if name not in to_merge}, to_merge


def _acknowledge_line(report: Report, writers: dict[str, int]) -> bool:
    """Set the writer's offset in `writers` to the end of the reported line, and return True.

    Return False, without a change, if the offset is not above the stored offset. Raises
    CommandRefused ("invalid") if a new writer would exceed WRITERS_MAX. The writer `agent` is
    always accepted.

    Args:
        report: the line.
        writers: the acknowledged offset of each writer of the allocation, changed in place.
    """
    if report.offset <= writers.get(report.writer, 0):
        return False
    is_known = report.writer in writers or report.writer == "agent"
    if not is_known and len(writers) >= WRITERS_MAX:
        text = f"allocation {report.trial_id}.{report.epoch} has more than {WRITERS_MAX} writers"
        raise CommandRefused("invalid", text)
    writers[report.writer] = report.offset
    return True


def _stored_line_write(
    report: Report, *, is_assigned: bool, other_trials: Collection[int]
) -> Put | None:
    """Return the write of a line that is stored in a separate row. Return None for other lines.

    - A writer's environment and a trial's metadata, if `is_assigned`: the last line replaces
      earlier lines.
    - The announcement of a checkpoint, if `is_assigned` or for `other_trials`: the row lets the
      garbage collector find the files.
    """
    checkpoint_uuid = announced_checkpoint(report.line)
    if is_assigned and report.line.get("kind") == "environment":
        sort, fields = f"{ENVIRONMENT}{report.epoch:08d}#{report.writer}", report.line
    elif is_assigned and (metadata := trial_metadata(report.line)) is not None:
        sort, fields = TRIAL_METADATA, metadata
    elif checkpoint_uuid is not None and (is_assigned or report.trial_id in other_trials):
        sort = f"{INTENTS}{report.epoch:08d}#{report.writer}#{report.offset:014d}"
        fields = {"uuid": checkpoint_uuid}
    else:
        return None
    return Put(Key(addresses.trial(report.trial_id), sort), 1, to_json(fields), Expect.ANYTHING)


def read_metadata_of(table: StateTable, trial_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Read the metadata of trials, in the order of the ids. Users' edits replace the code's values.

    A trial without metadata has {}. Values that are not valid JSON are replaced, because an agent's
    call with such a value would fail: containers below 64 levels by null, bad characters by U+FFFD,
    and numbers that are not finite or too large by texts such as `NaN`. Raises TableError, and
    ValueError if a stored row is not valid.
    """
    return [readable(metadata)[0] for metadata in read_stored_metadata(table, trial_ids)]


def read_stored_metadata(table: StateTable, trial_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Read the stored metadata of trials, in the order of the ids.

    Users' edits replace the code's values. A trial without metadata has {}. Values that are not
    valid JSON stay unchanged. Raises TableError, and ValueError if a row is not valid.
    """
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


def read_trial_metadata(table: StateTable, trial_id: int) -> tuple[dict[str, Any], str, str]:
    """Read a trial's reported metadata, with the users' edits merged in; {} without any.

    Return three values. Raises TableError.

    - The metadata, for an answer.
    - A description of values that were replaced because they are not valid JSON; "" without any.
    - The content revision of the metadata before the replacement: 16 hexadecimal digits.
    """
    (stored,) = read_stored_metadata(table, (trial_id,))
    return *readable(stored), content_revision(stored)
