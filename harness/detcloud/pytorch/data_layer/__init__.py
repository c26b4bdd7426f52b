"""The data layer: data sets that are computed once, stored, and read by all later trials."""

from detcloud.pytorch.data_layer.dataset import CachedDataset
from detcloud.pytorch.data_layer.layer import DataLayer

__all__ = ["CachedDataset", "DataLayer"]
