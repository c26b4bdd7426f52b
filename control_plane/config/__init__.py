"""Experiment configurations of both eras: read, checked, defaulted, converted."""

from control_plane.config.check import check
from control_plane.config.eras import Era
from control_plane.config.experiment import ExperimentConfig, JobSettings
from control_plane.config.migration import migrate
from control_plane.config.problems import ConfigInvalid, Problem

__all__ = [
    "ConfigInvalid",
    "Era",
    "ExperimentConfig",
    "JobSettings",
    "Problem",
    "check",
    "migrate",
]
