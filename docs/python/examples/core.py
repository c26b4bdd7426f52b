"""Examples of docs/python/core.md. Tests run the script in an empty folder, without a cluster."""

# %% setup
import json

from detcloud import core

steps, x = 100, 0.5

# %% init
with core.init(hparams={"learning_rate": 0.1}, checkpoint_dir="checkpoints") as context:
    print(context.info.hparams["learning_rate"])

# %%
# The examples below use the context of a block that does not end.
run = core.init(hparams={"learning_rate": 0.1}, checkpoint_dir="checkpoints")
context = run.__enter__()

# %% Context
if context.on_cluster and context.is_chief:
    print("trial", context.info.trial_id, "of experiment", context.info.experiment_id)

# %% Context.alert
context.alert("slow data", "a batch takes 3 s", level="warn")

# %% Context.plan_last_save, Choice
if context.preempt.should_preempt():
    choice = context.plan_last_save()
    if choice is core.Choice.SAVE:
        with context.checkpoint.store_path({"steps_completed": steps}) as (folder, uuid):
            (folder / "state.json").write_text(json.dumps([steps, x]))
    elif choice is core.Choice.FINISH:
        context.checkpoint.wait()

# %% TrainContext
context.train.report_training_metrics(steps, {"loss": x * x})
context.train.report_validation_metrics(steps, {"loss": x * x})

# %% TrainContext.report_training_metrics
context.train.report_training_metrics(150, {"loss": x * x, "rate": 0.1}, batches=50)

# %% TrainContext.report_validation_metrics
context.train.report_validation_metrics(150, {"loss": x * x, "accuracy": 0.9})

# %% TrainContext.report_metrics
context.train.report_metrics("robustness", 150, {"loss_with_noise": x * x + 0.1})

# %% TrainContext.report_new_metrics
logged = {"loss": x * x, "epoch": 1.0}
context.train.report_new_metrics("training", 200, logged)
context.train.report_new_metrics("training", 200, {**logged, "seconds": 3.5})  # only seconds

# %% TrainContext.report_progress
context.train.report_progress(0.5)

# %% TrainContext.get_experiment_best_validation
best = context.train.get_experiment_best_validation()
is_best = best is None or x * x < best

# %% TrainContext.set_metadata, TrainContext.get_metadata
context.train.set_metadata({**context.train.get_metadata(), "fold": 2})

# %% TrainContext.report_early_exit, EarlyExitReason
context.train.report_early_exit(core.EarlyExitReason.USER_REQUESTED_STOP)

# %% TrainContext.get_tensorboard_path
(context.train.get_tensorboard_path() / "notes.txt").write_text("a file beside the event files")

# %% TrainContext.upload_tensorboard_files, TensorboardMode
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as own_events:
    (own_events.train.get_tensorboard_path() / "notes.txt").write_text("written by this script")
    own_events.train.upload_tensorboard_files()

# %% TrainContext.set_status
context.train.set_status("halfway")

# %% CheckpointContext
with context.checkpoint.store_path({"steps_completed": steps}) as (folder, uuid):
    (folder / "state.json").write_text(json.dumps([steps, x]))
with context.checkpoint.restore_path(uuid) as folder:
    steps, x = json.loads((folder / "state.json").read_text())

# %% CheckpointContext.store_path
rank = context.distributed.rank
with context.checkpoint.store_path({"steps_completed": steps}, shard=True) as (folder, uuid):
    (folder / f"part-{rank}.json").write_text(json.dumps(x))
    (folder / "notes.txt").write_text("the first try")

# %% CheckpointContext.restore_path
if context.info.latest_checkpoint is not None:
    with context.checkpoint.restore_path(context.info.latest_checkpoint) as folder:
        steps, x = json.loads((folder / "state.json").read_text())

# %% CheckpointContext.download
context.checkpoint.download(uuid, "restored", selector=lambda name: name.endswith(".txt"))

# %% CheckpointContext.upload, CheckpointContext.wait
uuid = context.checkpoint.upload("restored", {"steps_completed": steps}, asynchronous=True)
context.checkpoint.wait()

# %% CheckpointContext.get_metadata
print(context.checkpoint.get_metadata(uuid)["steps_completed"])

# %% CheckpointContext.delete
context.checkpoint.delete(uuid)

