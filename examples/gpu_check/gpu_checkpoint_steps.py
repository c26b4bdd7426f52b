"""Steps that store data: a checkpoint behind the training, and files in a checkpoint store."""

import hashlib
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

import torch
from gpu_step import (
    GB,
    MIB,
    Figures,
    Machine,
    StepFailed,
    StepSkipped,
    free_memory,
    seconds_of_call,
    sync_file,
    synchronize,
)

CHECKPOINT_GB = 10
STORED_FILES = 4
Parts = dict[str, torch.Tensor]


class Mechanism(NamedTuple):
    """The code that stores a checkpoint."""

    name: str
    copy_state: Callable[[Any], Any]
    """Returns a copy of a state in the host's memory. The next call uses the memory again."""
    write: Callable[[dict[str, Any], Path], None]
    """Writes a copied state to `state_dict.pth` in a folder."""
    run_behind: Callable[[Callable[[], None]], Callable[[], None]]
    """Starts a function in a thread. Returns a function that waits and raises the error."""


def check_checkpoint(machine: Machine, figures: Figures) -> None:
    """Copy a state to the host, write the copy while training continues, and verify the file.

    Each training step changes the state, so that a mixture of two states is found.
    """
    device, mechanism = machine.devices[0], storing_mechanism()
    count, elements = sizes_of_parts(machine, figures)
    parts = {f"part{n}": torch.empty(elements, device=device) for n in range(count)}
    gigabytes = count * elements * 4 / GB
    figures |= {"state_gb": gigabytes, "mechanism": mechanism.name}
    if machine.is_cuda:
        measure_copies(parts["part0"], figures)
    train = _training_step(machine, parts)
    figures["step_ms"] = 1000 * seconds_of_call(device, train)
    # The first copy also allocates the host's memory.
    for pause in ("first_pause_seconds", "pause_seconds"):
        for number, part in enumerate(parts.values()):
            fill(part, number)
        synchronize(device)
        began = time.perf_counter()
        copied = mechanism.copy_state({"models_state_dict": parts})
        synchronize(device)
        figures[pause] = time.perf_counter() - began
    figures["to_host_gb_per_second"] = gigabytes / figures["pause_seconds"]
    seconds, steps = _train_while(
        lambda: _store(mechanism, copied, machine.folder), mechanism, train, machine
    )
    figures["to_disk_gb_per_second"] = gigabytes / seconds
    figures["steps_behind"], figures["step_behind_ms"] = steps, 1000 * seconds / max(1, steps)
    file = machine.folder / "state_dict.pth"
    verify_parts(file, parts)
    file.unlink()


def _training_step(machine: Machine, parts: Parts) -> Callable[[], None]:
    """Return a function that computes a product, changes all parts, and waits for the device."""
    device = machine.devices[0]
    size = 2048 if machine.is_cuda else 128
    weights = torch.randn(size, size, device=device)

    def train() -> None:
        torch.mm(weights, weights)
        for part in parts.values():
            part.add_(1)
        synchronize(device)

    return train


def _store(mechanism: Mechanism, copied: dict[str, Any], folder: Path) -> None:
    mechanism.write(copied, folder)
    sync_file(folder / "state_dict.pth")


def _train_while(
    store: Callable[[], None], mechanism: Mechanism, train: Callable[[], None], machine: Machine
) -> tuple[float, int]:
    """Train while `store` runs in a thread. Return the seconds of `store` and the steps.

    Raises the error of `store`.
    """
    ended, seconds = threading.Event(), 0.0

    def task() -> None:
        nonlocal seconds
        began = time.perf_counter()
        try:
            store()
            seconds = time.perf_counter() - began
        finally:
            ended.set()

    wait, steps = mechanism.run_behind(task), 0
    while not ended.is_set() and machine.seconds_left > 0:
        train()
        steps += 1
    wait()
    return seconds, steps


