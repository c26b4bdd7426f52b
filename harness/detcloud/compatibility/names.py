"""The public names of Determined 0.12 to 0.38.1, with objects of detcloud or replacements."""

from __future__ import annotations

from collections.abc import Mapping

from detcloud.compatibility.client_names import CLIENT, NO_CLIENT
from detcloud.compatibility.module_aliases import CLIENT_MODULES, INTERNAL_MODULES, PRIVATE_MODULES
from detcloud.compatibility.name_tables import Module, all_missing, same_names

ROOT = "determined"
FORMER_ROOT = "determined_common"


_INTERNAL = "it belonged to Determined's own machinery; code that trains does not need it."
_LOCAL = (
    "core.init() and pytorch.init(hparams=...) work outside of a trial too, and"
    " PyTorchTrialContext.from_config(config) makes a context to try a trial with."
)
_NATIVE = "start the experiment with `detcloud create CONFIG MODEL_DIRECTORY` instead."
_NATIVE_SPACE = "write the hyperparameter into the configuration, with `type` and its range."
_CONTROLLER = "write a script with detcloud.core, whose loop is your own, or a PyTorchTrial."
_NO_KERAS_TRIAL = (
    "write a script that calls model.fit with detcloud.keras.DeterminedCallback, on Keras 3."
)
_NO_KERAS_WEIGHTS = "build the model and load_weights the file model_checkpoint.weights.h5."
_NO_KERAS_EVENTS = (
    "every reported number is in the trial's event files already; for more give model.fit"
    " keras.callbacks.TensorBoard(log_dir=core_context.train.get_tensorboard_path())."
)
_NO_KERAS_CALLBACK = "give model.fit the callback of this name in keras.callbacks."
_NO_ESTIMATOR = "TensorFlow has no Estimators any more; report with detcloud.core from a script."
_NO_LIGHTNING = (
    "write a script whose Lightning Trainer has a detcloud.lightning.TrialCallback among its"
    " callbacks."
)
_NO_DSAT = "search over DeepSpeed's settings with an ordinary searcher."
_NO_UNMANAGED = (
    "create the experiment with detcloud.Client; its trials run on the cluster's agents."
)

_CHECKS = same_names(
    "detcloud.compatibility.checks",
    "CheckFailedError check_eq check_eq_len check_false check_gt check_gt_eq check_in"
    " check_isinstance check_issubclass check_len check_lt check_lt_eq check_none"
    " check_not_eq check_not_in check_not_isinstance check_not_none check_true check_type"
    " eq equal_lengths false gt gt_eq is_in is_instance is_none is_not_instance is_not_none"
    " is_subclass is_type len_eq lt lt_eq not_eq not_in true",
)
_BATCH_PROCESS = {
    **same_names(
        "detcloud.pytorch.batch_process",
        "TorchBatchProcessor TorchBatchProcessorContext torch_batch_process",
    ),
    "get_default_device": "detcloud.pytorch.batch_process:default_device",
}

_DSAT = same_names(
    "detcloud.compatibility.dsat",
    "dsat_reporting_context get_ds_config_from_hparams get_hf_args_with_overwrites",
)
_TRANSFORMERS = Module(
    offered={
        "DetCallback": "detcloud.transformers:DetCallback",
        "get_hf_args_with_overwrites": _DSAT["get_hf_args_with_overwrites"],
    }
)
_EXPERIMENTAL = Module(
    offered=CLIENT.offered,
    missing={
        **CLIENT.missing,
        **all_missing("Mode create init_native", _NATIVE),
        **all_missing(
            "create_trial_instance test_one_batch",
            "train a few batches with detcloud.pytorch.Trainer outside of a cluster.",
        ),
    },
)
_METRIC_WRITERS = Module(
    offered=same_names("detcloud.compatibility.metric_writers", "BatchMetricWriter MetricWriter"),
    otherwise=_INTERNAL,
)
_TORCH_WRITER_PLACE = "detcloud.pytorch.event_files:TorchWriter"
_TORCH_WRITER = Module(
    offered={"TorchWriter": _TORCH_WRITER_PLACE, "_TorchWriter": _TORCH_WRITER_PLACE}
)
# Modules of `common.experimental` that had the same classes.
_CLIENT_PARTS = "checkpoint determined experiment metrics model project trial workspace"

