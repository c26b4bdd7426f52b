"""The Python SDK: a cluster, its experiments, trials and checkpoints over the HTTP API.

from detcloud import Client

experiment = Client().create_experiment("config.yaml", "model_dir")
experiment.wait()
print(experiment.best_metric)
"""

from detcloud.client.agent import Agent, Slot
from detcloud.client.client import Client
from detcloud.client.connection import NoCluster
from detcloud.client.handles import Checkpoint, Experiment, Trial
from detcloud.client.job import Job, JobChange
from detcloud.client.log import LogFilter
from detcloud.client.model import Model, ModelVersion
from detcloud.client.report import Report
from detcloud.client.resource_pool import ResourcePool
from detcloud.client.schedule import Schedule
from detcloud.client.template import Template
from detcloud.client.token import Token

__all__ = [
    "Agent",
    "Checkpoint",
    "Client",
    "Experiment",
    "Job",
    "JobChange",
    "LogFilter",
    "Model",
    "ModelVersion",
    "NoCluster",
    "Report",
    "ResourcePool",
    "Schedule",
    "Slot",
    "Template",
    "Token",
    "Trial",
]
