"""Rows for AWS::EKS, and for the state machines of custom resources."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from tests.local_aws.resource_model import (
    ApiResource,
    Client,
    Context,
    Properties,
    Resource,
    ResourceType,
    client,
    deleting,
)

ASSOCIATED = "associatedPolicies"
"""Key of what is known of an access entry: ARNs of its policies."""


def _cluster(properties: Properties, _: Context) -> Properties:
    """The API's form of the logs' kinds."""
    if "Logging" not in properties:
        return properties
    kinds = [item["Type"] for item in properties["Logging"]["ClusterLogging"]["EnabledTypes"]]
    logging = {"ClusterLogging": [{"Types": kinds, "Enabled": True}]} if kinds else {}
    return {**properties, "Logging": logging}


def _access_policies(eks: Client, known: dict[str, Any], wanted: list[Properties]) -> None:
    """Associate these policies instead of the earlier ones."""
    entry = {"clusterName": known["clusterName"], "principalArn": known["principalArn"]}
    for arn in known.get(ASSOCIATED, []):
        eks.disassociate_access_policy(**entry, policyArn=arn)
    for policy in wanted:
        scope = {name.lower(): value for name, value in policy["AccessScope"].items()}
        eks.associate_access_policy(**entry, policyArn=policy["PolicyArn"], accessScope=scope)
    known[ASSOCIATED] = [policy["PolicyArn"] for policy in wanted]


def _state_machine(properties: Properties, _: Context) -> Properties:
    names = {"DefinitionString": "definition", "StateMachineName": "name"}
    return {names.get(name, name): value for name, value in properties.items()}


@dataclass(frozen=True)
class ControlPlaneType(ApiResource):
    """A cluster of EKS, whose version is changed by a call of its own."""

    def update(self, context: Context, old: Resource, properties: Properties) -> Resource:
        version = properties["Version"]
        if old.properties["Version"] != version:
            eks = client(self.service, context.region)
            eks.update_cluster_version(name=properties["Name"], version=version)
            old = dataclasses.replace(old, properties={**old.properties, "Version": version})
        return super().update(context, old, properties)


EKS_TYPES: dict[str, ResourceType] = {
    "AWS::EKS::Cluster": ControlPlaneType(
        "eks",
        "create_cluster",
        "cluster.name",
        deleting("delete_cluster", name="Ref"),
        {
            "Arn": "cluster.arn",
            "CertificateAuthorityData": "cluster.certificateAuthority.data",
            "ClusterSecurityGroupId": "cluster.resourcesVpcConfig.clusterSecurityGroupId",
            "Endpoint": "cluster.endpoint",
        },
        prepare=_cluster,
        update_operation="update_cluster_config",
        update_keys=frozenset({"Name"}),
    ),
    "AWS::EKS::Addon": ApiResource(
        "eks",
        "create_addon",
        "join('|', [clusterName, addonName])",
        deleting("delete_addon", clusterName="clusterName", addonName="addonName"),
        {"Arn": "addon.addonArn"},
        update_operation="update_addon",
        update_keys=frozenset({"AddonName", "ClusterName"}),
    ),
    "AWS::EKS::PodIdentityAssociation": ApiResource(
        "eks",
        "create_pod_identity_association",
        "association.associationArn",
        deleting(
            "delete_pod_identity_association",
            clusterName="clusterName",
            associationId="association.associationId",
        ),
        {
            "AssociationArn": "association.associationArn",
            "AssociationId": "association.associationId",
        },
    ),
    "AWS::EKS::AccessEntry": ApiResource(
        "eks",
        "create_access_entry",
        "join('|', [principalArn, clusterName])",
        deleting("delete_access_entry", clusterName="clusterName", principalArn="principalArn"),
        {"AccessEntryArn": "accessEntry.accessEntryArn"},
        settings={"AccessPolicies": _access_policies},
        update_operation="update_access_entry",
        update_keys=frozenset({"ClusterName", "PrincipalArn"}),
    ),
    "AWS::StepFunctions::StateMachine": ApiResource(
        "stepfunctions",
        "create_state_machine",
        "stateMachineArn",
        deleting("delete_state_machine", stateMachineArn="Ref"),
        {"Arn": "Ref", "Name": "name"},
        generated_name="StateMachineName",
        prepare=_state_machine,
    ),
}
