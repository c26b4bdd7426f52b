"""The public names of Determined's `experimental.client`."""

from __future__ import annotations

from detcloud.compatibility.name_tables import Module, all_missing, same_names

NO_CLIENT = (
    "a trial holds no credential of the cluster; outside of trials, use detcloud.Client or the"
    " detcloud command."
)
_NO_PASSWORDS = "use `detcloud token create USER`; a user is a name with tokens."
_NO_MODEL_IDS = "models have names and no ids: use get_model(NAME)."
_NAMED_WORKSPACES = (
    "a workspace is there while experiments are in it: write its name into their configurations."
)

CLIENT = Module(
    offered=same_names(
        "detcloud.compatibility.client",
        "create_experiment create_model create_workspace get_checkpoint get_experiment get_model"
        " get_model_labels get_models get_session_username get_trial get_user_by_name get_workspace"
        " iter_trials_metrics list_experiments list_models list_users list_workspaces login"
        " stream_trials_metrics stream_trials_training_metrics stream_trials_validation_metrics"
        " whoami",
    )
    | same_names(
        "detcloud.compatibility.experiments",
        "Experiment ExperimentOrderBy ExperimentReference ExperimentState Trial TrialReference",
    )
    | same_names("detcloud.compatibility.trials", "LogLevel TrialOrderBy TrialSortBy TrialState")
    | same_names("detcloud.compatibility.models", "Model ModelOrderBy ModelSortBy ModelVersion")
    | same_names("detcloud.compatibility.projects", "ExperimentSortBy Project Workspace")
    | same_names("detcloud.compatibility.users", "User")
    | same_names("detcloud.compatibility.handles", "OrderBy")
    | same_names(
        "detcloud.compatibility.checkpoints",
        "Checkpoint CheckpointOrderBy CheckpointSortBy CheckpointState CheckpointTrainingMetadata"
        " DownloadMode ModelFramework",
    )
    | same_names(
        "detcloud.compatibility.trial_metrics", "TrainingMetrics TrialMetrics ValidationMetrics"
    )
    | {"Determined": "detcloud.compatibility.client:Cluster"},
    missing={
        "create_user": _NO_PASSWORDS,
        "get_user_by_id": "use get_user_by_name(NAME).",
        "logout": "use `detcloud token logout`.",
        "get_model_by_id": _NO_MODEL_IDS,
        "ResourcePool": "use detcloud.Client().resource_pool(NAME).",
        "Oauth2ScimClient": _NO_PASSWORDS,
        **all_missing("list_oauth_clients add_oauth_client remove_oauth_client", _NO_PASSWORDS),
        **all_missing("delete_workspace", _NAMED_WORKSPACES),
        **all_missing("Session _determined _require_singleton", NO_CLIENT),
    },
    otherwise=NO_CLIENT,
)
