"""Examples of docs/python/frameworks.md for Lightning. Tests run the script without a cluster."""

# %%
import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

values = torch.linspace(0, 1, 32).reshape(-1, 1)
training = DataLoader(TensorDataset(values, 2 * values), batch_size=8)
validation = DataLoader(TensorDataset(values, 2 * values), batch_size=32)


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


module = Line()

# %% lightning.TrialCallback, lightning.TrialCallback.latest_checkpoint, lightning.DetLogger
import lightning.pytorch as pl

from detcloud import core
from detcloud.lightning import DetLogger, TrialCallback

with core.init() as context:
    callback = TrialCallback(context)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[callback],
        logger=DetLogger(context),
        log_every_n_steps=1,
        enable_checkpointing=False,
    )
    trainer.fit(module, training, validation, ckpt_path=callback.latest_checkpoint())
    if callback.is_unfinished:
        print("the trial was interrupted and resumes later")


# %% lightning.DetLogger.log_hyperparams
with core.init() as context:
    DetLogger(context).log_hyperparams({"learning_rate": 0.1})  # has no effect
