"""Regions in which HyperPod clusters can be deployed, and the prefixes of their zone ids."""

from collections.abc import Mapping

ZONE_ID_PREFIXES: Mapping[str, str] = {
    "ap-northeast-1": "apne1",
    "ap-northeast-2": "apne2",
    "ap-south-1": "aps1",
    "ap-south-2": "aps2",
    "ap-southeast-1": "apse1",
    "ap-southeast-2": "apse2",
    "ap-southeast-3": "apse3",
    "ap-southeast-4": "apse4",
    "ca-central-1": "cac1",
    "eu-central-1": "euc1",
    "eu-north-1": "eun1",
    "eu-south-2": "eus2",
    "eu-west-1": "euw1",
    "eu-west-2": "euw2",
    "sa-east-1": "sae1",
    "us-east-1": "use1",
    "us-east-2": "use2",
    "us-west-1": "usw1",
    "us-west-2": "usw2",
}
"""Zone-id prefix of each region with ``AWS::SageMaker::Cluster`` in its CloudFormation registry."""

HEALTH_MONITORING_REGIONS = frozenset(
    {
        "ap-northeast-1",
        "ap-south-1",
        "ap-southeast-1",
        "ap-southeast-2",
        "eu-central-1",
        "eu-north-1",
        "eu-west-1",
        "eu-west-2",
        "sa-east-1",
        "us-east-1",
        "us-east-2",
        "us-west-1",
        "us-west-2",
    }
)
"""Regions with the image of the agent that monitors EKS nodes for faults. HyperPod's Helm chart lists an
account for each (health-monitoring-agent, ``_helpers.tpl``)."""
