"""`detcloud checkpoint verify`, and downloads of a part of a checkpoint."""

import json
import shutil
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.fake_refusal import Refusal

UUID = "12345678-aaaa"
CONTENTS = {"a.pth": b"weights", "code/b.py": b"x = 1", "code/deep/c.py": b"y = 2", "d.txt": b"d"}


@pytest.fixture(autouse=True)
def checkpoint(fake: FakeCluster) -> None:
    fake.add_experiment({}, {"paused": True})
    fake.add_checkpoint(UUID, CONTENTS)


def test_verify_reports_an_intact_checkpoint(detcloud: Detcloud) -> None:
    # 7 + 5 + 5 + 1 bytes.
    assert detcloud("checkpoint", "verify", "1234").out == (
        f"checkpoint {UUID} is intact: 4 files, 18 B\n"
    )
    files = json.loads(detcloud("checkpoint", "verify", "1234", "--json").out)
    assert [item["state"] for item in files] == ["OK"] * 4


def test_verify_clears_a_damage_mark_only_if_all_files_are_intact(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    fake.checkpoints[0]["state"] = "DAMAGED"
    fake.objects[f"{UUID}-0"] = b"weightz"
    assert detcloud("checkpoint", "verify", "1234").code == 1
    assert fake.checkpoints[0]["state"] == "DAMAGED"
    fake.objects[f"{UUID}-0"] = CONTENTS["a.pth"]
    fake.checkpoints[0]["owner"] = "eve"
    code, out, _ = detcloud("checkpoint", "verify", "1234")
    assert (code, out.splitlines()[1:]) == (
        0,
        ["the checkpoint stays marked as damaged: experiment 1 is eve's"],
    )
    fake.checkpoints[0]["owner"] = "ada"
    assert detcloud("checkpoint", "verify", "1234").out.splitlines() == [
        f"checkpoint {UUID} is intact: 4 files, 18 B",
        "the checkpoint was marked as damaged and is now COMPLETED again",
    ]
    assert fake.checkpoints[0]["state"] == "COMPLETED"


def test_verify_names_all_damaged_and_missing_files(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.objects[f"{UUID}-0"] = b"weightz"
    fake.objects[f"{UUID}-1"] = b"x ="
    del fake.objects[f"{UUID}-3"]
    code, out, err = detcloud("checkpoint", "verify", "1234", "--json")
    files = {item["path"]: (item["state"], item["problem"]) for item in json.loads(out)}
    assert code == 1
    assert f"checkpoint {UUID} is damaged: 3 of 4 files" in err
    assert files["a.pth"][0] == "DAMAGED"
    assert files["a.pth"][1].startswith("SHA-256 ")
    assert files["code/b.py"] == ("DAMAGED", "3 bytes, recorded were 5")
    assert files["code/deep/c.py"] == ("OK", "")
    assert files["d.txt"] == ("MISSING", "the store has no such file")
    # A table lists only damaged files.
    assert "code/deep/c.py" not in detcloud("checkpoint", "verify", "1234").out


def test_verify_continues_after_a_denied_file(fake: FakeCluster, detcloud: Detcloud) -> None:
    def refuse_one(method: str, target: str) -> None:
        if target.endswith(f"{UUID}-3"):
            raise Refusal(403, "AccessDenied", "Access Denied")

    fake.on_request = refuse_one
    # A refusal by the cluster itself is no finding about the store.
    code, _, err = detcloud("checkpoint", "verify", "1234", "--json")
    assert (code != 0, "Access Denied" in err) == (True, True)
    for file in fake.files[UUID]:
        file["url"] = file["url"].replace("127.0.0.1", "localhost")
    code, out, err = detcloud("checkpoint", "verify", "1234", "--json")
    files = {item["path"]: (item["state"], item["problem"]) for item in json.loads(out)}
    assert (code, files["a.pth"]) == (1, ("OK", ""))
    assert files["d.txt"][0] == "DENIED"
    assert files["d.txt"][1].startswith("missing or not allowed")
    assert "1 of 4 files" in err


def test_lists_and_descriptions_name_pins_of_a_checkpoint(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    holders = {"users": ["ada", "bob"], "versions": ["m/1"], "experiments": [7]}
    fake.checkpoints[0] |= {"pinned": True, "pinned_by": holders}
    fake.add_checkpoint("87654321-bbbb", {"a": b"a"})
    rows = detcloud("checkpoint", "list", "1", "--csv").out.splitlines()
    assert rows[0].endswith(",Pinned by")
    assert rows[1].endswith(',"ada, bob, model version m/1, experiment 7"')
    assert rows[2].endswith(",N/A")
    described = json.loads(detcloud("checkpoint", "describe", "1234", "--json").out)
    assert (described["pinned"], described["pinned_by"]) == (True, holders)
    assert "ada, bob, model version m/1" in detcloud("checkpoint", "describe", "1234").out


def test_patterns_select_files_to_download(detcloud: Detcloud) -> None:
    def downloaded_paths(*options: str) -> list[str]:
        assert detcloud("c", "download", "1234", "-o", "part", *options).code == 0
        paths = sorted(str(path) for path in Path("part").rglob("*") if path.is_file())
        shutil.rmtree("part")
        return [path.removeprefix("part/") for path in paths]

    assert downloaded_paths("--glob", "*.txt") == ["d.txt"]
    assert downloaded_paths("--glob", "**/*.py") == ["code/b.py", "code/deep/c.py"]
    assert downloaded_paths("--glob", "a.*", "--glob", "d.*") == ["a.pth", "d.txt"]
    assert downloaded_paths("--glob", "code/*", "--exclude", "*/deep") == ["code/b.py"]
    assert downloaded_paths("--exclude", "code/*") == ["a.pth", "d.txt"]


def place_in_folder(fake: FakeCluster, root: Path) -> None:
    """Write the checkpoint's files below `root`, and add `root` to `fake.places` as shared_fs."""
    for path, content in CONTENTS.items():
        (root / "1/1/1" / UUID / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "1/1/1" / UUID / path).write_bytes(content)
    storage = {"type": "shared_fs", "path": str(root)}
    fake.places[UUID] = {"uuid": UUID, "path": f"1/1/1/{UUID}", "storage": storage}


@pytest.mark.parametrize("mode", ["direct", "auto"])
def test_files_are_read_directly_from_the_store(
    fake: FakeCluster, detcloud: Detcloud, tmp_path: Path, mode: str
) -> None:
    place_in_folder(fake, tmp_path / "store")
    # Without these objects, no file can come through the cluster.
    fake.objects.clear()
    options = ("--mode", mode, "--exclude", "d.txt")
    assert detcloud("c", "download", "1234", "-o", "part", *options).code == 0
    assert Path("part/code/deep/c.py").read_bytes() == b"y = 2"
    assert not Path("part/d.txt").exists()


def test_auto_avoids_a_closed_store_and_direct_fails(
    fake: FakeCluster, detcloud: Detcloud, tmp_path: Path
) -> None:
    place_in_folder(fake, tmp_path / "elsewhere")
    fake.places[UUID]["storage"]["path"] = str(tmp_path / "not-mounted")
    code, _, err = detcloud("c", "download", "1234", "-o", "part", "--mode", "direct")
    assert code == 1
    assert "not-mounted" in err
    assert "--mode master does not" in err
    assert not Path("part").exists()
    assert detcloud("c", "download", "1234", "-o", "part", "--mode", "auto").code == 0
    assert Path("part/a.pth").read_bytes() == b"weights"


def test_auto_sends_no_credentials_to_an_experiments_endpoint(
    fake: FakeCluster, detcloud: Detcloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = {"type": "s3", "bucket": "b", "endpoint_url": fake.url}
    fake.places[UUID] = {"uuid": UUID, "path": f"1/1/1/{UUID}", "storage": storage}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "own")
    assert detcloud("c", "download", "1234", "-o", "part", "--mode", "auto").code == 0
    assert not [path for _, path in fake.requests if path.startswith("/b")]


def test_all_download_modes_refuse_a_file_modified_in_the_store(
    fake: FakeCluster, detcloud: Detcloud, tmp_path: Path
) -> None:
    place_in_folder(fake, tmp_path / "store")
    (tmp_path / "store/1/1/1" / UUID / "a.pth").write_bytes(b"weightz")
    fake.objects[f"{UUID}-0"] = b"weightz"
    for mode in ("direct", "auto", "master"):
        code, _, err = detcloud("c", "download", "1234", "-o", "part", "--mode", mode)
        assert (code, "it was modified" in err) == (1, True)
    assert detcloud("c", "download", "1234", "--mode", "proxy").code == 2


def test_patterns_that_match_nothing_are_refused(detcloud: Detcloud) -> None:
    code, _, err = detcloud("c", "download", "1234", "-o", "part", "--glob", "*.bin")
    assert code == 1
    assert "no file of the checkpoint (4 files) matches *.bin" in err
    assert not Path("part").exists()
