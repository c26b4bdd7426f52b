"""The images that configurations of the step era have where they name none."""

from __future__ import annotations

STEP_ERA_IMAGES = {
    "cpu": "determinedai/environments:py-3.6.9-pytorch-1.4-tf-1.15-cpu-0.5.0",
    "cuda": "determinedai/environments:cuda-10.0-pytorch-1.4-tf-1.15-gpu-0.5.0",
}
