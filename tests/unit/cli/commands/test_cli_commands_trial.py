"""Commands on a trial: log lines, metrics, charts, checkpoints and support bundles."""

import csv
import io
import itertools
import json
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.unit.cli.conftest import Detcloud
from tests.unit.cli.rendering.test_cli_rendering_replacements import REPLACEMENT
from tests.unit.client.fake_cluster import FakeCluster, Item

# 2026-01-31T12:00:00Z is 20,484 days and 12 hours after the epoch.
NOON_MS = (20_484 * 86_400 + 12 * 3600) * 1000


def line(offset: int, text: str, **changed: object) -> Item:
    standard = {"offset": offset, "time_ms": NOON_MS + offset, "rank": 0, "level": "INFO"}
    return {**standard, "text": text, **changed}


@pytest.fixture
def cluster_with_log(ended_cluster: FakeCluster) -> FakeCluster:
    ended_cluster.lines[1] = [
        line(0, "first"),
        line(1, "second", rank=1),
        line(2, "third", level="ERROR"),
        line(3, "fourth", level=None),
    ]
    return ended_cluster


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--head", "2"], "first second"),
        (["--rank", "1"], "second"),
        (["--rank-id", "1"], "second"),
        (["--level", "warning"], "third"),
        (["--search", "TH"], "third fourth"),
        (["--search", "ir", "--tail", "1"], "third"),
        (["--search", "ir", "--tail", "0"], ""),
        (
            ["--since", "2026-01-31T12:00:00.001", "--until", "2026-01-31T12:00:00.003"],
            "second third",
        ),
        (["--timestamp-after", "2026-01-31T13:00:00.002+01:00"], "third fourth"),
        (["--timestamp-before", "2026-01-31T12:00:00.001Z"], "first"),
        (["--search", "r", "--tail", "2", "-f"], "third fourth"),
    ],
)
def test_filters_select_log_lines(
    words: list[str], expected: str, cluster_with_log: FakeCluster, detcloud: Detcloud
) -> None:
    done = detcloud("trial", "logs", "1", *words)
    assert (done.code, done.out.split()) == (0, expected.split())


def test_log_lines_show_time_and_rank(cluster_with_log: FakeCluster, detcloud: Detcloud) -> None:
    first, second, *_ = detcloud("t", "logs", "1", "--timestamps").out.splitlines()
    assert first == "[2026-01-31T12:00:00.000Z] [rank=0] INFO first"
    assert second == "[2026-01-31T12:00:00.001Z] [rank=1] INFO second"
    documents = [json.loads(row) for row in detcloud("t", "logs", "1", "--json").out.splitlines()]
    assert [(document["trial_id"], document["text"]) for document in documents][3] == (1, "fourth")
    cluster_with_log.lines[2] = [line(0, "other", rank=1)]
    both = detcloud("logs", "1", "--rank", "1").out
    assert both == "[trial 1] second\n[trial 2] other\n"
    followed = detcloud("logs", "1", "--search", "t", "-f", "--tail", "1").out
    assert followed == "[trial 1] fourth\n[trial 2] other\n"


def test_a_rank_beyond_the_slots_is_an_error(
    cluster_with_log: FakeCluster, detcloud: Detcloud
) -> None:
    cluster_with_log.experiments[0]["config"]["resources"] = {"slots_per_trial": 2}
    for words in (("trial", "logs", "1"), ("logs", "1")):
        code, out, err = detcloud(*words, "--rank", "7")
        assert (code, out) == (1, "")
        assert "--rank 7: trial 1 has no process of that rank; its log has the ranks 0 to 1" in err
    # A rank without log lines is valid.
    cluster_with_log.lines[1] = [line(0, "first")]
    assert detcloud("trial", "logs", "1", "--rank", "1") == (0, "", "")


def grow_for_three_polls(fake: FakeCluster) -> None:
    """Add an experiment with trials 1 and 2; both print a line per poll and end at poll 3."""
    fake.add_experiment({}, {"paused": True})
    fake.lines = {1: [line(0, "a0")], 2: [line(0, "b0")]}
    polls = 0

    def look(experiment: Item) -> Item:
        nonlocal polls
        polls += 1
        for trial in fake.trials:
            fake.lines[trial["id"]].append(line(polls, f"{'ab'[trial['number']]}{polls}"))
            trial["ended_ms"] = 9 if polls == 3 else None
        experiment["state"] = "COMPLETED" if polls == 3 else "PAUSED"
        return dict(experiment)

    setattr(fake, "_describe_then_advance", look)  # noqa: B010


