"""The places of an embedded cluster's state: moves, claims, backups and errors."""

from contextlib import closing
from pathlib import Path

import pytest

from control_plane.local.state_places import (
    DatabasePlace,
    FilePlace,
    StateInUse,
    StatePlace,
    find_state_place,
)
from control_plane.restoration.restart import read_next_ids
from control_plane.state.sqlite import read_table_file
from control_plane.state.table import Expect, Key, Put, Unavailable, shard_of
from local_cluster.backup_archive import BackupDescription, write_backup
from local_cluster.embedded_cluster import build_embedded_cluster
from local_cluster.home import HomeFolder
from local_cluster.restore import restore_backup
from local_cluster.state_move import FILE_STATE, choose_state
from tests.emulators.postgresql import Postgresql

ROWS = [
    Put(Key("trial#1", "A"), 3, b"body", Expect.ABSENT),
    Put(Key("trial#1", "B\x00"), 4, bytes(range(256)) * 400, Expect.ABSENT, due_ms=5),
    Put(Key("trial#2", "A"), 2**40, b"", Expect.ABSENT, due_ms=7, expires=True),
]


@pytest.fixture
def home(tmp_path: Path) -> HomeFolder:
    return HomeFolder(tmp_path / "home")


@pytest.fixture(params=["file", "database"])
def place(request: pytest.FixtureRequest, tmp_path: Path, postgres: Postgresql) -> StatePlace:
    return FilePlace(tmp_path) if request.param == "file" else DatabasePlace(postgres.new_schema())


def fill(place: StatePlace) -> None:
    with closing(place.open()) as table:
        table.commit(ROWS)


def stored_rows(place: StatePlace) -> list[object]:
    with closing(place.open()) as table:
        return [table.get(put.key) for put in ROWS]


def test_copy_replaces_a_state_with_every_field(place: StatePlace, tmp_path: Path) -> None:
    fill(place)
    before = stored_rows(place)
    place.copy_to(tmp_path / "copy.db")
    assert len(list(read_table_file(tmp_path / "copy.db"))) == len(ROWS)
    with closing(place.open()) as table:
        table.commit([Put(Key("trial#9", "A"), 1, b"later", Expect.ABSENT)])
    place.replace_by(tmp_path / "copy.db")
    assert stored_rows(place) == before
    with closing(place.open()) as table:
        assert table.get(Key("trial#9", "A")) is None
        assert table.due_keys(shard_of("trial#1"), 5) == (ROWS[1].key,)


def test_deleted_state_is_gone(place: StatePlace) -> None:
    fill(place)
    assert place.exists()
    assert place.size_bytes() > 0
    place.delete()
    assert not place.exists()


def test_replacement_by_a_damaged_file_keeps_the_rows(postgres: Postgresql, tmp_path: Path) -> None:
    place = DatabasePlace(postgres.new_schema())
    fill(place)
    (tmp_path / "damaged.db").write_bytes(b"rubbish " * 1000)
    with pytest.raises(Unavailable, match=r"damaged\.db"):
        place.replace_by(tmp_path / "damaged.db")
    assert stored_rows(place)[0] is not None


def test_second_server_cannot_claim_a_database(postgres: Postgresql) -> None:
    url = postgres.new_schema()
    with DatabasePlace(url).claim():
        with pytest.raises(StateInUse, match="a server uses"), DatabasePlace(url).claim():
            pass
        with DatabasePlace(postgres.new_schema()).claim():
            pass
    with DatabasePlace(url).claim():
        pass


def test_state_moves_to_a_database_and_back(home: HomeFolder, postgres: Postgresql) -> None:
    url = postgres.new_schema()
    fill(home.state)
    before = stored_rows(home.state)
    assert choose_state(home, url)
    assert home.state_url() == url
    assert stored_rows(home.state) == before
    assert (home.folder / "state.json").stat().st_mode & 0o077 == 0
    [kept] = home.folder.glob("state-before-move-*.db")
    assert len(list(read_table_file(kept))) == len(ROWS)
    assert not choose_state(home, url)
    assert choose_state(home, FILE_STATE)
    assert stored_rows(home.state) == before
    assert not DatabasePlace(url).exists()


def test_move_onto_another_state_is_refused(home: HomeFolder, postgres: Postgresql) -> None:
    url = postgres.new_schema()
    fill(home.state)
    fill(DatabasePlace(url))
    with pytest.raises(Unavailable, match="both have a state"):
        choose_state(home, url)
    assert home.state_url() is None


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("mysql://me:secret@host/db", "must begin with postgresql://"),
        ("state.db", "must begin with postgresql://"),
        ("postgresql://me:secret@127.0.0.1:9/db", "refused"),
    ],
)
def test_unusable_place_is_refused_without_its_password(
    home: HomeFolder, choice: str, message: str
) -> None:
    with pytest.raises(Unavailable, match=message) as refusal:
        choose_state(home, choice)
    assert "secret" not in str(refusal.value)
    assert home.state_url() is None


def test_name_of_a_database_has_no_password() -> None:
    place = DatabasePlace("postgresql://me:secret@db.lab:5433/detcloud?sslmode=require")
    assert place.name == "the database detcloud of db.lab"


def test_damaged_record_is_an_error_with_its_path(home: HomeFolder) -> None:
    (home.folder / "state.json").write_text("{}")
    with pytest.raises(Unavailable, match=r"state\.json must have a JSON object"):
        find_state_place(home.folder)


def test_backup_of_a_database_is_restored_into_a_file(
    home: HomeFolder, tmp_path: Path, postgres: Postgresql
) -> None:
    home.set_state_url(postgres.new_schema())
    cluster = build_embedded_cluster(home, "me")
    cluster.table.commit([Put(Key("counters", "experiment"), 7, b"7", Expect.ANYTHING)])
    archive = tmp_path / "backup.tar"
    write_backup(home, archive, lambda _: BackupDescription(cluster.adapters.cluster_id, 1))
    cluster.mark.advance()
    cluster.table.close()
    other = HomeFolder(tmp_path / "other")
    restore_backup(other, archive)
    assert isinstance(other.state, FilePlace)
    with closing(other.state.open()) as table:
        assert read_next_ids(table)["experiment"] >= 7
    restored = restore_backup(home, archive)
    assert restored.kept is not None
    with closing(home.state.open()) as table:
        assert read_next_ids(table)["experiment"] == 7
