"""The check of GPUs on the CPU: every step passes, and finds an injected fault."""

import importlib
import json
import os
import subprocess
import sys
import threading
import zipapp
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import ROOT, require
from tests.patience import ANSWER_SECONDS_MAX, wait_until
from tests.unit.core.trial_files import enter, make_trial, reports

torch = require("torch")

EXAMPLE = ROOT / "examples" / "gpu_check"
LISTING_WITH_MIG = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)
  MIG 3g.20gb     Device  0: (UUID: MIG-2)
  MIG 1g.5gb      Device  1: (UUID: MIG-3)
"""


@pytest.fixture(autouse=True)
def _example_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests import the modules of the example, like a trial."""
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR", raising=False)


def module(name: str) -> Any:
    return importlib.import_module(name)


def run(tmp_path: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Run the check on the CPU; return the exit code, and the steps by name."""
    document = tmp_path / "steps.json"
    code = module("gpu_check").main(["--cpu", "--json", str(document), *words])
    found = json.loads(document.read_text())
    steps = {step["name"]: step for step in found["steps"]}
    assert found["ok"] == (code == 0)
    return code, steps


def failure(tmp_path: Path, name: str, *words: str) -> str:
    """Run one step, which must fail; return its reason."""
    code, steps = run(tmp_path, "--only", name, *words)
    assert code == 1
    assert steps[name]["result"] == "failed"
    return str(steps[name]["reason"])


def gpu_machine(tmp_path: Path, **options: Any) -> SimpleNamespace:
    """Return a machine that claims to have a GPU, with a CPU behind it."""
    return SimpleNamespace(
        devices=[torch.device("cpu")],
        is_cuda=True,
        seconds_left=60.0,
        trial=None,
        folder=tmp_path,
        options=SimpleNamespace(**options),
    )


def test_steps_of_a_single_process_pass_on_the_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("devices", "products", "learning", "nvml", "mig", "store", "checkpoint")
    words = [word for name in names for word in ("--only", name)]
    code, steps = run(tmp_path, *words, "--store", str(tmp_path / "store"), "--store-mb", "1")
    assert code == 0
    results = {name: step["result"] for name, step in steps.items()}
    assert results == {
        **dict.fromkeys(("devices", "products", "learning", "store", "checkpoint"), "ok"),
        **dict.fromkeys(("nvml", "mig"), "skipped"),
    }
    assert steps["products"]["figures"]["fp32_tflops"] > 0
    assert steps["learning"]["figures"]["fp16_loss_ratio"] < 0.25
    assert steps["checkpoint"]["figures"]["mechanism"] == "detcloud"
    assert steps["checkpoint"]["figures"]["steps_behind"] >= 0
    # 32 MB are seven parts of 4 MiB.
    assert steps["checkpoint"]["figures"]["state_gb"] == pytest.approx(7 * 4 * 2**20 / 1e9)
    # 1 MiB in megabytes.
    assert steps["store"]["figures"]["megabytes"] == pytest.approx(1.048576)
    assert list((tmp_path / "store").rglob("file*")) == []
    printed = capsys.readouterr().out
    assert "[1/7] devices ...\n" in printed
    # A line for the end of the step, and a row of the table.
    assert printed.count("nvml         skipped     0.0 s  no GPU of NVIDIA\n") == 2


def test_a_machine_without_a_gpu_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert module("gpu_check").main([]) == 2
    assert "no GPU: " in capsys.readouterr().err


def test_fewer_gpus_than_expected_fail(tmp_path: Path) -> None:
    assert "but 2 GPUs were expected" in failure(tmp_path, "devices", "--gpus", "2")


def test_steps_after_the_time_are_skipped(tmp_path: Path) -> None:
    code, steps = run(tmp_path, "--only", "devices", "--seconds-max", "0")
    assert (code, steps["devices"]["result"]) == (0, "skipped")
    assert steps["devices"]["reason"] == "the 0 s are over"


def test_a_hanging_step_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = module("gpu_check")
    ended, codes = threading.Event(), []

    def leave(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(program.os, "_exit", leave)
    monkeypatch.setattr(program.faulthandler, "dump_traceback", lambda: None)
    monkeypatch.setattr(program, "GRACE_SECONDS", 0.0)
    monkeypatch.setitem(program.STEPS, "mig", lambda *_: ended.wait(ANSWER_SECONDS_MAX))
    document = tmp_path / "steps.json"
    program.main(["--cpu", "--only", "mig", "--seconds-max", "0.05", "--json", str(document)])
    assert codes == [1]


def test_a_wrong_element_of_a_product_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply = torch.matmul

    def multiply_wrongly(*factors: Any, **options: Any) -> Any:
        product = multiply(*factors, **options)
        product[3, 5] += 1
        return product

    monkeypatch.setattr(torch, "matmul", multiply_wrongly)
    assert failure(tmp_path, "products") == "the product in fp32 on cpu is off by 1"


def test_a_slow_device_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {0: "A", 1: "A", 2: "B"}
    monkeypatch.setattr(torch.cuda, "get_device_name", names.get)
    compare = module("gpu_device_steps")._compare_devices
    # Device 2 has another name, and so may be slower.
    compare({"fp32": {0: 10.0, 1: 6.0, 2: 1.0}})
    with pytest.raises(module("gpu_step").StepFailed, match=r"1 reached 4\.0 .* another A 10\.0"):
        compare({"fp32": {0: 10.0, 1: 4.0, 2: 1.0}})


@pytest.mark.nightly
def test_a_model_that_learns_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.Adam, "step", lambda *_, **__: None)
    assert "expected less than a quarter" in failure(tmp_path, "learning")


def test_autocast_without_effect_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.autocast("cpu", dtype=torch.bfloat16, enabled=False)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: plain)
    assert "autocast on cpu returned torch.float32" in failure(tmp_path, "learning")


def inject_mechanism(monkeypatch: pytest.MonkeyPatch, **replaced: Any) -> None:
    steps = module("gpu_checkpoint_steps")
    copier = steps.PinnedCopier()
    own = steps.Mechanism("own", copier.copy_state, steps.write_state, steps.run_in_thread)
    monkeypatch.setattr(steps, "storing_mechanism", lambda: own._replace(**replaced))


def test_the_mechanism_without_detcloud_stores_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module("sys").modules, "detcloud.pytorch.state_copy", None)
    code, steps = run(tmp_path, "--only", "checkpoint", "--checkpoint-gb", "0.01")
    assert (code, steps["checkpoint"]["figures"]["mechanism"]) == (0, "own")


def test_a_checkpoint_of_a_later_state_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_later(state: Any, folder: Path) -> None:
        part = state["models_state_dict"]["part0"]
        before = part[0].item()
        wait_until(lambda: part[0].item() != before)
        module("gpu_checkpoint_steps").write_state(state, folder)

    # The state itself is no copy, and changes while the training continues.
    inject_mechanism(monkeypatch, copy_state=lambda state: state, write=write_later)
    assert "differs from the copied state" in failure(tmp_path, "checkpoint")


def test_a_failed_write_of_a_checkpoint_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    inject_mechanism(monkeypatch, write=fail)
    assert "No space left on device" in failure(tmp_path, "checkpoint")


def test_a_checkpoint_without_room_fails(tmp_path: Path) -> None:
    # A million GB.
    reason = failure(tmp_path, "checkpoint", "--checkpoint-gb", "1e6")
    assert "1000000.00 GB were needed" in reason


def test_a_damaged_file_of_a_store_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from detcloud.storage.types.directory import DirectoryStore

    def get_damaged(self: Any, key: str, destination: Path) -> None:
        destination.write_bytes(b"other")

    monkeypatch.setattr(DirectoryStore, "get", get_damaged)
    reason = failure(tmp_path, "store", "--store", str(tmp_path / "store"), "--store-mb", "1")
    assert reason == "file0 differs after the transfer"
    unknown = failure(tmp_path, "store", "--store", "ftp://host/folder")
    assert unknown == "--store is ftp://host/folder: expected a folder, s3:// or gs://"


def test_a_trial_reports_results_and_uses_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path, slots=[0])
    enter(trial, monkeypatch)
    code, _ = run(tmp_path, "--only", "store", "--only", "nvml", "--store-mb", "1")
    assert code == 0
    [validation] = reports(trial, "metrics")
    assert validation["group"] == "validation"
    assert validation["metrics"]["failed_steps"] == 0
    assert validation["metrics"]["store_upload_mb_per_second"] > 0
    [metadata] = reports(trial, "trial_metadata")
    assert metadata["metadata"]["gpu_check"]["nvml"][0] == "skipped"
    assert len(list((tmp_path / "store").rglob("file*"))) == 4


def test_a_trial_with_a_failed_step_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = make_trial(tmp_path)
    enter(trial, monkeypatch)
    with pytest.raises(SystemExit) as left:
        module("gpu_check").main(["--cpu", "--only", "devices", "--gpus", "3"])
    # Python prints the text, and ends with code 1.
    assert left.value.code == "failed steps: devices"
    assert reports(trial, "metrics")[0]["metrics"]["failed_steps"] == 1


def measure_nvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, detcloud: dict[str, float], smi: str
) -> dict[str, Any]:
    """Run the step nvml with the values of detcloud's profiler and nvidia-smi's output."""
    steps = module("gpu_device_steps")
    figures: dict[str, Any] = {}
    monkeypatch.setattr("detcloud.core.profiler.gpu_reader", lambda: lambda: detcloud)
    monkeypatch.setattr(steps, "LOAD_SECONDS", 0.1)
    # The factors of the real load would keep a CPU busy for minutes.
    monkeypatch.setattr(torch, "ones", lambda *_, **__: torch.eye(2))
    answers = {"-L": "GPU 0: A (UUID: GPU-1)"}
    monkeypatch.setattr(steps, "nvidia_smi", lambda *words: answers.get(words[0], smi))
    steps.check_nvml(gpu_machine(tmp_path), figures)
    return figures


def test_nvml_reports_the_busiest_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    detcloud = {"gpu_util_0": 97.0, "gpu_free_memory_0": 12.0, "gpu_free_memory_1": 11.0}
    figures = measure_nvml(tmp_path, monkeypatch, detcloud, "98, 2000, 61\n[N/A], 10, 40\n")
    assert figures["detcloud_use_percent"] == 97.0
    assert figures["detcloud_free_memory_gib"] == 11.0
    assert figures["use_percent_of_devices"] == [98.0]
    assert figures["used_memory_mib"] == 2000.0
    assert figures["temperature_of_devices"] == [61.0, 40.0]


@pytest.mark.parametrize(
    ("detcloud", "smi", "reason"),
    [
        ({}, "", "neither detcloud's profiler nor nvidia-smi reads a GPU"),
        ({}, "98, 2000, 61", "install nvidia-ml-py"),
        ({"gpu_util_0": 0.0}, "0, 2000, 61", "stayed 0 %"),
        ({"gpu_util_0": 90.0}, "90, 2000, 255", "smi_temperature_0 is 255 degrees"),
    ],
)
def test_nvml_without_plausible_values_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    detcloud: dict[str, float],
    smi: str,
    reason: str,
) -> None:
    with pytest.raises(module("gpu_step").StepFailed, match=reason):
        measure_nvml(tmp_path, monkeypatch, detcloud, smi)


def count_mig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modes: str, listing: str
) -> dict[str, Any]:
    steps = module("gpu_device_steps")
    figures: dict[str, Any] = {}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100 MIG 1g.5gb")
    monkeypatch.setattr(steps, "nvidia_smi", lambda *words: listing if words == ("-L",) else modes)
    steps.check_mig(gpu_machine(tmp_path), figures)
    return figures


def test_mig_instances_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = count_mig(tmp_path, monkeypatch, "Enabled", LISTING_WITH_MIG)
    assert figures == {"instances": 2, "profiles": "1g.5gb, 3g.20gb", "visible": 1}


def test_mig_without_an_instance_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors, whole = module("gpu_step"), "GPU 0: A (UUID: GPU-1)"
    with pytest.raises(errors.StepFailed, match="no instance exists"):
        count_mig(tmp_path, monkeypatch, "Enabled", whole)
    with pytest.raises(errors.StepSkipped, match="MIG is off"):
        count_mig(tmp_path, monkeypatch, "Disabled", whole)


def test_devices_of_a_gpu_machine_are_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(name="NVIDIA T4", major=7, minor=5, total_memory=16 * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(module("gpu_device_steps"), "nvidia_smi", lambda *_: "580.1\n580.1")
    machine, figures = gpu_machine(tmp_path, gpus=1), dict[str, Any]()
    module("gpu_device_steps").check_devices(machine, figures)
    assert (figures["names"], figures["capability"]) == ("NVIDIA T4", "7.5")
    assert (figures["memory_gb"], figures["driver"]) == (16.0, "580.1")
    # Without --gpus, a trial expects a GPU for each slot.
    machine.options.gpus = None
    machine.trial = SimpleNamespace(info=SimpleNamespace(slots=[0, 1]))
    with pytest.raises(module("gpu_step").StepFailed, match="but 2 GPUs were expected"):
        module("gpu_device_steps").check_devices(machine, figures)


def test_precisions_depend_on_the_compute_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    supported, gpu = module("gpu_step").supported_precisions, torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert supported(gpu) == ["fp32", "fp16"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert supported(gpu) == ["fp32", "tf32", "bf16", "fp16"]


def test_the_checkpoint_shrinks_to_the_free_memory_of_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = module("gpu_checkpoint_steps")
    # A GPU with 2 GB is the smallest place: 0.9 * 2 GB - 2 * 256 MiB are four parts of 256 MiB.
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2 * 10**9, 16 * 10**9))
    monkeypatch.setattr(steps, "free_memory", lambda: 100 * 10**9)
    monkeypatch.setattr(steps, "_disk_bytes_per_second", lambda *_: 1e9)
    monkeypatch.setattr(steps.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**11))
    machine, figures = gpu_machine(tmp_path, checkpoint_gb=None), dict[str, Any]()
    # Each number has four bytes.
    assert steps.sizes_of_parts(machine, figures) == (4, 64 * 2**20)
    assert figures == {"limited_by": "GPU memory"}
    machine.options.checkpoint_gb = 1.5
    with pytest.raises(module("gpu_step").StepFailed, match="GPU memory limits the checkpoint"):
        steps.sizes_of_parts(machine, figures)


def test_several_gpus_sum_with_nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def give(words: Any, machine: Any, environment: dict[str, str]) -> list[dict[str, Any]]:
        started.extend(words)
        return [{"wrong": 0, "gb_per_second": rate} for rate in (400.0, 380.0)]

    steps = module("gpu_process_steps")
    monkeypatch.setattr(steps, "run_children", give)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    machine, figures = gpu_machine(tmp_path), dict[str, Any]()
    machine.devices = [torch.device("cuda", 0), torch.device("cuda", 1)]
    steps.check_collectives(machine, figures)
    # The slowest rank.
    assert figures == {"backend": "nccl", "ranks": 2, "gb_per_second": 380.0}
    assert [words[-4:] for words in started] == [
        ["--rank", "0", "--device", "cuda:0"],
        ["--rank", "1", "--device", "cuda:1"],
    ]


def inject_children(
    monkeypatch: pytest.MonkeyPatch, results: list[list[dict[str, Any]]], *, is_cached: bool = True
) -> None:
    """Replace the processes of a step by results, one list for each call."""

    def give(words: Any, machine: Any, environment: dict[str, str]) -> list[dict[str, Any]]:
        if is_cached and "TORCHINDUCTOR_CACHE_DIR" in environment:
            cache = Path(environment["TORCHINDUCTOR_CACHE_DIR"])
            cache.mkdir(parents=True, exist_ok=True)
            (cache / "kernel").touch()
        return results.pop(0)

    steps = module("gpu_process_steps")
    monkeypatch.setattr(steps, "run_children", give)
    monkeypatch.setattr(steps, "missing_compiler", lambda _: "")


def compilations(*seconds: float, error: float = 0.0) -> list[list[dict[str, Any]]]:
    return [[{"seconds": one, "ratio": 2.0, "error": error}] for one in seconds]


def test_compile_reports_both_compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inject_children(monkeypatch, compilations(9.0, 2.0))
    code, steps = run(tmp_path, "--only", "compile")
    assert code == 0
    assert steps["compile"]["figures"] == {
        "first_seconds": 9.0,
        "second_seconds": 2.0,
        "speed_ratio": 2.0,
    }


def test_compile_without_effect_of_the_cache_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject_children(monkeypatch, compilations(9.0, 9.1))
    assert "the cache had no effect" in failure(tmp_path, "compile")
    inject_children(monkeypatch, compilations(9.0, 2.0), is_cached=False)
    assert "stored nothing" in failure(tmp_path, "compile")
    inject_children(monkeypatch, compilations(9.0, 2.0, error=0.5))
    assert failure(tmp_path, "compile") == "the compiled function is off by 0.5"


def test_compile_is_skipped_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    code, steps = run(tmp_path, "--only", "compile")
    assert (code, steps["compile"]["result"]) == (0, "skipped")
    assert steps["compile"]["reason"] == "no C++ compiler"


def test_wrong_sums_of_a_rank_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"wrong": 0, "gb_per_second": 2.0}
    inject_children(monkeypatch, [[good, {"wrong": 3, "gb_per_second": 1.0}]])
    assert failure(tmp_path, "collectives") == "rank 1 has 3 wrong sums after all_reduce"


def test_sums_over_ranks_are_compared() -> None:
    steps, cpu = module("gpu_process_steps"), torch.device("cpu")
    values = sum(steps.rank_values(rank, 5000, cpu) for rank in range(3))
    assert steps.count_wrong_sums(values, 3) == 0
    values[[7, 4000]] += 1
    assert steps.count_wrong_sums(values, 3) == 2
    # Of three ranks, one rank did not contribute.
    values = sum(steps.rank_values(rank, 1021, cpu) for rank in range(2))
    # Only the first element is 0 on every rank.
    assert steps.count_wrong_sums(values, 3) == 1020


@pytest.mark.nightly
@pytest.mark.end_to_end
def test_two_processes_sum_with_gloo(tmp_path: Path) -> None:
    code, steps = run(tmp_path, "--only", "collectives")
    figures = steps["collectives"]["figures"]
    assert (code, figures["backend"], figures["ranks"]) == (0, "gloo", 2)
    assert figures["gb_per_second"] > 0


@pytest.mark.nightly
@pytest.mark.end_to_end
def test_a_packed_check_starts_its_processes(tmp_path: Path) -> None:
    packed, document = tmp_path / "gpu_check.pyz", tmp_path / "steps.json"
    zipapp.create_archive(EXAMPLE, packed)
    words = ["--cpu", "--only", "collectives", "--json", str(document)]
    subprocess.run([sys.executable, str(packed), *words], cwd=tmp_path, check=True)
    [step] = json.loads(document.read_text())["steps"]
    assert (step["name"], step["result"]) == ("collectives", "ok")


def test_a_failed_process_fails_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, time\nif sys.argv[-1] == '1': sys.exit('lost')\ntime.sleep(600)"
    )
    monkeypatch.setattr(module("gpu_process_steps"), "PROGRAM", program)
    machine, steps = gpu_machine(tmp_path), module("gpu_process_steps")
    with pytest.raises(module("gpu_step").StepFailed, match="process 1 ended with code 1: lost"):
        steps.run_children([["0"], ["1"]], machine, {})
    machine.seconds_left = 0.0
    with pytest.raises(module("gpu_step").StepFailed, match="did not end in time"):
        steps.run_children([["0"]], machine, {})
    program.write_text("print('NCCL version 2')\nprint('{\"wrong\": 4}')")
    machine.seconds_left = 60.0
    assert steps.run_children([[]], machine, dict(os.environ)) == [{"wrong": 4}]


@pytest.mark.nightly
@pytest.mark.end_to_end
def test_compile_uses_the_cache_of_an_earlier_process(tmp_path: Path) -> None:
    code, steps = run(tmp_path, "--only", "compile")
    figures = steps["compile"]["figures"]
    assert code == 0
    assert figures["second_seconds"] < figures["first_seconds"]
