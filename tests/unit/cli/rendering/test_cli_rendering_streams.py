"""Output in encodings that lack some characters."""

import json
import os
import subprocess
import sys

import pytest

from detcloud.client.home import HOME_VARIABLE
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.client.fake_cluster import TOKEN, FakeCluster

NAME = "ü✓😀\ud800"


def run(
    fake: FakeCluster, *words: str, encoding: str = "latin-1", **variables: str
) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "DETCLOUD_URL": fake.url, "DETCLOUD_TOKEN": TOKEN}
    environment.pop(HOME_VARIABLE, None)
    environment |= {"PYTHONIOENCODING": encoding, **variables}
    return subprocess.run(
        [sys.executable, "-m", "detcloud.cli.main", *words],
        capture_output=True,
        check=False,
        env=environment,
        timeout=PROCESS_SECONDS_MAX,
    )


@pytest.fixture
def named_cluster(fake: FakeCluster) -> FakeCluster:
    fake.add_experiment({"name": NAME}, {})
    fake.experiments[0]["name"] = NAME
    fake.logs[1] = "begin ✓😀\nend ü\n"
    for trial in fake.trials:
        trial.update(state="COMPLETED", ended_ms=4000)
    return fake


def test_a_log_is_printed_completely(named_cluster: FakeCluster) -> None:
    done = run(named_cluster, "trial", "logs", "1")
    assert (done.returncode, done.stderr) == (0, b"")
    # Latin-1 lacks ✓ and 😀; 😀 is two units of UTF-16.
    assert done.stdout == b"begin \\u2713\\ud83d\\ude00\nend \xfc\n"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8", "utf-8:strict"])
def test_tables_and_json_are_printed_completely(named_cluster: FakeCluster, encoding: str) -> None:
    assert run(named_cluster, "list", encoding=encoding).returncode == 0
    done = run(named_cluster, "describe", "1", "--json", encoding=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    read = json.loads(done.stdout.decode(encoding.partition(":")[0]))
    assert read["name"] == NAME


@pytest.mark.parametrize("form", ["--csv", "--yaml"])
def test_csv_and_yaml_are_utf_8(named_cluster: FakeCluster, form: str) -> None:
    done = run(named_cluster, "list", form)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "ü✓" in done.stdout.decode()


def test_output_works_in_the_c_locale(named_cluster: FakeCluster) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for words in (["list"], ["trial", "logs", "1"], ["list", "--csv"], ["describe", "1", "--json"]):
        done = run(named_cluster, *words, encoding="", **plain)
        assert (done.returncode, done.stderr) == (0, b"")


def test_encoding_error_handler_of_the_user_is_kept(named_cluster: FakeCluster) -> None:
    done = run(named_cluster, "trial", "logs", "1", encoding="ascii:replace")
    assert done.stdout == b"begin ??\nend ?\n"
