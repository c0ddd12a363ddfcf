"""SageMaker's MLflow and who may log to it: an app for EKS, a tracking server for Slurm."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from config.resource_names import JOB_ENVIRONMENT, JOB_SERVICE_ACCOUNT, job_namespaces
from seqlm.launch import pod_job
from stacks.remaining_costs import remaining_costs
from tests.stacks.intrinsics import ACCOUNT, Evaluator
from tests.stacks.synthesized import load, resources, templates

SLURM = "clusters/slurm-p5.yaml"
EKS = "clusters/eks-p5.yaml"
LOG_RUNS = [
    f"sagemaker-mlflow:{action}"
    for action in (
        *(
            "CreateExperiment",
            "CreateRun",
            "GetExperiment",
            "GetExperimentByName",
            "GetRun",
            "LogBatch",
        ),
        *("SearchExperiments", "SearchRuns", "UpdateRun"),
    )
]


def made(file: str, stack: str, kind: str) -> dict[str, Any]:
    """Properties by logical id, with what a deployment fills in."""
    evaluate = Evaluator(templates(file), load(file).region)
    return {
        name: evaluate(resource["Properties"])
        for name, resource in resources(templates(file)[stack], kind).items()
    }


@cache
def role_of_mlflow(file: str, stack: str) -> dict[str, Any]:
    (role,) = (
        role
        for role in made(file, stack, "AWS::IAM::Role").values()
        if role.get("Description", "").startswith("MLflow of")
    )
    return role


def test_a_tracking_server_has_the_files_size_and_the_clusters_name() -> None:
    (server,) = made(SLURM, "SlurmStorageStack", "AWS::SageMaker::MlflowTrackingServer").values()
    assert (server["TrackingServerName"], server["TrackingServerSize"]) == ("esm2-p5", "Small")
    assert server["AutomaticModelRegistration"] is False
    assert server["ArtifactStoreUri"].startswith("s3://")
    assert "MLflow tracking server (small)" in remaining_costs(load(SLURM))


def test_an_app_has_no_size_and_no_bill() -> None:
    (app,) = made(EKS, "EksStorageStack", "AWS::SageMaker::MlflowApp").values()
    assert (app["Name"], app["ModelRegistrationMode"]) == (
        "esm2-eks-p5",
        "AutoModelRegistrationDisabled",
    )
    assert not [part for part in remaining_costs(load(EKS)) if "MLflow" in part]


@pytest.mark.parametrize(
    ("file", "stack"), [(SLURM, "SlurmStorageStack"), (EKS, "EksStorageStack")]
)
def test_it_reaches_its_bucket_and_nothing_else(file: str, stack: str) -> None:
    role = role_of_mlflow(file, stack)
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    assert trust["Condition"] == {"StringEqualsIfExists": {"aws:SourceAccount": ACCOUNT}}
    (policy,) = role["Policies"]
    statements = {
        statement["Sid"]: statement for statement in policy["PolicyDocument"]["Statement"]
    }
    assert {sid: statement["Action"] for sid, statement in statements.items()} == {
        "ListArtifacts": ["s3:GetBucketLocation", "s3:ListBucket"],
        "HandleArtifacts": [
            "s3:AbortMultipartUpload",
            "s3:DeleteObject",
            "s3:GetObject",
            "s3:PutObject",
        ],
        "UseKey": ["kms:Decrypt", "kms:GenerateDataKey"],
    }
    bucket = statements["ListArtifacts"]["Resource"]
    assert bucket.startswith("arn:aws:s3:::")
    assert statements["HandleArtifacts"]["Resource"] == f"{bucket}/*"
    assert statements["UseKey"]["Resource"].startswith("arn:aws:kms:")


def test_jobs_of_slurm_log_with_a_role_that_workers_take_on() -> None:
    roles = made(SLURM, "SlurmHyperPodStack", "AWS::IAM::Role")
    (job,) = (
        role for role in roles.values() if role.get("Description") == "Jobs that log to MLflow"
    )
    (trust,) = job["AssumeRolePolicyDocument"]["Statement"]
    (raw,) = (
        resource["Properties"]["AssumeRolePolicyDocument"]["Statement"][0]["Principal"]["AWS"]
        for name, resource in resources(
            templates(SLURM)["SlurmHyperPodStack"], "AWS::IAM::Role"
        ).items()
        if name.startswith("JobRole")
    )
    assert raw["Fn::GetAtt"][0].startswith("WorkerRole")
    assert (trust["Effect"], trust["Action"]) == ("Allow", "sts:AssumeRole")
    ((statement,),) = (policy["PolicyDocument"]["Statement"] for policy in job["Policies"])
    assert statement["Action"] == LOG_RUNS
    assert ":mlflow-tracking-server/" in statement["Resource"]


def test_pods_of_jobs_log_by_a_service_account_of_their_namespace() -> None:
    cluster = load(EKS)
    stack = "EksHyperPodStack"
    associations = [
        found
        for found in made(EKS, stack, "AWS::EKS::PodIdentityAssociation").values()
        if found["ServiceAccount"] == JOB_SERVICE_ACCOUNT
    ]
    assert [found["Namespace"] for found in associations] == job_namespaces(cluster)
    (manifest,) = (
        json.loads(found["Manifest"])
        for found in made(EKS, stack, "Custom::AWSCDK-EKS-KubernetesResource").values()
        if JOB_ENVIRONMENT in found["Manifest"]
    )
    places = [
        (made["kind"], made["metadata"]["name"], made["metadata"]["namespace"], made.get("data"))
        for made in manifest
    ]
    variables = {
        "MLFLOW_TRACKING_URI": f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:mlflow-app/app-ABCDEFGHIJKL"
    }
    assert places == [
        place
        for namespace in job_namespaces(cluster)
        for place in (
            ("ServiceAccount", JOB_SERVICE_ACCOUNT, namespace, None),
            ("ConfigMap", JOB_ENVIRONMENT, namespace, variables),
        )
    ]
    assert pod_job.JOB_ENVIRONMENT == JOB_ENVIRONMENT
    statements = [
        statement
        for role in made(EKS, stack, "AWS::IAM::Role").values()
        for policy in role.get("Policies", [])
        for statement in policy["PolicyDocument"]["Statement"]
        if statement["Sid"] == "LogRuns"
    ]
    (statement,) = statements
    assert statement["Action"] == ["sagemaker:CallMlflowAppApi", *LOG_RUNS]
    assert statement["Resource"] == variables["MLFLOW_TRACKING_URI"]


def test_a_server_is_reached_inside_the_network_where_it_has_endpoints() -> None:
    def names(file: str, stack: str) -> set[str]:
        return {
            endpoint["ServiceName"]
            for endpoint in made(file, stack, "AWS::EC2::VPCEndpoint").values()
        }

    endpoint = "aws.sagemaker.us-east-1.experiments"
    assert endpoint in names(SLURM, "SlurmNetworkStack")
    assert endpoint not in names(EKS, "EksNetworkStack")


@pytest.mark.parametrize("file", ["clusters/slurm.yaml", "clusters/eks.yaml"])
def test_without_the_section_there_is_nothing_of_it(file: str) -> None:
    assert load(file).mlflow is None
    for stack in templates(file).values():
        for kind in ("MlflowApp", "MlflowTrackingServer"):
            assert not resources(stack, f"AWS::SageMaker::{kind}")
        assert JOB_ENVIRONMENT not in json.dumps(stack) and "LogRuns" not in json.dumps(stack)
