"""Commands on experiments, trials and checkpoints against the fake cluster."""

import csv
import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster, Refusal

HOSTILE = "=x\x1b[2J\x1b]0;t\x07\u202e\x9b2J"


def test_create_submits_and_names_the_experiment(
    fake: FakeCluster, detcloud: Detcloud, config: Path, model_dir: Path
) -> None:
    words = ("create", str(config), str(model_dir), "--config", "max_restarts=1", "--paused")
    assert detcloud(*words) == (0, "Created experiment 1\n", "")
    request = fake.experiments[0]["asked"]
    assert (request["overrides"], request["paused"]) == (["max_restarts=1"], True)
    answered = detcloud("e", "create", str(config), str(model_dir), "--json")
    assert json.loads(answered.out)["id"] == 2


def test_a_refused_configuration_is_shown_with_its_lines(
    fake: FakeCluster, detcloud: Detcloud, config: Path, model_dir: Path
) -> None:
    config.write_text("name: x\nsearchr: 1\n")
    code, out, err = detcloud("create", str(config), str(model_dir))
    assert (code, out) == (3, "")
    assert err == (
        f"error: {config} was refused: the configuration has problems\n"
        f"{config}:2: searchr: unknown field\n"
    )


def test_create_finds_mistakes_before_starting_a_cluster(
    detcloud: Detcloud, config: Path, model_dir: Path, own_home: Path
) -> None:
    for words, message in [
        (["nothing.yaml", str(model_dir)], "nothing.yaml is not a file"),
        ([str(config), "nothing"], "nothing does not exist"),
        ([str(config), str(model_dir), "--local"], "--local requires --test-mode"),
    ]:
        code, _, err = detcloud("create", *words)
        assert code == 1
        assert err.startswith(f"error: {message}")
    assert list(own_home.iterdir()) == []


def test_oversized_code_is_refused_with_its_largest_files(
    fake: FakeCluster, detcloud: Detcloud, config: Path, model_dir: Path
) -> None:
    with (model_dir / "weights.bin").open("wb") as file:
        file.truncate(96 * 2**20)
    code, _, err = detcloud("create", str(config), str(model_dir))
    assert code == 1
    assert "the limit is 95.0 MiB; the largest files are weights.bin (96.0 MiB)" in err
    assert fake.requests == []


def test_files_excluded_by_a_fixed_rule_are_noted(
    fake: FakeCluster, detcloud: Detcloud, config: Path, model_dir: Path
) -> None:
    (model_dir / "terraform_utils.py").touch()
    for words in (["create", str(config), str(model_dir)], ["command", "run", "-d", "-c"]):
        rest = [str(model_dir), "true"] if "run" in words else []
        _, _, err = detcloud(*words, *rest)
        assert "note: not uploaded: terraform_utils.py; names like" in err
        assert "Warning" not in err


def test_following_a_completed_experiment_succeeds(
    fake: FakeCluster, detcloud: Detcloud, config: Path, model_dir: Path
) -> None:
    code, out, err = detcloud("create", str(config), str(model_dir), "--follow")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[:2] == ["Created experiment 1", "trial 1: queued, 0 steps"]
    # 1/101 after 100 steps and 1/201 after 200.
    assert "trial 1: running, 100 steps, validation_loss 0.00990099" in lines
    assert "trial 1: finished, 200 steps, validation_loss 0.00497512" in lines
    assert lines[-2:] == [
        "best validation_loss 0.00497512 in trial 1: lr=0.1 net.layers=3",
        "experiment 1 finished",
    ]
    assert " Trial | Number | State    | Progress             | validation_loss | " in out


def test_following_a_failed_experiment_fails(
    fake: FakeCluster, detcloud: Detcloud, config: Path, model_dir: Path
) -> None:
    fake.ending = "ERROR"
    code, out, _ = detcloud("create", str(config), str(model_dir), "--follow", "--json")
    assert code == 1
    assert json.loads(out)["state"] == "ERROR"
    followed = detcloud("follow", "1")
    assert followed.code == 1
    hint = "hint: `detcloud trial logs 1` shows why it failed (failed too: 1 trial)\n"
    assert followed.err == hint
    assert detcloud("describe", "1").err == hint
    assert detcloud("trial", "describe", "2").err == (
        "hint: `detcloud trial logs 2` shows why it failed\n"
    )
    fake.experiments[0]["message"] = "trial 1 failed:\nValueError"
    ended = detcloud("wait", "1")
    reason = "reason: trial 1 failed: ValueError\n"
    assert ended == (1, "experiment 1 failed\n", f"{reason}{hint}")
    assert json.loads(detcloud("wait", "1", "--json").out)["state"] == "ERROR"


