"""Commands that list, describe, change, continue, fork, download and delete experiments."""

import csv
import io
import json
import threading
import time
from pathlib import Path

import pytest
import yaml

from detcloud.shared.archive import extract
from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import TOKEN, FakeCluster


def test_ended_experiments_are_archived_and_unarchived(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    assert detcloud("archive", "1").out == "experiment 1 is archived\n"
    assert json.loads(detcloud("list", "--json").out) == []
    assert [item["id"] for item in json.loads(detcloud("list", "--archived", "--json").out)] == [1]
    assert [item["id"] for item in json.loads(detcloud("ls", "-a", "--json").out)] == [1]
    assert detcloud("e", "unarchive", "1").out == "experiment 1 is shown in lists again\n"
    assert json.loads(detcloud("e", "archive", "1", "--json").out)["archived"] is True


def test_archive_and_delete_refuse_a_running_experiment(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    fake.add_experiment({}, {})
    refused = (3, "", "error: experiment 1 has not ended\n")
    assert detcloud("archive", "1") == refused
    assert detcloud("delete", "1", "--yes") == refused


def test_a_list_is_filtered_and_paged(fake: FakeCluster, detcloud: Detcloud) -> None:
    for number in range(1, 6):
        experiment = fake.add_experiment({"name": f"run{number}"}, {"paused": True})
        fake.experiments[experiment["id"] - 1]["labels"] = ["odd"] if number % 2 else []

    def ids(*words: str) -> list[int]:
        return [item["id"] for item in json.loads(detcloud("list", "--json", *words).out)]

    assert ids("--limit", "2", "--offset", "1") == [4, 3]
    assert ids("--limit", "2", "--pages", "all") == [5, 4, 3, 2, 1]
    assert ids("--label", "odd") == [5, 3, 1]
    assert ids("--name", "run4") == [4]


def test_several_experiments_are_described_in_all_formats(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    ended_cluster.add_experiment({"name": "=second"}, {"paused": True})
    text = detcloud("describe", "1", "2").out
    assert text.count("Resource pool    default\n") == 2
    assert "\n\nID               2\n" in text
    rows = list(csv.DictReader(io.StringIO(detcloud("describe", "1,2", "--csv").out)))
    assert [row["Name"] for row in rows] == ["digits", "'=second"]
    assert [item["id"] for item in json.loads(detcloud("describe", "2,1", "--json").out)] == [2, 1]
    assert yaml.safe_load(detcloud("describe", "1", "--yaml").out)["name"] == "digits"


def test_description_includes_metrics_and_writes_tables(
    ended_cluster: FakeCluster, detcloud: Detcloud, tmp_path: Path
) -> None:
    ended_cluster.add_checkpoint("aa", {"f": b"1"})
    metrics = json.loads(detcloud("describe", "1", "--metrics", "--json").out)["metrics"]
    assert [(item["trial_id"], item["group"]) for item in metrics] == [
        (1, "training"),
        (1, "validation"),
        (2, "training"),
        (2, "validation"),
    ]
    # Trial 1 has the metric 1 / 201 after 200 steps.
    assert metrics[0]["value"] == pytest.approx(1 / 201)
    assert " Experiment | Trial | Group " in detcloud("describe", "1", "--metrics").out
    folder = tmp_path / "tables"
    assert detcloud("describe", "1", "--metrics", "--outdir", str(folder)).out == f"{folder}\n"
    sizes = {path.stem: len(path.read_text().splitlines()) for path in folder.iterdir()}
    # A title and a row for each item: 1 experiment, 2 trials, 1 checkpoint, 4 numbers.
    assert sizes == {"experiments": 2, "trials": 3, "checkpoints": 2, "metrics": 5}


def test_an_ended_experiment_is_continued(ended_cluster: FakeCluster, detcloud: Detcloud) -> None:
    words = ("continue", "1", "--config", "max_restarts=9")
    assert detcloud(*words).out == "experiment 1 is active\n"
    assert ended_cluster.experiments[0]["asked"] == {"overrides": ["max_restarts=9"]}
    code, _, err = detcloud("e", "continue", "1", "--config-file", "x.yaml")
    assert code == 2
    assert "--config-file is not supported: --config KEY=VALUE changes a field" in err


def test_deletion_requires_confirmation_and_waits(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    refused = detcloud("delete", "1")
    assert refused.code == 1
    assert refused.err == (
        "error: Delete experiment 1 (digits) with its checkpoints, logs and metrics: "
        "confirm with --yes, since stdin is not a terminal\n"
    )
    assert ended_cluster.experiments[0]["state"] == "COMPLETED"
    ended_cluster.deletion = "DELETE_FAILED"
    failed = detcloud("delete", "1", "--yes")
    assert failed[:2] == (1, "experiment 1 could not be deleted: the store is full\n")
    ended_cluster.deletion = "DELETED"
    assert detcloud("delete", "1", "-y", "--no-wait").out == "experiment 1 is being deleted\n"
    detcloud("describe", "1")
    gone = detcloud("describe", "1")
    assert gone.code == 3
    assert gone.err.startswith("error: experiment 1 was deleted\n")
    ended_cluster.add_experiment({"name": "x"}, {})
    detcloud("wait", "2", "--polling-interval", "0.001")
    assert detcloud("delete", "2", "--yes") == (0, "experiment 2 was deleted\n", "")


def test_tensorboard_files_are_deleted_separately(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    done = detcloud("e", "delete-tb-files", "1")
    assert done.out == "the TensorBoard files of experiment 1 were deleted\n"
    assert ended_cluster.requests[-1] == ("DELETE", "/api/v1/experiments/1/tensorboard")
    assert ended_cluster.experiments[0]["state"] == "COMPLETED"


def test_labels_are_added_once_and_removed(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({}, {"paused": True})
    added = detcloud("e", "label", "add", "1", "a", "b", "a")
    assert added.out == "experiment 1 has the labels a, b\n"
    assert detcloud("e", "label", "add", "1", "b").out == "experiment 1 has the labels a, b\n"
    assert detcloud("e", "label", "remove", "1", "a").out == "experiment 1 has the labels b\n"
    missing = detcloud("e", "label", "remove", "1", "z")
    assert (missing.code, missing.err) == (1, "error: experiment 1 has no label z; it has b\n")
    assert detcloud("e", "label", "remove", "1", "b").out == "experiment 1 has the labels none\n"


def test_names_descriptions_and_limits_are_set(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({}, {"paused": True})
    assert detcloud("e", "set", "name", "1", "x y").out == "experiment 1 is now named x y\n"
    detcloud("e", "set", "description", "1", "")
    assert fake.experiments[0]["description"] == ""
    limited = detcloud("e", "set", "max-slots", "1", "1")
    assert limited.out == "experiment 1 may have at most 1 slot\n"
    lifted = detcloud("e", "set", "max-slots", "1", "none")
    assert lifted.out == "experiment 1 may have as many slots as it needs\n"
    assert fake.experiments[0]["max_slots"] is None
    assert detcloud("e", "set", "max-slots", "1", "x").code == 2


def test_gc_policy_is_previewed_before_deletion(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    for uuid in ("aa", "bb", "cc"):
        ended_cluster.add_checkpoint(uuid, {"f": b"x" * 1024})
    policy = ("e", "set", "gc-policy", "1")
    refused = detcloud(*policy, "--save-trial-latest", "1")
    assert refused.code == 1
    assert " bb " in refused.out
    # The policy keeps 1 of 3 checkpoints: 2 files of 1 KiB and 2 manifests are deleted.
    deleted = (
        "to delete: 2 checkpoints, 4 files, 2.0 KiB, in about 1 s; to keep: 1 checkpoint, 1.0 KiB\n"
    )
    assert deleted in refused.out
    assert deleted in detcloud(*policy, "--save-trial-latest", "1", "--dry-run").out
    assert (
        "error: Delete 2 checkpoints: confirm with --yes, since stdin is not a terminal"
        in refused.err
    )
    assert ended_cluster.experiments[0]["save_trial_latest"] == 1
    done = detcloud(*policy, "--save-trial-latest", "2", "--yes")
    assert done.out.endswith("experiment 1 deletes 1 checkpoint\n")
    assert ended_cluster.experiments[0]["save_trial_latest"] == 2
    document = json.loads(detcloud(*policy, "--preview", "--save-trial-latest", "0", "--json").out)
    assert (document["delete_count"], ended_cluster.experiments[0]["save_trial_latest"]) == (3, 2)
    assert detcloud(*policy).err.startswith(
        "error: nothing to change; set how many to keep with --save-experiment-best"
    )


def test_dry_run_prints_the_size_of_a_deletion_without_deleting(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    ended_cluster.add_checkpoint("aa", {"f": b"x" * 1024, "g": b""})
    ended_cluster.add_checkpoint("bb", {"f": b"x" * 1024})
    text = "to delete: 2 checkpoints, 5 files, 2.0 KiB, in about 1 s, and the logs and metrics\n"
    assert detcloud("delete", "1", "--dry-run") == (0, text, "")
    text = "to delete: 2 checkpoints, 5 files, 2.0 KiB, in about 2 s\n"
    assert detcloud("checkpoint", "delete", "aa", "bb", "--dry-run") == (0, text, "")
    ended_cluster.checkpoints[0]["pinned"] = True
    refused = detcloud("checkpoint", "delete", "aa,bb", "--dry-run")
    assert refused.code == 1
    assert refused.out.splitlines() == [
        "to delete: 1 checkpoint, 2 files, 1.0 KiB, in about 1 s",
        "checkpoint aa cannot be deleted: eve pinned it",
    ]
    assert {checkpoint["state"] for checkpoint in ended_cluster.checkpoints} == {"COMPLETED"}
    assert ended_cluster.experiments[0]["state"] not in ("DELETING", "DELETED")
    assert all(method == "GET" for method, _ in ended_cluster.requests)


def test_history_is_printed_and_replay_compared(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    assert " trial#2      |        1 | began | asked" in detcloud("history", "1").out
    only = json.loads(detcloud("history", "1", "--actor", "trial#1", "--json").out)
    assert [entry["actor"] for entry in only] == ["trial#1"]
    # An experiment and two trials of 4 entries each.
    assert detcloud("replay", "1") == (
        0,
        "3 actors, 12 journal entries: all match the recorded state\n",
        "",
    )
    ended_cluster.differences["trial#2"] = {
        "revision": 3,
        "message": "TrialReached",
        "field": "state",
        "recorded": "a",
        "replayed": "b",
    }
    code, out, _ = detcloud("replay", "1")
    assert code == 1
    assert " trial#2 |       4 |        3 | TrialReached | state | a        | b" in out
    assert out.endswith("1 actor differs from the recorded state (trial#2)\n")
    assert len(json.loads(detcloud("replay", "1", "--json").out)) == 3
    assert len(detcloud("replay", "1", "--csv").out.splitlines()) == 4


def test_history_counts_omitted_trials(ended_cluster: FakeCluster, detcloud: Detcloud) -> None:
    assert detcloud("history", "1").err == ""
    ended_cluster.merged_trials_max = 1
    assert detcloud("history", "1").err == (
        "note: the events of 2 trials are left out, because the experiment has so many; "
        "add `--actor trial#ID` for the events of a trial\n"
    )
    assert detcloud("history", "1", "--actor", "trial#1").err == ""


def test_best_checkpoints_are_downloaded(
    ended_cluster: FakeCluster, detcloud: Detcloud, tmp_path: Path
) -> None:
    for uuid, metric in (("aa", 0.5), ("bb", 0.25), ("cc", 0.75)):
        ended_cluster.add_checkpoint(uuid, {"f": uuid.encode()})
        ended_cluster.checkpoints[-1]["metric"] = metric
    assert detcloud("download", "1", "--top-n", "2").out == "checkpoints/bb\ncheckpoints/aa\n"
    assert (tmp_path / "checkpoints" / "bb" / "f").read_text() == "bb"
    quiet = detcloud("e", "download", "1", "-o", "w", "--smaller-is-better", "false", "-q")
    assert quiet == (0, "", "")
    assert [path.name for path in Path("w").iterdir()] == ["cc"]
    best = json.loads(detcloud("e", "lc", "1", "--best", "2", "--json").out)
    assert [item["uuid"] for item in best] == ["bb", "aa"]
    code, _, err = detcloud("e", "download", "1", "--sort-by", "accuracy")
    assert (code, "set --smaller-is-better true or false" in err) == (1, True)


def test_download_without_checkpoints_is_an_error(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    code, _, err = detcloud("download", "1")
    assert (code, err) == (1, "error: experiment 1 has no stored checkpoint with a validation\n")


def test_code_with_includes_is_downloaded(
    fake: FakeCluster, detcloud: Detcloud, config: Path, model_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "extra.txt").write_text("more")
    words = ("create", str(config), str(model_dir), "-i", str(tmp_path / "extra.txt"), "--yaml")
    assert yaml.safe_load(detcloud(*words).out)["id"] == 1
    assert detcloud("e", "download-model-def", "1").out == "experiment_1_model_def\n"
    folder = Path("experiment_1_model_def")
    assert sorted(path.name for path in folder.iterdir()) == ["extra.txt", "model_def.py"]
    only = detcloud("create", str(config), "--include", str(tmp_path / "extra.txt"))
    assert only.out == "Created experiment 2\n"
    content = fake.objects[fake.experiments[1]["code_sha256"]]
    (tmp_path / "sent.tar.gz").write_bytes(content)
    extract(tmp_path / "sent.tar.gz", tmp_path / "sent")
    assert [path.name for path in (tmp_path / "sent").iterdir()] == ["extra.txt"]


def test_waiting_ends_after_its_timeout(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({"name": "digits"}, {})
    fake.experiments[0]["state"] = "PAUSED"
    done = detcloud("wait", "1", "--polling-interval", "0.01", "--timeout", "0.02")
    assert (done.code, done.out) == (5, "")
    assert done.err == "experiment 1 is PAUSED after 0.02 s; the experiment continues\n"


@pytest.mark.parametrize("code", ["none", "file"])
def test_code_may_be_a_file_or_missing(
    fake: FakeCluster, detcloud: Detcloud, config: Path, tmp_path: Path, code: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    words = [str(script)] if code == "file" else []
    assert detcloud("create", str(config), *words).out == "Created experiment 1\n"
    (tmp_path / "sent.tar.gz").write_bytes(fake.objects[fake.experiments[0]["code_sha256"]])
    extract(tmp_path / "sent.tar.gz", tmp_path / "sent")
    sent = [path.name for path in (tmp_path / "sent").iterdir()]
    assert sent == (["train.py"] if code == "file" else [])


def test_include_that_links_to_itself_is_an_error(
    fake: FakeCluster, detcloud: Detcloud, config: Path, model_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "there").symlink_to("back")
    (tmp_path / "back").symlink_to("there")
    code, _, err = detcloud("create", str(config), str(model_dir), "-i", str(tmp_path / "there"))
    assert (code, "there: there is no such file or folder" in err) == (1, True)


def test_the_first_trials_log_is_followed(
    fake: FakeCluster, detcloud: Detcloud, config: Path, model_dir: Path
) -> None:
    log = "step 100 ünder way\nstep 200 ünder way\n"
    training = threading.Thread(target=_train, args=(fake,))
    training.start()
    followed = detcloud("create", str(config), str(model_dir), "-f")
    training.join()
    hint = "printing the log of the first trial; `detcloud follow 1` watches the states and metrics"
    assert followed[:2] == (0, f"Created experiment 1\n{log}")
    assert followed.err.startswith(hint)
    again = detcloud("continue", "1", "--follow-first-trial")
    assert again.out == f"experiment 1 is active\n{log}"


def test_following_ends_if_a_search_ends_without_a_trial(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    ended_cluster.trials.clear()

    def fail_search(method: str, target: str) -> None:
        if method == "GET":
            ended_cluster.experiments[0].update(state="ERROR")

    ended_cluster.on_request = fail_search
    assert detcloud("continue", "1", "--follow-first-trial").code == 1


def _train(fake: FakeCluster) -> None:
    """Poll the fake experiment until COMPLETED; each poll advances the training."""
    while not fake.experiments or fake.experiments[0]["state"] != "COMPLETED":
        if fake.trials[1:]:
            fake.answer("GET", "/api/v1/experiments/1", {"authorization": f"Bearer {TOKEN}"}, b"")
        time.sleep(0.01)
