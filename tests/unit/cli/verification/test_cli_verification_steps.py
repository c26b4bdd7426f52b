"""The steps and the cleanup of a self-test, on a fake cluster under a virtual clock."""

from types import SimpleNamespace

import pytest

from detcloud.cli.verification.cleanup import Cleanup
from detcloud.cli.verification.report import StepFailed, StepReport, StepSkipped
from detcloud.cli.verification.steps import (
    Session,
    check_alarms,
    check_notice,
    check_pool,
    refuse_failed_pool,
)
from tests.unit.cli.verification.fake_deployment import (
    END,
    ENROLMENT,
    LAUNCH,
    PLANNED,
    POOL,
    START,
    FakeAgent,
    FakeDeployment,
)


@pytest.fixture
def deployment() -> FakeDeployment:
    return FakeDeployment()


def run_check(session: Session) -> StepReport:
    step = StepReport(f"pool {POOL}")
    check_pool(session, PLANNED, step)
    return step


def clean_up(session: Session, *, keeps: bool = False) -> tuple[StepReport, list[str]]:
    step, leftovers = StepReport("cleanup"), list[str]()
    Cleanup(session, keeps).run(step, leftovers)
    return step, leftovers


def test_phases_are_the_times_of_the_api(deployment: FakeDeployment) -> None:
    details = run_check(deployment.session()).details
    assert details["seconds from submission"] == {
        "launched": LAUNCH,
        "enrolled": ENROLMENT,
        "started": START,
        "ended": END,
    }
    assert details["machine"] == "i-1 g5.xlarge a spot"
    assert details["check"] == {"compute": "ok"}


def test_failed_boot_ends_the_step_with_its_output(deployment: FakeDeployment) -> None:
    deployment.boots = False
    with pytest.raises(StepFailed) as failed:
        run_check(deployment.session())
    assert str(failed.value) == "instance i-1 did not boot: no disk\nline 1\nline 2"
    # The boot fails a second after the launch, and a poll takes a second.
    assert deployment.now <= 1_000 + LAUNCH + 1 + 2


def test_failed_part_of_the_check_is_named(deployment: FakeDeployment) -> None:
    deployment.results = {"nccl": ["failed", 1.0, "no route"]}
    with pytest.raises(StepFailed, match="nccl: no route"):
        run_check(deployment.session())


def test_failed_trial_shows_its_log(deployment: FakeDeployment) -> None:
    deployment.end_state = "ERROR"
    with pytest.raises(StepFailed, match=r"ended as ERROR: exit code 1\nit is broken"):
        run_check(deployment.session())


def test_cleanup_deletes_experiments_and_ends_instances(deployment: FakeDeployment) -> None:
    session = deployment.session()
    run_check(session)
    step, leftovers = clean_up(session)
    assert leftovers == []
    assert step.details["ended instances"] == ["i-1"]
    assert deployment.submitted[0].is_deleted
    assert not deployment.agents_by_id["i-1"].enabled
    assert ("end", ["a/i-1"]) in deployment.calls


def test_cleanup_after_a_fault_archives_experiments(deployment: FakeDeployment) -> None:
    session = deployment.session()
    run_check(session)
    clean_up(session, keeps=True)
    assert deployment.submitted[0].is_archived
    assert not deployment.submitted[0].is_deleted


def test_cleanup_kills_an_interrupted_experiment_and_ends_a_booting_instance(
    deployment: FakeDeployment,
) -> None:
    session = deployment.session()
    deployment.boots = False
    with pytest.raises(StepFailed):
        run_check(session)
    _, leftovers = clean_up(session, keeps=True)
    assert deployment.submitted[0].state == "CANCELED"
    assert (leftovers, deployment.instances) == ([], {})


def test_instances_from_before_are_kept(deployment: FakeDeployment) -> None:
    deployment.instances["i-old"] = deployment.row("i-old", 0)
    session = deployment.session()
    run_check(session)
    clean_up(session)
    assert list(deployment.instances) == ["i-old"]


def test_instances_of_other_jobs_are_kept(deployment: FakeDeployment) -> None:
    session = deployment.session()
    run_check(session)
    deployment.instances["i-others"] = deployment.row("i-others", 0)
    deployment.running = 1
    clean_up(session)
    assert list(deployment.instances) == ["i-others"]


def test_instance_that_another_job_uses_is_kept_open(deployment: FakeDeployment) -> None:
    session = deployment.session()
    run_check(session)
    agent = deployment.agents_by_id["i-1"] = FakeAgent("i-1", 0)
    agent.slots = [SimpleNamespace(allocation="9.1")]
    step, leftovers = clean_up(session)
    assert step.details["kept for other jobs"] == ["i-1"]
    assert (leftovers, agent.enabled) == ([], True)
    assert list(deployment.instances) == ["i-1"]


def test_remaining_instance_is_named_with_its_removal(deployment: FakeDeployment) -> None:
    deployment.ends = False
    session = deployment.session()
    run_check(session)
    leftovers: list[str] = []
    with pytest.raises(StepFailed, match="1 object left"):
        Cleanup(session, keeps_experiments=False).run(StepReport("cleanup"), leftovers)
    assert leftovers == ["instance i-1: end i-1"]


def test_refused_end_names_the_instances(deployment: FakeDeployment) -> None:
    deployment.refused = "end"
    session = deployment.session()
    run_check(session)
    leftovers: list[str] = []
    with pytest.raises(StepFailed):
        Cleanup(session, keeps_experiments=False).run(StepReport("cleanup"), leftovers)
    assert leftovers[0].startswith("instances i-1 (AccessDenied): ")


def test_notice_on_google_cloud_needs_a_spot_instance(deployment: FakeDeployment) -> None:
    session = deployment.session()
    session.cloud = "gcp"
    on_demand = PLANNED.__class__(POOL, "g2", "a", "on_demand", 1, 0.4)
    with pytest.raises(StepSkipped, match="no pool with spot instances"):
        check_notice(session, on_demand, StepReport("notice"))
    assert deployment.submitted == []


def test_notice_is_skipped_after_a_failed_check_of_the_pool() -> None:
    with pytest.raises(StepSkipped, match="the check of pool gpus failed"):
        refuse_failed_pool([StepReport("pool gpus", "failed")], "gpus")
    refuse_failed_pool([StepReport("pool gpus"), StepReport("pool b", "failed")], "gpus")


@pytest.mark.parametrize(
    ("results", "error"),
    [(["ok", "skipped"], None), (["ok", "failed"], StepFailed), (["skipped"], StepSkipped)],
)
def test_alarms_count_as_the_worst_result(
    deployment: FakeDeployment, results: list[str], error: type[Exception] | None
) -> None:
    deployment.alarms = [
        {"name": str(n), "result": result, "reason": "r"} for n, result in enumerate(results)
    ]
    session, step = deployment.session(), StepReport("alarms")
    if error is None:
        check_alarms(session, step)
    else:
        with pytest.raises(error):
            check_alarms(session, step)
    assert step.details["0"] == f"{results[0]}: r"


def test_experiment_of_an_interrupted_submission_is_found(deployment: FakeDeployment) -> None:
    session = deployment.session()
    deployment.create_experiment()
    clean_up(session)
    assert deployment.submitted[0].is_deleted
