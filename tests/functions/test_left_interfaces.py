"""The function that deletes pods' network interfaces, against EC2's own API shapes."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.stub import Stubber

from functions.pod_interfaces import index

CLUSTER = "esm2-eks"
GROUP = "sg-0123456789abcdef0"
START = 1_000_000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index.time, "time", lambda: START + 60)


def event(kind: str = "Delete") -> dict[str, Any]:
    return {
        "RequestType": kind,
        "ResourceProperties": {
            "ClusterName": CLUSTER,
            "SecurityGroupId": GROUP,
            "TimeoutSeconds": "3000",
        },
        "Data": {"Start": START},
    }


def finds(ec2: Stubber, **status: str) -> None:
    interfaces = [
        {"NetworkInterfaceId": f"eni-{name}", "Status": found} for name, found in status.items()
    ]
    asked = {
        "Filters": [
            {"Name": "group-id", "Values": [GROUP]},
            {"Name": "tag:cluster.k8s.amazonaws.com/name", "Values": [CLUSTER]},
        ]
    }
    ec2.add_response("describe_network_interfaces", {"NetworkInterfaces": interfaces}, asked)


def deletes(ec2: Stubber, name: str) -> None:
    ec2.add_response("delete_network_interface", {}, {"NetworkInterfaceId": f"eni-{name}"})


@pytest.mark.parametrize("kind", ["Create", "Update"])
def test_sends_no_request_while_the_cluster_exists(kind: str, ec2: Stubber) -> None:
    begun = index.on_event(event(kind), None)
    assert begun == {
        "PhysicalResourceId": f"{CLUSTER}-pod-interfaces",
        "Data": {"Start": START + 60},
    }
    assert index.is_complete(event(kind), None) == {"IsComplete": True}


def test_what_is_attached_to_nothing_is_deleted(ec2: Stubber) -> None:
    finds(ec2, a="available", b="available")
    deletes(ec2, "a")
    deletes(ec2, "b")
    assert index.is_complete(event(), None) == {"IsComplete": True}


def test_what_a_node_that_ends_still_has_is_waited_for(ec2: Stubber) -> None:
    finds(ec2, a="in-use", b="available")
    deletes(ec2, "b")
    assert index.is_complete(event(), None) == {"IsComplete": False}
    finds(ec2, a="available")
    deletes(ec2, "a")
    assert index.is_complete(event(), None) == {"IsComplete": True}


def test_what_someone_else_deletes_meanwhile_is_gone_too(ec2: Stubber) -> None:
    finds(ec2, a="available")
    ec2.add_client_error("delete_network_interface", "InvalidNetworkInterfaceID.NotFound")
    assert index.is_complete(event(), None) == {"IsComplete": True}


def test_reports_a_refusal(ec2: Stubber) -> None:
    finds(ec2, a="available")
    ec2.add_client_error("delete_network_interface", "UnauthorizedOperation")
    with pytest.raises(Exception, match="UnauthorizedOperation"):
        index.is_complete(event(), None)


def test_its_end_says_what_is_in_the_way(ec2: Stubber, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index.time, "time", lambda: START + 3000)
    finds(ec2, a="in-use")
    with pytest.raises(TimeoutError, match=r"after 50 minutes: eni-a\. .* delete the stack again"):
        index.is_complete(event(), None)