def test_test_mode_is_requested_and_followed(
    fake: FakeCluster, detcloud: Detcloud, config: Path, model_dir: Path
) -> None:
    code, out, _ = detcloud("create", str(config), str(model_dir), "--test-mode")
    assert code == 0
    assert fake.experiments[0]["asked"]["test_mode"] is True
    assert "experiment 1 finished" in out


def test_lists_have_three_forms(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({"name": "first"}, {"paused": True})
    fake.add_experiment({"name": '=HYPERLINK("x")'}, {"paused": True})
    text = detcloud("list").out.splitlines()
    assert text[0].startswith(" ID | User | Name            | State  | Progress | Start time")
    assert text[2].startswith('  2 | ada  | =HYPERLINK("x") | paused | 0%       | 1970-01-01 00:00')
    assert "00:00:00+0000 | N/A" in text[2]
    rows = list(csv.DictReader(detcloud("list", "--csv").out.splitlines()))
    assert [row["Name"] for row in rows] == ['\'=HYPERLINK("x")', "first"]
    items = json.loads(detcloud("list", "--json").out)
    assert [item["name"] for item in items] == ['=HYPERLINK("x")', "first"]
    assert len(json.loads(detcloud("list", "--json", "--limit", "1").out)) == 1
    assert json.loads(detcloud("list", "--json", "--state", "completed").out) == []


def test_names_cannot_steer_the_terminal(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({"name": "a\x1b[2Jb\nc"}, {})
    assert "a�[2Jb c" in detcloud("list").out
    assert "\x1b" not in detcloud("describe", "1").out


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["list", "--json"],
        ["list", "--yaml"],
        ["list", "--csv"],
        ["describe", "1"],
        ["history", "1"],
        ["e", "label", "add", "1", "x"],
        ["e", "set", "name", "1", HOSTILE],
        ["trial", "list", "1"],
        ["trial", "describe", "1", "--json"],
        ["agent", "list"],
        ["agent", "disable", "--all"],
        ["slot", "list"],
        ["template", "list", "-d"],
        ["template", "describe", "small"],
        ["delete", "1"],
        ["follow", "1", "--yaml"],
        ["trial", "logs", "1", "--json"],
    ],
)
def test_values_of_the_cluster_cannot_steer_the_terminal(
    words: list[str], fake: FakeCluster, detcloud: Detcloud
) -> None:
    experiment = fake.add_experiment({"name": HOSTILE}, {"paused": True})
    fake.experiments[0].update(
        state="COMPLETED", user=HOSTILE, labels=[HOSTILE], description=HOSTILE, message=HOSTILE
    )
    fake.trials[0].update(hparams={HOSTILE: HOSTILE}, message=HOSTILE)
    fake.machines.agents[0].update(name=HOSTILE, id=HOSTILE, version=HOSTILE)
    fake.machines.put("/templates/small", {"config": f"name: {HOSTILE}"})
    fake.lines[1] = [{"offset": 0, "time_ms": 0, "rank": 0, "level": None, "text": HOSTILE}]
    assert experiment["id"] == 1
    done = detcloud(*words)
    assert (done.out + done.err).strip()
    assert not {"\x1b", "\x07", "\u202e", "\x9b"} & set(done.out + done.err)