def sizes_of_parts(machine: Machine, figures: Figures) -> tuple[int, int]:
    """Return the number of parts of the state and the elements of each part.

    torch allocates pinned memory in powers of two, so each part has such a size. Without
    --checkpoint-gb, the state is smaller if memory, disk or time do not suffice. Raises StepFailed
    if there is no room.
    """
    part = 256 * MIB if machine.is_cuda else 4 * MIB
    asked = machine.options.checkpoint_gb
    size = (asked or (CHECKPOINT_GB if machine.is_cuda else 0.032)) * GB
    room = {"disk": 0.8 * shutil.disk_usage(machine.folder).free}
    # The folder may be in memory, too.
    if (free := free_memory()) is not None:
        room["host memory"] = 0.4 * free
    if machine.is_cuda:
        room["GPU memory"] = 0.9 * torch.cuda.mem_get_info(machine.devices[0])[0] - 2 * part
    if not asked:
        room["time"] = _disk_bytes_per_second(machine.folder, part) * machine.seconds_left / 4
    limit, least = min(room.items(), key=lambda item: item[1])
    if least < size:
        if asked or least < part:
            raise StepFailed(
                f"{limit} limits the checkpoint to {max(0.0, least) / GB:.2f} GB; "
                f"{(size if asked else part) / GB:.2f} GB were needed"
            )
        size, figures["limited_by"] = least, limit
    return max(1, int(size // part)), part // 4


def _disk_bytes_per_second(folder: Path, size: int) -> float:
    """Measure the speed of the disk with a file of `size` bytes, which is deleted."""
    block, probe = os.urandom(MIB), folder / "probe"
    began = time.perf_counter()
    with probe.open("wb") as file:
        for _ in range(size // MIB):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    probe.unlink()
    return size / seconds


def measure_copies(source: torch.Tensor, figures: Figures) -> None:
    """Measure the speed of copies from a GPU to pinned and to pageable memory of the host."""
    for name in ("pinned", "pageable"):
        target = torch.empty(source.shape, pin_memory=name == "pinned")
        seconds = seconds_of_call(
            source.device,
            partial(target.copy_, source, non_blocking=True),
        )
        figures[f"{name}_gb_per_second"] = source.numel() * 4 / GB / seconds


def storing_mechanism() -> Mechanism:
    """Return detcloud's code of PyTorch trials, or a replacement if detcloud is not installed."""
    try:
        from detcloud.core.background_save import BackgroundSave, Save
        from detcloud.pytorch.snapshot import save_state
        from detcloud.pytorch.state_copy import StateCopier
    except ImportError:
        return Mechanism("own", PinnedCopier().copy_state, write_state, run_in_thread)
    saves = BackgroundSave()

    def run_behind(task: Callable[[], None]) -> Callable[[], None]:
        saves.start(Save("gpu-check"), task)
        return saves.wait

    return Mechanism("detcloud", StateCopier().copy_state, save_state, run_behind)


class PinnedCopier:
    """Copies states into pinned memory. The next copy uses the memory again."""

    def __init__(self) -> None:
        self._kept: Parts = {}

    def copy_state(self, state: dict[str, Parts]) -> dict[str, Parts]:
        """Return a copy of the state. Wait for the copy."""
        return {name: self._copy(parts) for name, parts in state.items()}

    def _copy(self, parts: Parts) -> Parts:
        for name, part in parts.items():
            if name not in self._kept:
                self._kept[name] = torch.empty(part.shape, pin_memory=part.is_cuda)
            self._kept[name].copy_(part, non_blocking=True)
        for device in {part.device for part in parts.values()}:
            synchronize(device)
        return dict(self._kept)


def write_state(state: dict[str, Any], folder: Path) -> None:
    with (folder / "state_dict.pth").open("wb") as file:
        torch.save(state, file)


def run_in_thread(task: Callable[[], None]) -> Callable[[], None]:
    """Run `task` in a thread. Return a function that waits for the end and raises the error."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            task()
        except Exception as error:
            errors.append(error)

    def wait() -> None:
        thread.join()
        if errors:
            raise errors[0]

    thread = threading.Thread(target=run, name="checkpoint-save", daemon=True)
    thread.start()
    return wait


def fill(part: torch.Tensor, number: int) -> None:
    """Fill the tensor with numbers that depend on `number` and the kind of device only."""
    part.normal_(generator=torch.Generator(part.device).manual_seed(number))


def verify_parts(file: Path, parts: Parts) -> None:
    """Raise StepFailed unless the file has the numbers of `fill`. Overwrite `parts` with them."""
    loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    for number, (name, part) in enumerate(parts.items()):
        fill(part, number)
        if not torch.equal(loaded["models_state_dict"][name].to(part.device), part):
            raise StepFailed(f"{name} of the reloaded checkpoint differs from the copied state")


def check_store(machine: Machine, figures: Figures) -> None:
    """Store files and fetch them: in the store of --store, or as a checkpoint of the trial."""
    url, trial = machine.options.store, machine.trial
    if url is None and (trial is None or trial.info.storage is None):
        raise StepSkipped("no checkpoint store: pass --store, or run as a trial with a store")
    size = (machine.options.store_mb or (256 if machine.is_cuda else 4)) * MIB
    source, fetched = machine.folder / "stored", machine.folder / "fetched"
    source.mkdir()
    fetched.mkdir()
    for number in range(STORED_FILES):
        (source / f"file{number}").write_bytes(os.urandom(size // STORED_FILES))
    if url is None:
        reference, upload = _time_call(
            lambda: trial.checkpoint.upload(source, {"steps_completed": 1})
        )
        _, download = _time_call(lambda: trial.checkpoint.download(reference, fetched))
    else:
        upload, download = _transfer(open_store(url), source, fetched)
    figures["megabytes"] = size / 1e6
    figures["upload_mb_per_second"] = size / 1e6 / upload
    figures["download_mb_per_second"] = size / 1e6 / download
    for path in sorted(source.iterdir()):
        if _digest(path) != _digest(fetched / path.name):
            raise StepFailed(f"{path.name} differs after the transfer")
    for folder in (source, fetched):
        shutil.rmtree(folder)


def open_store(url: str) -> Any:
    """Return detcloud's store for a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX."""
    try:
        from detcloud.storage import build_own_store
    except ImportError as error:
        raise StepFailed(f"--store needs detcloud: {error}") from None
    place = urlparse(url)
    prefix = place.path.strip("/")
    if place.scheme in ("", "file"):
        return build_own_store({"type": "directory", "path": str(Path(place.path).resolve())})
    if place.scheme not in ("s3", "gs"):
        raise StepFailed(f"--store is {url}: expected a folder, s3:// or gs://")
    kind = "gcs" if place.scheme == "gs" else "s3"
    return build_own_store({"type": kind, "bucket": place.netloc, "prefix": prefix})


def _transfer(store: Any, source: Path, fetched: Path) -> tuple[float, float]:
    """Return the seconds of storing and of fetching all files, and delete the stored files."""
    keys = {f"gpu-check/{uuid.uuid4()}/{path.name}": path for path in source.iterdir()}
    try:
        _, upload = _time_call(lambda: [store.put(key, path) for key, path in keys.items()])
        _, download = _time_call(
            lambda: [store.get(key, fetched / path.name) for key, path in keys.items()]
        )
    finally:
        for key in keys:
            store.delete(key)
    return upload, download


def _time_call(action: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call and its duration in seconds."""
    began = time.perf_counter()
    result = action()
    return result, max(1e-6, time.perf_counter() - began)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
