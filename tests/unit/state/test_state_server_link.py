"""Tests of the link between servers: notices, lost connections and exclusion."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import psycopg
import pytest

from control_plane.postgres.server_link import EVERYTHING, NAMES_MAX, ServerLink, notices
from control_plane.postgres.state_table import PostgresTable
from tests.emulators.postgresql import Postgresql
from tests.patience import wait_until


@dataclass
class Listener:
    """The names that arrived, and the numbers of gaps and exclusions."""

    names: list[str] = field(default_factory=list)
    gaps: int = 0
    exclusions: int = 0

    def on_names(self, names: Sequence[str]) -> None:
        self.names += names

    def on_gap(self) -> None:
        self.gaps += 1

    def on_excluded(self) -> None:
        self.exclusions += 1


@pytest.fixture
def url(postgres: Postgresql) -> str:
    return postgres.new_schema()


@contextmanager
def open_link(url: str) -> Iterator[tuple[ServerLink, Listener]]:
    """Yield a started link that receives notices, and its listener."""
    listener = Listener()
    with closing(PostgresTable(url)) as table:
        link = ServerLink(url, table.schema, listener)
    link.start()
    try:
        yield link, listener
    finally:
        link.stop()


def cut_connections(url: str) -> None:
    """End all other connections to the database."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where pid <> pg_backend_pid() and query like any (array['listen%', '%pg_notify%', "
            "'select 1', 'set synchronous_commit%'])"
        )


def test_names_are_joined_into_notices() -> None:
    assert notices([]) == []
    assert notices(["trial#1", "trial#2"]) == ["trial#1\ntrial#2"]
    assert notices(["aaaa", "bbbb", "cccc"], bytes_max=10) == ["aaaa\nbbbb", "cccc"]


@pytest.mark.parametrize("names", [["a\nb"], ["a" * 10], ["", "a"], list("abcdefghijklmnopqrst")])
def test_names_without_room_stand_for_everything(names: list[str]) -> None:
    assert notices(names, bytes_max=8) == [EVERYTHING]


def test_names_reach_other_servers_of_the_state(url: str, postgres: Postgresql) -> None:
    with (
        open_link(url) as (first, own),
        open_link(url) as (_, other),
        open_link(postgres.new_schema()) as (_, stranger),
    ):
        wait_until(lambda: own.gaps == other.gaps == stranger.gaps == 1)
        first.announce("trial#1")
        wait_until(lambda: other.names == ["trial#1"])
        first.announce("trial#2")
        first.announce("trial#2")
        wait_until(lambda: other.names == ["trial#1", "trial#2"])
        assert own.names == stranger.names == []
        assert other.gaps == 1


def test_too_many_names_are_a_poll_at_other_servers(url: str) -> None:
    with open_link(url) as (first, _), open_link(url) as (_, other):
        wait_until(lambda: other.gaps == 1)
        for number in range(2 * NAMES_MAX):
            first.announce(f"a-rather-long-name-of-an-actor#{number}")
        wait_until(lambda: other.gaps > 1)


def test_lost_connections_end_in_a_poll_and_new_notices(url: str) -> None:
    with open_link(url) as (first, _), open_link(url) as (_, other):
        wait_until(lambda: other.gaps == 1)
        first.announce("trial#1")
        wait_until(lambda: other.names == ["trial#1"])
        cut_connections(url)
        first.announce("trial#2")
        # The announcement may be lost with the connection of either end.
        wait_until(lambda: other.gaps > 1)
        wait_until(lambda: _arrives(first, other))


def _arrives(link: ServerLink, listener: Listener) -> bool:
    link.announce("trial#3")
    return "trial#3" in listener.names


def test_exclusive_claim_excludes_a_reconnecting_server(url: str) -> None:
    with (
        closing(PostgresTable(url)) as table,
        table.claim() as is_claimed,
        open_link(url) as linkage,
    ):
        assert is_claimed
        wait_until(lambda: linkage[1].exclusions == 1)
    assert linkage[1].gaps == 0


def test_linked_server_excludes_an_exclusive_claim(url: str) -> None:
    with closing(PostgresTable(url)) as table, open_link(url) as (_, listener):
        wait_until(lambda: listener.gaps == 1)
        with table.claim() as is_claimed:
            assert not is_claimed
        assert table.count_shared_claims() == 1
