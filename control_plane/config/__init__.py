"""Experiment and cluster configurations: reading, checking, defaults, conversion."""

from control_plane.config.check import check_config
from control_plane.config.eras import Era
from control_plane.config.experiment import ExperimentConfig, JobSettings
from control_plane.config.migration import migrate_config
from control_plane.config.problems import ConfigInvalid, Problem

__all__ = [
    "ConfigInvalid",
    "Era",
    "ExperimentConfig",
    "JobSettings",
    "Problem",
    "check_config",
    "migrate_config",
]
