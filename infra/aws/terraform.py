"""Terraform's AWS provider, for exports of the stack."""

from pathlib import Path

from infra.terraform.provider import TerraformProvider

PROVIDER = TerraformProvider(
    name="aws",
    source="hashicorp/aws",
    # The exported names exist in both versions: Pulumi's provider is version 6, and the tests
    # validate exports with Terraform's 5.100.
    version=">= 5.100, < 7",
    schema_file=Path(__file__).with_name("terraform_schema.json"),
    types={"aws:s3/bucketObjectv2:BucketObjectv2": "aws_s3_object"},
    attributes={
        "aws_cloudwatch_metric_alarm": {"name": "alarm_name"},
        "aws_lambda_function": {"name": "function_name", "code": "filename"},
        "aws_route53_record": {"aliases": "alias"},
        "aws_lambda_permission": {"function": "function_name"},
        "aws_sns_topic_subscription": {"topic": "topic_arn"},
    },
    digests={"filename": "source_code_hash"},
)
