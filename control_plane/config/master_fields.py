"""Fields of Determined's master.yaml and agent.yaml that detcloud's clusters do not have.

For each field, the hint in the error message explains the replacement.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_OWN_STATE = "remove it: the cluster keeps its state itself"
_SIGN_IN = "remove it: users sign in with tokens, see `detcloud token create`"
_ADDRESS = "remove it: `detcloud up --port`, or the deployment of a team's cluster, says where"
_NO_PODS = "remove it: agents run containers on machines, no pods"
_NO_MANAGER = "remove it: agents take trials from this cluster, not from a workload manager"
_TENSORBOARD_HERE = "remove it: TensorBoard runs on the user's machine"
_NOTHING_SENT = "remove it: this cluster sends nothing to other services"
_NO_CAPABILITIES = "remove it: the user of a trial has none"
_AGENT = "an agent has options instead, see `python -m detcloud.agent --help`"
_AGENT_IMAGE = "remove it: an instance starts its agent itself, without an image of it"
_AGENT_LEASE = "remove it: an agent tries to reach the cluster again until its lease lapses"
_LIBRARY = "remove it: set {} in environment_variables"

Hints = Mapping[str, str]

CLUSTER: Final[Hints] = MappingProxyType(
    {
        "scheduler": "write it as resource_manager.scheduler",
        "provisioner": "write it as the provider of an entry of resource_pools",
        "additional_resource_managers": "write the pools of all of them into resource_pools",
        "db": _OWN_STATE,
        "cache": _OWN_STATE,
        "root": "remove it: the web page comes with the cluster",
        "webui": "remove it: the web page comes with the cluster",
        "ui_customization": "remove it: the web page is as it comes",
        "cluster_name": "remove it: `detcloud up` and a team's deployment name the cluster",
        "config_file": "remove it: `--config FILE` or `detcloud cluster apply FILE` names the file",
        "port": _ADDRESS,
        "http_port": _ADDRESS,
        "https_port": _ADDRESS,
        "grpc_port": _ADDRESS,
        "log": "remove it: `detcloud master logs` prints all lines",
        "logging": "remove it: logs are kept with their experiment",
        "security": _SIGN_IN,
        "scim": _SIGN_IN,
        "saml": _SIGN_IN,
        "oidc": _SIGN_IN,
        "enable_cors": "list the origins of pages in page_origins",
        "launch_error": "remove it: what no agent of a pool can hold is told of at its submission",
        "telemetry": _NOTHING_SENT,
        "observability": _NOTHING_SENT,
        "integrations": _NOTHING_SENT,
        "__internal": "remove it: Determined's master alone reads it",
        "feature_switches": "remove it: features are not switched",
        "hpimportance": "remove it: the importance of hyperparameters is not computed",
        "reserved_ports": "remove it: trials choose ports that are free",
        "notebook_timeout": "remove it: settings of a notebook have an idle_timeout",
        "tensorboard_timeout": _TENSORBOARD_HERE,
        **dict.fromkeys(
            (
                *("master_host", "master_port", "agent_id", "resource_pool", "slot_type"),
                *("visible_gpus", "container_master_host", "container_master_port"),
            ),
            _AGENT,
        ),
    }
)
RESOURCE_MANAGER: Final[Hints] = MappingProxyType(
    {
        "default_cpu_resource_pool": "write it as default_aux_resource_pool",
        "default_gpu_resource_pool": "write it as default_compute_resource_pool",
        "name": "remove it: a cluster has one resource manager",
        "metadata": "remove it: a cluster has one resource manager",
        "require_authentication": "remove it: agents always prove who they are",
        "client_ca": "remove it: agents always prove who they are",
        **dict.fromkeys(
            (
                *("namespace", "default_namespace", "max_slots_per_pod", "slot_type"),
                *("slot_resource_requests", "master_service_name", "kubeconfig_path"),
                *("creds_dir", "master_ip", "master_port", "fluent", "determined_master_host"),
                *("determined_master_port", "internal_task_gateway", "slot_resource"),
            ),
            _NO_PODS,
        ),
        **dict.fromkeys(
            (
                *("job_storage_root", "container_run_type", "partition_overrides", "launcher"),
                *("user_name", "group_name", "singularity_image_root", "job_project_source"),
                *("tres_supported", "gres_supported", "host", "port", "protocol", "auth_file"),
            ),
            _NO_MANAGER,
        ),
    }
)
SCHEDULER: Final[Hints] = MappingProxyType({"fit": "write it as fitting_policy"})
POOL: Final[Hints] = MappingProxyType(
    {"kubernetes_namespace": _NO_PODS, "is_default": "name it in resource_manager"}
)
TASK_CONTAINER_DEFAULTS: Final[Hints] = MappingProxyType(
    {
        "network_mode": "remove it: containers use the machine's own network",
        "dtrain_network_interface": _LIBRARY.format("NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME"),
        "nccl_port_range": "remove it: NCCL chooses ports that are free",
        "gloo_port_range": "remove it: Gloo chooses ports that are free",
        "cpu_pod_spec": _NO_PODS,
        "gpu_pod_spec": _NO_PODS,
        "kubernetes": _NO_PODS,
        "checkpoint_gc_pod_spec": _NO_PODS,
        "slurm": _NO_MANAGER,
        "pbs": _NO_MANAGER,
        "add_capabilities": _NO_CAPABILITIES,
        "drop_capabilities": _NO_CAPABILITIES,
        "startup_hook": "put it into startup-hook.sh of the model code",
        "work_dir": "remove it: the working directory is the model code's",
        "shm_size": "write it as shm_size_bytes",
    }
)
PROVIDER: Final[Hints] = MappingProxyType(
    {
        "provider": "write it as type",
        "master_url": "remove it: instances know the cluster's address",
        "master_cert_name": "remove it: instances know the cluster's address",
        "agent_docker_image": _AGENT_IMAGE,
        "agent_docker_network": _AGENT_IMAGE,
        "agent_docker_runtime": _AGENT_IMAGE,
        "agent_fluent_image": _AGENT_IMAGE,
        "agent_config_file_contents": _AGENT_IMAGE,
        "agent_reconnect_attempts": _AGENT_LEASE,
        "agent_reconnect_backoff": _AGENT_LEASE,
    }
)
