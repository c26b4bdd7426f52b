from collections.abc import Callable
from typing import Any

import numpy
import pytest

from detcloud import DetcloudError, core
from detcloud.shared.trial_directory import Preemption
from tests.conftest import require
from tests.unit.frameworks.conftest import TrialRuns

# What frameworks warn of is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")
# 40 records in batches of 8.
EPOCH = 5
Runs = Callable[..., TrialRuns]
IN_STEP = {"optimizations": {"asynchronous_checkpoints": False}}


@pytest.fixture(autouse=True)
def keras(monkeypatch: pytest.MonkeyPatch) -> Any:
    # Keras reads it as it is imported.
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    return require("keras")


def fit(
    context: core.Context,
    epochs: int,
    stop_at: int = 0,
    deadline: int | None = 1,
    observe: Callable[[int], object] = lambda _: None,
    **options: Any,
) -> Any:
    """Trains a model with dropout on shuffled records; a request to stop comes at a batch. Each
    batch is observed.
    """
    import keras

    from detcloud.keras import DeterminedCallback

    class Stop(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            number = int(self.model.optimizer.iterations) + 1
            observe(number)
            if number == stop_at:
                context.preempt.request(Preemption(deadline, "test"))

    keras.utils.set_random_seed(3)
    values = numpy.random.default_rng(5).random((40, 6)).astype("float32")
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dropout(0.4), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    determined = DeterminedCallback(
        context,
        checkpoint=context.info.latest_checkpoint,
        continue_id=context.info.trial_id,
        **options,
    )
    model.fit(
        values,
        values.sum(1),
        batch_size=8,
        epochs=epochs,
        validation_data=(values[:8], values[:8].sum(1)),
        callbacks=[Stop(), determined],
    )
    return [*model.get_weights(), *(value.numpy() for value in model.optimizer.variables)]


# A deadline stops the training after batch 8, within the second epoch; otherwise the epoch ends.
@pytest.mark.parametrize(("deadline", "saved"), [(1, [5, 8, 10, 15]), (None, [5, 10, 15])])
def test_a_stopped_training_ends_with_the_unbroken_weights(
    trial_runs: Runs, deadline: int | None, saved: list[int]
) -> None:
    unbroken, broken = trial_runs("unbroken"), trial_runs("broken")
    with unbroken.run() as context:
        expected = fit(context, 3)
    with broken.run() as context:
        fit(context, 3, stop_at=8, deadline=deadline)
    with broken.run() as context:
        weights = fit(context, 3)
    for ours, theirs in zip(weights, expected, strict=True):
        numpy.testing.assert_array_equal(ours, theirs)
    assert broken.steps("checkpoint") == saved
    assert broken.exits() == ["preempted", "completed"]
    assert (
        broken.steps("metrics", "validation")
        == unbroken.steps("metrics", "validation")
        == [5, 10, 15]
    )
    names = {"loss", "mae", "epochs", "batches"}
    assert {frozenset(line["metrics"]) for line in broken.lines("metrics")} == {frozenset(names)}


def test_keras_saves_in_the_background_by_default(
    trial_runs: Runs,
) -> None:
    behind, blocking = trial_runs("behind"), trial_runs("blocking", config=IN_STEP)
    store = behind.hold_store()
    with behind.run() as context:
        # In the second epoch, so that the training has gone on by then.
        release = {8: store.may_store.set}
        expected = fit(
            context, 2, train_metrics_report_period=2, observe=lambda at: release.get(at, int)()
        )
    assert behind.order().index(("checkpoint", 5)) > behind.order().index(("metrics", 6))
    assert behind.steps("checkpoint") == [5, 10]
    blocking.hold_store().may_store.set()
    with blocking.run() as context:
        weights = fit(context, 2, train_metrics_report_period=2)
    order = blocking.order()
    assert order.index(("checkpoint", 5)) < order.index(("metrics", 6))
    for ours, theirs in zip(weights, expected, strict=True):
        numpy.testing.assert_array_equal(ours, theirs)


def test_keras_completes_operations_at_epochs_with_keras_metric_names(
    trial_runs: Runs,
) -> None:
    runs = trial_runs("trial", metric="val_mae")
    # 7 batches end within the second epoch, so the answer follows the second epoch.
    with runs.run(length=7, closed=True) as context:
        fit(context, 100, checkpoint_epochs=0, train_metrics_report_period=4)
    (answer,) = runs.lines("completed")
    validations = [line for line in runs.lines("metrics") if line["group"] == "validation"]
    assert (answer["length"], answer["metric"]) == (7, validations[-1]["metrics"]["val_mae"])
    assert runs.steps("metrics", "training") == [4, 8]
    assert runs.steps("checkpoint") == [10]
    assert runs.exits() == ["completed"]
    # The next process repeats the unacknowledged answer without further training.
    with runs.run(length=7, closed=True) as context:
        fit(context, 100)
    assert [line["metric"] for line in runs.lines("completed")] == [answer["metric"]] * 2
    assert runs.steps("checkpoint") == [10]


def test_keras_counts_lengths_in_epochs(trial_runs: Runs) -> None:
    runs = trial_runs("trial", version=2)
    with runs.run(length=2, length_unit="epochs", closed=True) as context:
        fit(context, 100, checkpoint_epochs=0)
    assert [line["length"] for line in runs.lines("completed")] == [2]
    assert runs.steps("checkpoint") == [10]
    assert [line["value"] for line in runs.lines("progress")] == [0.5, 1.0]
    assert runs.exits() == ["completed"]


def test_a_foreign_checkpoint_gives_only_weights(trial_runs: Runs) -> None:
    first = trial_runs("first")
    with first.run() as context:
        expected = fit(context, 1)
    storage = {"type": "directory", "path": str(first.folder / "store")}
    latest = {**(first.latest_checkpoint() or {}), "trial_id": 3}
    second = trial_runs("second", latest_checkpoint=latest, trial_id=5, storage=storage)
    with second.run() as context:
        from detcloud.keras import DeterminedCallback

        callback = DeterminedCallback(
            context, context.info.latest_checkpoint, 5, checkpoint_epochs=None
        )
        import keras

        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(8),
                keras.layers.Dropout(0.4),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.0), "mse")
        values = numpy.zeros((8, 6))
        model.fit(values, values.sum(1), epochs=1, callbacks=[callback])
    numpy.testing.assert_array_equal(model.get_weights()[0], expected[0])
    assert second.steps("checkpoint") == [1]


def test_a_report_period_of_zero_is_refused(trial_runs: Runs) -> None:
    with (
        pytest.raises(DetcloudError, match="train_metrics_report_period is 0"),
        trial_runs("trial").run() as context,
    ):
        fit(context, 1, train_metrics_report_period=0)


def test_determined_keras_has_the_callback() -> None:
    from detcloud.compatibility.modules import module_namespace
    from detcloud.keras import DeterminedCallback

    find: Any = module_namespace("determined.keras")["__getattr__"]
    assert find("DeterminedCallback") is DeterminedCallback


def test_example_learns(trial_runs: Runs) -> None:
    require("sklearn")
    runs = trial_runs("trial", metric="val_accuracy", hparams={"epochs": 3, "learning_rate": 0.01})
    runs.run_example("keras_digits")
    last = [line for line in runs.lines("metrics") if line["group"] == "validation"][-1]
    # A tenth is chance.
    assert last["metrics"]["val_accuracy"] > 0.7
    assert runs.exits() == ["completed"]
