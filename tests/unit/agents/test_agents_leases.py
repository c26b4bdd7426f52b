"""Leases: marking of silent agents as lost, and outages of the server."""

import json
from pathlib import Path

import pytest

from control_plane.actors.agent.actor import leases_partition
from control_plane.actors.messages.pool import AgentLost
from control_plane.actors.step import CommandRefused
from control_plane.agents.leases import (
    LEASE_MS,
    LOSS_DETECTION_SORT,
    OUTAGE_MS_MAX,
    PASS_INTERVAL_MS,
    RENEW_AFTER_MS,
    Lease,
    LossDetection,
    Marking,
    decide_marking,
    mark_lost_agents,
    renew_lease,
)
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.mailbox import read_mail
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Page, Put, StateTable
from simulator.faults.table_faults import TableDecorator

NOW_MS = 1_000_000
# Two passes and a half.
PASS_GAP_MS_MAX = PASS_INTERVAL_MS * 5 // 2
STEADY = LossDetection(passed_ms=NOW_MS - 1_000)
LAPSED = Lease(1, NOW_MS - LEASE_MS - 1)
FRESH = Lease(1, NOW_MS - LEASE_MS)
LEASES = leases_partition("default")


def pool(lapsed: int, fresh: int) -> dict[str, Lease]:
    return {f"lapsed-{n}": LAPSED for n in range(lapsed)} | {
        f"fresh-{n}": FRESH for n in range(fresh)
    }


def pausing_marking(*, for_lapses: bool = False) -> Marking:
    return Marking(LossDetection(NOW_MS, NOW_MS + LEASE_MS, for_lapses))


def test_agent_is_lost_after_a_lapsed_lease() -> None:
    # 1 of 3: a third and not more.
    assert decide_marking(pool(1, 2), STEADY, NOW_MS) == Marking(
        LossDetection(NOW_MS), ("lapsed-0",)
    )


def test_agent_is_alive_at_the_end_of_the_lease() -> None:
    assert decide_marking({"a": FRESH}, STEADY, NOW_MS) == Marking(LossDetection(NOW_MS))


@pytest.mark.parametrize(
    ("lapsed", "fresh", "marks"),
    [(1, 2, True), (2, 4, True), (3, 6, True), (1, 1, False), (2, 3, False), (4, 7, False)],
)
def test_more_than_a_third_lapsing_together_pauses_marking(
    lapsed: int, fresh: int, marks: bool
) -> None:
    # 2 of 5 is 0.4, 4 of 11 is 0.36; 2 of 6 is a third.
    marking = decide_marking(pool(lapsed, fresh), STEADY, NOW_MS)
    assert marking == pausing_marking(for_lapses=True) if not marks else len(marking.lost) == lapsed


def test_lost_agent_counts_neither_as_lapsed_nor_as_alive() -> None:
    leases = pool(1, 2) | {"gone": Lease(1, 0, lost=True)}
    assert decide_marking(leases, STEADY, NOW_MS).lost == ("lapsed-0",)
    # 1 lapsed lease of 2 live leases is more than a third. Lost agents do not count.
    many_gone = {f"gone-{n}": Lease(1, 0, lost=True) for n in range(9)}
    marking = decide_marking(pool(1, 1) | many_gone, STEADY, NOW_MS)
    assert marking == pausing_marking(for_lapses=True)


@pytest.mark.parametrize(
    ("gap_ms", "away"), [(PASS_GAP_MS_MAX, False), (PASS_GAP_MS_MAX + 1, True)]
)
def test_gap_between_passes_pauses_marking(gap_ms: int, away: bool) -> None:
    marking = decide_marking(pool(1, 9), LossDetection(NOW_MS - gap_ms), NOW_MS)
    assert marking == (pausing_marking() if away else Marking(LossDetection(NOW_MS), ("lapsed-0",)))


def test_gap_pauses_marking_without_lapsed_leases() -> None:
    # Agents that could not reach the server get a lease length to call again.
    assert (
        decide_marking(pool(0, 3), LossDetection(NOW_MS - PASS_GAP_MS_MAX - 1), NOW_MS)
        == pausing_marking()
    )


