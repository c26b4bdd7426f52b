from hashlib import sha256

import pytest

from control_plane.actors.messages.pool import PoolConfigured, SlotsRequested
from control_plane.actors.messages.trial import ExperimentStatusChanged
from control_plane.actors.pool.actor import PoolState
from control_plane.actors.records import Status
from control_plane.actors.step import ObservedRow, StepContext
from control_plane.engine.actor_types import EncodedMessage, encode_message_for, parse_json
from control_plane.engine.commits import Commit, Origin, build_commit, build_drain_commit
from control_plane.engine.fold import FOLD_OPERATIONS_MAX, ActorSnapshot, Fold, step_of
from control_plane.engine.head import HEAD, Header, Spill, decode_head
from control_plane.engine.mailbox import (
    FIRST,
    RECOVERY_DELAY_MS,
    MailboxRow,
    mail_key,
    mail_write,
    read_mail,
)
from control_plane.engine.spilled_outbox import DRAINED_RECEIVERS_MAX, decode_spill
from control_plane.evolve import evolve
from control_plane.state.table import (
    OPERATIONS_MAX,
    Check,
    Delete,
    Expect,
    Key,
    Put,
    Row,
    Write,
    check_limits,
)

POOL = "pool#a"
NOW_MS = 1_700_000_000_000


class EmptyReader:
    """A reader for an actor without parts and without rows outside the actor."""

    def part(self, name: str) -> object | None:
        return None

    def row(self, partition: str, sort: str) -> ObservedRow:
        return ObservedRow(0, b"")


def step_context() -> StepContext:
    return StepContext(POOL, NOW_MS, EmptyReader())


def snapshot_before(revision: int = 4, header: Header | None = None) -> ActorSnapshot:
    return ActorSnapshot(POOL, revision, header or Header(), PoolState("a") if revision else None)


def a_mail(clock: int) -> MailboxRow:
    key = mail_key(POOL, clock, "trial#1")
    encoded = [encode_message_for(POOL, SlotsRequested(1, 1, 1, "1"))]
    put = mail_write(key, "trial#1", FIRST, clock, encoded, NOW_MS)
    return read_mail(Row(put.key, put.revision, put.body, put.due_ms))


def sent_messages(count: int) -> dict[str, list[EncodedMessage]]:
    paused = ExperimentStatusChanged(Status.PAUSED)
    return {f"trial#{n}": [encode_message_for(f"trial#{n}", paused)] for n in range(count)}


def writes_by_sort(commit: Commit) -> dict[str, Write]:
    return {write.key.sort: write for write in commit.writes}


def test_commit_expects_the_head_revision_that_was_read() -> None:
    head = writes_by_sort(build_commit(snapshot_before(4), Fold(PoolState("a")), NOW_MS))[HEAD]
    assert isinstance(head, Put)
    assert (head.revision, head.expect) == (5, 4)


def test_new_actor_expects_no_head() -> None:
    commit = build_commit(snapshot_before(0), Fold(PoolState("a")), NOW_MS)
    head = writes_by_sort(commit)[HEAD]
    assert isinstance(head, Put)
    assert (head.revision, head.expect) == (1, Expect.ABSENT)
    assert commit.snapshot.revision == 1


def test_mail_to_missing_actor_is_deleted_and_journaled() -> None:
    mail = a_mail(7)
    commit = build_commit(snapshot_before(0), Fold(None, consumed=[mail]), NOW_MS)
    assert writes_by_sort(commit)[HEAD] == Check(Key(POOL, HEAD), Expect.ABSENT)
    assert mail.removal(NOW_MS) in commit.writes
    assert f"Z#dropped#{mail.key.sort}" in writes_by_sort(commit)
    assert len(commit.writes) == 3
    assert commit.receivers == ()


