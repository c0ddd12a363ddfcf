"""Simulated AWS accounts for clusters on EKS, and these clusters."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from config.eks_cluster import EksCluster
from config.facts.addons import ADDON_VERSIONS, OBSERVABILITY, VPC_CNI
from tests.tools.accounts import empty_account
from tests.tools.answering_aws import ACCOUNT, AnsweringAws, Parameters, Refusal
from tests.tools.cluster_files import shipped_eks

REPOSITORY = Path(__file__).parents[3]
GOLDEN = REPOSITORY / "tests" / "golden"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/teams/platform"
ACCESS = {"access": [{"principal_arn": ROLE, "level": "cluster_admin"}]}
EKS = shipped_eks("eks", kubernetes=ACCESS)
P5 = shipped_eks("eks-p5", kubernetes=ACCESS)
VERSIONS = ADDON_VERSIONS["1.34"]
STACKS = {f"esm2-eks-eks-{name}": "UPDATE_COMPLETE" for name in ("network", "storage", "hyperpod")}
LEVEL = {"type": "object", "properties": {"level": {"enum": ["BASIC", "ADVANCED", "DISABLED"]}}}
OBSERVABILITY_SCHEMA: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "additionalProperties": False,
    "required": ["ampWorkspace"],
    "properties": {
        "ampWorkspace": {
            "type": "object",
            "properties": {
                "arn": {"type": "string", "pattern": "^arn:aws:aps:"},
                "prometheusEndpoint": {
                    "type": "string",
                    "pattern": r"^https://[^/]+/workspaces/ws-[\w-]+$",
                },
            },
        },
        "amgWorkspace": {"type": "object"},
        "metricsProvider": {
            "type": "object",
            "properties": {
                "logging": {"type": "object", "properties": {"enabled": {"type": "boolean"}}}
            },
            "additionalProperties": LEVEL,
        },
    },
}
SCHEMAS = {
    # This is EKS's form, with a reference, and booleans as strings.
    VPC_CNI: {
        "$schema": "http://json-schema.org/draft-06/schema#",
        "$ref": "#/definitions/VpcCni",
        "definitions": {
            "VpcCni": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "enableNetworkPolicy": {"type": "string", "format": "boolean"},
                    "env": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            name: {"type": "string", "format": "integer"}
                            for name in ("MINIMUM_IP_TARGET", "WARM_IP_TARGET")
                        },
                    },
                },
            }
        },
    },
    OBSERVABILITY: OBSERVABILITY_SCHEMA,
}


def approved_template(cluster: EksCluster) -> dict[str, Any]:
    file = GOLDEN / cluster.name.removeprefix("esm2-") / "EksHyperPodStack.json"
    template: dict[str, Any] = json.loads(file.read_text())
    return template


def offered(version: str, *, default: bool = True, **changes: Any) -> dict[str, Any]:
    compatible = {"clusterVersion": "1.34", "platformVersions": ["*"], "defaultVersion": default}
    found = {
        "addonVersion": version,
        "architecture": ["amd64", "arm64"],
        "compatibilities": [compatible],
        "requiresConfiguration": False,
    }
    return found | changes


def eks_account(cluster: EksCluster = EKS) -> AnsweringAws:
    """Return an account that is ready for its first cluster on EKS."""
    aws = empty_account(cluster)

    def addon_versions(parameters: Parameters) -> dict[str, Any]:
        name = parameters["addonName"]
        assert parameters["kubernetesVersion"] == "1.34"
        return {"addons": [{"addonName": name, "addonVersions": [offered(VERSIONS[name])]}]}

    def configuration(parameters: Parameters) -> dict[str, Any]:
        schema = SCHEMAS[parameters["addonName"]]
        return {"addonName": parameters["addonName"], "configurationSchema": json.dumps(schema)}

    aws.answer("eks", "DescribeAddonVersions", addon_versions)
    aws.answer("eks", "DescribeAddonConfiguration", configuration)
    aws.answer(
        "eks", "DescribeClusterVersions", {"clusterVersions": [version("1.34"), version("1.35")]}
    )
    aws.answer("eks", "ListClusters", {"clusters": ["another"]})
    aws.answer("eks", "DescribeCluster", Refusal("ResourceNotFoundException"))
    aws.answer("iam", "GetRole", {"Role": role(ROLE)})
    aws.answer("sso-admin", "ListInstances", {"Instances": [{"Status": "ACTIVE"}]})
    default_quotas = aws.answers["service-quotas", "ListAWSDefaultServiceQuotas"]

    def quotas(parameters: Parameters) -> dict[str, Any]:
        if parameters["ServiceCode"] != "eks":
            return default_quotas(parameters)
        return {"Quotas": [{"QuotaName": "Clusters", "Value": 2.0}]}

    aws.answer("service-quotas", "ListAWSDefaultServiceQuotas", quotas)
    return aws


def version(name: str, status: str = "STANDARD_SUPPORT") -> dict[str, Any]:
    return {
        "clusterVersion": name,
        "versionStatus": status,
        "endOfStandardSupportDate": datetime(2026, 12, 2, tzinfo=UTC),
        "endOfExtendedSupportDate": datetime(2027, 12, 2, tzinfo=UTC),
    }


def role(arn: str) -> dict[str, Any]:
    name = arn.rpartition("/")[2]
    return {
        "Path": "/",
        "RoleName": name,
        "RoleId": "A" * 16,
        "Arn": arn,
        "CreateDate": datetime.now(UTC),
    }
