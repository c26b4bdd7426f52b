"""Messages to a trial are folded in the commit that sends them, where possible."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from control_plane.actors.messages.experiment import KillRequested, PauseRequested
from control_plane.actors.messages.trial import WorkAssigned
from control_plane.actors.records import Status
from control_plane.engine import mailbox
from control_plane.engine.actor_types import encode_message_for
from control_plane.engine.engine import Engine
from control_plane.engine.head import HEAD
from control_plane.engine.journal import read_entry, read_entry_rows
from control_plane.engine.mailbox import MAIL, MAIL_END
from control_plane.engine.replay import replay_actor
from control_plane.state.table import OPERATIONS_MAX, InvalidCommit, Key, Put, StateTable, Write
from simulator.faults.table_faults import TableDecorator
from simulator.stepped.small_search import submission
from simulator.stepped.stepped_cluster import SteppedCluster
from tests.changed_actors import change_actor_type
from tests.engine_timing import UNHURRIED
from tests.simulation.mailed_messages import everything_mailed

EXPERIMENT = "experiment#1"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SteppedCluster]:
    created_cluster = SteppedCluster(tmp_path / "table.db")
    created_cluster.add_pool()
    yield created_cluster
    created_cluster.close()


def commits_of(cluster: SteppedCluster, command: object) -> int:
    """Execute a command of the experiment. Return the number of following commits."""
    before = cluster.checker.commits
    cluster.engine.execute_command(EXPERIMENT, command)
    return cluster.checker.commits - before


def mail_of(cluster: SteppedCluster, address: str) -> int:
    """Return the number of rows in the actor's mailbox."""
    return len(cluster.engine.table.query(address, MAIL, MAIL_END, limit=100).rows)


def test_trials_are_created_in_the_commit_of_the_experiment(cluster: SteppedCluster) -> None:
    # A commit of the experiment with three trials, and a commit of the pool that folds the mail of
    # the trials.
    assert commits_of(cluster, submission(1, 3)) == 2
    assert len(cluster.checker.actor_states("trial")) == 3
    for number in (1, 2, 3):
        address = f"trial#{number}"
        (entry,) = map(read_entry, read_entry_rows(cluster.engine.table, address))
        assert entry.messages[0][0] == "TrialCreated"
        assert replay_actor(cluster.engine.table, address).difference is None


def test_existing_trial_folds_a_delivery_at_the_next_revision(cluster: SteppedCluster) -> None:
    cluster.engine.execute_command(EXPERIMENT, submission(1, 1))
    # A commit pauses the experiment and the trial. A second commit folds the mail to the pool.
    assert commits_of(cluster, PauseRequested()) == 2
    assert cluster.checker.actor_state("trial#1").experiment_status is Status.PAUSED
    assert cluster.checker.rows[Key("trial#1", HEAD)].revision == 2


def test_waiting_mail_is_folded_before_a_new_message(cluster: SteppedCluster) -> None:
    cluster.engine.execute_command(EXPERIMENT, submission(1, 1))
    clock = mailbox.next_clock(0, cluster.now_ms)
    key = mailbox.mail_key("trial#1", clock, "experiment#9")
    encoded = [encode_message_for("trial#1", WorkAssigned(64, False))]
    row = mailbox.mail_write(key, "experiment#9", mailbox.FIRST, clock, encoded, cluster.now_ms)
    cluster.engine.table.commit([row])
    cluster.engine.execute_command(EXPERIMENT, PauseRequested())
    names = [name for name, _ in cluster.checker.folded_messages("trial#1")]
    assert names[-2:] == ["WorkAssigned", "ExperimentStatusChanged"]
    assert mail_of(cluster, "trial#1") == 0


def test_message_becomes_mail_if_the_trial_fails(
    cluster: SteppedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> object:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        change_actor_type(patch, "trial", step=fail)
        cluster.engine.execute_command(EXPERIMENT, submission(1, 2))
    assert cluster.checker.actor_state(EXPERIMENT).trials == 2
    assert [mail_of(cluster, f"trial#{number}") for number in (1, 2)] == [1, 1]
    cluster.engine.advance_until_idle(["trial#1", "trial#2"])
    assert len(cluster.checker.actor_states("trial")) == 2


class Recording(TableDecorator):
    """A table that records all commits."""

    snapshot_queries = True

    def __init__(self, table: StateTable) -> None:
        super().__init__(table)
        self.commits: list[Sequence[Write]] = []

    def commit(self, writes: Sequence[Write]) -> None:
        super().commit(writes)
        self.commits.append(writes)


def test_messages_that_do_not_fit_into_the_commit_are_mailed(cluster: SteppedCluster) -> None:
    table = Recording(cluster.engine.table)
    engine = Engine(table, lambda: cluster.now_ms, UNHURRIED)
    engine.execute_command(EXPERIMENT, submission(1, 60))
    assert len(cluster.checker.actor_states("trial")) == 60
    # The experiment's commit creates the heads of some trials and mails the messages of all other
    # trials.
    first = [write.key for write in table.commits[0] if write.key.partition.startswith("trial#")]
    created = [key for key in first if key.sort == HEAD]
    mailed = [key for key in first if key.sort.startswith(MAIL)]
    assert created
    assert mailed
    assert max(map(len, table.commits)) <= OPERATIONS_MAX


class FullTable(TableDecorator):
    """A table that refuses commits with several actors, like commits with too many bytes."""

    snapshot_queries = True

    def commit(self, writes: Sequence[Write]) -> None:
        if sum(isinstance(write, Put) and write.key.sort == HEAD for write in writes) > 1:
            raise InvalidCommit("too many bytes")
        super().commit(writes)


def test_refused_commit_is_repeated_without_deliveries(cluster: SteppedCluster) -> None:
    engine = Engine(FullTable(cluster.engine.table), lambda: cluster.now_ms, UNHURRIED)
    engine.execute_command(EXPERIMENT, submission(1, 3))
    engine.execute_command(EXPERIMENT, KillRequested())
    states = cluster.checker.actor_states("trial")
    assert [state.status.is_final for state in states] == [True] * 3


def test_delivery_and_mail_lead_to_equal_states(cluster: SteppedCluster, tmp_path: Path) -> None:
    other = SteppedCluster(tmp_path / "other.db")
    other.add_pool()
    with everything_mailed():
        for command in (submission(1, 4), PauseRequested()):
            other.engine.execute_command(EXPERIMENT, command)
    for command in (submission(1, 4), PauseRequested()):
        cluster.engine.execute_command(EXPERIMENT, command)
    assert cluster.checker.commits < other.checker.commits
    for number in range(1, 5):
        address = f"trial#{number}"
        assert cluster.checker.actor_state(address) == other.checker.actor_state(address)
        assert cluster.checker.folded_messages(address) == other.checker.folded_messages(address)
    other.close()
