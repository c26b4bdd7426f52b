"""Tests of servers that share a state on PostgreSQL, each with a data folder of its own."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from control_plane.actors import addresses
from control_plane.local.state_places import StateInUse
from control_plane.rows import cluster_rows
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Unavailable
from local_cluster.certificates import SELF_SIGNED_FILE, read_pin
from local_cluster.embedded_cluster import EmbeddedCluster, build_embedded_cluster, own_agent_name
from local_cluster.group_member import GroupMember
from local_cluster.home import HomeFolder, HomeInvalid
from local_cluster.server_group import SECRET_FILES, forget_group, join_group
from local_cluster.service import ServiceSettings, create_certificate
from local_cluster.state_mark import RESTART_STEP, StateMark
from local_cluster.state_move import FILE_STATE, choose_state
from local_cluster.tunnel_relay import GroupRelay, load_relay
from tests.emulators.postgresql import Postgresql
from tests.patience import wait_until


class Group:
    """Data folders with a common state and common files."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url

    def home(self, name: str, files: str = "files") -> HomeFolder:
        home = HomeFolder(self.folder / name)
        home.set_files(self.folder / files)
        home.set_state_url(self.url)
        return home


@pytest.fixture
def group(tmp_path: Path, postgres: Postgresql) -> Group:
    return Group(tmp_path, postgres.new_schema())


@pytest.fixture
def clusters(group: Group) -> Iterator[tuple[EmbeddedCluster, EmbeddedCluster]]:
    """Two embedded clusters of the group."""
    first, second = (build_embedded_cluster(group.home(name), "me") for name in "ab")
    yield first, second
    first.table.close()
    second.table.close()


def test_servers_have_different_lasting_names(group: Group) -> None:
    names = [join_group(group.home(name)) for name in "abc"]
    assert names[0] == "local"
    assert len(set(names)) == 3
    assert [join_group(group.home(name)) for name in "cba"] == names[::-1]
    assert own_agent_name("default", names[1]) == names[1]
    assert own_agent_name("gpus", names[1]) == f"{names[1]}-gpus"


def test_server_with_a_file_is_alone(tmp_path: Path) -> None:
    home = HomeFolder(tmp_path)
    assert join_group(home) == "local"
    assert not (tmp_path / "token").exists()


def test_servers_share_secrets(group: Group) -> None:
    first, second = group.home("a"), group.home("b")
    second.load_or_create_secret("token")
    join_group(first)
    join_group(second)
    for name in SECRET_FILES:
        assert first.read_secret(name) == second.read_secret(name) is not None
        assert (second.folder / name).stat().st_mode & 0o077 == 0


def test_deleted_secret_is_renewed_for_the_group(group: Group) -> None:
    first, second = group.home("a"), group.home("b")
    join_group(first)
    join_group(second)
    former = first.read_secret("token")
    (second.folder / "token").unlink()
    join_group(second)
    join_group(first)
    assert first.read_secret("token") == second.read_secret("token") != former


def join_with_certificate(home: HomeFolder) -> str:
    """Join the group as a server with a self-signed certificate, and return the pin."""
    join_group(home, partial(create_certificate, home, ServiceSettings("0.0.0.0", 8470)))
    path = home.folder / SELF_SIGNED_FILE
    assert path.stat().st_mode & 0o077 == 0
    return read_pin(path)


def test_servers_share_the_self_signed_certificate(group: Group) -> None:
    first, second = group.home("a"), group.home("b")
    # The certificate of a server that was alone is replaced, as the other secrets.
    create_certificate(second, ServiceSettings("0.0.0.0", 8470))
    pin = join_with_certificate(first)
    assert join_with_certificate(second) == join_with_certificate(first) == pin


def test_first_server_keeps_its_certificate(group: Group) -> None:
    home = group.home("a")
    create_certificate(home, ServiceSettings("0.0.0.0", 8470))
    pin = read_pin(home.folder / SELF_SIGNED_FILE)
    assert join_with_certificate(home) == pin == join_with_certificate(group.home("b"))


