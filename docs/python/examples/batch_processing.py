"""Further examples of docs/python/pytorch.md, which tests run like pytorch.py."""

# %%
import torch

from detcloud import core

torch.set_num_threads(1)

# %% torch_batch_process, TorchBatchProcessor, TorchBatchProcessorContext
from detcloud.pytorch.batch_process import TorchBatchProcessor, torch_batch_process


class Embeddings(TorchBatchProcessor):
    def __init__(self, context):
        self.context = context
        self.model = context.prepare_model_for_inference(torch.nn.Linear(8, 2))
        self.count = context.wrap_reducer(sum, name="records")
        self.vectors = []

    def process_batch(self, batch, batch_idx):
        with torch.no_grad():
            self.vectors.append((batch_idx, self.model(self.context.to_device(batch))))
        self.count.update(len(batch))

    def on_checkpoint_start(self):
        with self.context.upload_path() as folder:
            torch.save(self.vectors, folder / f"until-{self.vectors[-1][0]}.pt")
        self.vectors = []

    def on_finish(self):
        print("process", self.context.get_distributed_rank(), "has finished")


torch_batch_process(Embeddings, torch.rand(100, 8), batch_size=10, checkpoint_interval=5)


# %% TorchBatchProcessorContext.get_hparams, TorchBatchProcessorContext.get_distributed_size
class Describe(TorchBatchProcessor):
    def __init__(self, context):
        print(context.get_hparams(), "on", context.get_distributed_size(), "processes")

    def process_batch(self, batch, batch_idx):
        print("batch", batch_idx)


torch_batch_process(Describe, torch.rand(20, 8), batch_size=10)


# %% TorchBatchProcessorContext.report_metrics, TorchBatchProcessorContext.get_tensorboard_path
class ReportMeans(TorchBatchProcessor):
    def __init__(self, context):
        self.context = context

    def process_batch(self, batch, batch_idx):
        self.context.report_metrics("means", batch_idx, {"mean": batch.mean()})

    def on_finish(self):
        (self.context.get_tensorboard_path() / "notes.txt").write_text("all batches are done")


torch_batch_process(ReportMeans, torch.rand(20, 8), batch_size=10)

# %% DataLayer, DataLayer.cache_train_dataset, DataLayer.cache_validation_dataset
from detcloud.pytorch.data_layer import DataLayer

with core.init() as context:
    layer = DataLayer(context)

    @layer.cache_train_dataset("squares", "v1", shuffle=True)
    def make_training_set():
        return [(torch.tensor(n), torch.tensor(n * n)) for n in range(100)]

    @layer.cache_validation_dataset("squares", "v1")
    def make_validation_set():
        return [(torch.tensor(n), torch.tensor(n * n)) for n in range(100, 120)]

    squares = make_training_set()
    print(len(squares), "samples, computed once")

# %% CachedDataset, CachedDataset.map
noisy = squares.map(lambda sample: (sample[0] + torch.rand(()), sample[1]))
print(noisy[0])

# %% CachedDataset.shard
half = squares.shard(rank=0, size=2, epoch=0)
print(len(half))  # 50

# %%
from detcloud import pytorch

context = pytorch.PyTorchTrialContext.from_config({"hyperparameters": {"global_batch_size": 8}})

# %% PyTorchExperimentalContext.cache_train_dataset
cached = context.experimental.cache_train_dataset("cubes", "v1", shuffle=True)
cubes = cached(lambda: [torch.tensor(n**3) for n in range(100)])()

# %% PyTorchExperimentalContext.cache_validation_dataset
cached = context.experimental.cache_validation_dataset("cubes", "v1")
held_out = cached(lambda: [torch.tensor(n**3) for n in range(100, 120)])()
