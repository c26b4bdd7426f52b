"""Steps that compute on each device: right results, speed, learning; NVML and MIG."""

import re
import threading
import time

import torch
from gpu_step import (
    GB,
    PRECISIONS,
    Figures,
    Machine,
    StepFailed,
    StepSkipped,
    nvidia_smi,
    seconds_of_call,
    supported_precisions,
    synchronize,
)

LOAD_SECONDS = 3.0
_MIG_INSTANCE = re.compile(r"^\s+MIG (\S+)\s+Device\s+\d+:", re.MULTILINE)


def check_devices(machine: Machine, figures: Figures) -> None:
    """Compute on each device, and compare the number of devices with --gpus."""
    figures["devices"] = len(machine.devices)
    figures["torch"] = torch.__version__
    if machine.is_cuda:
        properties = [torch.cuda.get_device_properties(device) for device in machine.devices]
        figures["names"] = ", ".join(sorted({one.name for one in properties}))
        figures["capability"] = ", ".join(sorted({f"{p.major}.{p.minor}" for p in properties}))
        figures["memory_gb"] = min(one.total_memory for one in properties) / GB
        driver = nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")
        figures["driver"] = driver.partition("\n")[0] or "unknown"
        figures["cuda"] = torch.version.cuda or f"hip {torch.version.hip}"
    for device in machine.devices:
        if (torch.ones(4, device=device) + 1).sum().item() != 8:
            raise StepFailed(f"{device} computed 1 + 1 wrongly")
    wanted = machine.options.gpus
    if wanted is None and machine.trial is not None and machine.is_cuda:
        wanted = len(machine.trial.info.slots)
    if wanted and len(machine.devices if machine.is_cuda else ()) < wanted:
        raise StepFailed(
            f"{len(machine.devices)} {machine.devices[0].type} devices are visible, "
            f"but {wanted} GPUs were expected"
        )


def check_products(machine: Machine, figures: Figures) -> None:
    """Multiply matrices in each precision, compare with the CPU, and measure TFLOP/s."""
    size = 8192 if machine.is_cuda else 256
    seed = torch.Generator().manual_seed(17)
    left, right = (
        torch.randint(-2, 3, (size, size), generator=seed, dtype=torch.int8) for _ in range(2)
    )
    probe = torch.randint(0, 2, (size,), generator=seed).double() * 2 - 1
    # A product with a vector takes little time in fp64, and depends on every element.
    expected = left.double() @ (right.double() @ probe)
    largest = expected.abs().max().item()
    rates: dict[str, dict[torch.device, float]] = {}
    try:
        for device in machine.devices:
            for name in supported_precisions(device):
                precision = PRECISIONS[name]
                torch.set_float32_matmul_precision(precision.fp32_products)
                a, b = left.to(device, precision.dtype), right.to(device, precision.dtype)
                product = torch.matmul(a, b)
                error = (product.cpu().double() @ probe - expected).abs().max().item()
                # The comparison is also false for an error that is no number.
                if not error <= precision.tolerance * largest:
                    raise StepFailed(f"the product in {name} on {device} is off by {error:g}")
                seconds = _seconds_of_product(device, a, b, product)
                rates.setdefault(name, {})[device] = 2 * size**3 / seconds / 1e12
    finally:
        torch.set_float32_matmul_precision("highest")
        for name, measured in rates.items():
            figures[f"{name}_tflops"] = min(measured.values())
            figures[f"{name}_tflops_of_devices"] = list(measured.values())
    _compare_devices(rates)


def _seconds_of_product(
    device: torch.device, a: torch.Tensor, b: torch.Tensor, product: torch.Tensor
) -> float:
    return seconds_of_call(device, lambda: torch.matmul(a, b, out=product))


def _compare_devices(rates: dict[str, dict[torch.device, float]]) -> None:
    """Raise StepFailed if a GPU has less than half the speed of another GPU with its name.

    `rates` are TFLOP/s by precision and device.
    """
    for precision, measured in rates.items():
        if len(measured) < 2:
            continue
        best: dict[str, float] = {}
        for device, rate in measured.items():
            name = torch.cuda.get_device_name(device)
            best[name] = max(rate, best.get(name, rate))
        for device, rate in measured.items():
            name = torch.cuda.get_device_name(device)
            if rate < best[name] / 2:
                raise StepFailed(
                    f"{device} reached {rate:.1f} TFLOP/s in {precision}, and another {name} "
                    f"{best[name]:.1f}"
                )


def check_learning(machine: Machine, figures: Figures) -> None:
    """Train a tiny model on each device: with a GradScaler in fp16, and in bf16."""
    for device in machine.devices:
        for name in ("fp16", "bf16"):
            if name not in supported_precisions(device):
                continue
            first, last = losses_of_training(device, PRECISIONS[name].dtype)
            key = f"{name}_loss_ratio"
            figures[key] = max(last / first, figures.get(key, 0.0))
            if not last < first / 4:
                raise StepFailed(
                    f"the loss in {name} on {device} went from {first:.3g} to {last:.3g}, expected "
                    "less than a quarter"
                )


