"""Determined's private, internal and client modules from which code imports public names."""

from __future__ import annotations

from collections.abc import Mapping

# Private modules, by the module in which their names are public.
PRIVATE_MODULES: Mapping[str, str] = {
    "": "_env_context _execution _experiment_config _hparam _import _info _native"
    " _rendezvous_info _train_context _trial _trial_context _trial_controller",
    "_core": "_checkpointing _context _distributed _preemption _searcher _training",
    "core": "_checkpoint _context _distributed _experimental _preempt _profiler _searcher"
    " _tensorboard_mode _train",
    "experimental": "_native",
    "keras": "_callback _data _load _tensorboard_callback _tf_keras_context _tf_keras_trial",
    "pytorch": "_callback _data _experimental _load _lr_scheduler _metric_utils _pytorch_context"
    " _pytorch_trial _reducer _trainer _trainer_utils",
    "pytorch.deepspeed": "_deepspeed_context _deepspeed_trial _mpu _trainer",
    "pytorch.dsat": "_defaults _dsat_search_method _run_dsat _utils",
    "pytorch.experimental": "_torch_batch_process",
    "pytorch.lightning": "_adapter",
    "searcher": "_remote_search_runner _search_method _search_runner core_search_runner"
    " local_search_runner search_method search_runner",
    "transformers": "_hf_callback",
}
# Modules that belonged to Determined's own machinery.
INTERNAL_MODULES = (
    "common.constants common.context common.requests common.storage common.types common._logging"
    " constants exec.launch exec.prep_container exec.worker_process_wrapper gpu hooks ipc"
    " monkey_patch tensorboard.base tensorboard.util _generic _execution"
)
# Modules of Determined's client.
CLIENT_MODULES = (
    "cli deploy common.api._session common.api.authentication common.api.bindings"
    " common.api.logs common.api.metric common.api.request"
    " common.experimental.oauth2_scim_client"
    " common.experimental.resource_pool common.experimental.session common.experimental.user"
)
