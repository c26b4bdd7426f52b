"""NVIDIA's GPUs in the clouds: generation, compute capability and usable drivers. Pure.

Both clouds' catalogues of instance types refer to this table. The machine images that AWS and
Google maintain have NVIDIA's open kernel modules, which run GPUs since Turing.

Sources:
- Generations and capabilities: NVIDIA, "CUDA GPU Compute Capability" and "Legacy CUDA GPU Compute
  Capability", as of 2026-06.
- Open kernel modules: NVIDIA driver installation guide, "Kernel Modules", as of 2026-06: "supported
  only on Turing and newer generations".
- Last drivers: NVIDIA, "Unix Drivers - Legacy GPU Support" (branch 470 for Kepler) and "CUDA
  Toolkit 13.0 release notes" (branch 580 for Maxwell, Pascal and Volta), as of 2025-10.
"""

from enum import Enum
from typing import Final, NamedTuple

from control_plane.scheduling.agent_needs import AgentDevice

# The oldest driver that the boot script accepts, in images/boot/gpus.sh.
DRIVER_MIN: Final = 525


class Generation(Enum):
    """A generation of NVIDIA's GPUs: the name, and the last driver branch that runs the GPUs.

    The branch is 0 for generations that current drivers run. Generations from Turing on run with
    NVIDIA's open kernel modules; older generations need the proprietary modules.
    """

    KEPLER = ("Kepler", 470)
    MAXWELL = ("Maxwell", 580)
    PASCAL = ("Pascal", 580)
    VOLTA = ("Volta", 580)
    TURING = ("Turing", 0)
    AMPERE = ("Ampere", 0)
    ADA = ("Ada Lovelace", 0)
    HOPPER = ("Hopper", 0)
    BLACKWELL = ("Blackwell", 0)

    def __init__(self, title: str, last_driver: int) -> None:
        self.title = title
        self.last_driver = last_driver


_NEEDS_PROPRIETARY_MODULES: Final = frozenset(
    {Generation.KEPLER, Generation.MAXWELL, Generation.PASCAL, Generation.VOLTA}
)


class GpuModel(NamedTuple):
    """A model of NVIDIA's GPUs."""

    name: str
    """The name without the maker, for example `V100`."""
    generation: Generation
    capability: tuple[int, int]
    """The compute capability: (7, 5) is 7.5."""
    device_name: str
    """The name that the driver reports, as on machines of AWS and Google Cloud."""
    memory_gib: int
    """The nominal memory of a GPU."""

    @property
    def device(self) -> AgentDevice:
        """The device that an agent with this GPU reports."""
        return AgentDevice("cuda", self.device_name, self.memory_gib * 1024)

    @property
    def runs_open_modules(self) -> bool:
        """Whether NVIDIA's open kernel modules run this model."""
        return self.generation not in _NEEDS_PROPRIETARY_MODULES

    @property
    def has_driver(self) -> bool:
        """Whether a driver exists that runs this model and that the boot script accepts."""
        last = self.generation.last_driver
        return not last or last >= DRIVER_MIN


_EDITION: Final = "Blackwell Server Edition"
K80: Final = GpuModel("K80", Generation.KEPLER, (3, 7), "Tesla K80", 12)
M60: Final = GpuModel("M60", Generation.MAXWELL, (5, 2), "Tesla M60", 8)
P4: Final = GpuModel("P4", Generation.PASCAL, (6, 1), "Tesla P4", 8)
P100: Final = GpuModel("P100", Generation.PASCAL, (6, 0), "Tesla P100-PCIE-16GB", 16)
V100: Final = GpuModel("V100", Generation.VOLTA, (7, 0), "Tesla V100-SXM2-16GB", 16)
T4: Final = GpuModel("T4", Generation.TURING, (7, 5), "Tesla T4", 16)
T4G: Final = GpuModel("T4g", Generation.TURING, (7, 5), "NVIDIA T4G", 16)
A100_40: Final = GpuModel("A100 40 GB", Generation.AMPERE, (8, 0), "NVIDIA A100-SXM4-40GB", 40)
A100_80: Final = GpuModel("A100 80 GB", Generation.AMPERE, (8, 0), "NVIDIA A100-SXM4-80GB", 80)
A10G: Final = GpuModel("A10G", Generation.AMPERE, (8, 6), "NVIDIA A10G", 24)
L4: Final = GpuModel("L4", Generation.ADA, (8, 9), "NVIDIA L4", 24)
L40S: Final = GpuModel("L40S", Generation.ADA, (8, 9), "NVIDIA L40S", 48)
H100: Final = GpuModel("H100", Generation.HOPPER, (9, 0), "NVIDIA H100 80GB HBM3", 80)
H100_MEGA: Final = GpuModel("H100 mega", Generation.HOPPER, (9, 0), "NVIDIA H100 80GB HBM3", 80)
H200: Final = GpuModel("H200", Generation.HOPPER, (9, 0), "NVIDIA H200", 141)
B200: Final = GpuModel("B200", Generation.BLACKWELL, (10, 0), "NVIDIA B200", 180)
GB200: Final = GpuModel("GB200", Generation.BLACKWELL, (10, 0), "NVIDIA GB200", 186)
B300: Final = GpuModel("B300", Generation.BLACKWELL, (10, 3), "NVIDIA B300 SXM6 AC", 268)
RTX_PRO_4500: Final = GpuModel(
    "RTX PRO 4500",
    Generation.BLACKWELL,
    (12, 0),
    f"NVIDIA RTX PRO 4500 {_EDITION}",
    32,
)
RTX_PRO_6000: Final = GpuModel(
    "RTX PRO 6000",
    Generation.BLACKWELL,
    (12, 0),
    f"NVIDIA RTX PRO 6000 {_EDITION}",
    96,
)

GPU_MODELS: Final = (
    *(K80, M60, P4, P100, V100, T4, T4G, A100_40, A100_80, A10G, L4, L40S),
    *(H100, H100_MEGA, H200, B200, GB200, B300, RTX_PRO_4500, RTX_PRO_6000),
)


def find_gpu_model(name: str) -> GpuModel | None:
    """Return the model with a name. Return None for an unknown name.

    Upper and lower case do not differ. A name without the variant, such as `A100`, returns the
    first variant. All variants of a model run with the same drivers.
    """
    wanted = name.casefold()
    for model in GPU_MODELS:
        known = model.name.casefold()
        if known == wanted or known.startswith(f"{wanted} "):
            return model
    return None


class ImageProblem(NamedTuple):
    """The reason why a cloud's default machine image does not run on an instance type."""

    text: str
    """The reason, as the end of a sentence about the type."""
    remedy: str
    """The user's next step."""


def find_driver_problem(model: GpuModel, image: str, field: str) -> ImageProblem | None:
    """Return why an image with NVIDIA's open kernel modules does not run a GPU.

    Return None if the image runs the GPU.

    Args:
        model: the GPU of an instance type.
        image: the name of the image, for the text.
        field: the field of a pool's configuration that names another image, for the remedy.
    """
    if model.runs_open_modules:
        return None
    text = (
        f"its GPU, {model.name} ({model.generation.title}), is too old for the driver of {image}, "
        "whose open kernel modules need Turing or newer"
    )
    if not model.has_driver:
        text = f"{text}; no driver since {DRIVER_MIN}, which trials need, runs this GPU"
        return ImageProblem(text, "use another type")
    remedy = f"use another type, or name an image with NVIDIA's proprietary driver in {field}"
    return ImageProblem(text, remedy)