_MODULES: dict[str, Module] = {
    "": Module(
        offered={
            **same_names(
                "detcloud.compatibility.cluster_info",
                "ClusterInfo RendezvousInfo ResourcesInfo TrialInfo get_cluster_info",
            ),
            **same_names("detcloud.compatibility.functions", "LOG_FORMAT import_from_path"),
            "ExperimentConfig": "detcloud.shared.experiment_config:ExperimentConfig",
            "InvalidHP": "detcloud.shared.errors:InvalidHP",
            **same_names(
                "detcloud.compatibility.trial_controller", "Trial TrialContext TrialController"
            ),
            "LegacyTrial": "detcloud.compatibility.trial_controller:Trial",
            "CallbackTrialController": "detcloud.compatibility.trial_controller:TrialController",
            "EnvContext": "detcloud.pytorch.former_environment:Environment",
            "_DistributedBackend": "detcloud.compatibility.controller_types:DistributedBackend",
            "__version__": "detcloud.compatibility.functions:VERSION",
        },
        missing={
            "metadata": _INTERNAL,
            **all_missing("NativeContext", _NATIVE),
            **all_missing("Categorical Constant Double Integer Log", _NATIVE_SPACE),
            **all_missing("LoopTrialController load", _CONTROLLER),
            **all_missing(
                "_catch_sys_exit _get_gpus _load_trial_for_checkpoint_export"
                " _local_execution_manager _make_local_execution_env"
                " _make_local_execution_exp_config _make_test_experiment_config",
                _LOCAL,
            ),
        },
    ),
    "workload": Module(
        offered=same_names(
            "detcloud.compatibility.controller_types",
            "Metrics Response ResponseFunc Stream Workload",
        )
        | {"Skipped": "detcloud.compatibility.controller_types:SkipAnswer"},
        otherwise=_CONTROLLER,
    ),
    "layers": Module(missing={"make_compatibility_workloads": _CONTROLLER}, otherwise=_CONTROLLER),
    "profiler": Module(
        offered={"ProfilerAgent": "detcloud.compatibility.controller_types:ProfilerAgent"},
        otherwise=_INTERNAL,
    ),
    "core": Module(
        offered={
            **same_names(
                "detcloud.core",
                "CheckpointContext DownloadMode EarlyExitReason"
                " PreemptContext PreemptMode ProfilerContext SearcherMode TensorboardMode"
                " TrainContext",
            ),
            **same_names(
                "detcloud.compatibility.core",
                "Context DistributedContext SearcherContext SearcherOperation Unit init",
            ),
            "_dummy_init": "detcloud.compatibility.core:dummy_init",
            "DummyCheckpointContext": "detcloud.core:CheckpointContext",
            "DummyDistributedContext": "detcloud.compatibility.core:DistributedContext",
            "DummyProfilerContext": "detcloud.core:ProfilerContext",
            "DummyPreemptContext": "detcloud.core:PreemptContext",
            "DummySearcherContext": "detcloud.compatibility.core:SearcherContext",
            "DummySearcherOperation": "detcloud.compatibility.core:SearcherOperation",
            "DummyTrainContext": "detcloud.core:TrainContext",
        },
        missing={
            **all_missing(
                "DummyExperimentalCoreContext ExperimentalCoreContext MetricsContext"
                " SearcherContextMissing _DummyMetricsContext _MetricsContext _PreemptionWatcher"
                " _get_storage_manager _parse_searcher_max_length _parse_searcher_units"
                " _run_prepare",
                _INTERNAL,
            ),
        },
    ),
    "errors": Module(
        offered={
            "InvalidHP": "detcloud.shared.errors:InvalidHP",
            "SkipWorkloadException": "detcloud.compatibility.controller_types"
            ":SkipWorkloadException",
            **same_names(
                "detcloud.compatibility.errors",
                "CheckpointNotFound CheckpointStateException EnterpriseOnlyError InternalException"
                " InvalidCheckpointException InvalidConfigurationException"
                " InvalidDataTypeException InvalidExperimentException InvalidModelException"
                " MultipleDownloadsFailed NoDirectStorageAccess ProxiedDownloadFailed"
                " StopLoadingImplementation WorkerError WorkerFinishedGracefully",
            ),
        },
    ),
    "pytorch": Module(
        offered={
            **same_names(
                "detcloud.pytorch",
                "Batch CheckpointLoadContext ClipGradsL2Norm ClipGradsL2Value DataLoader Epoch"
                " LRScheduler MetricReducer PyTorchExperimentalContext PyTorchTrial"
                " PyTorchTrialContext Reducer TorchData Trainer adapt_batch_sampler data_length"
                " init load_trial_from_checkpoint_path reset_parameters",
            ),
            **same_names(
                "detcloud.pytorch.samplers",
                "DistributedBatchSampler RepeatBatchSampler SkipBatchSampler",
            ),
            "PyTorchCallback": "detcloud.pytorch.callback:FormerCallback",
            "TrainUnit": "detcloud.pytorch.periods:Period",
            "to_device": "detcloud.pytorch.batch_data:move_to_device",
            # Private names that Determined's examples import.
            "_Data": "detcloud.pytorch:TorchData",
            "_SimpleReducer": "detcloud.pytorch.reducers:FunctionReducer",
            "_simple_reduce_metrics": "detcloud.pytorch.metrics:reduce_values",
        },
        missing=all_missing("PyTorchTrialController _PyTorchTrialController", _CONTROLLER),
    ),
    "tensorboard": Module(
        offered=same_names(
            "detcloud.compatibility.metric_writers",
            "BatchMetricWriter MetricWriter get_base_path get_metric_writer",
        ),
        otherwise=_INTERNAL,
    ),
    "tensorboard.metric_writers": _METRIC_WRITERS,
    "tensorboard.metric_writers.base": _METRIC_WRITERS,
    "tensorboard.metric_writers.callback": _METRIC_WRITERS,
    "tensorboard.metric_writers.pytorch": _TORCH_WRITER,
    "pytorch.tensorboard_writer": _TORCH_WRITER,
    "tensorboard.metric_writers.tensorflow": Module(offered={"TFWriter": _TORCH_WRITER_PLACE}),
    "tensorboard.metric_writers.util": Module(
        offered=same_names("detcloud.compatibility.util_functions", "is_numerical_scalar")
    ),
    "tensorboard.build": Module(
        offered=same_names("detcloud.compatibility.metric_writers", "get_base_path"),
        otherwise=_INTERNAL,
    ),
    "pytorch.samplers": Module(
        offered=same_names(
            "detcloud.pytorch.samplers",
            "DistributedBatchSampler DistributedSampler RepeatBatchSampler RepeatSampler"
            " ReproducibleShuffleBatchSampler ReproducibleShuffleSampler SkipBatchSampler"
            " SkipSampler",
        )
    ),
    "pytorch.deepspeed": Module(
        offered=same_names(
            "detcloud.deepspeed",
            "DeepSpeedTrial DeepSpeedTrialContext ModelParallelUnit Trainer init"
            " make_data_parallel_mpu make_deepspeed_mpu overwrite_deepspeed_config",
        ),
        missing={"DeepSpeedTrialController": _CONTROLLER},
    ),
    "pytorch.dsat": Module(
        offered=_DSAT,
        missing=all_missing(
            "ASHADSATSearchData ASHADSATSearchMethod BaseDSATSearchMethod"
            " BinarySearchDSATSearchMethod DSATModelProfileInfoTrial DSATSearchData DSATTrial"
            " DSATTrialTracker RandomDSATSearchMethod TestDSATSearchMethod"
            " get_batch_config_from_mbs_gas_and_slots get_custom_dsat_exp_conf_from_args"
            " get_dict_from_yaml_or_json_path get_full_parser"
            " get_random_zero_optim_config get_search_method_class"
            " get_search_runner_config_from_args smaller_is_better",
            _NO_DSAT,
        ),
    ),
    "pytorch.experimental": Module(offered=_BATCH_PROCESS),
    "experimental.inference": Module(offered=_BATCH_PROCESS),
    "pytorch.lightning": Module(missing=all_missing("LightningAdapter", _NO_LIGHTNING)),
    "keras": Module(
        offered={"DeterminedCallback": "detcloud.keras:DeterminedCallback"},
        missing={
            **all_missing(
                "ArrayLike InputData SequenceAdapter TFKerasContext TFKerasExperimentalContext"
                " TFKerasNativeContext TFKerasTrainConfig TFKerasTrial TFKerasTrialContext"
                " TFKerasTrialController get_rng_state set_rng_state",
                _NO_KERAS_TRIAL,
            ),
            **all_missing("TFKerasTensorBoard TensorBoard", _NO_KERAS_EVENTS),
            "load_model_from_checkpoint_path": _NO_KERAS_WEIGHTS,
        },
    ),
    "keras.callbacks": Module(
        missing={
            **all_missing("Callback EarlyStopping ReduceLROnPlateau", _NO_KERAS_CALLBACK),
            "TensorBoard": _NO_KERAS_EVENTS,
        }
    ),
    "transformers": _TRANSFORMERS,
    # The name of the module in the releases around 0.23.
    "integrations": Module(),
    "integrations.huggingface": _TRANSFORMERS,
    "lightning": Module(),
    "lightning.experimental": Module(offered={"DetLogger": "detcloud.lightning:DetLogger"}),
    "estimator": Module(
        missing=all_missing("EstimatorContext EstimatorTrial EstimatorTrialContext", _NO_ESTIMATOR),
        otherwise=_NO_ESTIMATOR,
    ),
    "searcher": Module(
        offered=same_names(
            "detcloud.searcher",
            "Close Create ExitedReason LocalSearchRunner Operation Progress SearchMethod"
            " SearchRunner SearcherState Shutdown ValidateAfter",
        ),
        missing=all_missing(
            "CoreSearchRunner RemoteSearchRunner", "run a LocalSearchRunner beside the cluster."
        ),
    ),
    "experimental": _EXPERIMENTAL,
    "experimental.client": CLIENT,
    **{f"experimental.{name}": CLIENT for name in ("checkpoint", "metrics", "model")},
    "experimental.core_v2": Module(
        offered={
            **same_names(
                "detcloud.compatibility.core_v2",
                "Config DefaultConfig UnmanagedConfig alert checkpoint close distributed info init"
                " init_context preempt searcher train url_reverse_webui_exp_view",
            ),
            "DistributedContext": "detcloud.compatibility.core:DistributedContext",
            **same_names("detcloud.core", "PreemptMode TensorboardMode"),
        },
    ),
    "experimental.unmanaged": Module(
        missing=all_missing(
            "build_unmanaged_trial_cluster_info create_unmanaged_cluster_info"
            " create_unmanaged_experiment create_unmanaged_trial"
            " create_unmanaged_trial_cluster_info init url_reverse_webui_exp_view",
            _NO_UNMANAGED,
        )
    ),
    "experimental.keras": Module(missing=all_missing("init", _NATIVE)),
    "common": Module(
        offered={"set_logger": "detcloud.compatibility.functions:set_logger"},
    ),
    "common.check": Module(offered=_CHECKS),
    "common.experimental": _EXPERIMENTAL,
    **{f"common.experimental.{name}": CLIENT for name in _CLIENT_PARTS.split()},
    "common.util": Module(
        offered={
            **same_names(
                "detcloud.compatibility.util_functions",
                "chunks preserve_random_state safe_load_yaml_with_exceptions strtobool"
                " yaml_safe_dump",
            ),
            "yaml_safe_load": "detcloud.compatibility.util_functions"
            ":safe_load_yaml_with_exceptions",
            "_LEGACY_TRAINING": "detcloud.compatibility.util_functions:TRAINING_GROUP",
            "_LEGACY_VALIDATION": "detcloud.compatibility.util_functions:VALIDATION_GROUP",
            "_INFERENCE": "detcloud.compatibility.util_functions:INFERENCE_GROUP",
        },
        missing=all_missing(
            "debug_mode deprecated get_config_path get_default_master_address"
            " get_max_retries_config is_protobuf_timestamp parse_protobuf_timestamp sizeof_fmt"
            " wait_for",
            _INTERNAL,
        ),
    ),
    "common.api": Module(
        missing=all_missing("Session UnauthSession", NO_CLIENT), otherwise=NO_CLIENT
    ),
    "common.api.errors": Module(
        offered=same_names(
            "detcloud.compatibility.client_errors",
            "APIException BadRequestException ForbiddenException MasterNotFoundException"
            " NotFoundException UnauthenticatedException",
        ),
        otherwise=NO_CLIENT,
    ),
    "common.api.certs": Module(
        missing=all_missing("Cert cli_cert", NO_CLIENT), otherwise=NO_CLIENT
    ),
    "util": Module(
        offered=same_names(
            "detcloud.compatibility.util_functions",
            "calculate_batch_sizes download_gcs_blob_with_backoff filter_duplicates"
            " force_create_symlink get_member_func has_param is_numerical_scalar is_overridden"
            " make_metrics merge_dicts rmtree_nfs_safe wrap_metrics",
        ),
        missing=all_missing(
            "check_sshd forward_signals humanize_float json_encode"
            " legacy_trial_entrypoint_to_script make_timing_log"
            " mask_checkpoint_storage mask_config_dict match_legacy_trial_class"
            " signal_process_tree validate_batch_metrics write_user_code",
            "it is a small helper of Determined's own: copy the lines into your code.",
        ),
    ),
    "horovod": Module(
        offered={
            "HorovodContext": "detcloud.compatibility.controller_types:HorovodContext",
            "hvd": "detcloud.compatibility.horovod:hvd",
        },
        missing=all_missing(
            "create_hostlist_arg create_network_interface_arg_if_specified"
            " create_performance_args create_run_command",
            _INTERNAL,
        ),
    ),
    "exec": Module(otherwise=_INTERNAL),
    # Scripts around a launcher run this module as a worker of a trial class.
    "exec.harness": Module(program="detcloud.launch.trial_worker", otherwise=_INTERNAL),
    "launch": Module(),
    **{
        f"launch.{name}": Module(program=f"detcloud.launch.{name}")
        for name in (
            "autohorovod",
            "deepspeed",
            "horovod",
            "tensorflow",
            "torch_distributed",
            "wrap_rank",
        )
    },
}