def test_commands_print_the_new_state(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({}, {})
    assert detcloud("pause", "1").out == "experiment 1 is paused\n"
    assert detcloud("e", "unpause", "1").out == "experiment 1 is active\n"
    assert detcloud("cancel", "1").out == (
        "experiment 1 is being canceled: its trials save a checkpoint first\n"
    )
    assert json.loads(detcloud("kill", "1", "--json").out)["state"] == "STOPPING_KILLED"
    assert detcloud("wait", "1", "--polling-interval", "0.01") == (
        1,
        "experiment 1 is canceled\n",
        "",
    )
    code, _, err = detcloud("kill", "1")
    assert (code, err) == (3, "error: experiment 1 has ended\n")


def test_wait_succeeds_after_a_completed_experiment(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({}, {})
    assert detcloud("wait", "1", "--polling-interval", "0.01").code == 0


def test_an_unknown_experiment_is_an_error_with_a_hint(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    code, _, err = detcloud("describe", "7")
    assert code == 3
    assert err.splitlines()[0] == "error: there is no experiment 7"
    assert err.splitlines()[1] == "hint: `detcloud list` shows what exists"


def test_a_wrong_token_has_a_hint(
    fake: FakeCluster, detcloud: Detcloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCLOUD_TOKEN", "canary-secret")
    code, out, err = detcloud("list")
    assert code == 3
    assert "hint: check DETCLOUD_TOKEN" in err
    assert "canary-secret" not in out + err


def test_trials_are_listed_and_described(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({}, {"paused": True})
    listed = detcloud("trial", "list", "1").out
    assert listed == detcloud("e", "lt", "1").out
    assert "lr=0.1 net.layers=3" in listed
    assert "queued" in listed
    described = detcloud("t", "describe", "2", "--metrics").out
    assert "Hyperparameters    lr=0.05 net.layers=3" in described
    assert "validation" in described
    document = json.loads(detcloud("t", "describe", "2", "--metrics", "--json").out)
    assert [metric["group"] for metric in document["metrics"]] == ["training", "validation"]


def test_logs_are_printed_followed_and_cut(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({}, {})
    detcloud("describe", "1")
    assert detcloud("trial", "logs", "1").out == "step 100 ünder way\n"
    followed = detcloud("logs", "1", "-f").out.splitlines()
    assert sorted(followed) == [
        "[trial 1] step 100 ünder way",
        "[trial 1] step 200 ünder way",
        "[trial 2] step 100 ünder way",
        "[trial 2] step 200 ünder way",
    ]
    assert detcloud("t", "logs", "1", "--tail", "1").out == "step 200 ünder way\n"
    fake.logs[1] += "no end of line"
    assert detcloud("t", "logs", "1", "-f", "--tail", "1").out == "no end of line\n"
    assert detcloud("t", "logs", "1", "--tail", "0").out == ""


def test_followed_logs_rarely_poll_waiting_trials(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({}, {"paused": True})
    polls = 0

    def describe_then_end(experiment: dict[str, object]) -> dict[str, object]:
        nonlocal polls
        polls += 1
        if polls == 25:
            for trial in fake.trials:
                trial.update(state="CANCELED", ended_ms=4000)
            experiment.update(state="CANCELED", ended_ms=4000)
        return dict(experiment)

    setattr(fake, "_describe_then_advance", describe_then_end)  # noqa: B010
    assert detcloud("logs", "1", "-f").code == 0
    # Turn 0 reads the new trial. Of turns 1 to 23, turns 10 and 20 read the log again. Turn 24
    # reads the log to the end, since the trial has ended.
    assert sum(path == "/api/v1/trials/1/logs" for _, path in fake.requests) == 4


def test_a_running_trial_shows_its_agent_and_slots(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({}, {})
    placed = {"id": "1.2", "state": "RUNNING", "places": [{"agent_id": "local", "slots": [0, 1]}]}
    fake.trials[0]["allocation"] = placed
    shown = detcloud("trial", "describe", "1").out
    assert "Allocation         1.2 RUNNING on agent local, slots 0, 1\n" in shown
    fake.trials[0]["allocation"] = {"id": "1.2", "state": "PENDING", "places": []}
    assert "Allocation         1.2 PENDING\n" in detcloud("trial", "describe", "1").out


def test_all_agents_of_a_gang_and_causes_of_losses_are_shown(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    fake.add_experiment({}, {})
    assert "Losses" not in detcloud("trial", "describe", "1").out
    places = [{"agent_id": "a", "slots": [0, 1]}, {"agent_id": "b", "slots": [0, 1]}]
    fake.trials[0]["allocation"] = {"id": "1.2", "state": "RUNNING", "places": places}
    cause = "agent b was lost: it has not been heard of for 31 s"
    loss = {"time_ms": 0, "agent_id": "b", "cause": cause}
    fake.trials[0].update(losses=6, recent_losses=[loss, loss | {"agent_id": ""}])
    shown = detcloud("trial", "describe", "1").out
    assert "1.2 RUNNING on agent a, slots 0, 1 and agent b, slots 0, 1\n" in shown
    _, _, losses = shown.partition("Losses")
    first, second, third = losses.splitlines()
    assert first.strip() == "6 (not counted as failures):"
    assert second.strip() == f"1970-01-01 00:00:00+0000 agent b: {cause}"
    assert third.strip() == f"1970-01-01 00:00:00+0000: {cause}"


def test_experiment_is_described_with_the_sums_of_its_replacements(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    fake.add_experiment({}, {})
    phases = [{"phase": "total", "count": 2, "median_ms": 95_000, "p90_ms": 240_000}]
    cause = {"cause": "notice", "count": 2, "unmeasured": 0, "phases": phases}
    fake.replacements = {"since_ms": 1_000, "causes": [cause], "is_cut": True, "latest": []}
    described = detcloud("experiment", "describe", "1")
    assert described.out.splitlines()[-5:] == [
        "",
        "2 replacements after a notice",
        " Phase | Count | Median | 90 % within",
        "-------+-------+--------+-------------",
        " total |     2 | 95 s   | 4 min",
    ]
    assert described.err == (
        "note: there were more; the sums cover only the replacements since "
        "1970-01-01 00:00:01+0000\n"
    )
    shown = json.loads(detcloud("experiment", "describe", "1", "--json").out)
    assert shown["replacements"]["causes"] == [cause]
    # CSV has a row for each experiment, without the sums.
    assert "notice" not in detcloud("experiment", "describe", "1", "--csv").out


def test_experiment_of_an_older_cluster_is_described_without_replacements(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    fake.add_experiment({}, {})
    described = detcloud("experiment", "describe", "1")
    assert (described.code, described.err) == (0, "")
    assert "replacements" not in json.loads(detcloud("experiment", "describe", "1", "--json").out)


def test_damaged_checkpoints_are_shown_with_their_replacements(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    fake.add_experiment({}, {})
    damage = {
        "time_ms": 0,
        "uuid": "u-2",
        "steps_completed": 70,
        "cause": "the store has no weights",
        "instead": "u-1",
        "instead_steps": 30,
    }
    last = damage | {"uuid": "u-1", "steps_completed": 30, "instead": None, "instead_steps": 0}
    fake.trials[0]["recent_damages"] = [damage, last]
    shown = detcloud("trial", "describe", "1").out
    first, second = shown.partition("Damaged checkpoints")[2].splitlines()
    at = "1970-01-01 00:00:00+0000"
    assert first.strip() == (
        f"{at} u-2 at batch 70: the store has no weights; resumed from u-1 at batch 30,"
        " batches lost: 40"
    )
    assert second.strip() == (
        f"{at} u-1 at batch 30: the store has no weights; this trial had no other checkpoint"
    )


def test_effects_of_log_policies_are_shown(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({}, {})
    assert "Matched log lines" not in detcloud("trial", "describe", "1").out
    match = {
        "time_ms": 0,
        "epoch": 2,
        "policy": "OOM",
        "line": "CUDA out of memory",
        "actions": ["cancel_retries"],
        "signal": "OOM",
        "agent_id": "gpu-1",
        "rank": 0,
    }
    fake.trials[0] |= {
        "signal": "OOM",
        "log_matches": [match, match | {"agent_id": "", "actions": []}],
        "retries_canceled": "log policy OOM matched: CUDA out of memory",
        "excluded_agents": ["gpu-1", "gpu-2"],
    }
    shown = detcloud("trial", "describe", "1").out
    first, second, *rest = shown.partition("Matched log lines")[2].splitlines()
    at = "1970-01-01 00:00:00+0000"
    assert first.strip() == f"{at} run 2 on gpu-1, OOM: CUDA out of memory (cancel_retries)"
    assert second.strip() == f"{at} run 2 on an agent, OOM: CUDA out of memory"
    assert [line.split(maxsplit=2)[2] for line in rest[:2]] == [
        "log policy OOM matched: CUDA out of memory",
        "gpu-1, gpu-2",
    ]


def test_a_trial_of_another_experiment_is_refused(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({}, {})
    fake.add_experiment({}, {})
    refused = detcloud("checkpoint", "list", "1", "--trial", "3")
    assert (refused.code, refused.err) == (1, "error: trial 3 belongs to experiment 2\n")
    assert detcloud("checkpoint", "list", "2", "--trial", "3").code == 0


def test_a_problem_is_printed_once(fake: FakeCluster, detcloud: Detcloud) -> None:
    details = [{"path": "state", "message": "is none", "hint": "use ACTIVE"}]

    def refuse(method: str, target: str) -> None:
        if target.startswith("/api/v1/experiments?"):
            raise Refusal(422, "invalid", "state: is none", details)

    fake.on_request = refuse
    assert detcloud("list").err == "error: state: is none\nhint: use ACTIVE\n"


def test_a_single_problem_of_a_configuration_is_printed_once(
    fake: FakeCluster, detcloud: Detcloud, config: Path, model_dir: Path
) -> None:
    def refuse(method: str, target: str) -> None:
        if (method, target) == ("POST", "/api/v1/experiments"):
            details = [{"path": "pool", "message": "is none", "hint": "use x"}]
            raise Refusal(422, "invalid", "pool: is none", details)

    fake.on_request = refuse
    refused = detcloud("create", str(config), str(model_dir))
    assert refused.err.splitlines() == [
        f"error: {config} was refused",
        f"{config}: pool: is none (use x)",
    ]


def test_checkpoints_are_listed_and_downloaded(
    fake: FakeCluster, detcloud: Detcloud, tmp_path: Path
) -> None:
    fake.add_experiment({}, {"paused": True})
    files = fake.add_checkpoint("12345678-aaaa", {"state.pt": b"x" * 2048})
    assert "2.0 KiB" in detcloud("checkpoint", "list", "1").out
    assert "12345678-aaaa" in detcloud("c", "describe", "1234").out
    assert detcloud("c", "download", "1234").out == "checkpoints/12345678-aaaa\n"
    assert Path("checkpoints/12345678-aaaa/state.pt").read_bytes() == b"x" * 2048
    code, _, err = detcloud("c", "download", "1234")
    assert (code, err) == (
        1,
        "error: checkpoints/12345678-aaaa exists; name another folder with -o\n",
    )
    files[0]["path"] = "../../evil"
    code, _, err = detcloud("c", "download", "1234", "-o", "other")
    assert code == 1
    assert "must not hold '.', '..'" in err
    assert not Path("other").exists()


def test_agents_and_status_of_a_remote_cluster_are_printed(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    listed = detcloud("agent", "list").out
    assert " a-1 | laptop | default       | N/A   | ALIVE | enabled |     2 |    0 | " in listed
    shown = detcloud("status").out
    assert shown.splitlines()[0] == f"url          {fake.url}"
    assert json.loads(detcloud("status", "--json").out)["resource_pools"][0]["slots"] == 2


def test_a_configuration_is_printed(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({"name": "x"}, {})
    assert detcloud("e", "config", "1").out == "name: x\n"
    assert json.loads(detcloud("e", "config", "1", "--json").out) == {"name": "x"}


def test_unrecorded_checkpoints_are_listed_separately(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    common = {"experiment_id": 1, "epoch": 2, "is_complete": True, "is_own": True}
    ended_cluster.unrecorded = [
        {"uuid": name, "trial_id": n, **common} for name, n in zip("ab", (1, 2), strict=True)
    ]
    listed = detcloud("checkpoint", "list", "1", "--unrecorded", "--trial", "2", "--csv").out
    assert listed.splitlines() == ["UUID,Trial,Run,Complete,Of this cluster", "b,2,2,True,True"]
    refused = detcloud("checkpoint", "list", "1", "--unrecorded", "--best", "3")
    assert "--best: checkpoints without a record have no metric" in refused.err
