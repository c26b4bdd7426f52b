"""Examples of docs/python/pytorch.md. Tests run the script without a cluster."""

# %% setup
import torch
from torch.utils.data import TensorDataset

from detcloud import pytorch

# %%
torch.set_num_threads(1)

# %% PyTorchTrial
values = torch.linspace(-1, 1, 64).reshape(-1, 1)
data = TensorDataset(values, 2 * values)


class LineTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=context.get_hparam("learning_rate"))
        )

    def build_training_data_loader(self):
        return pytorch.DataLoader(data, batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self):
        return pytorch.DataLoader(data, batch_size=64)

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        x, y = batch
        return {"validation_loss": torch.nn.functional.mse_loss(self.model(x), y)}


# %% PyTorchTrial.evaluate_full_dataset
class MedianTrial(LineTrial):
    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch  # exactly one of both is defined

    def evaluate_full_dataset(self, data_loader):
        errors = [(self.model(x) - y).abs() for x, y in map(self.context.to_device, data_loader)]
        return {"validation_loss": torch.cat(errors).median()}


# %% PyTorchTrial.evaluation_reducer, Reducer
class WorstBatchTrial(LineTrial):
    def evaluation_reducer(self):
        return {"validation_loss": pytorch.Reducer.MAX}


# %% PyTorchTrial.build_callbacks
class ClippedTrial(LineTrial):
    def build_callbacks(self):
        return {"clip": pytorch.ClipGradsL2Norm(1.0)}


# %% PyTorchTrial.get_batch_length
class GraphTrial(LineTrial):
    def get_batch_length(self, batch):
        return len(batch["graphs"])


# %% Trainer, init, Epoch
with pytorch.init(
    hparams={"global_batch_size": 32, "learning_rate": 0.1}, checkpoint_dir="checkpoints"
) as context:
    trainer = pytorch.Trainer(LineTrial(context), context)
    trainer.fit(max_length=pytorch.Epoch(5), validation_period=pytorch.Epoch(1))

# %% Trainer.fit, Batch
with pytorch.init(
    hparams={"global_batch_size": 32, "learning_rate": 0.1}, checkpoint_dir="checkpoints"
) as context:
    pytorch.Trainer(LineTrial(context), context).fit(
        max_length=pytorch.Batch(20),
        validation_period=pytorch.Batch([5, 20]),
        checkpoint_policy="none",
    )

# %% Trainer.configure_profiler
with pytorch.init(
    hparams={"global_batch_size": 32, "learning_rate": 0.1}, checkpoint_dir="checkpoints"
) as context:
    trainer = pytorch.Trainer(LineTrial(context), context)
    trainer.configure_profiler(enabled=True)
    trainer.fit(max_length=pytorch.Batch(2))

# %% PyTorchTrialContext, PyTorchTrialContext.from_config
context = pytorch.PyTorchTrialContext.from_config(
    {
        "hyperparameters": {"global_batch_size": 32, "learning_rate": 0.1},
        "data": {"folder": "/data"},
    }
)

# %% PyTorchTrialContext.get_hparam, PyTorchTrialContext.get_hparams
learning_rate = context.get_hparam("learning_rate")
print(context.get_hparams())

# %% PyTorchTrialContext.get_global_batch_size, PyTorchTrialContext.get_per_slot_batch_size
slots = context.get_global_batch_size() // context.get_per_slot_batch_size()

# %% PyTorchTrialContext.get_experiment_config, PyTorchTrialContext.get_data_config
folder = context.get_data_config()["folder"]
print(context.get_experiment_config()["hyperparameters"])

# %% PyTorchTrialContext.get_experiment_id, PyTorchTrialContext.get_trial_id
print("trial", context.get_trial_id(), "of experiment", context.get_experiment_id())

# %% PyTorchTrialContext.get_trial_seed
generator = torch.Generator().manual_seed(context.get_trial_seed())

# %% PyTorchTrialContext.wrap_model, PyTorchTrialContext.wrap_optimizer
model = context.wrap_model(torch.nn.Linear(1, 1))
optimizer = context.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=learning_rate))

# %% PyTorchTrialContext.wrap_lr_scheduler, StepMode
scheduler = context.wrap_lr_scheduler(
    torch.optim.lr_scheduler.StepLR(optimizer, step_size=10), pytorch.StepMode.STEP_EVERY_EPOCH
)

# %% PyTorchTrialContext.wrap_scaler
scaler = context.wrap_scaler(torch.amp.GradScaler(enabled=torch.cuda.is_available()))