# The private predecessor of `core`. Some classes had other names.
_CORE = _MODULES["core"].offered
_FORMER_CORE = {
    "Checkpointing": "CheckpointContext",
    "Distributed": "DistributedContext",
    "Preemption": "PreemptContext",
    "Searcher": "SearcherContext",
    "SearcherOp": "SearcherOperation",
    "Training": "TrainContext",
}
_MODULES["_core"] = Module(
    offered={
        **_CORE,
        **{former: _CORE[name] for former, name in _FORMER_CORE.items()},
        **{f"Dummy{former}": _CORE[f"Dummy{name}"] for former, name in _FORMER_CORE.items()},
    },
    missing=_MODULES["core"].missing,
)
for _parent, _names in PRIVATE_MODULES.items():
    for _name in _names.split():
        _MODULES.setdefault(f"{_parent}.{_name}".lstrip("."), _MODULES[_parent])
for _name in INTERNAL_MODULES.split():
    _MODULES.setdefault(_name, Module(otherwise=_INTERNAL))
for _name in CLIENT_MODULES.split():
    _MODULES.setdefault(_name, Module(otherwise=NO_CLIENT))

MODULES: Mapping[str, Module] = {
    **{f"{ROOT}.{name}" if name else ROOT: module for name, module in _MODULES.items()},
    # Until 0.13, `common` was also a package of its own.
    **{
        f"{FORMER_ROOT}{name.removeprefix('common')}": module
        for name, module in _MODULES.items()
        if name.partition(".")[0] == "common"
    },
}