# %% SearcherContext, SearcherContext.operations, SearcherOperation.complete
for operation in context.searcher.operations(max_length=100):
    while steps < operation.length and not context.preempt.should_preempt():
        steps += 1
    operation.complete(x * x)

# %% SearcherContext.gives_lengths
if not context.searcher.gives_lengths():
    print("this code decides how long to train")

# %%
[operation] = (core.SearcherOperation(200, lambda kind, **fields: None),)

# %% SearcherOperation, SearcherOperation.report_progress
operation.report_progress(operation.length / 2)
print("half of", operation.length, operation.unit)

# %% PreemptContext, PreemptContext.should_preempt
if context.preempt.should_preempt():
    with context.checkpoint.store_path({"steps_completed": steps}) as (folder, uuid):
        (folder / "state.json").write_text(json.dumps([steps, x]))
    raise SystemExit

# %% PreemptContext.acknowledge_preemption_signal
if context.preempt.should_preempt(auto_ack=False) and steps > 50:
    context.preempt.acknowledge_preemption_signal()
    raise SystemExit

# %% PreemptContext.must_stop_at_next_batch
if context.preempt.must_stop_at_next_batch():
    raise SystemExit

# %% PreemptMode
with core.init(preempt_mode=core.PreemptMode.ChiefOnly) as chief:
    must_stop = chief.distributed.rank == 0 and chief.preempt.should_preempt()
    must_stop = chief.distributed.broadcast(must_stop)

# %% SearcherMode
if context.distributed.rank == 0:
    for operation in context.searcher.operations(100, core.SearcherMode.ChiefOnly):
        operation.complete(x * x)

# %% DownloadMode
alone = core.DownloadMode.NoSharedDownload
if context.info.latest_checkpoint is not None:
    context.checkpoint.download(context.info.latest_checkpoint, "restored", alone)

# %% DistributedContext
processes = core.DistributedContext(rank=0, size=1, local_rank=0, local_size=1)
with core.init(distributed=processes) as alone_context:
    print("rank", alone_context.distributed.rank, "of", alone_context.distributed.size)

# %% DistributedContext.gather, DistributedContext.allgather, DistributedContext.broadcast
losses = context.distributed.gather(x * x)
if losses is not None:
    print("the mean loss is", sum(losses) / len(losses))
largest = max(context.distributed.allgather(x * x))
order = context.distributed.broadcast([2, 0, 1])

# %% DistributedContext.gather_local, DistributedContext.allgather_local
names = context.distributed.gather_local("worker")
print(names if names is not None else "only the first rank of a node receives the list")
megabytes = sum(context.distributed.allgather_local(512))

# %% DistributedContext.broadcast_local
folder_of_node = context.distributed.broadcast_local("/tmp/data")

# %% DistributedContext.from_torch_distributed, DistributedContext.from_deepspeed
try:
    processes = core.DistributedContext.from_torch_distributed()
except KeyError:
    processes = core.DistributedContext()  # without a launcher

# %% DistributedContext.from_horovod
try:
    processes = core.DistributedContext.from_horovod()
except KeyError:
    processes = core.DistributedContext()  # without a launcher

# %% DistributedContext.from_tf_config
import os

if "TF_CONFIG" in os.environ:
    processes, strategy = core.DistributedContext.from_tf_config()

# %% DistributedContext.get_rank, DistributedContext.get_local_rank
print(context.distributed.get_rank(), context.distributed.get_local_rank())

# %% DistributedContext.get_size, DistributedContext.get_num_agents
print(context.distributed.get_size(), "processes on", context.distributed.get_num_agents(), "nodes")

# %% DistributedContext.close
processes.close()

# %% ProfilerContext, ProfilerContext.on, ProfilerContext.off
context.profiler.on(sampling_interval=0.5)
context.profiler.off()

# %% TrialSpec
print(context.info.hparams["learning_rate"], context.info.trial_seed)

# %% CheckpointReference
checkpoint = context.info.latest_checkpoint
is_warm_start = checkpoint is not None and checkpoint.trial_id != context.info.trial_id

# %% AlertLevel
context.alert("the loss is infinite", level=core.AlertLevel.ERROR)

# %%
run.__exit__(None, None, None)