def test_deleted_certificate_is_renewed_for_the_group(group: Group) -> None:
    first, second = group.home("a"), group.home("b")
    former = join_with_certificate(first)
    join_with_certificate(second)
    (second.folder / SELF_SIGNED_FILE).unlink()
    renewed = join_with_certificate(second)
    assert renewed != former
    assert join_with_certificate(first) == renewed


def test_server_with_another_certificate_leaves_the_shared_certificate(group: Group) -> None:
    first, second = group.home("a"), group.home("b")
    pin = join_with_certificate(first)
    join_group(second)
    assert not (second.folder / SELF_SIGNED_FILE).exists()
    # The server joined the group long before, and never had the file.
    assert join_with_certificate(second) == pin == join_with_certificate(first)


def test_damaged_certificate_is_not_shared(group: Group) -> None:
    first = group.home("a")
    first.write_text(SELF_SIGNED_FILE, "no certificate")
    with pytest.raises(HomeInvalid, match=r"server\.pem"):
        join_with_certificate(first)
    assert join_with_certificate(group.home("b"))


def test_other_folder_of_objects_is_refused(group: Group) -> None:
    join_group(group.home("a"))
    with pytest.raises(Unavailable, match=f"first server uses {group.folder / 'files'}") as refusal:
        join_group(group.home("b", "elsewhere"))
    assert "--files" in str(refusal.value)
    join_group(group.home("b"))


def test_copied_folder_of_objects_excludes_the_former_folder(group: Group) -> None:
    first, second = group.home("a"), group.home("b")
    join_group(first)
    join_group(second)
    (group.folder / "new/objects").mkdir(parents=True)
    first.set_files(group.folder / "new")
    join_group(first)
    with pytest.raises(Unavailable, match="not the folder of objects"):
        join_group(second)
    second.set_files(group.folder / "new")
    join_group(second)


def test_folder_with_objects_is_not_left_behind(tmp_path: Path) -> None:
    home = HomeFolder(tmp_path / "home")
    (home.objects / "model-code").mkdir(parents=True)
    with pytest.raises(HomeInvalid, match="copy the folders"):
        home.set_files(tmp_path / "files")
    assert home.files == home.folder
    (tmp_path / "files/objects").mkdir(parents=True)
    home.set_files(tmp_path / "files")
    assert home.objects == tmp_path / "files/objects"
    assert home.checkpoints == tmp_path / "files/checkpoints"


def test_forgotten_group_has_no_rows(group: Group) -> None:
    home = group.home("a")
    join_group(home)
    with closing(home.state.open()) as table:
        forget_group(table)
        for row_type in (cluster_rows.SERVER, cluster_rows.SHARED_SECRET, cluster_rows.DUTY):
            assert not list(read_rows(table, row_type.partition))


def test_move_to_a_file_forgets_the_secrets(group: Group) -> None:
    home = group.home("a")
    join_group(home)
    assert choose_state(home, FILE_STATE)
    with closing(home.state.open()) as table:
        assert not list(read_rows(table, cluster_rows.SHARED_SECRET.partition))


def test_servers_share_a_claim_that_excludes_moves(group: Group) -> None:
    first, second = group.home("a"), group.home("b")
    with first.state.claim(is_shared=True), second.state.claim(is_shared=True):
        join_group(first)
        with pytest.raises(StateInUse, match="stop all servers"):
            choose_state(second, FILE_STATE)
        assert first.state.has_other_servers()
    with (
        first.state.claim(),
        pytest.raises(StateInUse, match="being replaced"),
        second.state.claim(is_shared=True),
    ):
        pass