def test_lines_of_all_trials_are_followed_in_turns(fake: FakeCluster, detcloud: Detcloud) -> None:
    grow_for_three_polls(fake)
    printed = detcloud("logs", "1", "-f", "--rank", "0").out.replace("[trial 1] ", "")
    assert printed.replace("[trial 2] ", "").split() == [
        "a0",
        "a1",
        "b0",
        "b1",
        "a2",
        "b2",
        "a3",
        "b3",
    ]


@pytest.mark.parametrize(
    ("head", "shown"),
    [
        ("0", ""),
        ("1", "a0 b0"),
        # The first poll finds two lines of each trial, the second poll a single line.
        ("3", "a0 a1 b0 b1 a2 b2"),
        ("9", "a0 a1 b0 b1 a2 b2 a3 b3"),
    ],
)
def test_head_limits_lines_per_followed_trial(
    head: str, shown: str, fake: FakeCluster, detcloud: Detcloud
) -> None:
    grow_for_three_polls(fake)
    printed = detcloud("logs", "1", "-f", "--head", head).out
    assert printed.replace("[trial 1] ", "").replace("[trial 2] ", "").split() == shown.split()


def test_followed_head_waits_for_its_lines(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({}, {"paused": True})
    fake.lines[1] = [line(0, "a0")]
    polls = itertools.count()

    def print_more(method: str, target: str) -> None:
        # The first request finds only the first line.
        if "/logs/lines" in target and (place := next(polls)):
            fake.lines[1] += [line(2 * place, "more"), line(2 * place + 1, "most")]

    fake.on_request = print_more
    assert detcloud("trial", "logs", "1", "-f", "--head", "2").out == "a0\nmore\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--since", "yesterday"],
            "'yesterday' is not a time; expected a form such as 2026-01-31T12",
        ),
        (["--level", "LOUD"], "invalid choice: 'LOUD'"),
        (["--head", "1", "--tail", "1"], "not allowed with"),
        (["--container-id", "x"], "--container-id is not supported: --rank, --level"),
    ],
)
def test_invalid_log_filters_are_usage_errors(
    words: list[str], message: str, detcloud: Detcloud
) -> None:
    code, _, err = detcloud("trial", "logs", "1", *words)
    assert code == 2
    assert message in err
    assert "did you mean" not in err


def test_log_times_may_be_ages(cluster_with_log: FakeCluster, detcloud: Detcloud) -> None:
    assert len(detcloud("t", "logs", "1", "--since", "99999d").out.splitlines()) == 4
    assert len(detcloud("t", "logs", "1", "--until", "99999d").out.splitlines()) == 0


