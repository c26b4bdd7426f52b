"""Every noun of the SDK: typed fields, and verbs that change the cluster."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import detcloud as package
from detcloud import DetcloudError
from detcloud.client import Client, Experiment, LogFilter
from detcloud.client.endpoint import (
    configured_url,
    find_endpoint,
    remove_credentials,
    store_credentials,
)
from detcloud.client.model import Model, sort_models
from detcloud.compatibility.models import ModelSortBy
from detcloud.shared.archive import pack
from detcloud.shared.http import ApiError
from tests.unit.client.fake_cluster import TOKEN, FakeCluster, Item

CONFIG = {"name": "digits", "searcher": {"name": "single"}}


@pytest.fixture
def client(fake: FakeCluster) -> Iterator[Client]:
    with Client(fake.url, TOKEN) as client:
        yield client


def run_experiment(fake: FakeCluster, client: Client) -> Experiment:
    """Run experiment 1 with two trials to COMPLETED."""
    fake.add_experiment(dict(CONFIG), {})
    experiment = client.experiment(1)
    experiment.wait(0.001)
    return experiment


def line(offset: int, **changed: object) -> Item:
    standard = {"offset": offset, "time_ms": 1000 + offset, "rank": 0, "level": "INFO"}
    return {**standard, "text": f"line {offset}", **changed}


def test_client_is_loaded_on_first_use() -> None:
    code = (
        "import sys, detcloud; before = 'detcloud.client' in sys.modules;"
        "from detcloud import Client; print(before, Client.__module__)"
    )
    environment = {"PYTHONPATH": str(Path(package.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout == "False detcloud.client.client\n"
    assert package.Client is Client


def test_client_without_arguments_uses_the_environment(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCLOUD_URL", fake.url)
    monkeypatch.setenv("DETCLOUD_TOKEN", TOKEN)
    with Client() as client:
        assert client.whoami() == {"user": "ada", "role": "user"}
        assert client.overview()["resource_pools"][0]["slots"] == 2


def test_fields_are_typed_documented_and_read_only(fake: FakeCluster, client: Client) -> None:
    experiment = run_experiment(fake, client)
    assert (experiment.name, experiment.smaller_is_better) == ("digits", True)
    assert experiment.config == CONFIG
    assert "0 to 1" in (Experiment.progress.__doc__ or "")
    assert repr(experiment) == "Experiment(1)"
    with pytest.raises(AttributeError, match="a value from the cluster"):
        experiment.name = "x"
    del experiment.data["seed"]
    with pytest.raises(DetcloudError, match="did not tell 'seed' of this experiment"):
        _ = experiment.seed


def test_settings_are_changed_separately(fake: FakeCluster, client: Client) -> None:
    fake.add_experiment(dict(CONFIG), {})
    experiment = client.experiment(1)
    experiment.set(name="new", labels=["a", "b"], max_slots=4)
    assert (experiment.name, experiment.labels, experiment.max_slots) == ("new", ["a", "b"], 4)
    experiment.set(max_slots=None, save_trial_best=0)
    assert (experiment.max_slots, experiment.save_trial_best, experiment.name) == (None, 0, "new")


def test_an_ended_experiment_is_archived_continued_and_deleted(
    fake: FakeCluster, client: Client
) -> None:
    experiment = run_experiment(fake, client)
    experiment.archive()
    assert experiment.archived
    assert list(client.experiments()) == []
    assert [listed.id for listed in client.experiments(archived=True)] == [1]
    experiment.unarchive()
    assert [listed.id for listed in client.experiments(name="igit", archived=None)] == [1]
    experiment.continue_(["max_restarts=9"])
    assert (experiment.state, experiment.data["asked"]) == (
        "ACTIVE",
        {"overrides": ["max_restarts=9"]},
    )
    experiment.kill()
    experiment.wait(0.001)
    experiment.delete()
    assert experiment.state == "DELETING"


def test_history_replay_and_metrics_of_an_experiment(fake: FakeCluster, client: Client) -> None:
    experiment = run_experiment(fake, client)
    actors = [entry["actor"] for entry in experiment.history()]
    assert actors == ["experiment#1", "trial#1", "trial#2"]
    assert [entry["actor"] for entry in experiment.history("trial#2")] == ["trial#2"]
    assert [actor["entries"] for actor in experiment.replay()] == [4, 4, 4]
    curves = experiment.metrics("loss", trials_max=1)
    assert (curves["name"], [line["trial_id"] for line in curves["series"]]) == ("loss", [1])


def test_metrics_of_a_trial_are_read_and_the_trial_is_killed(
    fake: FakeCluster, client: Client
) -> None:
    fake.add_experiment(dict(CONFIG), {})
    trial = client.trial(2)
    assert not trial.has_ended
    first, *_ = trial.metric_summaries()
    assert (first["group"], first["name"], first["mean"]) == ("training", "loss", 0.0075)
    series = trial.series(["loss", "accuracy"], group="training", points_max=1)
    counts = [(line["name"], len(line["points"])) for line in series]
    assert counts == [("accuracy", 1), ("loss", 1)]
    assert {line["group"] for line in trial.series()} == {"validation"}
    trial.kill()
    assert trial.state == "STOPPING_KILLED"


def test_log_lines_are_filtered_over_pages(fake: FakeCluster, client: Client) -> None:
    run_experiment(fake, client)
    fake.lines[1] = [line(n) for n in range(4)] + [line(4, level="ERROR", rank=1, text="Boom")]
    trial = client.trial(1)
    assert [line["offset"] for line in trial.log_lines()] == [0, 1, 2, 3, 4]

    def offsets(wanted: LogFilter) -> list[int]:
        return [line["offset"] for line in trial.log_lines(wanted)]

    for wanted in (LogFilter(level="WARNING"), LogFilter(rank=1), LogFilter(search="boom")):
        assert offsets(wanted) == [4]
    # Times are 1000 + offset, and the end is excluded.
    assert offsets(LogFilter(since_ms=1001, until_ms=1003)) == [1, 2]


def test_followed_log_lines_are_unique_and_end_with_the_trial(
    fake: FakeCluster, client: Client
) -> None:
    fake.add_experiment(dict(CONFIG), {"paused": True})
    fake.lines[1] = [line(0), line(1), line(2)]

    def grow(seconds: float) -> None:
        fake.lines[1].append(line(len(fake.lines[1])))
        if len(fake.lines[1]) == 6:
            fake.trials[0]["ended_ms"] = 9

    lines = client.trial(1).log_lines(follow=True, sleep=grow)
    assert [line["offset"] for line in lines] == [0, 1, 2, 3, 4, 5]


def test_best_checkpoints_are_ranked_by_any_metric(fake: FakeCluster, client: Client) -> None:
    experiment = run_experiment(fake, client)
    for uuid, metric in (("aa", 0.5), ("bb", 0.25), ("cc", None), ("dd", 0.125)):
        fake.add_checkpoint(uuid, {"f": b"1"})
        fake.checkpoints[-1]["metric"] = metric
    fake.checkpoints[3]["state"] = "DELETED"
    assert [best.uuid for best in experiment.best_checkpoints()] == ["bb", "aa"]
    larger = experiment.best_checkpoints(smaller_is_better=False)
    assert [best.uuid for best in larger] == ["aa", "bb"]
    with pytest.raises(DetcloudError, match="it is not known whether a smaller loss is better"):
        experiment.best_checkpoints("loss")
    # All checkpoints have the same loss, of trial 1 after 100 steps.
    by_loss = experiment.best_checkpoints("loss", smaller_is_better=True)
    assert [best.uuid for best in by_loss] == ["aa", "bb", "cc"]
    by_loss[0].delete()
    assert by_loss[0].state == "DELETING"


def test_downloaded_model_code_equals_the_upload(
    fake: FakeCluster, client: Client, model_dir: Path, tmp_path: Path
) -> None:
    experiment = client.create_experiment(CONFIG, model_dir)
    folder = experiment.download_model_def(tmp_path / "back")
    assert (folder / "model_def.py").read_text() == "print('hello')\n"
    with pytest.raises(DetcloudError, match="exists"):
        experiment.download_model_def(folder)
    fake.objects[experiment.code_sha256] += b"x"
    with pytest.raises(DetcloudError, match="SHA-256 that differs"):
        experiment.download_model_def(tmp_path / "changed")
    assert not (tmp_path / "changed").exists()


def test_included_files_are_uploaded_with_the_code(
    fake: FakeCluster, client: Client, model_dir: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "tools.py").write_text("pass\n")
    (shared / "big.bin").write_text("big")
    (shared / ".detignore").write_text("*.bin\n")
    (tmp_path / "data.csv").write_text("1\n")
    calls: list[tuple[int, int]] = []
    sent = client.upload_model_code(
        model_dir,
        includes=[shared, tmp_path / "data.csv"],
        on_progress=lambda done, total: calls.append((done, total)),
    )
    expected = tmp_path / "expected"
    (expected / "shared").mkdir(parents=True)
    (expected / "model_def.py").write_text("print('hello')\n")
    (expected / "shared" / "tools.py").write_text("pass\n")
    (expected / "data.csv").write_text("1\n")
    with pack(expected) as archive:
        assert sent == archive.sha256
    size = len(fake.objects[sent])
    assert hashlib.sha256(fake.objects[sent]).hexdigest() == sent
    assert calls[-1] == (size, size)
    only = client.upload_model_code(None, includes=[tmp_path / "data.csv"])
    assert only in fake.objects
    for includes, reason in (
        ([tmp_path / "none"], "there is no such file"),
        ([tmp_path / "data.csv", tmp_path / "data.csv"], "has a data.csv already"),
    ):
        with pytest.raises(DetcloudError, match=reason):
            client.upload_model_code(model_dir, includes=includes)
    assert client.upload_model_code(None) in fake.objects


def test_client_disables_and_enables_agents_and_slots(fake: FakeCluster, client: Client) -> None:
    agent = client.agent("tower")
    assert agent.id == "a-2"
    agent.disable(drain=True)
    assert (agent.enabled, agent.draining) == (False, True)
    agent.enable()
    assert agent.enabled
    slot = agent.slots[1]
    slot.disable()
    assert (slot.id, slot.enabled, slot.allocation, slot.type) == (1, False, None, "cpu")
    assert not fake.machines.agents[1]["slots"][1]["enabled"]
    slot.enable()
    assert slot.enabled
    with pytest.raises(DetcloudError, match="there is no agent x; there is a-1, a-2"):
        client.agent("x")


def test_templates_and_tokens_are_created_and_removed(fake: FakeCluster, client: Client) -> None:
    template = client.set_template("small", "name: x\n")
    template.set("name: y\n")
    assert [template.config for template in client.templates()] == ["name: y\n"]
    assert client.template("small").user == "ada"
    template.remove()
    with pytest.raises(ApiError, match="no template small"):
        client.template("small")
    token = client.create_token(description="ci", expires_days=2)
    assert (token.token, token.expires_ms) == ("secret-of-the-token", 2 * 86_400_000)
    token.revoke()
    [listed] = client.tokens()
    assert listed.revoked
    assert listed.token is None


def test_reports_are_created_changed_and_deleted(fake: FakeCluster, client: Client) -> None:
    report = client.create_report("Digits", "# a", sharing="read")
    assert (report.id, report.text, report.revision) == (1, "# a", 1)
    [listed] = client.reports()
    # A handle of a list reads the text at first use.
    assert "text" not in listed.data
    listed.set(title="Digits, again")
    assert (listed.text, listed.title, listed.sharing) == ("# a", "Digits, again", "read")
    with pytest.raises(ApiError, match="ada changed report 1"):
        report.set(text="# b")
    report.refresh()
    report.set(text="# b")
    assert client.report(1).text == "# b"
    report.delete()
    with pytest.raises(ApiError, match="no report 1"):
        client.report(1)


def test_stored_credentials_are_found_and_removed(own_home: Path) -> None:
    path = store_credentials("https://one.example", "t1")
    assert path.stat().st_mode & 0o777 == 0o600
    endpoint = find_endpoint()
    assert endpoint is not None
    assert (endpoint.url, endpoint.token) == ("https://one.example", "t1")
    store_credentials("https://two.example", "t2")
    assert configured_url() == "https://two.example"
    assert configured_url("http://x") == "http://x"
    assert [entry.name for entry in path.parent.iterdir() if "credentials" in entry.name] == [
        "credentials.json"
    ]
    assert remove_credentials()
    assert not remove_credentials()
    assert configured_url() is None


@pytest.mark.parametrize(
    ("sort_by", "expected"),
    [
        (ModelSortBy.NUM_VERSIONS, ["c", "b", "a"]),
        (ModelSortBy.WORKSPACE, ["b", "c", "a"]),
        (ModelSortBy.CREATION_TIME, ["a", "c", "b"]),
    ],
)
def test_models_are_sorted_by_determineds_keys(
    client: Client, sort_by: ModelSortBy, expected: list[str]
) -> None:
    rows = [("a", 3, "z", 1), ("b", 2, "x", 3), ("c", 1, "y", 2)]
    names = ("name", "versions", "workspace", "created_ms")
    models = [Model(client, dict(zip(names, row, strict=True))) for row in rows]
    ordered = sort_models(iter(models), sort_by.value, descending=False)
    assert [model.name for model in ordered] == expected