def losses_of_training(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Return the first and the last loss of 80 steps. Raise StepFailed if autocast has no effect.

    fp16 trains with a GradScaler. bf16 needs none, because it has the range of fp32.
    """
    torch.manual_seed(17)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1)
    ).to(device)
    inputs = torch.randn(512, 32).to(device)
    targets = 3 * inputs[:, :4].mean(1, keepdim=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    losses = []
    for _ in range(80):
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=dtype):
            outputs = model(inputs)
        if outputs.dtype is not dtype:
            raise StepFailed(f"autocast on {device} returned {outputs.dtype} instead of {dtype}")
        loss = torch.nn.functional.mse_loss(outputs.float(), targets)
        torch.autograd.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses[0], losses[-1]


def check_nvml(machine: Machine, figures: Figures) -> None:
    """Read use, free memory and temperature of the GPUs while they compute.

    detcloud's profiler reads use and memory if detcloud is installed; nvidia-smi is independent.
    The numbers count all GPUs of the machine, also hidden GPUs.
    """
    if not machine.is_cuda or torch.version.hip:
        raise StepSkipped("no GPU of NVIDIA")
    try:
        from detcloud.core.profiler import gpu_reader
    except ImportError:
        read = None
    else:
        read = gpu_reader()
    query = (
        "--query-gpu=utilization.gpu,memory.used,temperature.gpu",
        "--format=csv,noheader,nounits",
    )
    highest: dict[str, float] = {}
    with _Load(machine.devices):
        end = time.monotonic() + LOAD_SECONDS
        while time.monotonic() < end:
            sample = dict(read()) if read is not None else {}
            sample |= parse_nvidia_figures(nvidia_smi(*query))
            for key, value in sample.items():
                highest[key] = max(value, highest.get(key, value))
            time.sleep(0.2)
    figures |= summary_of_samples(highest)
    problem = nvml_problem(highest, is_read_by_detcloud=read is not None)
    if problem and mig_instances(nvidia_smi("-L")):
        raise StepSkipped(f"{problem}; NVML reads no use of a GPU with MIG")
    if problem:
        raise StepFailed(problem)


def summary_of_samples(highest: dict[str, float]) -> Figures:
    """Return the figures of the step from the highest value of each measurement.

    `detcloud_...` are values of detcloud's profiler, the others of nvidia-smi.
    """
    summary: Figures = {}
    for key, prefix, choose in (
        ("detcloud_use_percent", "gpu_util_", max),
        ("detcloud_free_memory_gib", "gpu_free_memory_", min),
        ("use_percent", "smi_use_", max),
        ("used_memory_mib", "smi_memory_", max),
        ("temperature", "smi_temperature_", max),
    ):
        values = [value for name, value in highest.items() if name.startswith(prefix)]
        if values:
            summary[key] = choose(values)
            summary[f"{key}_of_devices"] = values
    return summary


def nvml_problem(highest: dict[str, float], *, is_read_by_detcloud: bool) -> str:
    """Return the fault in the measurements of busy GPUs, or "" without a fault."""
    if not highest:
        return "neither detcloud's profiler nor nvidia-smi reads a GPU"
    used = [value for name, value in highest.items() if name.startswith("gpu_util_")]
    if is_read_by_detcloud and not used:
        return "detcloud's profiler reads no GPU: install nvidia-ml-py"
    used += [value for name, value in highest.items() if name.startswith("smi_use_")]
    if max(used, default=0.0) <= 0:
        return "the use of the GPUs stayed 0 % while they computed"
    for name, value in highest.items():
        if name.startswith("smi_temperature_") and not 0 < value < 120:
            return f"{name} is {value:.0f} degrees Celsius"
    return ""


def parse_nvidia_figures(text: str) -> dict[str, float]:
    """Return the numbers of nvidia-smi's lines `USE, MEMORY, TEMPERATURE`, without `[N/A]`."""
    found = {}
    for index, line in enumerate(filter(None, text.splitlines())):
        for name, value in zip(("use", "memory", "temperature"), line.split(","), strict=False):
            if value.strip().isdigit():
                found[f"smi_{name}_{index}"] = float(value)
    return found


class _Load:
    """A block during which a thread keeps the GPUs busy."""

    def __init__(self, devices: list[torch.device]) -> None:
        self._factors = [torch.ones(4096, 4096, device=device) for device in devices]
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-load", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.is_set():
            for factor in self._factors:
                for _ in range(8):
                    torch.mm(factor, factor)
            for factor in self._factors:
                synchronize(factor.device)


def check_mig(machine: Machine, figures: Figures) -> None:
    """Count the MIG instances of the machine, where MIG is on, and the visible instances."""
    if not machine.is_cuda or torch.version.hip:
        raise StepSkipped("no GPU of NVIDIA")
    modes = nvidia_smi("--query-gpu=mig.mode.current", "--format=csv,noheader")
    profiles = mig_instances(nvidia_smi("-L"))
    if "Enabled" not in modes.splitlines() and not profiles:
        raise StepSkipped("MIG is off" if modes else "nvidia-smi did not report MIG")
    figures["instances"] = len(profiles)
    figures["profiles"] = ", ".join(sorted(set(profiles)))
    figures["visible"] = sum(
        "MIG" in torch.cuda.get_device_name(device) for device in machine.devices
    )
    if not profiles:
        raise StepFailed("MIG is enabled, but no instance exists: create one with nvidia-smi mig")


def mig_instances(listing: str) -> list[str]:
    """Return the profile of each MIG instance in the output of `nvidia-smi -L`."""
    return _MIG_INSTANCE.findall(listing)
