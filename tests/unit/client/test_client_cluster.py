"""The SDK against a cluster that keeps state."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud import DetcloudError
from detcloud.client import Client
from detcloud.shared.archive import extract
from detcloud.shared.http import ApiError, Transport
from tests.unit.client.fake_cluster import TOKEN, FakeCluster

CONFIG = {"name": "digits", "searcher": {"name": "single"}}


@pytest.fixture
def cluster(fake: FakeCluster) -> Iterator[Client]:
    cluster = Client(fake.url, TOKEN)
    # Requests are repeated at once.
    cluster.http = Transport(fake.url, TOKEN, sleep=lambda _seconds: None)
    yield cluster
    cluster.close()


def uploads(fake: FakeCluster) -> int:
    return sum(method == "PUT" for method, _ in fake.requests)


def test_model_code_is_sent_once(
    fake: FakeCluster, cluster: Client, model_dir: Path, tmp_path: Path
) -> None:
    first = cluster.create_experiment(CONFIG, model_dir)
    second = cluster.create_experiment(CONFIG, model_dir, paused=True)
    assert (first.id, first.state) == (1, "ACTIVE")
    assert (second.id, second.state) == (2, "PAUSED")
    assert uploads(fake) == 1
    (tmp_path / "sent.tar.gz").write_bytes(*fake.objects.values())
    extract(tmp_path / "sent.tar.gz", tmp_path / "out")
    assert (tmp_path / "out" / "model_def.py").read_text() == "print('hello')\n"


def test_configuration_is_a_file_or_a_mapping(
    fake: FakeCluster, cluster: Client, model_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("name: from-file\n")
    cluster.create_experiment(
        path, model_dir, overrides=["max_restarts=2"], template="small", test_mode=True
    )
    request = fake.experiments[0]["asked"]
    assert request["config"] == "name: from-file\n"
    assert request["overrides"] == ["max_restarts=2"]
    assert (request["template"], request["test_mode"], request["paused"]) == ("small", True, False)
    with pytest.raises(DetcloudError, match="could not be read"):
        cluster.create_experiment(tmp_path / "missing.yaml", model_dir)
    path.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(DetcloudError, match="more than the 1048576 bytes allowed"):
        cluster.create_experiment(path, model_dir)


def test_a_mutation_with_a_lost_answer_happens_once(
    fake: FakeCluster, cluster: Client, model_dir: Path
) -> None:
    cluster.upload_model_code(model_dir)
    fake.losses_left = 2
    experiment = cluster.create_experiment(CONFIG, model_dir)
    assert experiment.id == 1
    assert len(fake.experiments) == 1


@pytest.mark.parametrize("status", [403, 412])
def test_an_upload_with_a_lost_answer_succeeds_by_the_existing_object(
    fake: FakeCluster, cluster: Client, model_dir: Path, status: int
) -> None:
    # An upload address creates an object but never replaces it: the repeated upload is refused.
    fake.upload_losses, fake.replacing = 1, status
    sha256 = cluster.upload_model_code(model_dir)
    assert uploads(fake) == 2
    assert list(fake.objects) == [sha256]


def test_a_refused_upload_is_an_error(fake: FakeCluster, cluster: Client, model_dir: Path) -> None:
    fake.refuses_uploads = True
    with pytest.raises(ApiError, match="the signature is not right"):
        cluster.upload_model_code(model_dir)


def test_lists_read_all_pages(fake: FakeCluster, cluster: Client) -> None:
    for number in range(1201):
        fake.add_experiment({"name": str(number)}, {"paused": number % 2})
    assert [listed.id for listed in cluster.experiments()] == list(range(1201, 0, -1))
    # ids 1, 3, ... 1201 were not paused.
    assert len(list(cluster.experiments(states=["ACTIVE"]))) == 601
    assert [listed.id for listed in cluster.experiments(limit=2)] == [1201, 1200]
    # Requests at 500 items a page: three for 1201 items, two for 601 and one for two.
    assert sum(path == "/api/v1/experiments" for _, path in fake.requests) == 6


def test_commands_change_the_experiment(fake: FakeCluster, cluster: Client) -> None:
    fake.add_experiment({}, {})
    experiment = cluster.experiment(1)
    experiment.pause()
    assert experiment.state == "PAUSED"
    experiment.activate()
    assert experiment.state == "ACTIVE"
    experiment.kill()
    assert experiment.state == "STOPPING_KILLED"
    pauses: list[float] = []
    assert experiment.wait(polling_seconds=7.0, sleep=pauses.append) == "CANCELED"
    assert set(pauses) == {7.0}
    with pytest.raises(ApiError, match="has ended") as error:
        experiment.cancel()
    assert error.value.code == "conflict"


def test_trials_metrics_and_logs(fake: FakeCluster, cluster: Client) -> None:
    fake.add_experiment({}, {})
    experiment = cluster.experiment(1)
    experiment.wait(0.001)
    first, second = experiment.trials()
    assert first.state == "COMPLETED"
    assert second.data["metric"] == 2 / 201
    assert [metric["group"] for metric in first.metrics()] == ["training", "validation"]
    assert [metric["group"] for metric in first.metrics("validation")] == ["validation"]
    assert "".join(first.logs()) == "step 100 ünder way\nstep 200 ünder way\n"


def test_a_followed_log_ends_with_the_trial(fake: FakeCluster, cluster: Client) -> None:
    fake.add_experiment({}, {})
    trial = cluster.trial(1)

    def train(seconds: float) -> None:
        cluster.experiment(1)

    pieces = list(trial.logs(follow=True, sleep=train))
    assert pieces == ["step 100 ünder way\n", "step 200 ünder way\n"]


def test_a_wrong_token_is_an_error(fake: FakeCluster) -> None:
    cluster = Client(fake.url, "wrong")
    with pytest.raises(ApiError, match="not known"):
        cluster.overview()
    cluster.close()


def test_a_download_is_complete_or_absent(
    fake: FakeCluster, cluster: Client, tmp_path: Path
) -> None:
    fake.add_checkpoint("abcd-1", {"state.pt": b"x" * 600_000, "code/a.py": b"1", "empty": b""})
    calls: list[tuple[int, int]] = []
    checkpoint = cluster.checkpoint("abcd")
    checkpoint.download(tmp_path / "new" / "out", lambda done, total: calls.append((done, total)))
    assert (tmp_path / "new" / "out" / "state.pt").read_bytes() == b"x" * 600_000
    assert (tmp_path / "new" / "out" / "code" / "a.py").read_bytes() == b"1"
    assert (tmp_path / "new" / "out" / "empty").read_bytes() == b""
    assert calls[-1] == (600_001, 600_001)
    assert calls == sorted(calls)
    with pytest.raises(DetcloudError, match="exists"):
        checkpoint.download(tmp_path / "new" / "out")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"size": 4}, "has 5 bytes, expected 4"),
        ({"sha256": "0" * 64}, "SHA-256 that differs"),
        ({"path": "../evil"}, "'..'"),
        ({"path": "/etc/evil"}, "relative"),
        ({"path": "a\\..\\..\\evil"}, "backslash"),
        ({"path": "a\0b"}, "control"),
        ({"path": "FIRST"}, "clashes"),
    ],
)
def test_a_bad_file_leaves_no_download(
    change: dict[str, object],
    reason: str,
    fake: FakeCluster,
    cluster: Client,
    tmp_path: Path,
) -> None:
    files = fake.add_checkpoint("abcd", {"first": b"1", "second": b"12345"})
    files[1].update(change)
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(DetcloudError, match=reason.replace(".", r"\.")):
        cluster.checkpoint("abcd").download(place / "out")
    assert list(place.iterdir()) == []


def test_token_is_not_sent_to_other_hosts(
    fake: FakeCluster, cluster: Client, tmp_path: Path
) -> None:
    files = fake.add_checkpoint("abcd", {"first": b"1"})
    files[0]["url"] = files[0]["url"].replace("127.0.0.1", "localhost")
    cluster.checkpoint("abcd").download(tmp_path / "out")
    assert fake.object_tokens == {None}


def test_no_cluster_is_a_clear_error() -> None:
    with pytest.raises(DetcloudError, match="detcloud up"):
        Client()
