"""Examples of docs/python/searcher.md. Tests run the script on a local cluster."""

# %% setup
from uuid import uuid4

from detcloud import searcher


# %% SearchMethod, SearcherState, Create, ValidateAfter, Close, Shutdown, ExitedReason, Operation
class BestOfTwo(searcher.SearchMethod):
    """Two trials train for 5 batches, and the better trial for 10."""

    def __init__(self):
        self.results = {}

    def initial_operations(self, searcher_state):
        operations = []
        for rate in (0.01, 0.1):
            trial = uuid4()
            operations.append(searcher.Create(trial, {"learning_rate": rate}))
            operations.append(searcher.ValidateAfter(trial, 5))
        return operations

    def on_trial_created(self, searcher_state, request_id):
        return []

    def on_validation_completed(self, searcher_state, request_id, metric, train_length):
        if train_length == 10:
            return [searcher.Close(request_id)]
        self.results[request_id] = metric
        if len(self.results) < 2:
            return []
        best, worst = sorted(self.results, key=self.results.get)
        return [searcher.Close(worst), searcher.ValidateAfter(best, 10)]

    def on_trial_exited_early(self, searcher_state, request_id, exited_reason):
        if exited_reason is searcher.ExitedReason.INVALID_HP:
            print("trial", request_id, "refused its hyperparameters")
        return [searcher.Shutdown(failure=True)]

    def on_trial_closed(self, searcher_state, request_id):
        return [searcher.Shutdown()] if len(searcher_state.trials_closed) == 2 else []

    def progress(self, searcher_state):
        return len(searcher_state.trials_closed) / 2


# %% LocalSearchRunner, LocalSearchRunner.run
runner = searcher.LocalSearchRunner(BestOfTwo(), "search-state")
experiment_id = runner.run("custom.yaml", "model")


# %% SearchMethod.save_method_state, SearchMethod.load_method_state
class StoredAsText(BestOfTwo):
    def save_method_state(self, path):
        lines = [f"{trial} {metric}" for trial, metric in self.results.items()]
        (path / "results.txt").write_text("\n".join(lines))

    def load_method_state(self, path):
        from uuid import UUID

        lines = (path / "results.txt").read_text().splitlines()
        pairs = (line.split() for line in lines)
        self.results = {UUID(trial): float(metric) for trial, metric in pairs}


# %%
from detcloud import Client

with Client() as client:
    created = client.create_experiment("custom.yaml", "model")
    EXPERIMENT = created.id

# %% LocalSearchRunner.attach
searcher.LocalSearchRunner(StoredAsText(), "attached-state").attach(EXPERIMENT)


# %% SearchRunner, SearchRunner.save_state, SearchRunner.load_state
class LoudRunner(searcher.LocalSearchRunner):
    def save_state(self, experiment_id, operations):
        super().save_state(experiment_id, operations)
        print("experiment", experiment_id, "receives", len(operations), "operations")

    def load_state(self, experiment_id):
        print("the search goes on")
        return super().load_state(experiment_id)


LoudRunner(BestOfTwo(), "loud-state").run("custom.yaml", "model")

# %% Progress
operations = [searcher.Progress(0.5)]

# %%
from pathlib import Path

state = searcher.SearcherState()
method = BestOfTwo()
folder = Path("saved")
folder.mkdir()

# %% SearchMethod.save, SearchMethod.load
method.save(state, folder, experiment_id=1)
state, experiment_id = method.load(folder)

# %% SearcherState.to_dict, SearcherState.from_dict
copied = searcher.SearcherState()
copied.from_dict(state.to_dict())