def test_a_trial_is_killed(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({}, {})
    assert detcloud("trial", "kill", "2").out == "trial 2 is being killed\n"
    assert json.loads(detcloud("t", "kill", "1", "--json").out)["state"] == "STOPPING_KILLED"


def test_trial_description_has_replacements(ended_cluster: FakeCluster, detcloud: Detcloud) -> None:
    ended_cluster.trials[0]["replacements"] = [REPLACEMENT]
    assert "Replacements       1970-01-01 00:00:00+0000 run 1 to 2, 95 s, after a notice: " in (
        detcloud("t", "describe", "1").out
    )
    assert "Replacements" not in detcloud("t", "describe", "2").out


def test_trial_description_has_all_formats(ended_cluster: FakeCluster, detcloud: Detcloud) -> None:
    ended_cluster.trials[0]["warm_start"] = "abcd"
    assert "Warm start         abcd\n" in detcloud("t", "describe", "1").out
    assert "Warm start" not in detcloud("t", "describe", "2").out
    short = detcloud("t", "describe", "1", "--metrics-summary")
    assert " training   | accuracy |     2 |        200 | 0.005 " in short.out
    document = yaml.safe_load(
        detcloud("t", "describe", "1", "--metrics", "--metrics-summary", "--yaml").out
    )
    assert [len(document[name]) for name in ("metrics", "metrics_summary")] == [2, 3]
    rows = list(csv.DictReader(io.StringIO(detcloud("t", "describe", "1", "--csv").out)))
    assert json.loads(rows[0]["Hyperparameters"]) == {"lr": 0.1, "net": {"layers": 3}}
    paged = detcloud("t", "describe", "1", "--metrics", "--limit", "1", "--offset", "1", "--json")
    assert [report["group"] for report in json.loads(paged.out)["metrics"]] == ["validation"]
    assert len(json.loads(detcloud("e", "lt", "1", "--limit", "1", "--json").out)) == 1


def test_metrics_are_printed_as_numbers_points_and_charts(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    text = detcloud("trial", "metrics", "1").out
    assert " validation | loss     |     2 |" in text
    assert " training " not in detcloud("t", "metrics", "1", "--group", "validation").out
    rows = list(csv.DictReader(io.StringIO(detcloud("t", "metrics", "1", "--csv").out)))
    # Three metrics with two points each.
    assert len(rows) == 6
    assert rows[0] == {
        "Trial": "1",
        "Group": "training",
        "Name": "accuracy",
        "Steps": "100",
        "Value": "0.01",
    }
    document = json.loads(
        detcloud("t", "metrics", "1", "--name", "loss", "--points", "1", "--json").out
    )
    assert [(series["group"], series["points"]) for series in document["series"]] == [
        ("training", [[100, 0.01]]),
        ("validation", [[100, 0.01]]),
    ]
    drawn = detcloud("t", "metrics", "1", "--plot").out
    assert "trial 1: accuracy by steps" in drawn
    # Training and validation share the chart of the loss.
    assert "trial 1: loss by steps" in drawn
    assert drawn.rstrip().endswith("a training  b validation")
    assert max(map(len, drawn.splitlines())) <= 80
    assert "\x1b" not in drawn
    without = detcloud("t", "metrics", "1", "--plot", "--name", "unknown").out
    assert without == "no numbers to draw: the metrics have no values yet\n"


def test_metrics_of_a_rank_are_shown_separately(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    ended_cluster.rank_reports[3] = [
        {"group": group, "steps_completed": 7, "metrics": {"load": 0.5, "note": "x"}, "time_ms": 1}
        for group in ("cpu", "mine")
    ]
    rows = list(csv.DictReader(io.StringIO(detcloud("t", "metrics", "1", "--rank=3", "--csv").out)))
    assert [(row["Group"], row["Name"], row["Steps"], row["Value"]) for row in rows] == [
        ("cpu", "load", "7", "0.5"),
        ("mine", "load", "7", "0.5"),
    ]
    text = detcloud("t", "metrics", "1", "--rank", "3", "--group", "mine").out
    assert " mine  | load |     7 |   0.5" in text
    assert "cpu" not in text
    refused = detcloud("t", "metrics", "1", "--rank", "3", "--points", "9")
    assert refused.code == 1
    assert "cannot be used with --rank" in refused.err


def test_curves_of_an_experiment_are_compared(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    shown = detcloud("metrics", "1")
    assert "     1 |        200 | 0.005 |   0.005 |    0.01 |      2" in shown.out
    drawn = detcloud("e", "metrics", "1", "--plot", "--name", "loss", "--log").out
    assert "experiment 1: validation loss by steps" in drawn
    assert drawn.rstrip().endswith("a trial 1  b trial 2")
    document = json.loads(detcloud("metrics", "1", "--trials", "1", "--json").out)
    assert [series["trial_id"] for series in document["series"]] == [1]
    assert len(detcloud("metrics", "1", "--csv").out.splitlines()) == 5


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["--best"], "bb"), (["--latest"], "aa"), (["--uuid", "cc"], "cc")],
)
def test_downloads_the_selected_checkpoint_of_a_trial(
    words: list[str], expected: str, ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    for uuid, metric in (("aa", 0.5), ("bb", 0.25), ("cc", 0.75)):
        ended_cluster.add_checkpoint(uuid, {"f": b"1"})
        ended_cluster.checkpoints[-1]["metric"] = metric
    ended_cluster.trials[0]["latest_checkpoint"] = "aa"
    assert detcloud("trial", "download", "1", *words).out == f"checkpoints/{expected}\n"


def test_checkpoint_of_a_foreign_trial_is_refused(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    ended_cluster.add_checkpoint("aa", {"f": b"1"})
    for words, message in (
        (["2", "--uuid", "aa"], "error: checkpoint aa belongs to trial 1\n"),
        (["2", "--latest"], "error: trial 2 has no checkpoint\n"),
    ):
        assert detcloud("trial", "download", *words) == (1, "", message)
    assert detcloud("trial", "download", "1").code == 2


def test_checkpoint_deletion_requires_confirmation(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    for uuid in ("aa-1", "bb-1"):
        ended_cluster.add_checkpoint(uuid, {"f": b"1"})
    assert detcloud("c", "rm", "aa").err.startswith(
        "error: Delete 1 checkpoint, 1 B: confirm with --yes"
    )
    done = detcloud("checkpoint", "delete", "aa,bb", "--yes")
    assert done.out == "checkpoint aa-1 is being deleted\ncheckpoint bb-1 is being deleted\n"
    assert " f    | 1 B" in detcloud("c", "files", "aa").out


def test_support_bundle_contains_all_records_of_a_trial(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    assert detcloud("trial", "support-bundle", "1", "-o", "b").out == ("b/trial-1-support.tar.gz\n")
    with tarfile.open("b/trial-1-support.tar.gz") as archive:
        names = [Path(name).name for name in archive.getnames()]
        log = archive.extractfile("trial-1-support/trial.log")
        assert log is not None
        assert log.read().decode() == "step 100 ünder way\nstep 200 ünder way\n"
    assert names == [
        "trial.json",
        "experiment.json",
        "config.yaml",
        "cluster.json",
        "metrics.json",
        "checkpoints.json",
        "trial.log",
        "history.json",
    ]
    assert detcloud("trial", "support-bundle", "1", "-o", "b").err.startswith(
        "error: b/trial-1-support.tar.gz exists"
    )


@pytest.mark.parametrize(
    ("searcher", "words", "order"),
    [
        # Trials 1 to 4 have the metrics 0.5, None, 0.2 and 0.9. Smaller is better.
        ("random", [], [3, 1, 4, 2]),
        ("single", [], [1, 2, 3, 4]),
        ("single", ["--sort-by", "best"], [3, 1, 4, 2]),
        ("random", ["--sort-by", "best", "--order-by", "desc"], [4, 1, 3, 2]),
        ("random", ["--sort-by", "number"], [1, 2, 3, 4]),
        ("random", ["--sort-by", "number", "--order-by", "desc"], [4, 3, 2, 1]),
        ("random", ["--sort-by", "best", "--limit", "2"], [3, 1]),
        ("random", ["--sort-by", "best", "--limit", "2", "--offset", "1"], [1, 4]),
    ],
)
def test_trials_are_sorted(
    fake: FakeCluster, detcloud: Detcloud, searcher: str, words: list[str], order: list[int]
) -> None:
    fake.add_experiment({"name": "digits"}, {})
    fake.add_experiment({"name": "digits"}, {})
    fake.experiments[0].update(searcher=searcher, smaller_is_better=True, state="PAUSED")
    for trial, best in zip(fake.trials, (0.5, None, 0.2, 0.9), strict=True):
        trial.update(experiment_id=1, best_metric=best, number=trial["id"] - 1)
    listed = json.loads(detcloud("trial", "list", "1", "--json", *words).out)
    assert [trial["id"] for trial in listed] == order


def test_larger_metrics_sort_first_if_larger_is_better(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    fake.add_experiment({"name": "digits"}, {})
    fake.experiments[0].update(searcher="grid", smaller_is_better=False, state="PAUSED")
    for trial, best in zip(fake.trials, (0.5, 0.9), strict=True):
        trial.update(best_metric=best)
    listed = json.loads(detcloud("trial", "list", "1", "--json").out)
    assert [trial["id"] for trial in listed] == [2, 1]


def test_description_has_the_counted_failures_and_the_end_of_the_run(
    cluster_with_log: FakeCluster, detcloud: Detcloud
) -> None:
    assert "Counted failures" not in detcloud("t", "describe", "1").out
    limits = {"restarts": 9, "counted_restarts": 2, "restart_window_ms": 86_400_000}
    cluster_with_log.trials[0] |= {**limits, "ends_ms": NOON_MS}
    out = detcloud("t", "describe", "1").out
    assert "Counted failures   2 within 24 h\n" in out
    assert "Ends               2026-01-31 12:00:00+0000\n" in out
