"""`detcloud checkpoint verify`, and downloads of a part of a checkpoint."""

import json
import shutil
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster

UUID = "12345678-aaaa"
CONTENTS = {"a.pth": b"weights", "code/b.py": b"x = 1", "code/deep/c.py": b"y = 2", "d.txt": b"d"}


@pytest.fixture(autouse=True)
def checkpoint(fake: FakeCluster) -> None:
    fake.add_experiment({}, {"paused": True})
    fake.add_checkpoint(UUID, CONTENTS)


def test_a_whole_checkpoint_is_told_whole(detcloud: Detcloud) -> None:
    # 7 + 5 + 5 + 1 bytes.
    assert detcloud("checkpoint", "verify", "1234").out == (
        f"checkpoint {UUID} is whole: 4 files, 18 B\n"
    )
    found = json.loads(detcloud("checkpoint", "verify", "1234", "--json").out)
    assert [item["state"] for item in found] == ["OK"] * 4


def test_each_damaged_and_missing_file_is_named(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.objects[f"{UUID}-0"] = b"weightz"
    fake.objects[f"{UUID}-1"] = b"x ="
    del fake.objects[f"{UUID}-3"]
    code, out, err = detcloud("checkpoint", "verify", "1234", "--json")
    found = {item["path"]: (item["state"], item["problem"]) for item in json.loads(out)}
    assert code == 1
    assert f"3 of 4 files of checkpoint {UUID} are not whole" in err
    assert found["a.pth"][0] == "DAMAGED"
    assert found["a.pth"][1].startswith("SHA-256 ")
    assert found["code/b.py"] == ("DAMAGED", "3 bytes, recorded were 5")
    assert found["code/deep/c.py"] == ("OK", "")
    assert found["d.txt"] == ("MISSING", "the store has no such file")
    # A table has what is wrong alone.
    assert "code/deep/c.py" not in detcloud("checkpoint", "verify", "1234").out


def test_lists_and_descriptions_name_what_keeps_a_checkpoint(
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


def test_patterns_choose_what_is_downloaded(detcloud: Detcloud) -> None:
    def downloaded_paths(*options: str) -> list[str]:
        assert detcloud("c", "download", "1234", "-o", "part", *options).code == 0
        paths = sorted(str(path) for path in Path("part").rglob("*") if path.is_file())
        shutil.rmtree("part")
        return [path.removeprefix("part/") for path in paths]

    assert downloaded_paths("--glob", "*.py") == ["code/b.py", "code/deep/c.py"]
    assert downloaded_paths("--glob", "a.*", "--glob", "d.*") == ["a.pth", "d.txt"]
    assert downloaded_paths("--glob", "code/*", "--exclude", "*/deep/*") == ["code/b.py"]
    assert downloaded_paths("--exclude", "code/*") == ["a.pth", "d.txt"]


def test_patterns_that_match_nothing_are_refused(detcloud: Detcloud) -> None:
    code, _, err = detcloud("c", "download", "1234", "-o", "part", "--glob", "*.bin")
    assert code == 1
    assert "none of the checkpoint's 4 files matches *.bin" in err
    assert not Path("part").exists()