def test_journal_entry_contains_mail_and_command() -> None:
    fold = Fold(PoolState("a"), consumed=[a_mail(7)])
    origin = Origin((encode_message_for(POOL, PoolConfigured("a")),), user="ana")
    journal = writes_by_sort(build_commit(snapshot_before(4), fold, NOW_MS, origin))[
        "Z#000000000005"
    ]
    assert isinstance(journal, Put)
    entry = parse_json(journal.body)
    assert (entry["v"], entry["now"], entry["by"]) == (2, NOW_MS, "ana")
    assert [name for mail in entry["in"] for name, _ in mail["messages"]] == ["SlotsRequested"]
    assert entry["command"] == [["PoolConfigured", {"name": "a"}]]


def test_journal_entry_has_digests_of_changed_outputs_only() -> None:
    context = step_context()
    context.send("trial#1", ExperimentStatusChanged(Status.PAUSED))
    context.write_part("queue", None)
    context.write_row("counters", "trial", b"1", expected=ObservedRow(3, b"0"))
    context.add_reason("it was asked to")
    fold = Fold(PoolState("a"))
    fold.add_step(step_of(evolve(PoolState("a"), queued=2), step_context()))
    fold.add_step(step_of(evolve(PoolState("a"), queued=3), context))
    entry = parse_json(_entry(build_commit(snapshot_before(4), fold, NOW_MS)))
    # The first 8 hexadecimal digits of the SHA-256 of `3`.
    assert entry["out"]["queued"] == sha256(b"3").hexdigest()[:8]
    assert set(entry["out"]) == {"queued", "P:queue", "R:counters/trial", "M:trial#1"}
    assert entry["why"] == [[1, "it was asked to"]]
    assert entry["read"] == {"counters/trial": [3, "0"]}


def test_journal_entry_of_new_actor_omits_defaults() -> None:
    entry = parse_json(
        _entry(build_commit(snapshot_before(0), Fold(PoolState("a", agents=1)), NOW_MS))
    )
    assert set(entry["out"]) == {"name", "agents"}


def test_messages_to_60_receivers_have_a_single_digest() -> None:
    entry = parse_json(
        _entry(
            build_commit(snapshot_before(), Fold(PoolState("a"), sends=sent_messages(60)), NOW_MS)
        )
    )
    assert set(entry["out"]) == {"M:*"}


def test_journal_entry_records_rows_that_were_only_read() -> None:
    fold = Fold(PoolState("a"), rows_read={Key("pins", "u"): ObservedRow(2, b"{}")})
    entry = parse_json(_entry(build_commit(snapshot_before(), fold, NOW_MS)))
    assert entry["read"] == {"pins/u": [2, "{}"]}


def _entry(commit: Commit) -> bytes:
    [put] = [w for w in commit.writes if isinstance(w, Put) and w.key.sort.startswith("Z#")]
    return put.body


def test_messages_to_the_same_receiver_share_a_due_row() -> None:
    context = step_context()
    for _ in range(3):
        context.send("trial#1", ExperimentStatusChanged(Status.PAUSED))
    context.send("trial#2", ExperimentStatusChanged(Status.PAUSED))
    fold = Fold(PoolState("a"))
    fold.add_step(step_of(PoolState("a"), context))
    commit = build_commit(snapshot_before(), fold, NOW_MS)
    mailed = [w for w in commit.writes if isinstance(w, Put) and w.key.sort.startswith("M#")]
    assert [put.key.partition for put in mailed] == ["trial#1", "trial#2"]
    assert len(parse_json(mailed[0].body)["messages"]) == 3
    assert {put.due_ms for put in mailed} == {NOW_MS + RECOVERY_DELAY_MS}
    assert commit.receivers == ("trial#1", "trial#2")


def test_sent_mail_is_later_than_consumed_mail_if_the_clock_is_behind() -> None:
    ahead = (NOW_MS + 60_000) << 12
    fold = Fold(PoolState("a"), consumed=[a_mail(ahead)], sends=sent_messages(1))
    commit = build_commit(snapshot_before(), fold, NOW_MS)
    assert commit.snapshot.header.clock == ahead + 1
    assert mail_key("trial#0", ahead + 1, POOL) in {write.key for write in commit.writes}


