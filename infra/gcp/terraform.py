"""Terraform's Google Cloud provider, for exports of the stack."""

from pathlib import Path

from infra.terraform.provider import TerraformProvider

PROVIDER = TerraformProvider(
    name="google",
    source="hashicorp/google",
    # The exported names exist in both versions: Pulumi's provider is version 7, and the schema is
    # that of version 6.50.
    version=">= 6.50, < 8",
    schema_file=Path(__file__).with_name("terraform_schema.json"),
    types={
        "gcp:artifactregistry/repository:Repository": "google_artifact_registry_repository",
        "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": (
            "google_artifact_registry_repository_iam_member"
        ),
        "gcp:cloudrunv2/service:Service": "google_cloud_run_v2_service",
        "gcp:cloudrunv2/serviceIamMember:ServiceIamMember": (
            "google_cloud_run_v2_service_iam_member"
        ),
        "gcp:cloudscheduler/job:Job": "google_cloud_scheduler_job",
        "gcp:compute/subnetworkIAMMember:SubnetworkIAMMember": (
            "google_compute_subnetwork_iam_member"
        ),
        "gcp:projects/iAMCustomRole:IAMCustomRole": "google_project_iam_custom_role",
        "gcp:projects/iAMMember:IAMMember": "google_project_iam_member",
        "gcp:secretmanager/secret:Secret": "google_secret_manager_secret",
        "gcp:secretmanager/secretIamMember:SecretIamMember": (
            "google_secret_manager_secret_iam_member"
        ),
        "gcp:secretmanager/secretVersion:SecretVersion": "google_secret_manager_secret_version",
        "gcp:serviceaccount/account:Account": "google_service_account",
        "gcp:serviceaccount/iAMMember:IAMMember": "google_service_account_iam_member",
        "gcp:storage/bucketIAMMember:BucketIAMMember": "google_storage_bucket_iam_member",
    },
)
