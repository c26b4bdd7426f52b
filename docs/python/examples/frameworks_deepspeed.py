"""Examples of docs/python/frameworks.md for DeepSpeed. Tests run the script without a cluster."""

# %%
import os

os.environ["DS_ACCELERATOR"] = "cpu"

import torch
from torch.utils.data import TensorDataset

torch.set_num_threads(1)
values = torch.linspace(0, 1, 32).reshape(-1, 1)
data = TensorDataset(values, 2 * values)
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
    "steps_per_print": 1_000_000,
}

# %% deepspeed.overwrite_deepspeed_config
from detcloud.deepspeed import overwrite_deepspeed_config

config = overwrite_deepspeed_config(CONFIG, {"optimizer": {"params": {"lr": 0.1}}})

# %% deepspeed.DeepSpeedTrial, deepspeed.DeepSpeedTrialContext
import deepspeed

import detcloud.deepspeed
from detcloud.pytorch import DataLoader


class LineTrial(detcloud.deepspeed.DeepSpeedTrial):
    def __init__(self, context):
        self.context = context
        model = torch.nn.Linear(1, 1)
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=config
        )
        self.engine = context.wrap_model_engine(engine)

    def build_training_data_loader(self):
        return DataLoader(data, batch_size=self.context.train_micro_batch_size_per_gpu)

    def build_validation_data_loader(self):
        return DataLoader(data, batch_size=self.context.train_micro_batch_size_per_gpu)

    def train_batch(self, dataloader_iter, epoch_idx, batch_idx):
        x, y = self.context.to_device(next(dataloader_iter))
        loss = torch.nn.functional.mse_loss(self.engine(x), y)
        self.engine.backward(loss)
        self.engine.step()
        return {"loss": loss}

    def evaluate_batch(self, dataloader_iter, batch_idx):
        x, y = self.context.to_device(next(dataloader_iter))
        return {"validation_loss": torch.nn.functional.mse_loss(self.engine(x), y)}


# %% deepspeed.init, deepspeed.Trainer
from detcloud import pytorch

with detcloud.deepspeed.init() as context:
    detcloud.deepspeed.Trainer(LineTrial(context), context).fit(max_length=pytorch.Epoch(2))


# %% deepspeed.DeepSpeedTrial.save, deepspeed.DeepSpeedTrial.load
class WeightsOnlyTrial(LineTrial):
    def save(self, context, path):
        if context.distributed.rank == 0:
            torch.save(self.engine.module.state_dict(), path / "weights.pth")

    def load(self, context, load_path):
        self.engine.module.load_state_dict(torch.load(load_path / "weights.pth"))


# %% deepspeed.DeepSpeedTrial.train_batch
# %% deepspeed.DeepSpeedTrialContext.disable_auto_grad_accumulation
class WholeBatchTrial(LineTrial):
    def __init__(self, context):
        super().__init__(context)
        context.disable_auto_grad_accumulation()

    def train_batch(self, dataloader_iter, epoch_idx, batch_idx):
        for _ in range(self.context.num_micro_batches_per_slot):
            metrics = super().train_batch(dataloader_iter, epoch_idx, batch_idx)
        return metrics


# %% deepspeed.DeepSpeedTrialContext.set_mpu, deepspeed.make_data_parallel_mpu
class ReplicatedTrial(LineTrial):
    def __init__(self, context):
        super().__init__(context)
        context.set_mpu(detcloud.deepspeed.make_data_parallel_mpu(context.distributed))


# %% deepspeed.DeepSpeedTrialContext.disable_dataset_reproducibility_checks
class OwnLoaderTrial(LineTrial):
    def __init__(self, context):
        super().__init__(context)
        context.disable_dataset_reproducibility_checks()

    def build_training_data_loader(self):
        return torch.utils.data.DataLoader(data, batch_size=4)


# %% deepspeed.ModelParallelUnit
from detcloud.deepspeed import ModelParallelUnit

second_of_two = ModelParallelUnit(
    data_parallel_rank=1,
    data_parallel_world_size=2,
    should_report_metrics=False,
    should_build_data_loader=True,
)

# %%
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology, PipelineParallelGrid

grid = PipelineParallelGrid(PipeDataParallelTopology(num_pp=1, num_dp=1))

# %% deepspeed.make_deepspeed_mpu
unit = detcloud.deepspeed.make_deepspeed_mpu(grid)
print("this process loads data:", unit.should_build_data_loader)

# %%
for kind in (WeightsOnlyTrial, WholeBatchTrial, ReplicatedTrial, OwnLoaderTrial):
    with detcloud.deepspeed.init(checkpoint_dir=kind.__name__) as context:
        detcloud.deepspeed.Trainer(kind(context), context).fit(max_length=pytorch.Batch(2))
