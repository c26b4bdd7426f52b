"""The Google project of a cluster on AWS: its settings, permissions, scripts and checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require

for package in ("botocore", "pulumi_aws", "google.auth"):
    require(package)

from control_plane.config.pools import ClusterConfig, check_cluster  # noqa: E402
from infra.aws import draining, program  # noqa: E402
from infra.aws.limits import find_limit_problems  # noqa: E402
from infra.aws.pool_checks import find_pool_problems  # noqa: E402
from infra.aws.settings import Settings, launcher_of, parse_settings  # noqa: E402
from infra.findings import Level  # noqa: E402
from infra.gcp.google_api import GoogleError  # noqa: E402
from infra.gcp.instance_ends import end_instances  # noqa: E402
from infra.gcp.machine_catalog import GoogleCatalog  # noqa: E402
from infra.gcp.names import Names  # noqa: E402
from infra.gcp.policies import list_grants  # noqa: E402
from infra.gcp.remote_account import GoogleRemoteAccount, GoogleRemoteSettings  # noqa: E402
from infra.gcp.trust_policies import Trust, list_remote_grants  # noqa: E402
from infra.remote_accounts import Launcher, RemoteAccount  # noqa: E402
from infra.stack_program import DrainFailed, DrainReport, SettingsInvalid  # noqa: E402
from lambdas.other_clouds import VARIABLE  # noqa: E402
from provisioner.clouds.gcp.deployment import add_deployment  # noqa: E402
from provisioner.clouds.gcp.launch_request import parse_section  # noqa: E402
from tests.emulators.gce.serving import GceServer  # noqa: E402
from tests.unit.infra.gcloud_stub import Gcloud, Project, bindings_of, flags_of  # noqa: E402
from tests.unit.infra.graphs import VISION, graph  # noqa: E402
from tests.unit.infra.test_infra_gcp_draining import Region, Seconds  # noqa: E402

NAMES = Names("vision", "acme-ml", "123456789012", "us-central1")
REGIONS = ("us-central1", "europe-west4")
SIDE = {"project": "acme-ml", "projectNumber": "123456789012", "region": "us-central1"}
TWO_REGIONS = {**SIDE, "regions": ["europe-west4"]}
LEAST = {
    "account": "111111111111",
    "region": "us-east-1",
    "clusterConfig": "pools.yaml",
    "adminSha256": "a" * 64,
}
LAUNCHER = Launcher("aws", "111111111111", "vision", "detcloud-vision-tick")
LAUNCHES = "serviceAccount:dc-vision-launch@acme-ml.iam.gserviceaccount.com"
INSTANCE = "dc-vision-vm@acme-ml.iam.gserviceaccount.com"


def settings(**given: str) -> Settings:
    others = {"otherClouds": json.dumps({"gcp": TWO_REGIONS})}
    return parse_settings("vision", {**LEAST, **others, **given})


def pools(provider: str = "{type: gcp}") -> ClusterConfig:
    return check_cluster(f"resource_pools: [{{pool_name: default, provider: {provider}}}]")


# The parts of a remote account are checked without pools, too.
NO_POOLS = check_cluster("resource_pools: [{pool_name: default}]")


def remote(
    api: Any = None, given: object = TWO_REGIONS, catalog: GoogleCatalog | None = None
) -> GoogleRemoteAccount:
    described = GoogleRemoteSettings.model_validate_json(json.dumps(given))
    return GoogleRemoteAccount(described, LAUNCHER, api, catalog)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("[]", "a map from gcp to the description"),
        ('{"moon": {}}', "a map from gcp to the description"),
        ('{"gcp": {}}', '{"project": ID'),
        ('{"gcp": "acme-ml"}', '{"project": ID'),
        (json.dumps({"gcp": {**SIDE, "projectNumber": 123456789012}}), '{"project": ID'),
        (json.dumps({"gcp": {**SIDE, "region": "us-central1-a"}}), '{"project": ID'),
        (json.dumps({"gcp": {**SIDE, "regions": ["a1", "a1"]}}), '{"project": ID'),
        (json.dumps({"gcp": {**SIDE, "key": "secret"}}), '{"project": ID'),
    ],
)
def test_refuses_wrong_google_projects(value: str, expected: str) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        settings(otherClouds=value)
    [problem] = refused.value.problems
    assert problem.startswith("detcloud:otherClouds")
    assert expected in problem


def test_only_api_tick_and_wake_know_the_google_project(tmp_path: Path) -> None:
    config = {**VISION, "detcloud:otherClouds": json.dumps({"gcp": TWO_REGIONS})}
    functions = graph("vision", config, tmp_path).inputs_of("Function")
    accounts = {
        name: function["environment"]["variables"][VARIABLE]
        for name, function in functions.items()
        if VARIABLE in function["environment"]["variables"]
    }
    assert set(accounts) == {"api", "tick", "wake"}
    assert accounts["api"] == accounts["tick"] == accounts["wake"]
    account = json.loads(accounts["tick"])["gcp"]
    # Pools use the account and the network that the script creates.
    whole = add_deployment(
        parse_section('{"region": "europe-west4"}'),
        {**account["network"], "service_account": account["instance"]},
        account["project"],
        account["region"],
    )
    assert (whole.project, whole.service_account.email) == ("acme-ml", INSTANCE)
    assert whole.network_interface.subnetwork == (
        "projects/acme-ml/regions/europe-west4/subnetworks/detcloud-vision-europe-west4"
    )
    # Lambda allows 4 KB of variables for all settings together.
    assert len(accounts["tick"]) < 1000


def test_stack_without_remote_accounts_has_no_variable(tmp_path: Path) -> None:
    functions = graph("vision", VISION, tmp_path).inputs_of("Function")
    assert not [
        function
        for function in functions.values()
        if VARIABLE in function["environment"]["variables"]
    ]


def test_refuses_a_remote_account_beyond_the_environment_limit() -> None:
    # Lambda allows 4,096 bytes. Other variables of the tick have 2,500 bytes and of the API 1,900.
    # These regions have more than 2,200.
    regions = [f"some-region{number}" for number in range(1, 17)]
    given = {"otherClouds": json.dumps({"gcp": {**SIDE, "regions": regions}})}
    of_api, of_tick = find_limit_problems(settings(**given))
    assert of_api.startswith("detcloud:imageRepositories and detcloud:taskRoles and detcloud:other")
    assert of_tick.startswith("detcloud:tags and detcloud:otherClouds are ")
    assert find_limit_problems(settings()) == []


def test_launcher_account_has_the_ticks_instance_grants() -> None:
    grants = list_remote_grants(NAMES, REGIONS, logs_instances=False)
    assert {grant.account for grant in grants} == {"launcher"}
    tick = {
        (grant.role, grant.place, grant.condition)
        for grant in list_grants(NAMES, REGIONS, logs_instances=False)
        if grant.account == "tick"
    }
    launcher = {(grant.role, grant.place, grant.condition) for grant in grants}
    # The project has no rows, objects or other functions.
    assert {role for role, _, _ in tick - launcher} == {
        "rows",
        "get_objects",
        "add_objects",
        "start_functions",
    }
    assert launcher <= tick
    assert {grant.role for grant in grants if grant.place.kind == "project"} == {"instances"}
    assert all(grant.condition for grant in grants if grant.place.kind == "project")
    logged = list_remote_grants(NAMES, REGIONS, logs_instances=True)
    assert [(grant.account, grant.role) for grant in logged if grant not in grants] == [
        ("instance", "write_logs")
    ]


def test_trust_names_the_ticks_role() -> None:
    trust = Trust(NAMES, LAUNCHER)
    assert trust.condition == (
        'assertion.arn.startsWith("arn:aws:sts::111111111111:assumed-role/detcloud-vision-tick/")'
    )
    pool = "projects/123456789012/locations/global/workloadIdentityPools/detcloud-vision"
    assert trust.member == f"principal://iam.googleapis.com/{pool}/subject/detcloud-vision-tick"
    assert trust.provider == f"//iam.googleapis.com/{pool}/providers/functions"
    # The trust uses the company's names of roles.
    named = parse_settings("vision", {**LEAST, "iamPrefix": "corp-", "iamPath": "/teams/"}).names
    assert launcher_of(named).role == "corp-detcloud-vision-tick"


@pytest.fixture
def gcloud(tmp_path: Path) -> Gcloud:
    folder = tmp_path / "gcloud"
    folder.mkdir()
    return Gcloud(folder)


def test_google_trust_script_is_idempotent_and_grants_exactly(gcloud: Gcloud) -> None:
    script = remote().commands(pools())
    done = gcloud.run(script)
    assert done.returncode == 0, done.stderr
    assert "acme-ml is ready" in done.stdout
    given = bindings_of(gcloud.commands)
    trust, roles = Trust(NAMES, LAUNCHER), "projects/acme-ml/roles/detcloud_vision"
    condition = list_remote_grants(NAMES, REGIONS, logs_instances=False)[0].condition
    launcher = "dc-vision-launch@acme-ml.iam.gserviceaccount.com"
    assert set(given) == {
        ("acme-ml", LAUNCHES, f"{roles}_instances", condition),
        (INSTANCE, LAUNCHES, f"{roles}_give_account", ""),
        ("detcloud-vision-us-central1", LAUNCHES, f"{roles}_use_subnetworks", ""),
        ("detcloud-vision-europe-west4", LAUNCHES, f"{roles}_use_subnetworks", ""),
        (launcher, trust.member, f"{roles}_issue_tokens", ""),
    }
    made = [
        command for command in gcloud.commands if "create" in command or "create-aws" in command
    ]
    # Four roles, two accounts, two parts of the trust, a network in two regions, and a firewall.
    assert len(made) == 4 + 2 + 2 + 3 + 1
    assert not [command for command in gcloud.commands if "key" in " ".join(command)]
    again = gcloud.run(script)
    assert again.returncode == 0, again.stderr
    assert not [
        command for command in gcloud.commands if "create" in command or "create-aws" in command
    ]
    assert bindings_of(gcloud.commands) == given


def test_trust_script_refuses_a_project_with_a_namesake_cluster(gcloud: Gcloud) -> None:
    gcloud.seed("firestore", "databases", "create", "--database=detcloud-vision")
    done = gcloud.run(remote().commands(pools()))
    assert done.returncode == 1
    assert "acme-ml has a cluster detcloud-vision of its own" in done.stderr
    assert gcloud.commands == []


def test_scripts_leave_the_remote_account_of_a_namesake_alone(
    gcloud: Gcloud, catalog: GoogleCatalog
) -> None:
    namesake = Launcher("aws", "222222222222", "vision", "detcloud-vision-tick")
    described = GoogleRemoteSettings.model_validate(TWO_REGIONS)
    theirs = GoogleRemoteAccount(described, namesake)
    assert gcloud.run(theirs.commands(pools())).returncode == 0
    for script in (remote().commands(pools()), remote().removal_commands()):
        done = gcloud.run(script)
        assert (done.returncode, gcloud.commands) == (1, [])
        assert "its cluster runs in account 222222222222, and not 111111111111" in done.stderr
    project = Project("acme-ml", "123456789012", gcloud.all_commands())
    results = remote(project, catalog=catalog).find_findings(pools())
    [trust] = [finding for finding in results if finding.subject == "trust in acme-ml"]
    assert trust.text.startswith(
        "it belongs to another cluster of the same name, in the account 222222222222"
    )
    assert "another name for the team" in trust.remedy


def test_removal_script_is_idempotent_and_reversible(gcloud: Gcloud) -> None:
    made = finished_project(gcloud)
    assert len(remote(made).find_leftovers()) == 1 + 2 + 5 - 1 + 1 + 2 + 1
    gcloud.seed("compute", "instances", "create", "detcloud-vision--vm-1")
    refused = gcloud.run(remote().removal_commands())
    assert (refused.returncode, gcloud.commands) == (1, [])
    assert "instances are left: detcloud-vision--vm-1" in refused.stderr
    assert "`detcloud deploy destroy aws --team vision` ends them" in refused.stderr
    gcloud.seed("compute", "instances", "delete", "detcloud-vision--vm-1")
    done = gcloud.run(remote().removal_commands())
    assert done.returncode == 0, done.stderr
    deleted = [command for command in gcloud.commands if "delete" in command]
    # As many as were created, without the provider, which is deleted with the pool.
    assert len(deleted) == 4 + 2 + 1 + 3 + 1
    taken = [
        flags_of(command)["member"]
        for command in gcloud.commands
        if "remove-iam-policy-binding" in command
    ]
    assert LAUNCHES in taken
    left = Project("acme-ml", "123456789012", gcloud.all_commands())
    assert remote(left).find_leftovers() == []
    again = gcloud.run(remote().removal_commands())
    assert again.returncode == 0, again.stderr
    assert not [command for command in gcloud.commands if "delete" in command]
    back = gcloud.run(remote().commands(pools()))
    assert back.returncode == 0, back.stderr
    # Resources that Google keeps are undeleted; all others are created.
    assert len([command for command in gcloud.commands if "undelete" in command]) == 4 + 1
    assert len([command for command in gcloud.commands if "create" in command]) == 2 + 3 + 1


def test_deleted_identity_pool_of_a_namesake_is_restored(
    gcloud: Gcloud,
) -> None:
    namesake = Launcher("aws", "222222222222", "vision", "detcloud-vision-tick")
    theirs = GoogleRemoteAccount(GoogleRemoteSettings.model_validate(TWO_REGIONS), namesake)
    assert gcloud.run(theirs.commands(pools())).returncode == 0
    assert gcloud.run(theirs.removal_commands()).returncode == 0
    done = gcloud.run(remote().commands(pools()))
    assert done.returncode == 0, done.stderr
    assert "Google keeps the pool of identities detcloud-vision for 30 days" in done.stderr
    back = [
        command
        for command in gcloud.commands
        if "undelete" in command and "detcloud-vision" in command
    ]
    assert [item[:3] for item in back] == [["iam", "workload-identity-pools", "undelete"]]
    [changed] = [command for command in gcloud.commands if "update-aws" in command]
    assert flags_of(changed)["account-id"] == "111111111111"


def test_deleted_provider_is_restored_before_the_update(gcloud: Gcloud) -> None:
    finished_project(gcloud)
    where = ("--location=global", "--workload-identity-pool=detcloud-vision")
    gcloud.seed("iam", "workload-identity-pools", "providers", "delete", "functions", *where)
    done = gcloud.run(remote().commands(pools()))
    assert done.returncode == 0, done.stderr
    verbs = [command[3] for command in gcloud.commands if command[2:3] == ["providers"]]
    assert verbs == ["undelete", "update-aws"]


def test_expired_role_name_is_an_error_with_a_remedy(gcloud: Gcloud) -> None:
    gcloud.seed("iam", "roles", "create", "detcloud_vision_instances", "--project=acme-ml")
    gcloud.seed("iam", "roles", "expire", "detcloud_vision_instances", "--project=acme-ml")
    done = gcloud.run(remote().commands(pools()))
    assert done.returncode == 1
    assert "until 37 days after the deletion" in done.stderr
    assert "another name for the team" in done.stderr


def finished_project(gcloud: Gcloud) -> Project:
    assert gcloud.run(remote().commands(pools())).returncode == 0
    return Project("acme-ml", "123456789012", gcloud.commands)


def test_check_accepts_the_scripts_result(gcloud: Gcloud) -> None:
    findings = remote(finished_project(gcloud)).find_findings(NO_POOLS)
    assert [finding.subject for finding in findings if finding.level is Level.FINE] == [
        f"{part} in acme-ml" for part in ("trust", "accounts", "roles", "grants", "network")
    ], findings
    assert len(findings) == 5


def errors(project: Project) -> list[str]:
    results = remote(project).find_findings(NO_POOLS)
    assert all(
        "`detcloud deploy trust aws --team vision`" in finding.remedy
        for finding in results
        if finding.remedy
    )
    return [
        f"{finding.subject}: {finding.text}" for finding in results if finding.level is Level.ERROR
    ]


def test_check_names_missing_and_changed_parts(gcloud: Gcloud) -> None:
    made = finished_project(gcloud)
    [provider] = [url for url in made.there if url.endswith("/providers/functions")]
    [role] = [url for url in made.there if url.endswith("_instances")]
    made.there[provider]["attributeCondition"] = "true"
    made.there[role]["includedPermissions"].remove("compute.instances.delete")
    del made.there[next(url for url in made.there if url.endswith("detcloud-vision-europe-west4"))]
    made.lose_binding("_give_account")
    made.lose_binding("_issue_tokens")
    results = errors(made)
    for expected in (
        "trust in acme-ml: the condition of projects/123456789012/",
        "is true: expected assertion.arn.startsWith(",
        "dc-vision-launch@acme-ml.iam.gserviceaccount.com does not trust principal://",
        "roles/detcloud_vision_instances lacks compute.instances.delete",
        f"{LAUNCHES} lacks projects/acme-ml/roles/detcloud_vision_give_account at {INSTANCE}",
        "subnetworks/detcloud-vision-europe-west4 is missing",
    ):
        assert any(expected in line for line in results), (expected, results)


def test_check_of_an_empty_project_names_all_parts() -> None:
    results = errors(Project("acme-ml", "123456789012", []))
    assert results[0].endswith("/providers/functions is missing, or disabled")
    assert sum("is missing" in line for line in results) == 1 + 2 + 4 + 3


class ClosedGoogle:
    """Google for a caller without credentials or without a permission."""

    def __init__(self, status: int) -> None:
        self.status = status

    def call(self, method: str, url: str, body: object = None) -> dict[str, Any]:
        raise GoogleError(self.status, "not for you")


def test_missing_google_permissions_are_warnings(
    compute_engine: GceServer, catalog: GoogleCatalog
) -> None:
    for action in ("listMachineTypes", "listAcceleratorTypes"):
        compute_engine.project.fail(action, 403, "forbidden", "not for you")
    findings = remote(ClosedGoogle(403), catalog=catalog).find_findings(pools())
    assert {finding.level for finding in findings} == {Level.WARNING}
    assert all("could not be checked: not for you" in finding.text for finding in findings)
    assert "roles/iam.securityReviewer" in findings[0].remedy


def test_missing_credentials_of_a_remote_project_are_a_single_warning() -> None:
    [finding] = remote(ClosedGoogle(401)).find_findings(pools())
    assert (finding.level, finding.subject) == (Level.WARNING, "credentials for acme-ml")
    assert finding.text == "neither the remote account nor its pools were checked: not for you"
    assert finding.remedy == (
        "create credentials with `gcloud auth application-default login`, and repeat `detcloud "
        "deploy check aws --team vision`"
    )
    [leftover] = remote(ClosedGoogle(401)).find_leftovers()
    assert leftover.startswith("unknown resources in the project acme-ml: the search failed: ")


def test_refuses_a_pool_in_an_unconfigured_cloud() -> None:
    alone = parse_settings("vision", LEAST)
    [problem] = find_pool_problems(alone, pools())
    assert problem.startswith(
        "pools.yaml: pool default: provider.type is gcp: expected aws; detcloud"
    )
    assert "otherClouds" in problem
    assert find_pool_problems(settings(), pools()) == []
    [problem] = find_pool_problems(settings(), pools("{type: local}"))
    assert "provider.type is local: expected aws or gcp" in problem


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        ("{type: gcp, region: asia-east1}", "`regions` of gcp there"),
        ("{type: gcp, project: other-1}", "expected acme-ml, as detcloud:otherClouds says"),
        ("{type: gcp, name_prefix: mine}", "names begin with detcloud-vision--vm"),
        ("{type: gcp, service_account: {email: a@b}}", "expected none"),
    ],
)
def test_refuses_pools_that_cannot_run_in_the_remote_account(provider: str, expected: str) -> None:
    [problem] = find_pool_problems(settings(), pools(provider))
    assert problem.startswith("pools.yaml: pool default: ")
    assert expected in problem


def test_drain_deletes_instances_of_the_remote_account() -> None:
    region = Region(one="RUNNING", two="TERMINATED")
    assert end_instances(NAMES, region.answers(), lambda line: None, Seconds().clock()) == 2
    assert sorted(region.deleted) == ["one", "two"]
    with pytest.raises(DrainFailed, match=r"instances in acme-ml may be left: .* login"):
        remote(ClosedGoogle(401)).drain(lambda line: None)


class EndingRemoteAccount(GoogleRemoteAccount):
    """A remote account with three instances and a launch template."""

    def drain(self, progress: object) -> DrainReport:
        return DrainReport(3, 1)


def test_drain_report_includes_remote_accounts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draining, "drain", lambda *_: DrainReport(2, 1))
    described = GoogleRemoteSettings.model_validate_json(json.dumps(SIDE))
    remotes: dict[str, RemoteAccount] = {"gcp": EndingRemoteAccount(described, LAUNCHER)}
    monkeypatch.setattr(Settings, "remote_accounts", remotes)
    config = {f"detcloud:{name}": value for name, value in LEAST.items()}
    assert program.drain("vision", config, lambda line: None) == DrainReport(5, 2)