def test_outside_row_keeps_the_first_guard_and_last_body() -> None:
    fold = Fold(PoolState("a"))
    for body, guard in ((b"1", ObservedRow(3, b"0")), (b"2", ObservedRow(99, b"1"))):
        context = step_context()
        context.write_row("counters", "trial", body, expected=guard)
        fold.add_step(step_of(fold.state, context))
    puts = [
        w
        for w in build_commit(snapshot_before(), fold, NOW_MS).writes
        if w.key.partition == "counters"
    ]
    assert puts == [Put(Key("counters", "trial"), 4, b"2", 3)]


@pytest.mark.parametrize(
    ("guard", "expect", "revision"), [(ObservedRow(0, b""), Expect.ABSENT, 1), (None, None, 5)]
)
def test_outside_row_condition_follows_from_the_guard(
    guard: ObservedRow | None, expect: Expect | None, revision: int
) -> None:
    fold, context = Fold(PoolState("a")), step_context()
    context.write_row("counters", "trial", b"1", expected=guard)
    fold.add_step(step_of(fold.state, context))
    put = next(
        w for w in build_commit(snapshot_before(), fold, NOW_MS).writes if w.key.sort == "trial"
    )
    assert put == Put(Key("counters", "trial"), revision, b"1", expect or Expect.ANYTHING)


@pytest.mark.parametrize(
    ("guard", "expect"),
    [(ObservedRow(3, b"1"), 3), (ObservedRow(0, b""), Expect.ABSENT), (None, None)],
)
def test_deleted_outside_row_is_guarded(
    guard: ObservedRow | None, expect: Expect | int | None
) -> None:
    fold, context = Fold(PoolState("a")), step_context()
    context.write_row("pins", "u", None, expected=guard)
    fold.add_step(step_of(fold.state, context))
    writes = [w for w in build_commit(snapshot_before(), fold, NOW_MS).writes if w.key.sort == "u"]
    assert writes == [Delete(Key("pins", "u"), expect or Expect.ANYTHING)]


def test_outside_row_deleted_and_written_in_a_fold_is_written() -> None:
    fold = Fold(PoolState("a"))
    for body in (None, b"2"):
        context = step_context()
        context.write_row("collections", "1", body)
        fold.add_step(step_of(fold.state, context))
    puts = [
        w
        for w in build_commit(snapshot_before(), fold, NOW_MS).writes
        if w.key.partition == "collections"
    ]
    assert puts == [Put(Key("collections", "1"), 5, b"2", Expect.ANYTHING)]


@pytest.mark.parametrize(
    ("before", "after"),
    [(PoolState("a"), PoolState("a")), (None, PoolState("a")), (PoolState("a"), None)],
)
@pytest.mark.parametrize("consumed", [0, 3])
def test_has_room_predicts_the_operations_after_add_step(
    before: PoolState | None, after: PoolState | None, consumed: int
) -> None:
    """A row that is written again needs no further operation.

    A fold without a state deletes and journals each row of mail.
    """
    for filled in range(FOLD_OPERATIONS_MAX):
        fold = Fold(before, sends=sent_messages(filled), parts={"queue": b""})
        for number in range(consumed):
            fold.consume(a_mail(number))
        context = step_context()
        for to in ("trial#0", "trial#999"):
            context.send(to, ExperimentStatusChanged(Status.ACTIVE))
        for part in ("queue", "requests"):
            context.write_part(part, b"x")
        context.write_row("counters", "trial", b"1")
        context.set_timer(NOW_MS, PoolConfigured("a"))
        step = step_of(after, context)
        has_room = fold.has_room(step, mail_bytes=100)
        fold.add_step(step)
        # The row of mail with this message is an operation as well.
        assert has_room == (fold.operation_count() + 1 <= FOLD_OPERATIONS_MAX)


def test_removed_part_is_deleted() -> None:
    fold = Fold(PoolState("a"), parts={"queue/3": None})
    assert (
        Delete(Key(POOL, "P#queue/3"), Expect.ANYTHING)
        in build_commit(snapshot_before(), fold, 0).writes
    )


