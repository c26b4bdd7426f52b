"""The Python SDK: a cluster, its experiments, trials and checkpoints over the HTTP API.

from detcloud.client import Cluster

experiment = Cluster.from_environment().create_experiment("config.yaml", "model_dir")
experiment.wait()
print(experiment.data["best_metric"])
"""

from detcloud.client.cluster import Cluster
from detcloud.client.experiment import Experiment
from detcloud.client.trial import Checkpoint, Trial

__all__ = ["Checkpoint", "Cluster", "Experiment", "Trial"]
