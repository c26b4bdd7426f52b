"""A data set with expensive samples, and loops over an epoch."""

import io
from typing import Any

import numpy
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

from detcloud.pytorch import DataLoader

SEED, THREADS, CLASSES = 17, 1, 10


class JpegImages(Dataset[tuple[torch.Tensor, int]]):
    """Square images in memory as JPEG. Each access decodes an image to a tensor of bytes."""

    def __init__(self, count: int, pixels: int) -> None:
        random = numpy.random.default_rng(SEED)
        self._files = [_jpeg(random, pixels) for _ in range(count)]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.open(io.BytesIO(self._files[index])).convert("RGB")
        pixels = torch.from_numpy(numpy.array(image)).permute(2, 0, 1).contiguous()
        return pixels, index % CLASSES


def load_batches(dataset: Any, batch_size: int) -> None:
    """Load an epoch in this process and discard the batches."""
    torch.set_num_threads(THREADS)
    for _ in DataLoader(dataset, batch_size=batch_size):
        pass


def train_batches(dataset: Any, batch_size: int) -> None:
    """Train a small network for an epoch, loaded by this process."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(SEED)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, CLASSES),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for pixels, labels in DataLoader(dataset, batch_size=batch_size):
        loss = nn.functional.cross_entropy(model(pixels.float() / 255), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def _jpeg(random: Any, pixels: int) -> bytes:
    """A smooth picture with some noise, about as large as a photograph of that size."""
    coarse = random.integers(0, 256, (8, 8, 3), dtype=numpy.uint8)
    smooth = numpy.asarray(
        Image.fromarray(coarse).resize((pixels, pixels), Image.Resampling.BICUBIC)
    )
    noisy = smooth.astype(int) + random.integers(-12, 13, smooth.shape)
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(numpy.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()
