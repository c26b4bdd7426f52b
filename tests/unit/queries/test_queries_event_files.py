"""TensorBoard event files: lists with URLs, and a local folder that follows the trial."""

import os
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from control_plane.checkpoint_stores.folder_uploads import LISTED_DEPTH_MAX
from detcloud.client import Client
from detcloud.client.event_files import VERSIONS_FILE, EventFolder
from detcloud.client.handles import Trial
from detcloud.client.records import EventFile
from detcloud.shared.event_parts import part_key
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.app_server import serve_app
from tests.unit.api.cluster import TOKENS, Cluster, limit_queries
from tests.unit.api.exchange import call
from tests.unit.checkpoint_stores.deep_folders import deep_folder

EVENTS = "events.out.tfevents.1.host"


def test_event_file_urls_need_no_token(cluster: Cluster, place: Path) -> None:
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


def test_trial_without_event_files_has_empty_list(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    assert cluster.get("/trials/1/event-files").json == {"items": [], "next_cursor": None}
    assert cluster.get("/trials/9/event-files").status == 404
    assert call(cluster.app, "GET", "/api/v1/trials/1/event-files").status == 401


def test_url_is_valid_for_a_single_file(cluster: Cluster, place: Path) -> None:
    for name in ("a", "b"):
        (place / name).write_text(name)
    a, b = (item["parts"][0]["url"] for item in cluster.get("/trials/1/event-files").json["items"])
    mixed = b.partition("?")[0] + "?" + a.partition("?")[2]
    assert call(cluster.app, "GET", mixed).status == 403
    (place / "a").unlink()
    (place / "a").symlink_to(place / "b")
    assert call(cluster.app, "GET", a).status == 404


def test_rejects_too_many_files(cluster: Cluster, place: Path) -> None:
    for name in "abcd":
        (place / name).write_text(name)
    answer = limit_queries(cluster, event_file_parts_max=3).get("/trials/1/event-files")
    assert (answer.status, answer.code) == (409, "conflict")
    assert limit_queries(cluster, event_file_parts_max=4).get("/trials/1/event-files").status == 200


def test_copied_folder_follows_the_trial(cluster: Cluster, place: Path, tmp_path: Path) -> None:
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
            # TensorBoard keeps reading the file that is open.
            assert reader.read() == b", second"
        assert folder.update() == 0
        # A bucket stores the file in parts.
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


def test_later_process_downloads_only_new_content(
    cluster: Cluster, place: Path, tmp_path: Path
) -> None:
    (place / EVENTS).write_bytes(b"first")
    (place / "trace.json").write_bytes(b"{}")
    with serve_app(cluster.app) as url, Client(url, TOKENS[Role.USER]) as client:
        trial = client.trial(1)
        assert EventFolder(client, trial, tmp_path / "copy").update() == 7
        assert EventFolder(client, trial, tmp_path / "copy").update() == 0
        (place / EVENTS).write_bytes(b"first, second")
        assert EventFolder(client, trial, tmp_path / "copy").update() == 8
        (tmp_path / "copy" / VERSIONS_FILE).write_text("damaged")
        assert EventFolder(client, trial, tmp_path / "copy").update() == 15
    assert (tmp_path / "copy" / EVENTS).read_bytes() == b"first, second"


class HostileTrial(Trial):
    """A trial of a server that lists a path outside the folder."""

    def event_files(self) -> list[EventFile]:
        return [EventFile(path="../../x", size=1, version="", parts=[])]


def test_path_outside_the_folder_is_left_out(
    cluster: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = Client("http://127.0.0.1:9", "")
    folder = EventFolder(client, HostileTrial(client, {"id": 1}), tmp_path / "copy")
    assert (folder.update(), folder.update()) == (0, 0)
    assert not (tmp_path.parent / "x").exists()
    assert capsys.readouterr().err.count("'../../x' of trial 1 is left out: ") == 1


# Names of bytes that a trial can give to files.
ODD_NAMES = [
    b"a\nb",
    b"a\\b",
    b"\xff\xfe",
    b"a\x01\x7fb",
    "x\u202ey\U0001f600".encode(),
    b"n" * 255,
    b" ",
    b"a;b%2e%2e",
    b"part-1-1-1",
]


@pytest.mark.parametrize("name", ODD_NAMES, ids=repr)
def test_file_with_special_name_is_listed_and_read(
    cluster: Cluster, place: Path, tmp_path: Path, name: bytes
) -> None:
    (place / EVENTS).write_bytes(b"plain")
    folder = place / os.fsdecode(name[:200])
    folder.mkdir()
    (folder / os.fsdecode(name)).write_bytes(b"odd")
    answer = cluster.get("/trials/1/event-files")
    assert answer.status == 200
    contents = [
        call(cluster.app, "GET", item["parts"][0]["url"]).body for item in answer.json["items"]
    ]
    assert sorted(contents) == [b"odd", b"plain"]
    with serve_app(cluster.app) as url, Client(url, TOKENS[Role.USER]) as client:
        copy = EventFolder(client, client.trial(1), tmp_path / "copy")
        copy.update()
        assert (copy.folder / EVENTS).read_bytes() == b"plain"


@pytest.mark.parametrize("depth", [70, 150, 700, 1500])
def test_deep_folders_do_not_hide_other_files(cluster: Cluster, place: Path, depth: int) -> None:
    (place / EVENTS).write_bytes(b"plain")
    with deep_folder(place, depth):
        answer = cluster.get("/trials/1/event-files")
    assert answer.status == 200
    deep = depth <= LISTED_DEPTH_MAX
    assert [item["size"] for item in answer.json["items"]] == ([4, 5] if deep else [5])
