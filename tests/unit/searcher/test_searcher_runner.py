"""Runners of a search method: complete searches, and errors."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from detcloud import DetcloudError, searcher
from detcloud.searcher.folder import StateFolder
from detcloud.searcher.operations import read_operation
from detcloud.shared.http import ApiError, Unreachable
from tests.unit.api.agent_side import CONFIG
from tests.unit.searcher.search_harness import (
    CUSTOM,
    Generations,
    QuickRunner,
    SearchHarness,
    expected_lengths,
)

ID = UUID("0000000a-0000-4000-8000-00000000000b")
OTHER = UUID("0000000a-0000-4000-8000-00000000000c")
HALF: Any = 2.5
SEVEN: Any = "seven"


@pytest.fixture
def harness(tmp_path: Path) -> SearchHarness:
    return SearchHarness(tmp_path)


def events(harness: SearchHarness) -> Any:
    return harness.get("/experiments/1/searcher-events")


class Faulty(Generations):
    """Method that raises at the fourth validation, at each delivery."""

    is_faulty = True

    def on_validation_completed(
        self,
        searcher_state: searcher.SearcherState,
        request_id: UUID,
        metric: float,
        train_length: int,
    ) -> list[searcher.Operation]:
        if self.is_faulty and len(self.events) == 3:
            raise ZeroDivisionError("the method's own")
        return super().on_validation_completed(searcher_state, request_id, metric, train_length)


def test_search_trains_the_trials_and_lengths_of_the_method(
    harness: SearchHarness,
) -> None:
    assert harness.run(Generations()) == 1
    assert harness.lengths() == expected_lengths()
    assert harness.get("/experiments/1")["state"] == "COMPLETED"


def test_many_operations_are_sent_in_several_posts(harness: SearchHarness) -> None:
    # 15 creates and 15 lengths are 30 operations; a post takes 12, and 30 are posts 1 to 3.
    harness.run(Generations(first=15, children=0))
    assert harness.lengths() == expected_lengths(first=15, children=0)
    texts = [item["text"] for item in harness.get("/experiments/1/history")["items"]]
    posts = [text for text in texts if "in post" in text]
    assert "asked for 6 create, 6 validate after in post 1" in posts[0]
    assert "asked for 3 create, 3 validate after" in posts[2]


def test_errors_of_a_method_are_raised_and_a_later_run_resumes(
    harness: SearchHarness,
) -> None:
    method = Faulty()
    with pytest.raises(ZeroDivisionError, match="the method's own"):
        harness.run(method)
    corrected = Faulty()
    corrected.is_faulty = False
    harness.run(corrected)
    assert harness.lengths() == expected_lengths()
    # The saved states contain each validation once.
    assert (
        len(corrected.events)
        == len(set(corrected.events))
        == sum(map(len, expected_lengths().values()))
    )


def answering(*operations: object) -> type[Generations]:
    """Make a method with the initial operations `operations`."""

    class Answering(Generations):
        def initial_operations(self, searcher_state: searcher.SearcherState) -> Any:
            return list(operations)

    return Answering


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (searcher.ValidateAfter(ID, 0), "ValidateAfter got the length 0; expected an integer"),
        (searcher.ValidateAfter(ID, HALF), "ValidateAfter got the length 2.5; expected an integer"),
        (searcher.Create(ID, {"x": float("nan")}), "cannot be sent: Out of range float values"),
        (searcher.Create(ID, {"x": object()}), "object cannot be represented in JSON"),
        (searcher.Close(SEVEN), "'seven' is not a request id; expected a UUID"),
        ("close", "answered initial_operations with 'close'; expected a list of operations"),
    ],
)
def test_invalid_operations_are_not_sent(
    harness: SearchHarness, operation: object, text: str
) -> None:
    with pytest.raises(DetcloudError) as failed:
        harness.run(answering(operation)(first=1, children=0))
    assert text in str(failed.value)
    assert events(harness)["post"] == 0
    harness.run(Generations(first=1, children=0))
    assert harness.lengths() == expected_lengths(first=1, children=0)


def test_operations_refused_by_the_cluster_can_be_corrected(harness: SearchHarness) -> None:
    with pytest.raises(DetcloudError) as failed:
        harness.run(answering(searcher.Create(ID, {"x": 1.0}), searcher.Close(OTHER))(1, 0))
    assert str(failed.value).splitlines() == [
        f"operations[1].request_id: trial {OTHER} does not exist; create the trial first",
        "no operation was sent; correct the search method and run it again: it resumes "
        "before these events",
    ]
    assert harness.lengths() == {}
    harness.run(Generations(first=1, children=0))
    assert harness.lengths() == expected_lengths(first=1, children=0)


def test_runner_waits_for_the_end_of_an_outage(
    harness: SearchHarness, caplog: pytest.LogCaptureFixture
) -> None:
    request_count = 0

    def unreachable_now_and_then(method: str, path: str) -> None:
        nonlocal request_count
        request_count += "searcher-" in path
        if request_count % 3:
            raise Unreachable("http://cluster.test could not be reached")
        harness.train()

    with caplog.at_level(logging.WARNING, "detcloud.searcher"):
        harness.run(Generations(first=2, children=0), before=unreachable_now_and_then)
    assert harness.lengths() == expected_lengths(first=2, children=0)
    assert "retrying until the cluster is back" in caplog.text


def test_a_killed_search_ends_its_runner(harness: SearchHarness) -> None:
    def kill_experiment(method: str, path: str) -> None:
        if path.endswith("searcher-operations"):
            harness.cluster.post("/experiments/1/kill", {})

    runner = harness.run(Generations(), before=kill_experiment)
    assert runner == 1
    assert harness.lengths() == {}


def test_runner_state_records_the_failure(harness: SearchHarness) -> None:
    method = answering(searcher.Shutdown(failure=True))()
    runner = harness.new_runner(method)
    assert runner.run(*harness.files()) == 1
    assert (runner.state.experiment_failed, runner.state.experiment_completed) == (True, False)
    assert runner.state.experiment_id == 1


def test_running_an_ended_search_again_returns_at_once(
    harness: SearchHarness,
) -> None:
    harness.run(Generations(first=1, children=0))
    before = harness.get("/experiments/1/history")["items"]
    assert harness.run(Generations(first=1, children=0)) == 1
    # The last post is repeated, and that is all.
    assert len(harness.get("/experiments/1/history")["items"]) <= len(before) + 1
    assert len(harness.get("/experiments")["items"]) == 1


def test_a_copied_search_folder_is_detected(harness: SearchHarness, tmp_path: Path) -> None:
    class InterruptedSearch(Generations):
        def on_trial_created(self, searcher_state: Any, request_id: UUID) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harness.run(InterruptedSearch(first=2, children=0))
    shutil.copytree(tmp_path / "search", tmp_path / "copy")
    harness.run(Generations(first=2, children=0))
    shutil.rmtree(tmp_path / "search")
    (tmp_path / "copy").rename(tmp_path / "search")
    with pytest.raises(DetcloudError, match="another process drives this search, or the folder"):
        harness.run(Generations(first=2, children=0))


def test_a_search_folder_is_locked_by_a_process(harness: SearchHarness) -> None:
    with (
        StateFolder(harness.root / "search").lock(),
        pytest.raises(DetcloudError, match="another process runs the search in"),
    ):
        harness.run(Generations())


def test_a_folder_of_a_different_cluster_is_refused(harness: SearchHarness) -> None:
    harness.run(Generations(first=1, children=0))
    [saved] = sorted((harness.root / "search").glob("saved-*/runner.json"))[-1:]
    fields = json.loads(saved.read_text())
    saved.write_text(json.dumps({**fields, "cluster_id": "another"}))
    with pytest.raises(DetcloudError, match=r"is a search of another cluster \(another\)"):
        harness.run(Generations())


def test_a_file_as_search_folder_is_refused(harness: SearchHarness) -> None:
    (harness.root / "search").write_text("")
    with pytest.raises(
        DetcloudError, match="cannot be used as the folder of a search: File exists"
    ):
        harness.run(Generations())


def test_a_configuration_without_custom_search_creates_no_experiment(
    harness: SearchHarness,
) -> None:
    with pytest.raises(DetcloudError, match="searcher is random; expected custom"):
        harness.run(Generations(), config=CONFIG)
    assert harness.get("/experiments")["items"] == []
    harness.run(Generations(first=1, children=0))


def test_a_refused_configuration_may_be_corrected(harness: SearchHarness) -> None:
    with pytest.raises(ApiError, match="the configuration is not valid"):
        harness.run(Generations(), config="searcher: {name: custom}")
    harness.run(Generations(first=1, children=0))


@pytest.mark.parametrize(
    "refusal",
    [
        ApiError(401, "unauthenticated", "the token has expired"),
        ApiError(403, "forbidden", "the role may not"),
        ApiError(407, "http_407", "the server answered 407 Proxy Authentication Required"),
    ],
)
def test_request_is_repeated_after_a_refusal_of_the_caller(
    harness: SearchHarness, refusal: ApiError
) -> None:
    posts = 0

    def lose_answer_then_refuse(method: str, path: str) -> None:
        nonlocal posts
        posts += (method, path.rpartition("/")[2]) == ("POST", "experiments")
        # The first request only validates the configuration.
        if posts == 2:
            harness.lost = frozenset({harness.requests})
        if posts == 3:
            raise refusal

    with pytest.raises(ApiError, match=refusal.message):
        harness.run(Generations(), before=lose_answer_then_refuse)
    harness.run(Generations(first=1, children=0))
    assert len(harness.get("/experiments")["items"]) == 1


def test_a_method_is_attached_to_a_waiting_experiment(harness: SearchHarness) -> None:
    harness.cluster.create(CUSTOM)
    runner = harness.new_runner(Generations(first=1, children=0))
    assert runner.attach(1) == 1
    assert harness.lengths() == expected_lengths(first=1, children=0)
    with pytest.raises(DetcloudError, match="is the search of experiment 1, not 2"):
        harness.new_runner(Generations()).attach(2)


def test_a_method_is_not_attached_to_a_driven_experiment(
    harness: SearchHarness, tmp_path: Path
) -> None:
    harness.run(Generations(first=1, children=0))
    (tmp_path / "search").rename(tmp_path / "elsewhere")
    with pytest.raises(DetcloudError, match="experiment 1 is already driven"):
        harness.new_runner(Generations()).attach(1)


def test_error_for_an_unpicklable_method_names_the_remedy(harness: SearchHarness) -> None:
    method = Generations()
    # Nobody can pickle a function without a name.
    vars(method)["judge"] = lambda metric: metric
    with pytest.raises(DetcloudError) as failed:
        harness.run(method)
    assert "give it save_method_state and load_method_state of its own" in str(failed.value)


def test_custom_method_state_is_stored_in_a_separate_folder(harness: SearchHarness) -> None:
    class JsonGenerations(Generations):
        def save_method_state(self, path: Path) -> None:
            assert list(path.iterdir()) == []
            (path / "runner.json").write_text(json.dumps({str(k): v for k, v in self.x.items()}))

        def load_method_state(self, path: Path) -> None:
            read = json.loads((path / "runner.json").read_text())
            self.x = {UUID(k): v for k, v in read.items()}

    class Ending(JsonGenerations):
        def on_trial_closed(self, searcher_state: Any, request_id: UUID) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harness.run(Ending(first=2, children=0))
    harness.run(JsonGenerations(first=2, children=0))
    assert harness.lengths() == expected_lengths(first=2, children=0)


class OneTrial(Generations):
    """Method of one trial, with the progress of the trial."""

    def progress(self, searcher_state: searcher.SearcherState) -> float:
        (trial,) = searcher_state.trials_created
        return searcher_state.trial_progress[trial] / 2

    def on_trial_closed(
        self, searcher_state: searcher.SearcherState, request_id: UUID
    ) -> list[searcher.Operation]:
        return [searcher.Shutdown()]


def test_progress_is_read_after_the_first_trial(harness: SearchHarness) -> None:
    config, code = harness.files(CUSTOM)
    # `context_dir` is the folder's name in the first runners of Determined.
    runner: Any = harness.new_runner(OneTrial(first=1, children=0))
    assert runner.run(config, context_dir=code) == 1
    assert harness.get("/experiments/1")["state"] == "COMPLETED"
    assert harness.get("/experiments/1")["progress"] == 1


class ProcessEnded(Exception):
    """End of a process in a hook of the runner."""


class OwnRunner(QuickRunner):
    """Runner with hooks, and with an end before or after the save of the base class."""

    ends_at: str = ""
    calls: list[str]

    def save_state(self, experiment_id: int, operations: list[searcher.Operation]) -> None:
        self.calls.append(f"save {experiment_id}: {len(operations)}")
        is_to_end = len(self.calls) > 2
        if is_to_end and self.ends_at == "before":
            raise ProcessEnded
        super().save_state(experiment_id, operations)
        (self._get_state_path(experiment_id) / "own").write_text(str(len(operations)))
        if is_to_end and self.ends_at == "after":
            raise ProcessEnded

    def load_state(self, experiment_id: int) -> tuple[int, list[searcher.Operation]]:
        loaded = super().load_state(experiment_id)
        self.calls.append(f"load {loaded[0]}: {[repr(operation)[:6] for operation in loaded[1]]}")
        return loaded


def own_runner(harness: SearchHarness, runner_class: type[OwnRunner], ends_at: str = "") -> Any:
    made = harness.prepare_runner(runner_class, Generations(first=1, children=0))
    made.calls, made.ends_at = [], ends_at
    return made


@pytest.mark.parametrize("ends_at", ["before", "after"])
def test_a_runner_subclass_may_extend_save_and_load(harness: SearchHarness, ends_at: str) -> None:
    first = own_runner(harness, OwnRunner, ends_at)
    with pytest.raises(ProcessEnded):
        first.run(*harness.files())
    # The start of the experiment, a Create and a ValidateAfter, and the creation of the trial.
    assert first.calls[:2] == ["save 1: 0", "save 1: 2"]
    second = own_runner(harness, OwnRunner)
    assert second.run(*harness.files()) == 1
    # Without the last save, the runner loads the earlier state and its sent operations.
    assert second.calls[0].startswith("load 1: ")
    assert ("Create" in second.calls[0]) == (ends_at == "before")
    assert harness.lengths() == expected_lengths(first=1, children=0)
    assert (harness.root / "search" / "exp_1" / "own").exists()


class RunnerElsewhere(OwnRunner):
    """Runner with a hook that saves no state."""

    def save_state(self, experiment_id: int, operations: list[searcher.Operation]) -> None:
        self.calls.append("elsewhere")


def test_a_runner_without_saves_still_uses_the_search_folder(
    harness: SearchHarness,
) -> None:
    runner = own_runner(harness, RunnerElsewhere)
    assert runner.run(*harness.files()) == 1
    assert list((harness.root / "search").glob("saved-*"))
    assert harness.lengths() == expected_lengths(first=1, children=0)


def test_save_and_load_restore_both_states(tmp_path: Path) -> None:
    method, state = Generations(), searcher.SearcherState(trials_created={ID})
    method.x[ID] = 2.5
    method.save(state, tmp_path, experiment_id=7)
    other = Generations()
    loaded, experiment_id = other.load(tmp_path)
    assert (other.x, loaded.trials_created, experiment_id) == ({ID: 2.5}, {ID}, 7)


def test_overridden_save_and_load_are_called(harness: SearchHarness) -> None:
    class Saving(Generations):
        def save(self, searcher_state: Any, path: Path, *, experiment_id: int) -> None:
            (path / "all").write_text(json.dumps([experiment_id, self.x_by_text()]))

        def load(self, path: Path) -> Any:
            _, read = json.loads((path / "all").read_text())
            self.x = {UUID(k): v for k, v in read.items()}
            return searcher.SearcherState(), 1

        def x_by_text(self) -> dict[str, float]:
            return {str(k): v for k, v in self.x.items()}

    class Ending(Saving):
        def on_trial_closed(self, searcher_state: Any, request_id: UUID) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harness.run(Ending(first=1, children=0))
    harness.run(Saving(first=1, children=0))
    assert harness.lengths() == expected_lengths(first=1, children=0)


@pytest.mark.parametrize(
    "operation",
    [
        searcher.Create(ID, {"x": [1, "a"]}),
        searcher.ValidateAfter(ID, 3),
        searcher.Close(ID),
        searcher.Progress(0.5),
        searcher.Shutdown(cancel=True),
    ],
)
def test_operations_are_restored_from_fields(operation: searcher.Operation) -> None:
    read = read_operation(operation.fields())
    assert type(read) is type(operation)
    assert read.fields() == operation.fields()


class Deciding(Generations):
    """Method that closes each trial after its first validation, and keeps the metric."""

    metric: Any = None

    def on_validation_completed(
        self,
        searcher_state: searcher.SearcherState,
        request_id: UUID,
        metric: Any,
        train_length: int,
    ) -> list[searcher.Operation]:
        self.metric = metric
        return [searcher.Close(request_id)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"loss": 0.5, "per class": [1, "NaN"]}, "{'loss': 0.5, 'per class': [1, nan]}"),
        ([0.5, {"deep": None}], "[0.5, {'deep': None}]"),
        ("good", "'good'"),
    ],
)
def test_custom_values_of_a_trial_reach_the_method_unchanged(
    harness: SearchHarness, value: Any, expected: str
) -> None:
    harness.answer = lambda length, x: {"metric": None, "value": value}
    method = Deciding(first=1, children=0)
    harness.run(method)
    assert repr(method.metric) == expected
    history = json.dumps(harness.get("/experiments/1/history"))
    assert "reached 2 batches with" in history
