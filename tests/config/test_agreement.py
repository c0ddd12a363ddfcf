"""The rules' assumptions about the stacks match the stacks."""

from __future__ import annotations

import json
from pathlib import Path

from config.address_demand import FREE_POD_ADDRESSES, POD_ADDRESSES, address_takers
from config.cluster import zone_ids
from config.reading.loader import load_cluster
from config.resource_names import tags_of
from config.rules.tags import MAX_TAGS, OUR_TAGS
from config.slurm_cluster import SlurmCluster
from tests.config.cluster_documents import document


def test_each_endpoint_counts_as_one_address() -> None:
    template = json.loads(Path("tests/golden/slurm-p5/SlurmNetworkStack.json").read_text())
    endpoints = [
        resource
        for resource in template["Resources"].values()
        if resource["Type"] == "AWS::EC2::VPCEndpoint"
        and resource["Properties"]["VpcEndpointType"] == "Interface"
    ]
    cluster = load_cluster(Path("clusters/slurm-p5.yaml"))
    taken = address_takers(cluster)[zone_ids(cluster)[0]]
    assert taken["network.interface_endpoints"] == len(endpoints)


def test_the_cni_holds_the_counted_addresses() -> None:
    template = json.loads(Path("tests/golden/eks-p5/EksHyperPodStack.json").read_text())
    (configuration,) = (
        json.loads(resource["Properties"]["ConfigurationValues"])
        for resource in template["Resources"].values()
        if resource["Type"] == "AWS::EKS::Addon"
        and resource["Properties"]["AddonName"] == "vpc-cni"
    )
    # With either setting, the CNI no longer reserves whole interfaces.
    assert configuration["env"] == {
        "MINIMUM_IP_TARGET": str(POD_ADDRESSES),
        "WARM_IP_TARGET": str(FREE_POD_ADDRESSES),
    }


def test_users_cannot_set_the_project_s_tags() -> None:
    cluster = SlurmCluster.model_validate(document("small"))
    assert set(tags_of(cluster)) <= set(OUR_TAGS)


def test_the_limit_of_tags_leaves_room_for_the_project_s() -> None:
    """The shipped files set no tags, so the templates contain only the project's and the CDK's."""
    templates = [json.loads(path.read_text()) for path in Path("tests/golden").glob("*/*.json")]
    numbers = [
        len(resource.get("Properties", {}).get("Tags", ()))
        for template in templates
        for resource in template["Resources"].values()
    ]
    assert 0 < max(numbers) <= 50 - MAX_TAGS
