"""The checkpoint store in a folder that every machine mounts."""

from detcloud.storage.types.directory import build_store

__all__ = ["build_store"]
