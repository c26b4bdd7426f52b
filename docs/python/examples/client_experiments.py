"""Examples of docs/python/experiments.md. Tests run the script on a local cluster."""

# %%
from pathlib import Path

from detcloud import Client

client = Client()
experiment = client.create_experiment("config.yaml", "model")

# %% Experiment.wait
state = experiment.wait(on_look=lambda waiting: print(waiting.progress), timeout_seconds=600)
print(state, experiment.best_metric)

# %%
ID = experiment.id
TRIAL = next(experiment.trials()).id
UUID = experiment.best_checkpoints()[0].uuid

# %% Experiment
experiment = client.experiment(ID)
print(experiment.name, experiment.condition, experiment.has_ended)
print(experiment.config["searcher"]["max_trials"], experiment.submitted_config)

# %% Experiment.refresh
experiment.refresh()
print(experiment.progress)

# %% Experiment.trials
for trial in experiment.trials(limit=5, states=["finished"]):
    print(trial.id, trial.hparams["learning_rate"], trial.metric)

# %% Experiment.checkpoints, Experiment.best_checkpoints
print(len(list(experiment.checkpoints())), "checkpoints")
best = experiment.best_checkpoints("loss", smaller_is_better=True)[0]

# %% Experiment.metrics
curves = experiment.metrics("loss", trials_max=2)
for series in curves["series"]:
    print(series["trial_id"], series["points"][-1])

# %% Experiment.importance
importance = experiment.importance("loss")
for hyperparameter in importance["items"]:
    print(hyperparameter["name"], hyperparameter["share"])

# %% Experiment.rungs
for bracket in experiment.rungs()["brackets"]:
    for rung in bracket["rungs"]:
        print(rung["length"], rung["outcomes"])

# %% Experiment.activity
print(experiment.activity()["sentence"])

# %% Experiment.pace
print(experiment.pace()["seconds_per_unit"], "seconds per batch")

# %% Experiment.replacements
for replacement in experiment.replacements()["latest"]:
    print(replacement["cause"], replacement["duration_ms"])

# %% Experiment.history
for entry in experiment.history():
    print(entry["time_ms"], entry["actor"], entry["text"])

# %% Experiment.replay
for actor in experiment.replay():
    print(actor["actor"], actor["difference"])

# %% Experiment.curves
curves = experiment.curves()
print(curves["metric"], len(curves["trials"]), "trials")

# %% Experiment.preview_fork, Experiment.estimate_fork
preview = experiment.preview_fork(["searcher.max_trials=8"])
print(preview.diff())
print(experiment.estimate_fork(preview).seconds)

# %% Experiment.fork
fork = experiment.fork(["searcher.max_trials=8"], paused=True)
print("forked from", fork.forked_from)

# %% Experiment.family
for member in experiment.family()["members"]:
    print(member["id"], member["forked_from"])

# %% Experiment.activate, Experiment.pause
fork.activate()
fork.pause()

# %% Experiment.set_priority, Experiment.set_weight
fork.set_weight(2.0)

# %% Experiment.cancel, Experiment.kill
fork.cancel()

# %%
fork.wait()

# %% Experiment.set
experiment.set(name="parabola baseline", labels=["baseline"], max_cost=None)

# %% Experiment.set_metadata
experiment.set_metadata({"data": {"version": 3}}, expected_revision=experiment.data["revision"])

# %% Experiment.move
experiment.move("vision", "baselines")

# %% Experiment.archive, Experiment.unarchive
experiment.archive()
experiment.unarchive()

# %% Experiment.continue_
single = client.create_experiment(
    "config.yaml",
    "model",
    overrides=["searcher={name: single, metric: loss, max_length: {batches: 5}}"],
)
single.wait()
single.continue_(["searcher.max_length={batches: 10}"])
single.wait()

# %% Experiment.preview_collection
preview = experiment.preview_collection(save_trial_best=0, save_trial_latest=1)
print(preview["delete_count"], "checkpoints,", preview["delete_bytes"], "bytes")

# %% Experiment.preview_deletion
print(experiment.preview_deletion()["delete_count"], "checkpoints would be deleted")

# %% Experiment.unrecorded_checkpoints
for folder in experiment.unrecorded_checkpoints():
    print(folder["uuid"], folder["is_complete"])

# %% Experiment.download_model_def
folder = experiment.download_model_def("code")
print((folder / "train.py").read_text()[:40])

# %% Experiment.delete_tensorboard_files
single.delete_tensorboard_files()

# %% Experiment.delete
single.delete()

# %% Trial
trial = client.trial(TRIAL)
print(trial.hparams, trial.condition, trial.steps_completed, trial.metric)

# %% Trial.refresh
trial.refresh()

# %% Trial.experiment, Trial.checkpoints
print(trial.experiment().name)
for checkpoint in trial.checkpoints():
    print(checkpoint.uuid, checkpoint.steps_completed)

# %% Trial.metrics
for report in trial.metrics("validation"):
    print(report["steps_completed"], report["metrics"]["loss"])

# %% Trial.metric_summaries
for summary in trial.metric_summaries():
    print(summary["group"], summary["name"], summary["last"])

# %% Trial.metric_ranks
for rank in trial.metric_ranks():
    print(rank, list(trial.metrics("training", rank=rank))[-1])

# %% Trial.series
[loss] = trial.series(["loss"], group="training", points_max=100)
print(loss["points"])

# %% Trial.event_files
for file in trial.event_files():
    print(file["path"])

# %% Trial.logs
print("".join(trial.logs()))

# %% Trial.log_chunk
chunk = trial.log_chunk(tail_bytes=1000)
print(chunk["text"])

# %% Trial.log_lines, LogFilter
from detcloud.client import LogFilter

for line in trial.log_lines(LogFilter(level="INFO", search="loss")):
    print(line["time_ms"], line["text"])

# %% Trial.log_cursor, LogCursor, LogCursor.read_last, LogCursor.read
cursor = trial.log_cursor()
for line in cursor.read_last(10):
    print(line["text"])
for line in cursor.read():  # lines that were written since
    print(line["text"])

# %% Trial.set_metadata
trial.set_metadata({**trial.metadata, "checked": True})

# %% Trial.upload_checkpoint
Path("tuned").mkdir()
Path("tuned/state.json").write_text("[10, 0.1]")
uploaded = trial.upload_checkpoint("tuned", {"note": "tuned by hand"}, steps_completed=10)

# %% Trial.kill
trial.kill()

# %% Checkpoint
checkpoint = client.checkpoint(UUID)
print(checkpoint.steps_completed, checkpoint.metric, checkpoint.size_bytes)

# %% Checkpoint.refresh, Checkpoint.trial, Checkpoint.experiment
checkpoint.refresh()
print(checkpoint.trial().hparams, checkpoint.experiment().name)

# %% Checkpoint.files
for file in checkpoint.files():
    print(file["path"], file["size"])

# %% Checkpoint.download
folder = checkpoint.download("best", patterns=["*.json"])
print((folder / "state.json").read_text())

# %% Checkpoint.set_metadata
checkpoint.set_metadata({**checkpoint.metadata, "note": "the best"})

# %% Checkpoint.pin, Checkpoint.unpin
checkpoint.pin()
checkpoint.unpin()

# %% Checkpoint.preview_deletion
preview = uploaded.preview_deletion()
print(preview["delete_files"], "files", preview["problem"])

# %% Checkpoint.delete
uploaded.delete()

# %% Checkpoint.verify, Checkpoint.clear_damage
if checkpoint.state == "DAMAGED" and all(file["state"] == "OK" for file in checkpoint.verify()):
    checkpoint.clear_damage()

# %%
client.close()