def test_gap_is_relative_to_interval_of_passes() -> None:
    # 2.5 x 5 s
    assert decide_marking(pool(1, 9), LossDetection(NOW_MS - 12_500), NOW_MS, 5_000).lost == (
        "lapsed-0",
    )
    assert (
        decide_marking(pool(1, 9), LossDetection(NOW_MS - 12_501), NOW_MS, 5_000)
        == pausing_marking()
    )


def test_clock_set_back_restarts_a_pause() -> None:
    ahead = NOW_MS + PASS_GAP_MS_MAX + 1
    assert decide_marking(pool(0, 3), LossDetection(ahead), NOW_MS) == pausing_marking()
    assert (
        decide_marking(pool(0, 3), LossDetection(ahead, ahead + LEASE_MS), NOW_MS)
        == pausing_marking()
    )
    # A small difference comes from a different machine's clock.
    assert decide_marking(pool(1, 9), LossDetection(NOW_MS + 1_000), NOW_MS).lost == ("lapsed-0",)


def test_lease_from_the_future_lapses() -> None:
    leases = pool(0, 3) | {
        "soon": Lease(1, NOW_MS + LEASE_MS),
        "far": Lease(1, NOW_MS + LEASE_MS + 1),
    }
    assert decide_marking(leases, STEADY, NOW_MS).lost == ("far",)


def test_first_pass_is_no_gap() -> None:
    assert decide_marking(pool(1, 2), LossDetection(), NOW_MS).lost == ("lapsed-0",)


def test_pause_marks_no_agents() -> None:
    for for_lapses in (False, True):
        loss_detection = LossDetection(NOW_MS - 1_000, NOW_MS + 1, for_lapses)
        expected = Marking(LossDetection(NOW_MS, NOW_MS + 1, for_lapses))
        assert decide_marking(pool(1, 9), loss_detection, NOW_MS) == expected


def test_all_silent_agents_are_marked_after_pause() -> None:
    loss_detection = LossDetection(NOW_MS - 1_000, NOW_MS, for_lapses=True)
    assert decide_marking(pool(3, 1), loss_detection, NOW_MS) == Marking(
        LossDetection(NOW_MS), ("lapsed-0", "lapsed-1", "lapsed-2")
    )


def test_leases_lapsing_after_a_gap_cause_a_second_pause() -> None:
    """The agents called after a gap. Then the API was down while passes continued."""
    after_gap = LossDetection(NOW_MS - 1_000, NOW_MS)
    assert decide_marking(pool(2, 0), after_gap, NOW_MS) == pausing_marking(for_lapses=True)
    # 1 lapsed lease of 4 does not look like an outage.
    assert decide_marking(pool(1, 3), after_gap, NOW_MS) == Marking(
        LossDetection(NOW_MS), ("lapsed-0",)
    )


def test_only_agent_of_pool_is_marked_after_one_pause() -> None:
    loss_detection, passes, lost_at = STEADY, 0, None
    while lost_at is None:
        now_ms = NOW_MS + passes * 1_000
        marking = decide_marking({"a": LAPSED}, loss_detection, now_ms)
        loss_detection, passes = marking.loss_detection, passes + 1
        lost_at = now_ms if marking.lost else None
    assert lost_at == NOW_MS + LEASE_MS


def test_agents_that_return_after_an_outage_are_kept() -> None:
    # Away for ten minutes: all leases have lapsed. The agents renew during the pause.
    leases = {name: Lease(1, NOW_MS - 600_000) for name in "abc"}
    marking = decide_marking(leases, LossDetection(NOW_MS - 600_000), NOW_MS)
    assert marking == pausing_marking()
    back = {name: Lease(1, NOW_MS + 5_000) for name in "abc"}
    for second in range(1, 36):
        marking = decide_marking(back, marking.loss_detection, NOW_MS + second * 1_000)
        assert marking.lost == ()


def api_is_down(is_silent: bool) -> bool:
    return True


def api_answers(is_silent: bool) -> bool:
    return False