# %% PyTorchTrialContext.get_model, PyTorchTrialContext.get_optimizer
print(context.get_model(), context.get_optimizer())

# %% PyTorchTrialContext.get_lr_scheduler
print(context.get_lr_scheduler())

# %% PyTorchTrialContext.backward, PyTorchTrialContext.step_optimizer
loss = model(torch.ones(4, 1)).square().mean()
context.backward(loss)
context.step_optimizer(
    optimizer, clip_grads=lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 1.0)
)

# %% PyTorchTrialContext.to_device
batch = context.to_device({"image": torch.zeros(2, 3), "label": [1, 2]})

# %% PyTorchTrialContext.autocast_forward_pass
half = context.autocast_forward_pass(torch.nn.Linear(1, 1))

# %% PyTorchTrialContext.configure_apex_amp
model, optimizer = context.configure_apex_amp(model, optimizer, enabled=False)

# %% PyTorchTrialContext.wrap_reducer
errors = context.wrap_reducer(sum, name="errors", for_training=False)
errors.update(3)

# %% PyTorchTrialContext.current_train_batch, PyTorchTrialContext.current_train_epoch
print("batch", context.current_train_batch(), "of epoch", context.current_train_epoch())

# %% PyTorchTrialContext.is_epoch_start, PyTorchTrialContext.is_epoch_end
if context.is_epoch_start() or context.is_epoch_end():
    print("the first or the last batch of an epoch")

# %% PyTorchTrialContext.get_initial_batch
if context.get_initial_batch() == 0:
    print("a new trial")

# %% PyTorchTrialContext.set_stop_requested, PyTorchTrialContext.get_stop_requested
context.set_stop_requested(loss.isnan().item())
print("the trial ends early:", context.get_stop_requested())

# %% PyTorchTrialContext.get_tensorboard_path
(context.get_tensorboard_path() / "notes.txt").write_text("a file beside the event files")

# %% PyTorchTrialContext.get_tensorboard_writer
context.get_tensorboard_writer().add_histogram("weights", model.weight)

# %% PyTorchTrialContext.set_enable_tensorboard_logging
context.set_enable_tensorboard_logging(False)

# %% PyTorchTrialContext.get_enable_tensorboard_logging
print("metrics are written as event files:", context.get_enable_tensorboard_logging())

# %% PyTorchTrialContext.set_profiler
context.set_profiler(activities=[torch.profiler.ProfilerActivity.CPU])

# %%
context = pytorch.PyTorchTrialContext.from_config({"hyperparameters": {"global_batch_size": 32}})

# %% PyTorchExperimentalContext, PyTorchExperimentalContext.use_amp
context.experimental.use_amp()

# %% PyTorchExperimentalContext.disable_auto_to_device
context.experimental.disable_auto_to_device()

# %% PyTorchExperimentalContext.disable_dataset_reproducibility_checks
context.experimental.disable_dataset_reproducibility_checks()

# %% PyTorchExperimentalContext.wrap_reducer
worst = context.experimental.wrap_reducer(max, name="worst")
worst.update(0.5)

# %% DataLoader, DataLoader.get_data_loader
loader = pytorch.DataLoader(data, batch_size=16, shuffle=True)
x, y = next(iter(loader.get_data_loader()))


# %% PyTorchCallback, PyTorchCallback.on_validation_end
class CountValidations(pytorch.PyTorchCallback):
    count = 0

    def on_validation_end(self, metrics):
        self.count += 1
        metrics["validations"] = self.count

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state_dict):
        self.count = state_dict["count"]


# %% PyTorchCallback.on_trial_startup, PyTorchCallback.on_trial_shutdown
class Announce(pytorch.PyTorchCallback):
    def on_trial_startup(self, first_batch_idx, checkpoint_uuid):
        print("starts at batch", first_batch_idx, "from checkpoint", checkpoint_uuid)

    def on_trial_shutdown(self):
        print("ends")


# %% PyTorchCallback.on_training_start, PyTorchCallback.on_training_workload_end
class LossRange(pytorch.PyTorchCallback):
    def on_training_start(self):
        self.largest = 0.0

    def on_training_workload_end(self, avg_metrics, batch_metrics):
        self.largest = max(self.largest, *(float(m["loss"]) for m in batch_metrics))


# %% PyTorchCallback.on_training_epoch_start, PyTorchCallback.on_training_epoch_end
class EpochTimes(pytorch.PyTorchCallback):
    def on_training_epoch_start(self, epoch_idx):
        print("epoch", epoch_idx, "begins")

    def on_training_epoch_end(self, epoch_idx):
        print("epoch", epoch_idx, "ends")


