"""The agent as a process, with real trial processes and a scripted cluster."""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.integration.agent_cluster import JOIN_TOKEN, FakeCluster
from tests.integration.agent_process import GO, LEAVE, OBEY, PRELUDE, AgentProcess, alive
from tests.patience import PROCESS_SECONDS_MAX, wait_until

pytestmark = pytest.mark.end_to_end


def test_trial_is_started_reported_and_forgotten(agent: AgentProcess, cluster: FakeCluster) -> None:
    cluster.forgets_exited = True
    cluster.assign("4.1", PRELUDE + 'print("hello")\nreport("completed", length=1)\n' + LEAVE)
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    assert cluster.kinds("4.1") == ["PULLING", "STARTING", "RUNNING", "exited"]
    assert [line["kind"] for line in cluster.lines("4.1")] == ["completed", "exit"]
    exited = cluster.exit_record("4.1")
    assert exited is not None
    assert (exited["reason"], exited["code"], exited["signal"]) == ("completed", 0, None)
    assert exited["directive_revision"] == 1
    assert cluster.log["4.1"] == b"hello\n"
    wait_until(lambda: not (agent.work / "allocations/4.1").exists())


def test_trial_gets_a_separate_environment_without_the_agents_secrets(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    program = PRELUDE + 'report("seen", env=dict(os.environ), cwd=os.getcwd())\n' + LEAVE
    config = {"environment": {"environment_variables": ["COLOUR=blue", "PYTHONHASHSEED=9"]}}
    cluster.assign("4.1", program, config=config)
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    seen = cluster.lines("4.1")[0]
    environment, home = seen["env"], agent.work / "allocations/4.1"
    assert "AGENT_SECRET" not in environment
    assert JOIN_TOKEN not in json.dumps(environment) + (home / "in/spec.json").read_text()
    assert environment["COLOUR"] == "blue"
    assert environment["PYTHONHASHSEED"] == "9"
    assert environment["HOME"] == str(home / "home")
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert seen["cwd"] == str(home / "code")
    spec = json.loads((home / "in/spec.json").read_text())
    assert spec["slots"] == [0]
    assert (home / "in/spec.json").stat().st_mode & 0o777 == 0o400
    assert home.stat().st_mode & 0o777 == 0o700


def test_urgent_lines_and_directives_interrupt_a_held_call(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    # A call is held for a third of the lease, at most 20 s.
    cluster.lease_ms = 60_000
    loop = """
for length in range(2, 7):
    while directives()["length"] < length:
        time.sleep(0.002)
    report("completed", length=length, seen=time.time())
"""
    cluster.assign("4.1", PRELUDE + 'report("ready")\nprint("log line")\n' + loop + LEAVE)
    agent.start()
    wait_until(lambda: cluster.lines("4.1"))
    wait_until(lambda: cluster.log.get("4.1") == b"log line\n")
    # From here on only urgent content ends a held call.
    cluster.patient_ms = 60_000

    def has_arrived(count: int) -> bool:
        return len(cluster.lines("4.1")) >= count

    down_seconds, up_seconds = [], []
    for length in range(2, 7):
        changed = time.time()
        cluster.change("4.1", directives={"revision": length, "length": length})
        wait_until(functools.partial(has_arrived, length))
        completed = next(r for r in cluster.reports if r.line.get("length") == length)
        down_seconds.append(completed.line["seen"] - changed)
        up_seconds.append(completed.at - completed.line["seen"])
    # A delay is hundredths of a second. The limit is half of a held call, which a busy machine does
    # not reach.
    assert max(down_seconds) < 10
    assert max(up_seconds) < 10


def test_metrics_wait_for_the_clusters_interval_and_validations_do_not(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    # A call is held for a third of the lease, at most 20 s, and its end would send all pending
    # lines.
    cluster.lease_ms = cluster.patient_ms = 60_000
    program = """
report("ready")
while directives()["length"] < 2:
    time.sleep(0.002)
time.sleep(1)
report("metrics", group="training", n=1)
time.sleep(3)
report("metrics", group="validation", n=2, written=time.time())
time.sleep(600)
"""
    cluster.assign("4.1", PRELUDE + program)
    agent.start()
    # No urgent line may be pending, since its call would include the metrics. The answer with the
    # new length begins a held call, and earlier lines are sent within a second.
    wait_until(lambda: any(report.line.get("state") == "RUNNING" for report in cluster.reports))
    wait_until(lambda: cluster.lines("4.1"))
    cluster.change("4.1", directives={"revision": 2, "length": 2})
    wait_until(lambda: len(cluster.lines("4.1")) >= 3)
    # Without the cluster's interval the metrics would have arrived 1.5 s earlier, in a separate
    # call.
    calls = [[report["line"].get("group") for report in call["reports"]] for call in cluster.calls]
    (groups,) = (item for item in calls if "training" in item)
    assert groups[:2] == ["training", "validation"]
    validation = next(
        report for report in cluster.reports if report.line.get("group") == "validation"
    )
    # The call would have ended more than 10 s later.
    assert validation.at - validation.line["written"] < 10


def test_killed_trial_gets_sigterm_first_and_all_children_die(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    program = """
signal.signal(signal.SIGTERM, lambda *_: report("asked"))
child = subprocess.Popen(["sleep", "600"])
# A daemon leaves the group and its parent.
daemon = subprocess.run(
    [sys.executable, "-c", "import os,subprocess;"
     "print(subprocess.Popen(['sleep','600'],start_new_session=True,stdout=2).pid)"],
    stdout=subprocess.PIPE, text=True)
report("children", pids=[child.pid, int(daemon.stdout)])
while True:
    time.sleep(0.05)
"""
    cluster.assign("4.1", PRELUDE + program)
    agent.start()
    wait_until(lambda: cluster.lines("4.1"))
    pids = cluster.lines("4.1")[0]["pids"]
    assert all(map(alive, pids))
    cluster.change("4.1", state="kill", grace_ms=2000)
    wait_until(lambda: cluster.exit_record("4.1"))
    exited = cluster.exit_record("4.1")
    assert exited is not None
    assert (exited["reason"], exited["signal"]) == ("killed", signal.SIGKILL)
    assert "asked" in [line["kind"] for line in cluster.lines("4.1")]
    assert not any(map(alive, pids))


def test_children_of_a_finished_trial_are_reaped(agent: AgentProcess, cluster: FakeCluster) -> None:
    program = 'report("child", pid=subprocess.Popen(["sleep", "600"]).pid)\n'
    cluster.assign("4.1", PRELUDE + program + LEAVE)
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    assert not alive(cluster.lines("4.1")[0]["pid"])


def test_trial_without_an_exit_line_fails_with_the_end_of_the_log(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    cluster.assign("4.1", 'raise ValueError("the learning rate is a fish")')
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    exited = cluster.exit_record("4.1")
    assert exited is not None
    assert (exited["reason"], exited["code"]) == ("errored", 1)
    assert "exit code 1" in exited["message"]
    assert "the learning rate is a fish" in exited["message"]


def test_failed_startup_hook_fails_the_trial_before_the_program_runs(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    cluster.assign("4.1", PRELUDE + LEAVE, hook="echo no such package; exit 3\n")
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    exited = cluster.exit_record("4.1")
    assert exited is not None
    assert exited["reason"] == "errored"
    assert "startup-hook.sh failed with exit code 3" in exited["message"]
    assert "no such package" in exited["message"]
    assert cluster.kinds("4.1") == ["PULLING", "STARTING", "exited"]
    assert cluster.lines("4.1") == []


def test_startup_hook_is_sourced_by_the_shell_of_the_trial(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    hook = "export GREETING=hello\nulimit -n 77\nsleep 60 &\necho $! > sleeper\ncd /\n"
    program = """
import pathlib, resource
sleeper = int(pathlib.Path("sleeper").read_text())
os.kill(sleeper, 0)
files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
report("seen", greeting=os.environ["GREETING"], files=files, sleeper=sleeper)
"""
    cluster.assign("4.1", PRELUDE + program + LEAVE, hook=hook)
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    seen = cluster.lines("4.1")[0]
    assert (seen["greeting"], seen["files"]) == ("hello", 77)
    assert cluster.kinds("4.1") == ["PULLING", "STARTING", "RUNNING", "exited"]
    assert not alive(seen["sleeper"])


@pytest.mark.parametrize(
    ("hook", "code"), [("false\necho later\n", 1), ("exit 0\n", 0), ("set -u; x=1\n", 0)]
)
def test_failed_command_of_a_startup_hook_ends_the_trial_and_exit_0_completes(
    agent: AgentProcess, cluster: FakeCluster, hook: str, code: int
) -> None:
    cluster.assign("4.1", PRELUDE + LEAVE, hook=hook)
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    exited = cluster.exit_record("4.1")
    assert exited is not None
    assert (exited["code"], exited["reason"]) == (code, "errored" if code else "completed")
    assert b"later" not in cluster.log.get("4.1", b"")


def test_failure_after_the_startup_hook_is_not_a_failure_of_the_hook(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    cluster.assign("4.1", PRELUDE + "sys.exit(5)", hook="echo ready\n")
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    exited = cluster.exit_record("4.1")
    assert exited is not None
    assert exited["message"].startswith("the trial's process ended with exit code 5")


def test_wrong_model_code_is_never_run(agent: AgentProcess, cluster: FakeCluster) -> None:
    cluster.assign("4.1", PRELUDE + LEAVE)
    cluster.archives = {digest: b"something else" for digest in cluster.archives}
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    exited = cluster.exit_record("4.1")
    assert exited is not None
    assert exited["reason"] == "start_failed"
    assert "digest" in exited["message"]


def test_replacement_of_a_killed_agent_loses_and_repeats_no_line(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    count = """
for n in range(150):
    report("metrics", group="training", n=n)
    print(n)
    time.sleep(0.02)
"""
    cluster.assign("4.1", PRELUDE + count + LEAVE)
    first = agent.start()
    wait_until(lambda: cluster.lines("4.1"))
    first.kill()
    first.wait()
    time.sleep(0.5)
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    assert [line["n"] for line in cluster.lines("4.1")[:-1]] == list(range(150))
    assert cluster.log["4.1"] == b"".join(b"%d\n" % n for n in range(150))
    assert cluster.kinds("4.1") == ["PULLING", "STARTING", "RUNNING", "exited"]
    exited = cluster.exit_record("4.1")
    assert exited is not None
    assert (exited["reason"], exited["code"]) == ("completed", 0)
    assert cluster.epoch == 2


def test_next_agent_reports_an_exit_that_happened_without_an_agent(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    cluster.assign("4.1", PRELUDE + 'report("ready")\n' + GO + "sys.exit(7)\n")
    first = agent.start()
    wait_until(lambda: cluster.lines("4.1"))
    first.kill()
    first.wait()
    agent.let_go("4.1")
    wait_until((agent.work / "allocations/4.1/agent/exit.json").exists)
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    exited = cluster.exit_record("4.1")
    assert exited is not None
    assert (exited["reason"], exited["code"]) == ("errored", 7)


def test_trial_with_a_killed_supervisor_is_lost_and_ended(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    program = 'report("ready", pid=os.getpid(), parent=os.getppid())\ntime.sleep(600)\n'
    cluster.assign("4.1", PRELUDE + program)
    agent.start()
    wait_until(lambda: cluster.lines("4.1"))
    ready = cluster.lines("4.1")[0]
    os.kill(ready["parent"], signal.SIGKILL)
    wait_until(lambda: cluster.exit_record("4.1"))
    exited = cluster.exit_record("4.1")
    assert exited is not None
    assert exited["reason"] == "lost"
    assert not alive(ready["pid"])


def test_kill_for_a_trial_that_never_ran_is_answered(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    cluster.forgets_exited = True
    cluster.assign("4.1", PRELUDE + LEAVE)
    cluster.change("4.1", state="kill")
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    assert (cluster.exit_record("4.1") or {})["reason"] == "killed"
    wait_until(lambda: not (agent.work / "allocations/4.1").exists())


def test_outage_stops_no_trial_and_lost_answers_repeat_no_line(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    count = """
for n in range(60):
    report("metrics", group="validation", n=n)
    time.sleep(0.02)
"""
    cluster.assign("4.1", PRELUDE + count + LEAVE)
    cluster.answers_to_drop = 3
    agent.start()
    wait_until(lambda: cluster.lines("4.1"))
    cluster.down = True
    time.sleep(1.0)
    cluster.down = False
    wait_until(lambda: cluster.exit_record("4.1"))
    assert [line["n"] for line in cluster.lines("4.1")[:-1]] == list(range(60))
    assert cluster.answers_to_drop == 0


def test_fenced_agent_kills_all_trials_and_enrols_again(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    cluster.assign("4.1", PRELUDE + 'report("ready", pid=os.getpid())\ntime.sleep(600)\n')
    agent.start()
    wait_until(lambda: cluster.lines("4.1"))
    cluster.fence()
    wait_until(lambda: cluster.epoch == 3)
    assert not alive(cluster.lines("4.1")[0]["pid"])
    wait_until(lambda: cluster.exit_record("4.1"))
    exited = cluster.exit_record("4.1")
    assert exited is not None
    # A notice marks a loss: for nodes of a gang that fail as a result, this loss is the cause.
    assert exited["notice"] == "the session of its agent ended"


def test_end_notice_of_the_cluster_reaches_the_trial(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    saved = 'report("saved", preempt=directives()["preempt"])\n'
    until = 'while not directives().get("preempt"):\n    time.sleep(0.01)\n'
    cluster.assign("4.1", PRELUDE + 'report("ready")\n' + until + saved + OBEY)
    agent.start()
    wait_until(lambda: cluster.lines("4.1"))
    notice = {"deadline_ms": 1_900_000_000_000, "reason": "its capacity block ends"}
    cluster.announce_end(notice)
    wait_until(lambda: cluster.exit_record("4.1"))
    assert cluster.lines("4.1")[1]["preempt"] == notice
    exited = cluster.exit_record("4.1")
    assert exited is not None
    assert (exited["reason"], exited["notice"]) == ("preempted", notice["reason"])
    # The agent does not send the cluster's own notice back.
    assert not any("notice" in call for call in cluster.calls)


def test_notice_reaches_the_trial_and_newer_directives_keep_the_notice(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    program = """
while directives()["revision"] < 5:
    time.sleep(0.01)
"""
    saved = 'report("saved", preempt=directives()["preempt"])\n'
    cluster.assign("4.1", PRELUDE + 'report("ready")\n' + program + saved + OBEY)
    agent.start()
    wait_until(lambda: cluster.lines("4.1"))
    notice = {"deadline_ms": 1_900_000_000_000, "reason": "spot interruption"}
    (agent.work / "preemption-notice.json").write_text(json.dumps(notice))
    directives = agent.work / "allocations/4.1/in/directives.json"
    wait_until(lambda: json.loads(directives.read_bytes()).get("preempt") == notice)
    cluster.change("4.1", directives={"revision": 5, "length": 9, "preempt": None})
    wait_until(lambda: cluster.exit_record("4.1"))
    assert cluster.lines("4.1")[1]["preempt"] == notice
    exited = cluster.exit_record("4.1")
    assert exited is not None
    assert exited["reason"] == "preempted"


def test_stopped_agent_lets_trials_checkpoint_and_kills_deaf_trials(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    cluster.assign("4.1", PRELUDE + 'report("ready")\n' + OBEY)
    cluster.assign("5.1", PRELUDE + 'report("ready")\ntime.sleep(600)\n')
    process = agent.start("--stop-seconds", "4")
    wait_until(lambda: cluster.lines("4.1") and cluster.lines("5.1"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(PROCESS_SECONDS_MAX) == 0
    reasons = {name: (cluster.exit_record(name) or {}).get("reason") for name in ("4.1", "5.1")}
    assert reasons == {"4.1": "preempted", "5.1": "killed"}


def test_line_that_the_cluster_refuses_does_not_stop_later_lines(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    cluster.refused_text = "poison"
    program = """
for n in range(10):
    report("progress", value=n, text="poison" if n == 4 else "fine")
"""
    cluster.assign("4.1", PRELUDE + program + LEAVE)
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    assert [line.get("value") for line in cluster.lines("4.1")] == [
        0,
        1,
        2,
        3,
        None,
        *range(5, 10),
        None,
    ]
    assert cluster.lines("4.1")[4]["kind"] == "agent_warning"


def test_wrong_join_token_ends_the_agent_with_a_message(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    agent.token_file.write_text("another")
    assert agent.start().wait(PROCESS_SECONDS_MAX) == 1
    assert "unknown join token" in agent.errors.read_text()
    assert "another" not in agent.errors.read_text().replace("another agent", "")


def test_second_agent_in_the_same_directory_is_refused(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    first = agent.start()
    wait_until(lambda: cluster.calls)
    second = agent.start()
    assert second.wait(PROCESS_SECONDS_MAX) == 2
    assert "--work-dir" in agent.errors.read_text()
    first.kill()
    first.wait()


def test_idle_agent_stays_small_and_calls_rarely(agent: AgentProcess, cluster: FakeCluster) -> None:
    cluster.assign("4.1", PRELUDE + 'print("x" * 300000)\nreport("ready")\n' + OBEY)
    process = agent.start()
    wait_until(lambda: cluster.lines("4.1"))
    wait_until(lambda: len(cluster.log.get("4.1", b"")) == 300001)

    def is_quiet_for_a_second() -> bool:
        calls = len(cluster.calls)
        time.sleep(1.0)
        return len(cluster.calls) - calls <= 1

    wait_until(is_quiet_for_a_second)
    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    pss_kb = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    assert pss_kb < 25 * 1024
