"""Examples of docs/python/frameworks.md for the Hugging Face Trainer, which tests run."""

# %%
import torch

torch.set_num_threads(1)


class Sums(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, number):
        values = torch.full((4,), number / 16)
        return {"values": values, "labels": values.sum()}


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, values, labels):
        sums = self.layer(values)[:, 0]
        return {"loss": torch.nn.functional.mse_loss(sums, labels), "logits": sums}


model, data = Network(), Sums()

# %% transformers.DetCallback
from transformers import Trainer, TrainingArguments

from detcloud import core
from detcloud.transformers import DetCallback

with core.init() as context:
    args = TrainingArguments("output", max_steps=4, save_steps=2, report_to=[], use_cpu=True)
    callback = DetCallback(context, args, filter_metrics=["loss"])
    trainer = Trainer(model, args, train_dataset=data, callbacks=[callback])
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)

# %% transformers.DetCallback.load_last_checkpoint
with core.init() as context:
    args = TrainingArguments("output", report_to=[], use_cpu=True)
    callback = DetCallback(context, args)
    callback.load_last_checkpoint(args)  # the constructor has done this already
    print("start from", args.resume_from_checkpoint)