def test_copy_of_a_data_folder_is_refused(group: Group) -> None:
    home = group.home("a")
    folder_id = home.load_or_create_id()
    assert home.load_or_create_id() == folder_id
    with (
        home.state.claim_folder(folder_id),
        group.home("b").state.claim_folder(group.home("b").load_or_create_id()),
        pytest.raises(StateInUse, match=r"delete id\.json"),
        home.state.claim_folder(folder_id),
    ):
        pass


def test_new_data_folder_joins_a_running_server(group: Group) -> None:
    first = group.home("a")
    with first.state.claim(is_shared=True):
        join_group(first)
        second = HomeFolder(group.folder / "b")
        assert not choose_state(second, group.url)
        assert second.state_url() == group.url


def test_commit_wakes_the_calls_at_another_server(
    group: Group, clusters: tuple[EmbeddedCluster, EmbeddedCluster]
) -> None:
    woken: list[str] = []
    members = [
        GroupMember(group.home(name), cluster, name, f"http://{name}")
        for name, cluster in zip("ab", clusters, strict=True)
    ]
    polls = clusters[1].adapters.long_polls
    gaps: list[None] = []
    polls.wake_address = woken.append  # type: ignore[method-assign, assignment]
    polls.wake_all = lambda: gaps.append(None)  # type: ignore[method-assign]
    for member in members:
        member.start()
    try:
        wait_until(lambda: bool(gaps))
        service = clusters[0].cluster.agents
        service.enrol("node", "default", ((0, "cpu", "u0", "n"),), "1")
        wait_until(lambda: addresses.agent("node") in woken)
        assert not any(name.startswith("pool#") for name in woken)
        assert members[0].is_ticking()
        assert not members[1].is_ticking()
        assert clusters[0].suggestion_thread.is_on_duty()
        assert not clusters[1].suggestion_thread.is_on_duty()
    finally:
        for member in members:
            member.stop()
    assert members[1].is_ticking()


def test_relay_is_the_server_on_duty(
    group: Group, clusters: tuple[EmbeddedCluster, EmbeddedCluster]
) -> None:
    home = group.home("a")
    table = clusters[0].table
    relays = [GroupRelay(table, load_relay(home), f"http://127.0.0.1:{port}") for port in (1, 2)]
    assert [relay.find_relay().url for relay in relays] == ["", ""]
    assert GroupMember(home, clusters[0], "local", "http://127.0.0.1:1").is_ticking()
    assert [relay.find_relay().url for relay in relays] == ["", "http://127.0.0.1:1"]


def test_marks_of_two_servers_never_go_back(
    group: Group, clusters: tuple[EmbeddedCluster, EmbeddedCluster]
) -> None:
    cluster_id = clusters[0].adapters.cluster_id
    assert clusters[1].adapters.cluster_id == cluster_id
    first, second = (StateMark(group.home(name), clusters[0].table, cluster_id) for name in "ab")
    for _ in range(5):
        first.advance()
    second.advance()
    first.advance()
    assert not first.is_older_copy()
    assert not second.is_older_copy()


def test_restart_by_a_server_is_no_older_copy_for_others(
    group: Group, clusters: tuple[EmbeddedCluster, EmbeddedCluster]
) -> None:
    cluster_id = clusters[0].adapters.cluster_id
    first, second = (StateMark(group.home(name), clusters[0].table, cluster_id) for name in "ab")
    second.write_file(500)
    assert second.is_older_copy()
    first.advance(RESTART_STEP)
    assert not second.is_older_copy()


def test_older_copy_beside_another_server_is_refused(group: Group) -> None:
    first, second = group.home("a"), group.home("b")
    cluster = build_embedded_cluster(first, "me")
    StateMark(second, cluster.table, cluster.adapters.cluster_id).write_file(500)
    with (
        first.state.claim(is_shared=True),
        second.state.claim(is_shared=True),
        pytest.raises(StateInUse, match="start this server first"),
    ):
        build_embedded_cluster(second, "me")
    with second.state.claim(is_shared=True):
        build_embedded_cluster(second, "me").table.close()
    cluster.table.close()
