"""Handwritten digits, 8x8 pixels, with a small network in Keras."""

import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import keras
import numpy

from detcloud import core
from detcloud.keras import DeterminedCallback

# Every fifth record validates: the split is the same in every trial.
VALIDATION_EVERY = 5


def main() -> None:
    with core.init() as context:
        hparams = {"learning_rate": 0.001, "width": 64, "dropout": 0.2, **context.info.hparams}
        keras.utils.set_random_seed(context.info.trial_seed)
        (images, labels), validation = load_digits()
        model = build_model(hparams)
        model.fit(
            images,
            labels,
            batch_size=hparams.get("global_batch_size", 64),
            epochs=hparams.get("epochs", 12),
            validation_data=validation,
            callbacks=[
                DeterminedCallback(
                    context,
                    checkpoint=context.info.latest_checkpoint,
                    continue_id=context.info.trial_id,
                )
            ],
        )


def build_model(hparams: dict[str, Any]) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(hparams["width"], activation="relu"),
            keras.layers.Dropout(hparams["dropout"]),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(hparams["learning_rate"]),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def load_digits() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """1437 training and 360 validation records: images in [0, 1] and labels 0 to 9.

    Reads the file behind sklearn.datasets.load_digits, whose import alone takes seconds.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the digits ship with scikit-learn: pip install scikit-learn")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as text:
        table = numpy.loadtxt(text, delimiter=",", dtype=numpy.float32)
    images, labels = table[:, :-1] / 16, table[:, -1].astype("int32")
    validates = numpy.arange(len(table)) % VALIDATION_EVERY == 0
    return (images[~validates], labels[~validates]), (images[validates], labels[validates])


if __name__ == "__main__":
    main()
