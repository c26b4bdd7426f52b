"""Files for TensorBoard: listed with URLs, and copied into a folder that follows the trial."""

from pathlib import Path

import pytest

from control_plane.access.principals import Role
from control_plane.queries import event_files
from detcloud.client import Client
from detcloud.client.event_files import EventFolder
from detcloud.shared.errors import DetcloudError
from detcloud.shared.event_parts import part_key
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.app_server import serve_app
from tests.unit.api.cluster import TOKENS, Cluster
from tests.unit.api.exchange import call

EVENTS = "events.out.tfevents.1.host"


@pytest.fixture
def place(cluster: Cluster) -> Path:
    """The folder that trial 1 writes to."""
    cluster.create(CONFIG)
    path = cluster.checkpoints / "tensorboard" / "1" / "1"
    path.mkdir(parents=True)
    return path


def test_files_are_listed_with_urls_that_need_no_token(cluster: Cluster, place: Path) -> None:
    (place / "ünicode; 100%").mkdir()
    for name in (EVENTS, f"ünicode; 100%/{EVENTS}"):
        (place / name).write_text(name)
    items = cluster.get("/trials/1/event-files").json["items"]
    assert [item["path"] for item in items] == [EVENTS, f"ünicode; 100%/{EVENTS}"]
    for item in items:
        [part] = item["parts"]
        assert part["size"] == item["size"] == len(item["path"].encode())
        assert call(cluster.app, "GET", part["url"]).body.decode() == item["path"]
    first = cluster.get("/trials/1/event-files?limit=1").json
    rest = cluster.get(f"/trials/1/event-files?limit=1&cursor={first['next_cursor']}").json
    assert first["items"] + rest["items"] == cluster.get("/trials/1/event-files").json["items"]


def test_a_trial_that_wrote_nothing_has_none(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    assert cluster.get("/trials/1/event-files").json == {"items": [], "next_cursor": None}
    assert cluster.get("/trials/9/event-files").status == 404
    assert call(cluster.app, "GET", "/api/v1/trials/1/event-files").status == 401


def test_a_url_is_good_for_its_own_file_alone(cluster: Cluster, place: Path) -> None:
    for name in ("a", "b"):
        (place / name).write_text(name)
    a, b = (item["parts"][0]["url"] for item in cluster.get("/trials/1/event-files").json["items"])
    mixed = b.partition("?")[0] + "?" + a.partition("?")[2]
    assert call(cluster.app, "GET", mixed).status == 403
    (place / "a").unlink()
    (place / "a").symlink_to(place / "b")
    assert call(cluster.app, "GET", a).status == 404


def test_too_many_files_are_refused(
    cluster: Cluster, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_files, "PARTS_MAX", 3)
    for name in "abcd":
        (place / name).write_text(name)
    answer = cluster.get("/trials/1/event-files")
    assert (answer.status, answer.code) == (409, "conflict")


def test_a_folder_follows_its_trial(cluster: Cluster, place: Path, tmp_path: Path) -> None:
    with serve_app(cluster.app) as url, Client(url, TOKENS[Role.USER]) as client:
        folder = EventFolder(client, client.trial(1), tmp_path / "copy")
        assert folder.update() == 0
        (place / EVENTS).write_bytes(b"first")
        (place / "trace.json").write_bytes(b"{}")
        assert folder.update() == 7
        with (folder.folder / EVENTS).open("rb") as reader:
            assert reader.read() == b"first"
            (place / EVENTS).write_bytes(b"first, second")
            assert folder.update() == 8
            # TensorBoard goes on in the file that it has open.
            assert reader.read() == b", second"
        assert folder.update() == 0
        # In parts, as a bucket has it.
        for start, text in ((0, b"of a "), (5, b"later epoch")):
            part = place / part_key(EVENTS + ".b", 2, 0, start)
            part.parent.mkdir(exist_ok=True)
            part.write_bytes(text)
            folder.update()
        assert (folder.folder / f"{EVENTS}.b").read_bytes() == b"of a later epoch"
        for version, text in ((0, b"abc"), (1, b"xyz")):
            part = place / part_key("whole.bin", 2, version, 0)
            part.parent.mkdir(exist_ok=True)
            part.write_bytes(text)
            assert folder.update() == 3
            assert (folder.folder / "whole.bin").read_bytes() == text


def test_a_path_that_leads_out_of_the_folder_is_refused(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client("http://127.0.0.1:9", "")
    hostile = {"path": "../../x", "size": 1, "version": "", "parts": []}
    trial = type("Trial", (), {"event_files": lambda self: [hostile]})
    monkeypatch.setattr(client, "trial", lambda trial_id: trial())
    with pytest.raises(DetcloudError):
        EventFolder(client, client.trial(1), tmp_path / "copy").update()
    assert not (tmp_path.parent / "x").exists()
