"""What the rules take for granted of the stacks is what the stacks do."""

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


def test_endpoints_take_as_many_addresses_as_there_are() -> None:
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


def test_the_cni_holds_as_many_addresses_as_are_counted() -> None:
    template = json.loads(Path("tests/golden/eks-p5/EksHyperPodStack.json").read_text())
    (configuration,) = (
        json.loads(resource["Properties"]["ConfigurationValues"])
        for resource in template["Resources"].values()
        if resource["Type"] == "AWS::EKS::Addon" and resource["Properties"]["AddonName"] == "vpc-cni"
    )
    # With either, it does not look at whole interfaces any more.
    assert configuration["env"] == {
        "MINIMUM_IP_TARGET": str(POD_ADDRESSES),
        "WARM_IP_TARGET": str(FREE_POD_ADDRESSES),
    }


def test_our_tags_are_kept_from_users() -> None:
    cluster = SlurmCluster.model_validate(document("small"))
    assert set(tags_of(cluster)) <= set(OUR_TAGS)


def test_users_leave_room_for_our_tags() -> None:
    """The shipped files have no tags of their own, so the templates show ours and the CDK's."""
    templates = [json.loads(path.read_text()) for path in Path("tests/golden").glob("*/*.json")]
    numbers = [
        len(resource.get("Properties", {}).get("Tags", ()))
        for template in templates
        for resource in template["Resources"].values()
    ]
    assert 0 < max(numbers) <= 50 - MAX_TAGS