# The head and the journal are 2 of the 100 operations.
@pytest.mark.parametrize(
    ("receivers", "extra_writes", "spills"),
    [(98, 0, False), (99, 0, True), (97, 1, False), (98, 1, True)],
)
def test_outbox_is_spilled_if_the_commit_is_full(
    receivers: int, extra_writes: int, spills: bool
) -> None:
    fold = Fold(PoolState("a"), sends=sent_messages(receivers))
    commit = build_commit(snapshot_before(), fold, NOW_MS, extra_write_count=extra_writes)
    assert (commit.snapshot.header.spill is not None) == spills
    assert len(commit.writes) + extra_writes <= OPERATIONS_MAX
    assert commit.receivers == (() if spills else tuple(sent_messages(receivers)))


def test_spilled_outbox_is_due_for_recovery() -> None:
    commit = build_commit(snapshot_before(), Fold(PoolState("a"), sends=sent_messages(200)), NOW_MS)
    part = writes_by_sort(commit)["P#outbox/000000"]
    assert isinstance(part, Put)
    assert part.due_ms == NOW_MS + RECOVERY_DELAY_MS


@pytest.mark.parametrize("receivers", [99, 180, 181, 100_000])
def test_spilled_outbox_is_sent_once_in_order(receivers: int) -> None:
    outbox = sent_messages(receivers)
    commit = build_commit(snapshot_before(), Fold(PoolState("a"), sends=dict(outbox)), NOW_MS)
    check_limits(commit.writes)
    stored = {
        w.key.sort: decode_spill(w.body)
        for w in commit.writes
        if isinstance(w, Put) and w.key.sort.startswith("P#outbox/")
    }
    actor, sent, commits = commit.snapshot, list[str](), 0
    while (spill := actor.header.spill) is not None:
        kept = stored[f"P#outbox/{spill.first:06d}"]
        end = spill.offset + DRAINED_RECEIVERS_MAX
        entries = [(to, outbox[to]) for to, _ in kept[spill.offset : end]]
        drained = build_drain_commit(actor, entries, end < len(kept), NOW_MS)
        check_limits(drained.writes)
        deleted = [w.key.sort for w in drained.writes if isinstance(w, Delete)]
        assert deleted == ([] if end < len(kept) else [f"P#outbox/{spill.first:06d}"])
        actor, commits = drained.snapshot, commits + 1
        sent += drained.receivers
    assert sent == list(outbox)
    # The last commit of each part may have fewer receivers.
    assert (
        -(-receivers // DRAINED_RECEIVERS_MAX)
        <= commits
        <= -(-receivers // DRAINED_RECEIVERS_MAX) + len(stored)
    )


def test_draining_advances_through_all_parts() -> None:
    first = snapshot_before(header=Header(spill=Spill(0, 1)))
    inside = build_drain_commit(first, [("trial#1", sent_messages(2)["trial#1"])], True, NOW_MS)
    assert inside.snapshot.header.spill == Spill(0, 1, 1)
    second = build_drain_commit(first, [("trial#1", sent_messages(2)["trial#1"])], False, NOW_MS)
    assert second.snapshot.header.spill == Spill(1, 1)
    last = build_drain_commit(
        second.snapshot, [("trial#0", sent_messages(2)["trial#0"])], False, NOW_MS
    )
    assert last.snapshot.header.spill is None
    head = writes_by_sort(last)[HEAD]
    assert isinstance(head, Put)
    assert decode_head(head.body)[0] == last.snapshot.header


def test_fold_limit_leaves_room_for_finish_fold() -> None:
    fold = Fold(PoolState("a"), consumed=[a_mail(n) for n in range(10)], sends=sent_messages(20))
    assert fold.operation_count() == 32
    assert fold.operation_count() < FOLD_OPERATIONS_MAX < OPERATIONS_MAX


def test_dropped_mail_needs_two_operations_per_row() -> None:
    fold = Fold(None, consumed=[a_mail(n) for n in range(29)])
    assert fold.operation_count() == 60
    check_limits(build_commit(snapshot_before(0), fold, NOW_MS).writes)