def test_api_outage_marks_no_agents() -> None:
    # Few leases have lapsed after the beginning of the outage; later all.
    for lapsed, fresh in ((1, 9), (3, 1), (1, 0)):
        marking = decide_marking(pool(lapsed, fresh), STEADY, NOW_MS, is_api_down=api_is_down)
        assert marking == Marking(LossDetection(NOW_MS, NOW_MS + LEASE_MS, True, "down"))


def test_api_is_not_probed_without_lapsed_leases() -> None:
    def fail(is_silent: bool) -> bool:
        raise AssertionError

    assert decide_marking(pool(0, 3), STEADY, NOW_MS, is_api_down=fail) == Marking(
        LossDetection(NOW_MS)
    )


def test_probe_gets_whether_all_live_agents_lapsed() -> None:
    silences: list[bool] = []

    def note(is_silent: bool) -> bool:
        silences.append(is_silent)
        return False

    for fresh in (1, 0):
        decide_marking(pool(2, fresh), STEADY, NOW_MS, is_api_down=note)
    assert silences == [False, True]


def test_only_agent_of_pool_is_lost_if_the_api_answers() -> None:
    loss_detection = STEADY
    lost: list[tuple[str, ...]] = []
    for minute in range(3):
        now_ms = NOW_MS + minute * PASS_INTERVAL_MS
        marking = decide_marking({"a": LAPSED}, loss_detection, now_ms, is_api_down=api_answers)
        loss_detection = marking.loss_detection
        lost.append(marking.lost)
    # The first lapse of all leases may be the server's fault, so only the second pass marks.
    assert lost[:2] == [(), ("a",)]


def test_agents_get_a_full_lease_after_api_outage() -> None:
    leases = pool(3, 0)
    # An hour of passes, a minute apart.
    loss_detection = STEADY
    for minute in range(60):
        now_ms = NOW_MS + minute * PASS_INTERVAL_MS
        marking = decide_marking(leases, loss_detection, now_ms, is_api_down=api_is_down)
        assert marking.lost == ()
        loss_detection = marking.loss_detection
    back_ms = now_ms + PASS_INTERVAL_MS
    # Two of three agents have returned when a pass first finds the API up.
    returned = {**leases, "lapsed-0": Lease(1, back_ms), "lapsed-1": Lease(1, back_ms)}
    marking = decide_marking(returned, loss_detection, back_ms, is_api_down=api_answers)
    assert marking == Marking(LossDetection(back_ms, back_ms + LEASE_MS, True, "over"))
    for after_ms, lost in ((LEASE_MS - 1, ()), (LEASE_MS, ("lapsed-2",))):
        found = decide_marking(
            returned, marking.loss_detection, back_ms + after_ms, is_api_down=api_answers
        )
        assert found.lost == lost


def test_second_api_outage_pauses_again() -> None:
    over = LossDetection(
        NOW_MS - PASS_INTERVAL_MS, NOW_MS - PASS_INTERVAL_MS + LEASE_MS, True, "over"
    )
    marking = decide_marking(pool(3, 0), over, NOW_MS, is_api_down=api_is_down)
    assert (marking.lost, marking.loss_detection.outage) == ((), "down")


def test_agent_silent_for_six_hours_is_lost_during_outage() -> None:
    for more_ms, lost in ((0, ()), (1, ("old",))):
        leases = {"old": Lease(1, NOW_MS - OUTAGE_MS_MAX - more_ms), "b": LAPSED}
        first = decide_marking(leases, STEADY, NOW_MS, is_api_down=api_is_down)
        assert first.lost == ()
        again = decide_marking(leases, first.loss_detection, NOW_MS, is_api_down=api_is_down)
        assert again.lost == lost


def test_clock_ahead_marks_no_agents_during_outage() -> None:
    """The first pass sees a gap. The second alone does not prove a silence of a day."""
    leases, loss_detection = (
        pool(3, 0),
        LossDetection(NOW_MS - PASS_INTERVAL_MS, NOW_MS, True, "down"),
    )
    for clock_ms in (NOW_MS + 86_400_000, NOW_MS + 86_400_000 + PASS_INTERVAL_MS, NOW_MS):
        marking = decide_marking(leases, loss_detection, clock_ms, is_api_down=api_is_down)
        assert marking.lost == ()
        loss_detection = marking.loss_detection


