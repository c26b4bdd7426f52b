"""Examples of docs/python/determined.md. Tests run the script on a local cluster.

To run the script: `python -m detcloud.compatibility determined.py`.
"""

# %% client.Determined.create_experiment
from determined.experimental import client

experiment = client.create_experiment("config.yaml", "model")

# %% client.Experiment
print(experiment.id, experiment.name, experiment.wait(interval=0.1))
experiment.add_label("baseline")
for trial in experiment.list_trials():
    print(trial.id, trial.hparams)

# %% client.Determined.list_experiments
for found in client.list_experiments(labels=["baseline"]):
    print(found.id, found.state)

# %% client.Trial, client.TrialMetrics
trial = experiment.await_first_trial()
for report in trial.iter_metrics("validation"):
    print(report.steps_completed, report.metrics["loss"])
for line in trial.iter_logs(tail=5):
    print(line, end="")

# %% client.Checkpoint, client.CheckpointTrainingMetadata
checkpoint = experiment.top_checkpoint()
print(checkpoint.uuid, checkpoint.training.hparams, checkpoint.training.validation_metrics)
folder = checkpoint.download("best")

# %% client.Determined
from determined.experimental import Determined

cluster = Determined()
print(cluster.get_experiment(experiment.id).name)

# %% client.login
client.login()  # the address and the token of `detcloud token login`, or of DETCLOUD_TOKEN

# %% client.Model, client.ModelVersion
model = client.create_model("curve", description="the minimum of a parabola")
version = model.register_version(checkpoint.uuid, name="first")
print(model.name, version.model_version, version.checkpoint.uuid)
model.delete()

# %% client.Workspace, client.Project
workspace = client.get_workspace("Uncategorized")
for project in workspace.list_projects():
    print(project.name, project.n_experiments)

# %% client.User
user = client.whoami()
print(user.username, user.admin)

# %% core.init, core.Context, core.SearcherContext, core.SearcherOperation
from determined import core

with core.init(checkpoint_storage="checkpoints") as core_context:
    for operation in core_context.searcher.operations():
        core_context.train.report_validation_metrics(operation.length, {"loss": 0.5})
        operation.report_completed(0.5)

# %% core.DistributedContext
with core.init(distributed=core.DistributedContext(rank=0, size=1)) as core_context:
    print(core_context.distributed.allgather("hello"))

# %% core.Unit
print(core.Unit.EPOCHS.value)

# %% get_cluster_info, ClusterInfo, TrialInfo, RendezvousInfo, ResourcesInfo
import determined

info = determined.get_cluster_info()
if info is not None:  # None outside of a trial
    print(info.trial.hparams, info.container_rank, info.gpu_uuids, info.latest_checkpoint)

# %% core_v2.init, core_v2.Config, core_v2.alert, core_v2.close
from determined.experimental import core_v2

if info is not None:
    core_v2.init(config=core_v2.Config(name="ignored in a trial"))
    core_v2.alert("slow data", "a batch takes 3 s")
    core_v2.close()

# %% core_v2.init_context
if info is not None:
    with core_v2.init_context() as core_context:
        core_context.train.report_training_metrics(1, {"loss": 0.5})
