"""The devices of the machine: NVIDIA GPUs with MIG instances, AMD GPUs and Apple GPUs."""