def test_outage_ends_when_all_agents_returned() -> None:
    loss_detection = LossDetection(
        NOW_MS - PASS_INTERVAL_MS, NOW_MS - PASS_INTERVAL_MS + LEASE_MS, True, "down"
    )
    assert decide_marking(pool(0, 3), loss_detection, NOW_MS, is_api_down=api_is_down) == Marking(
        LossDetection(NOW_MS)
    )


@pytest.fixture
def table(tmp_path: Path) -> SqliteTable:
    return SqliteTable(tmp_path / "state.db", synchronous="NORMAL")


def store_lease(table: StateTable, agent: str, lease: Lease) -> None:
    body = json.dumps(
        {"epoch": lease.epoch, "renewed_ms": lease.renewed_ms, "lost": lease.lost}
    ).encode()
    table.commit((Put(Key(LEASES, agent), 1, body, Expect.ABSENT),))


def stored_lease(table: StateTable, agent: str) -> Lease:
    row = table.get(Key(LEASES, agent))
    assert row is not None
    return Lease(**json.loads(row.body))


def renew_first_session(table: StateTable, now_ms: int) -> None:
    """Renew the lease of agent a for session 1."""
    key = Key(LEASES, "a")
    renew_lease(table, key, table.get(key), 1, now_ms)


def test_lease_is_renewed_after_a_third(table: SqliteTable) -> None:
    store_lease(table, "a", Lease(1, NOW_MS))
    renew_first_session(table, NOW_MS + RENEW_AFTER_MS - 1)
    assert stored_lease(table, "a").renewed_ms == NOW_MS
    renew_first_session(table, NOW_MS + RENEW_AFTER_MS)
    assert stored_lease(table, "a").renewed_ms == NOW_MS + RENEW_AFTER_MS


@pytest.mark.parametrize("lease", [None, Lease(2, NOW_MS), Lease(1, NOW_MS, lost=True)])
def test_ended_session_cannot_renew_lease(table: SqliteTable, lease: Lease | None) -> None:
    if lease:
        store_lease(table, "a", lease)
    with pytest.raises(
        CommandRefused, match="the session 1 of agent a has ended; enrol again"
    ) as refused:
        renew_first_session(table, NOW_MS + LEASE_MS)
    assert refused.value.code == "conflict"


def fail_to_advance(addresses: tuple[str, ...]) -> None:
    raise AssertionError(f"there is nothing to follow at {addresses}")


def test_lease_is_marked_and_pool_gets_mail_in_one_commit(table: SqliteTable) -> None:
    store_lease(table, "a", Lease(3, NOW_MS - 45_000))
    store_lease(table, "b", Lease(1, NOW_MS))
    store_lease(table, "c", Lease(1, NOW_MS))
    followed: list[tuple[str, ...]] = []
    assert mark_lost_agents(table, "default", NOW_MS, followed.append).lost == ("a",)
    assert followed == [("pool#default",)]
    assert stored_lease(table, "a") == Lease(3, NOW_MS - 45_000, lost=True)
    (row,) = table.query("pool#default", "M#", "N").rows
    ((name, fields),) = read_mail(row).messages
    assert actor_type_at("pool#default").decode_message(name, fields) == AgentLost(
        "a", 3, "it has not been heard of for 45 s", NOW_MS - 45_000
    )


def test_agent_is_marked_once(table: SqliteTable) -> None:
    for name, renewed_ms in (("a", NOW_MS - 45_000), ("b", NOW_MS), ("c", NOW_MS)):
        store_lease(table, name, Lease(1, renewed_ms))
    mark_lost_agents(table, "default", NOW_MS, lambda addresses: None)
    assert mark_lost_agents(table, "default", NOW_MS + 1_000, fail_to_advance).lost == ()


class RenewingTable(TableDecorator):
    """A table on which agent a renews the lease right after the leases were read."""

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        page = super().query(partition, first, last, limit=limit, descending=descending)
        renew_first_session(self.table, NOW_MS)
        return page


