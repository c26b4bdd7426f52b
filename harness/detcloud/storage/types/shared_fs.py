"""The checkpoint store in a folder that is mounted on every machine."""

from detcloud.storage.types.directory import build_store

__all__ = ["build_store"]
