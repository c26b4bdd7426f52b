"""Examples of docs/python/frameworks.md for Keras. Tests run the script without a cluster."""

# %%
import os

os.environ["KERAS_BACKEND"] = "torch"

import numpy

x = numpy.random.default_rng(1).random((40, 4)).astype("float32")
y = x.sum(1)

# %% keras.DeterminedCallback
import keras

from detcloud import core
from detcloud.keras import DeterminedCallback

with core.init() as context:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    callback = DeterminedCallback(
        context, context.info.latest_checkpoint, context.info.trial_id, checkpoint_epochs=2
    )
    model.fit(x, y, epochs=4, validation_data=(x, y), callbacks=[callback])


# %% keras.DeterminedCallback.save_model, keras.DeterminedCallback.load_model
from pathlib import Path


class WholeModel(DeterminedCallback):
    """Stores the model's structure in addition to its weights."""

    def save_model(self, model, path, distributed):
        super().save_model(model, path, distributed)
        if distributed.rank == 0:
            Path(f"{path}.json").write_text(model.to_json())

    def load_model(self, model, path, distributed):
        super().load_model(model, path, distributed)


# %%
with core.init(checkpoint_dir="whole") as context:
    model.fit(x, y, epochs=1, validation_data=(x, y), callbacks=[WholeModel(context, None, 0)])
