"""Calls with the parameter names of Determined."""

import gc
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler

from detcloud import core, pytorch
from detcloud.compatibility import checks, util_functions
from detcloud.compatibility.core import init
from detcloud.pytorch import samplers
from detcloud.pytorch.batch_data import move_to_device
from detcloud.pytorch.former_environment import Environment, first_hparams
from detcloud.shared.errors import DetcloudError
from detcloud.shared.parameter_names import accept_names


@accept_names(theirs="ours")
def double(ours: int) -> int:
    return 2 * ours


def test_a_parameter_has_two_names_but_takes_a_single_value() -> None:
    call: Any = double
    assert (call(theirs=2), call(ours=3), call(4)) == (4, 6, 8)
    with pytest.raises(TypeError, match=r"double\(\) got both 'theirs' and 'ours'"):
        call(theirs=1, ours=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        call(other=1)


def test_checkpoint_methods_accept_determineds_parameter_names(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.mkdir()
    (source / "state").write_text("7")
    with init(checkpoint_storage=str(tmp_path / "store")) as context:
        checkpoint: Any = context.checkpoint
        uuid = checkpoint.upload(ckpt_dir=source, metadata={"steps_completed": 7})
        assert checkpoint.get_metadata(storage_id=uuid) == {"steps_completed": 7}
        checkpoint.download(storage_id=uuid, ckpt_dir=copy)
        assert (copy / "state").read_text() == "7"
        with checkpoint.restore_path(storage_id=uuid) as path:
            assert (path / "state").read_text() == "7"
        checkpoint.delete(storage_id=uuid)
        with pytest.raises(DetcloudError):
            checkpoint.get_metadata(storage_id=uuid)


def test_auto_ack_and_batch_metrics_are_accepted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with init() as context:
        context.train.report_training_metrics(
            steps_completed=2, metrics={"loss": 1.5}, batch_metrics=[{"loss": 1.0}, {"loss": 2.0}]
        )
        assert context.preempt.should_preempt(auto_ack=False) is False
        context.preempt.acknowledge_preemption_signal()
    assert "loss=1.5" in capsys.readouterr().out


def test_a_context_may_be_entered_without_a_with_block(tmp_path: Path) -> None:
    context: Any = init(checkpoint_storage=str(tmp_path)).__enter__()
    gc.collect()
    # The context's generator must survive the garbage collection.
    assert context.checkpoint.upload(tmp_path, {"steps_completed": 1})
    context.__exit__(None, None, None)
    context.close()
    with pytest.raises(ValueError, match="mine"):
        fail_in_block(init())


def fail_in_block(context: Any) -> None:
    with context as opened:
        assert opened is context
        raise ValueError("mine")


def test_distributed_context_accepts_the_parameter_stuff() -> None:
    alone: Any = core.DistributedContext(
        rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1, port_offset=3
    )
    for name in ("gather", "allgather", "gather_local", "allgather_local"):
        assert getattr(alone, name)(stuff=5) == [5]
    assert alone.broadcast(stuff=5) == alone.broadcast_local(stuff=5) == 5


def test_checks_accept_determineds_parameter_names() -> None:
    check: Any = checks
    check.gt(x=2, y=1)
    check.len_eq(val=[1], expected_len=1)
    check.equal_lengths(x=[1], y=[2])
    check.eq(val=1, expected=1, reason="equal")
    with pytest.raises(checks.CheckFailedError, match="check lt_eq failed: 2 and 1: order"):
        check.check_lt_eq(x=2, y=1, reason="order")


def test_yaml_is_written_in_block_or_flow_style() -> None:
    assert util_functions.yaml_safe_dump({"a": [1, 2]}) == "a:\n- 1\n- 2\n"
    assert util_functions.yaml_safe_dump({"a": [1]}, default_flow_style=True) == "{a: [1]}\n"
    load: Any = util_functions.safe_load_yaml_with_exceptions
    assert load(f="rate: 1e-3") == {"rate": 0.001}


def test_from_config_builds_a_trial_context() -> None:
    config = {
        "hyperparameters": {
            "global_batch_size": 4,
            "rate": {"type": "log", "minval": -2, "maxval": -1, "base": 10},
        },
        "optimizations": {"aggregation_frequency": 2},
        "records_per_epoch": 8,
        "debug": True,
    }
    context = pytorch.PyTorchTrialContext.from_config(config)
    # The first value of the range is 10**-2.
    assert context.get_hparams() == {"global_batch_size": 4, "rate": 0.01}
    assert context.env.hparams is context.get_hparams()
    assert context.env.experiment_config.get_records_per_epoch() == 8
    assert context.env.experiment_config.debug_enabled()
    assert (context.hvd_config.use, context.hvd_config.aggregation_frequency) == (False, 2)
    context.hvd_config.use = True
    assert context.hvd_config.use
    context.set_enable_tensorboard_logging(**{"enable_tensorboard_logging": False})
    assert not context.get_enable_tensorboard_logging()


def test_first_hparams_takes_the_first_value_per_range() -> None:
    space = {
        "a": {"type": "categorical", "vals": ["x", "y"]},
        "b": {"type": "int", "minval": 3, "maxval": 5},
        "c": {"type": "const", "val": 9},
        "d": {"inner": {"type": "double", "minval": 0.5, "maxval": 1}},
    }
    assert first_hparams(space) == {"a": "x", "b": 3, "c": 9, "d": {"inner": 0.5}}


def test_arguments_have_determineds_order_and_names() -> None:
    fit = list(inspect.signature(pytorch.Trainer.fit).parameters)
    assert fit[1:5] == ["checkpoint_period", "validation_period", "max_length", "reporting_period"]
    profile = list(inspect.signature(pytorch.Trainer.configure_profiler).parameters)
    assert profile[1:] == ["sync_timings", "enabled", "begin_on_batch", "end_after_batch"]
    batches = BatchSampler(range(8), 2, drop_last=False)
    sampler: Any = samplers.DistributedBatchSampler
    # Every second batch of 0,1 2,3 4,5 6,7, starting with the second.
    assert list(sampler(batches, num_replicas=2, rank=1)) == [[2, 3], [6, 7]]
    moved: Any = move_to_device
    assert moved(torch.ones(1), torch.device("cpu"), {str}).item() == 1
    assert core.DistributedContext().broadcast_local() is None


def test_environment_has_the_batch_sizes_of_early_releases() -> None:
    environment: Any = Environment(
        core.TrialSpec(hparams={"global_batch_size": 9}, slots=[0, 1], nodes=2, steps_completed=5)
    )
    # Nine records over four slots are 2 per slot, rounded down.
    assert (environment.global_batch_size, environment.per_slot_batch_size) == (9, 2)
    assert environment.latest_batch == 5
    with pytest.raises(AttributeError, match=r"env\.master_url is not supported .*cluster_info"):
        _ = environment.master_url
    bare: Any = Environment(core.TrialSpec())
    with pytest.raises(DetcloudError, match="needs the hyperparameter global_batch_size"):
        _ = bare.per_slot_batch_size