# %% PyTorchCallback.on_before_optimizer_step
class DropInfinite(pytorch.PyTorchCallback):
    def on_before_optimizer_step(self, parameters):
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.nan_to_num_(0.0)


# %% PyTorchCallback.on_validation_start, PyTorchCallback.on_validation_epoch_start
class ValidationTimes(pytorch.PyTorchCallback):
    def on_validation_start(self):
        print("a validation begins")

    def on_validation_epoch_start(self):
        print("evaluate_batch is called next")


# %% PyTorchCallback.on_validation_epoch_end
class WorstBatch(pytorch.PyTorchCallback):
    def on_validation_epoch_end(self, outputs):
        print("the worst batch has", max(float(o["validation_loss"]) for o in outputs))


# %% PyTorchCallback.on_checkpoint_save_start, PyTorchCallback.on_checkpoint_load_start
class StoreNorm(pytorch.PyTorchCallback):
    def on_checkpoint_save_start(self, checkpoint):
        checkpoint["norm"] = 3.5

    def on_checkpoint_load_start(self, checkpoint):
        print("the stored norm is", checkpoint.get("norm"))


# %% PyTorchCallback.on_checkpoint_write_end, PyTorchCallback.on_checkpoint_upload_end
class SaveVocabulary(pytorch.PyTorchCallback):
    def on_checkpoint_write_end(self, checkpoint_dir):
        (checkpoint_dir / "vocabulary.txt").write_text("a\nb\n")

    def on_checkpoint_upload_end(self, uuid):
        print("stored checkpoint", uuid)


# %%
class ObservedTrial(LineTrial):
    def build_callbacks(self):
        kinds = (CountValidations, Announce, LossRange, EpochTimes, DropInfinite, ValidationTimes)
        kinds += (WorstBatch, StoreNorm, SaveVocabulary)
        return {kind.__name__: kind() for kind in kinds}


with pytorch.init(
    hparams={"global_batch_size": 32, "learning_rate": 0.1}, checkpoint_dir="observed"
) as context:
    pytorch.Trainer(ObservedTrial(context), context).fit(max_length=pytorch.Epoch(2))
context = pytorch.PyTorchTrialContext.from_config(
    {"hyperparameters": {"global_batch_size": 32, "learning_rate": 0.1}}
)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

# %% ClipGradsL2Norm, ClipGradsL2Value
callbacks = {"norm": pytorch.ClipGradsL2Norm(1.0), "value": pytorch.ClipGradsL2Value(0.1)}


# %% MetricReducer
class MeanError(pytorch.MetricReducer):
    def __init__(self):
        self.reset()

    def reset(self):
        self.errors = []

    def update(self, error):
        self.errors.append(error)

    def per_slot_reduce(self):
        return sum(self.errors), len(self.errors)

    def cross_slot_reduce(self, per_slot_metrics):
        return sum(s for s, _ in per_slot_metrics) / sum(n for _, n in per_slot_metrics)


mean_error = context.wrap_reducer(MeanError(), name="mean_error")
mean_error.update(0.5)

# %% LRScheduler, LRScheduler.get_scheduler
scheduler = pytorch.LRScheduler(
    torch.optim.lr_scheduler.StepLR(optimizer, step_size=10), pytorch.StepMode.MANUAL_STEP
)
print(scheduler.get_scheduler().get_last_lr())

# %%
from pathlib import Path

manifests = Path("checkpoints").rglob("load_data.json")
folder = max(manifests, key=lambda path: path.stat().st_mtime).parent

# %% load_trial_from_checkpoint_path
trial = pytorch.load_trial_from_checkpoint_path(folder, LineTrial, map_location="cpu")
print(trial.model(torch.ones(1, 1)))

# %% CheckpointLoadContext
context = pytorch.CheckpointLoadContext(hparams={"global_batch_size": 32, "learning_rate": 0.1})
untrained = LineTrial(context)


# %% TorchData
def first_tensor(batch: pytorch.TorchData) -> torch.Tensor:
    return batch if isinstance(batch, torch.Tensor) else next(iter(batch))


# %% data_length
print(pytorch.data_length({"image": torch.zeros(16, 3, 8, 8), "label": torch.zeros(16)}))  # 16

# %% reset_parameters
pytorch.reset_parameters(model)

# %% adapt_batch_sampler
batches = torch.utils.data.BatchSampler(range(100), batch_size=10, drop_last=False)
second_half = pytorch.adapt_batch_sampler(batches, num_replicas=2, rank=1)
print(len(second_half))  # 5
