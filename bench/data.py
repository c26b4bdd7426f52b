"""Epochs over a cached data set against epochs without a cache, by turns."""

import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bench.figures import Row, Scale, at_most, number, progress, row_without_target

FIRST_MAX_PERCENT, SECOND_MAX_PERCENT = 10, 0
PIXELS, BATCH = 128, 32


class Epoch(NamedTuple):
    """The seconds of an epoch: processor time and wall time."""

    processor: float
    clock: float


def data(scale: Scale) -> Iterator[Row]:
    """Yield rows for two epochs with and without a cache, for loading alone and for a small
    training.

    The first epoch with a cache includes building the cache.
    """
    # torch is imported only for this figure.
    from bench.data_epochs import JpegImages, load_batches, train_batches

    images = JpegImages(scale.data_samples, PIXELS)
    for what, consume in (("training", train_batches), ("loading alone", load_batches)):
        plain: list[tuple[Epoch, Epoch]] = []
        cached: list[tuple[Epoch, Epoch]] = []
        with progress(f"{what}, {scale.data_runs} runs of {scale.data_samples} images"):
            for _ in range(scale.data_runs):
                plain.append(_two_epochs(lambda: images, consume))
                with TemporaryDirectory(prefix="detcloud-bench-") as folder:
                    cached.append(_two_epochs(_make_cached_opener(images, Path(folder)), consume))
        yield from _rows(what, plain, cached, scale.data_samples)


def _rows(
    what: str, plain: list[tuple[Epoch, Epoch]], cached: list[tuple[Epoch, Epoch]], samples: int
) -> Iterator[Row]:
    limits = (FIRST_MAX_PERCENT, SECOND_MAX_PERCENT)
    for place, (name, limit) in enumerate(zip(("first", "second"), limits, strict=True)):
        pairs = [(item[place], other[place]) for item, other in zip(cached, plain, strict=True)]
        percent = median(100 * (one.processor / other.processor - 1) for one, other in pairs)
        clock = median(100 * (one.clock / other.clock - 1) for one, other in pairs)
        ours, others = (
            1e6 * median(side) / samples for side in zip(*_processor(pairs), strict=True)
        )
        beside = (
            f"{number(ours)} us a sample, {number(others)} us uncached; by the clock {clock:+.0f} %"
        )
        text = f"{name} epoch with a cache, {what}: more than without"
        if what == "training":
            yield at_most(text, percent, limit, "%", beside=beside)
        else:
            yield row_without_target(text, percent, "%", beside=beside)


def _processor(pairs: list[tuple[Epoch, Epoch]]) -> list[tuple[float, float]]:
    return [(one.processor, other.processor) for one, other in pairs]


def _two_epochs(
    open_data: Callable[[], Any], consume: Callable[[Any, int], None]
) -> tuple[Epoch, Epoch]:
    def measure(action: Callable[[], Any]) -> tuple[Epoch, Any]:
        processor, clock = time.thread_time(), time.perf_counter()
        result = action()
        return Epoch(time.thread_time() - processor, time.perf_counter() - clock), result

    opened, dataset = measure(open_data)
    epochs = [measure(lambda: consume(dataset, BATCH))[0] for _ in range(2)]
    first = Epoch(*(value + more for value, more in zip(opened, epochs[0], strict=True)))
    return first, epochs[1]


def _make_cached_opener(images: Any, folder: Path) -> Callable[[], Any]:
    import contextlib

    from detcloud import core
    from detcloud.pytorch.data_layer import DataLayer

    def open_data() -> Any:
        layer = {"type": "shared_fs", "host_storage_path": str(folder)}
        with (
            contextlib.redirect_stdout(io.StringIO()),
            core.init(config={"data_layer": layer}) as context,
        ):
            return DataLayer(context).cache_train_dataset("images", "v1")(lambda: images)()

    return open_data