def test_renewal_during_pass_prevents_marking(table: SqliteTable) -> None:
    store_lease(table, "a", Lease(1, NOW_MS - 45_000))
    store_lease(table, "b", Lease(1, NOW_MS))
    store_lease(table, "c", Lease(1, NOW_MS))
    assert mark_lost_agents(RenewingTable(table), "default", NOW_MS, fail_to_advance).lost == ()
    assert stored_lease(table, "a") == Lease(1, NOW_MS)
    assert table.query("pool#default", "M#", "N").rows == ()


def test_loss_detection_is_stored_between_passes(table: SqliteTable) -> None:
    store_lease(table, "a", Lease(1, NOW_MS - 45_000))
    mark_lost_agents(table, "default", NOW_MS, fail_to_advance)
    row = table.get(Key(LEASES, LOSS_DETECTION_SORT))
    assert row is not None
    assert json.loads(row.body) == {
        "passed_ms": NOW_MS,
        "paused_until_ms": NOW_MS + LEASE_MS,
        "for_lapses": True,
        "outage": "",
    }
    mark_lost_agents(table, "default", NOW_MS + 20_000, fail_to_advance)
    marking = mark_lost_agents(table, "default", NOW_MS + LEASE_MS, lambda addresses: None)
    assert marking.lost == ("a",)


def test_pass_without_live_agents_writes_no_row(table: SqliteTable) -> None:
    store_lease(table, "a", Lease(1, NOW_MS - 45_000, lost=True))
    for pool in ("default", "empty"):
        assert mark_lost_agents(table, pool, NOW_MS, fail_to_advance).lost == ()
    assert table.get(Key(LEASES, LOSS_DETECTION_SORT)) is None


def test_first_agent_of_empty_pool_causes_no_pause(table: SqliteTable) -> None:
    """Without live agents, no pass is expected, so a long time since the last pass is no gap."""
    store_lease(table, "a", Lease(1, NOW_MS))
    assert mark_lost_agents(table, "default", NOW_MS, fail_to_advance).lost == ()
    key = Key(LEASES, "a")
    gone = json.dumps({"epoch": 1, "renewed_ms": NOW_MS, "lost": True}).encode()
    table.commit((Put(key, 2, gone, 1),))
    for minute in range(1, 10):
        mark_lost_agents(table, "default", NOW_MS + minute * PASS_INTERVAL_MS, fail_to_advance)
    loss_detection = table.get(Key(LEASES, LOSS_DETECTION_SORT))
    assert loss_detection is not None
    # The pass that paused loss detection, and the first pass without live agents.
    assert loss_detection.revision == 2
    later_ms = NOW_MS + 10 * PASS_INTERVAL_MS
    store_lease(table, "b", Lease(1, later_ms))
    assert mark_lost_agents(table, "default", later_ms, fail_to_advance).lost == ()
    loss_detection = table.get(Key(LEASES, LOSS_DETECTION_SORT))
    assert loss_detection is not None
    assert json.loads(loss_detection.body)["paused_until_ms"] == 0


def test_pools_are_independent(table: SqliteTable) -> None:
    store_lease(table, "a", Lease(1, NOW_MS - 45_000))
    assert mark_lost_agents(table, "other", NOW_MS, fail_to_advance).lost == ()
    assert not stored_lease(table, "a").lost


def test_overtaken_pass_marks_no_agents(table: SqliteTable) -> None:
    """During the probe, a second pass finds that the API is down."""
    for name in "abcd":
        store_lease(table, name, LAPSED if name == "a" else FRESH)
    store_loss_detection = Put(
        Key(LEASES, LOSS_DETECTION_SORT), 1, b'{"passed_ms": 999000}', Expect.ABSENT
    )
    table.commit((store_loss_detection,))

    def let_another_pass(is_silent: bool) -> bool:
        mark_lost_agents(table, "default", NOW_MS, fail_to_advance, is_api_down=api_is_down)
        return False

    marking = mark_lost_agents(
        table, "default", NOW_MS, fail_to_advance, is_api_down=let_another_pass
    )
    assert marking.lost == ()
    row = table.get(Key(LEASES, LOSS_DETECTION_SORT))
    assert row is not None
    assert json.loads(row.body)["outage"] == "down"
