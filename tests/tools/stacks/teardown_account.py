"""An account with a cluster's three stacks, to be torn down."""

from __future__ import annotations

from typing import Any

from tests.tools.answering_aws import AnsweringAws, Parameters
from tests.tools.stacks import stack_templates
from tests.tools.stacks.deployed_stacks import DeployedStacks, Template

PREFIX = "esm2-slurm-slurm-"
NETWORK, STORAGE, HYPERPOD = (f"{PREFIX}{name}" for name in ("network", "storage", "hyperpod"))


def everything(*, policy: str) -> dict[str, Template]:
    """All three stacks; ``policy`` is that of the file system."""
    templates = {
        NETWORK: stack_templates.network(),
        STORAGE: stack_templates.storage(),
        HYPERPOD: stack_templates.hyperpod(),
    }
    templates[NETWORK]["Resources"]["Nat"] = {"Type": "AWS::EC2::NatGateway", "Properties": {}}
    templates[STORAGE]["Resources"]["Lustre"]["DeletionPolicy"] = policy
    return templates


class Account:
    """The cluster's stacks, and the services beside them; ``hyperpod`` is the stack with the nodes."""

    def __init__(self, templates: dict[str, Template], *, hyperpod: str = HYPERPOD) -> None:
        self.aws = AnsweringAws("us-west-2")
        self._hyperpod = hyperpod
        self.stacks = DeployedStacks(self.aws, templates)
        self.objects = {"data-0123": [("shard-0", "v1"), ("shard-1", "v1"), ("shard-2", "v1")]}
        self.delete_markers = {"data-0123": [("old", "v2")]}
        self.links: dict[str, dict[str, Any]] = {}
        """Data repository associations by id. Like FSx, one takes a look to go."""
        self.going: set[str] = set()
        self.link("dra-0123456789abcdef0", "s3://data-0123")
        self.aws.answer("logs", "DescribeLogGroups", {"logGroups": []})
        self.aws.answer("ec2", "DescribeNetworkInterfaces", {"NetworkInterfaces": []})
        self.aws.answer("fsx", "DescribeFileSystems", {"FileSystems": []})
        self.aws.answer("rds", "DescribeDBInstances", {"DBInstances": []})
        self.aws.answer("ec2", "DescribeSecurityGroups", {"SecurityGroups": []})
        self.aws.answer("fsx", "DescribeDataRepositoryAssociations", self._links)
        self.aws.answer("fsx", "DeleteDataRepositoryAssociation", self._unlink)
        self.aws.answer("s3", "ListObjectVersions", self._versions)
        self.aws.answer("s3", "DeleteObjects", self._delete_objects)

    def _versions(self, parameters: Parameters) -> dict[str, Any]:
        # The bucket may only be emptied when the nodes that write to it are gone.
        assert self.stacks.status.get(self._hyperpod, "DELETE_COMPLETE") == "DELETE_COMPLETE"
        bucket = parameters["Bucket"]
        return {
            name: [{"Key": key, "VersionId": version} for key, version in entries[bucket]]
            for name, entries in (
                ("Versions", self.objects),
                ("DeleteMarkers", self.delete_markers),
            )
        }

    def _delete_objects(self, parameters: Parameters) -> dict[str, Any]:
        bucket = parameters["Bucket"]
        linked = [
            link for link in self.links.values() if link["DataRepositoryPath"] == f"s3://{bucket}"
        ]
        assert not linked, "files go with the objects of a bucket that is linked"
        for item in parameters["Delete"]["Objects"]:
            entry = (item["Key"], item["VersionId"])
            (self.objects if entry in self.objects[bucket] else self.delete_markers)[bucket].remove(
                entry
            )
        return {}

    def link(self, association_id: str, path: str) -> None:
        self.links[association_id] = {
            "AssociationId": association_id,
            "ResourceARN": f"arn:aws:fsx:us-west-2:123456789012:association/fs-0123/{association_id}",
            "FileSystemId": "fs-0123456789abcdef0",
            "DataRepositoryPath": path,
            "Lifecycle": "AVAILABLE",
        }

    def _links(self, parameters: Parameters) -> dict[str, Any]:
        """One association a page."""
        position = int(parameters.get("NextToken", 0))
        if position == 0:
            for association_id in self.going:
                del self.links[association_id]
            self.going = {
                key for key, link in self.links.items() if link["Lifecycle"] == "DELETING"
            }
        links = list(self.links.values())
        more = {"NextToken": str(position + 1)} if position + 1 < len(links) else {}
        return {"Associations": links[position : position + 1]} | more

    def _unlink(self, parameters: Parameters) -> dict[str, Any]:
        assert parameters["DeleteDataInFileSystem"] is False
        link = self.links[parameters["AssociationId"]]
        link["Lifecycle"] = "DELETING"
        return {"AssociationId": link["AssociationId"], "Lifecycle": "DELETING"}

    def hold_network(self, file_system_id: str) -> None:
        """Let a file system of an earlier teardown have an interface in the VPC."""

        def interfaces(parameters: Parameters) -> dict[str, Any]:
            assert parameters["Filters"] == [{"Name": "vpc-id", "Values": ["vpc-0123"]}]
            return {
                "NetworkInterfaces": [
                    {"NetworkInterfaceId": "eni-0000000a"},
                    {"NetworkInterfaceId": "eni-0000000b"},
                ]
            }

        systems = [
            {
                "FileSystemId": file_system_id,
                "NetworkInterfaceIds": ["eni-0000000b", "eni-0000000c"],
            },
            {"FileSystemId": "fs-00000002", "NetworkInterfaceIds": ["eni-0000000d"]},
        ]
        self.aws.answer("ec2", "DescribeNetworkInterfaces", interfaces)
        self.aws.answer("fsx", "DescribeFileSystems", {"FileSystems": systems})

    def writes(self) -> list[str]:
        return [
            name for _, name in self.aws.calls if not name.startswith(("Get", "List", "Describe"))
        ]
