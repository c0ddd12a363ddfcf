"""File systems with network interfaces and data-repository associations, neither of which moto has.

Because of the interfaces their subnets cannot be deleted, as in the service.
"""

from __future__ import annotations

import json
import secrets
from typing import Any
from urllib.parse import urlparse

from moto.core.exceptions import JsonRESTError
from moto.ec2.exceptions import DependencyViolationError
from moto.ec2.models import EC2Backend, ec2_backends
from moto.ec2.models.nat_gateways import NatGateway
from moto.ec2.models.subnets import Subnet
from moto.ec2.utils import random_private_ip
from moto.fsx import models as fsx_models
from moto.fsx.models import FileSystem, FSxBackend
from moto.fsx.responses import FSxResponse
from moto.s3.models import s3_backends


class AttachedFileSystem(FileSystem):
    """moto's file system, with the network interfaces it has and what else the service tells of it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        ec2 = ec2_backends[kwargs["account_id"]][kwargs["region_name"]]
        groups = self.security_group_ids
        self.interfaces = [
            ec2.create_network_interface(
                ec2.get_subnet(subnet), random_private_ip(), group_ids=groups
            ).id
            for subnet in self.subnet_ids
        ]

    def to_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = super().to_dict()
        told |= {"Lifecycle": "AVAILABLE", "NetworkInterfaceIds": self.interfaces}
        suffix = self.file_system_id.removeprefix("fs-")
        if self.lustre_configuration is not None:
            # A name may look like a number to YAML.
            told["LustreConfiguration"] = {
                **self.lustre_configuration,
                "MountName": f"9e{suffix[:6]}",
            }
        if self.open_zfs_configuration is not None:
            volume = {"RootVolumeId": f"fsvol-{suffix}"}
            told["OpenZFSConfiguration"] = {**self.open_zfs_configuration, **volume}
        return told


_moto_delete_file_system = FSxBackend.delete_file_system
_moto_delete_nat_gateway = EC2Backend.delete_nat_gateway
_moto_delete_subnet = EC2Backend.delete_subnet


def delete_file_system(self: FSxBackend, file_system_id: str, *args: Any, **kwargs: Any) -> Any:
    file_system = self.file_systems.get(file_system_id)
    answer = _moto_delete_file_system(self, file_system_id, *args, **kwargs)
    assert isinstance(file_system, AttachedFileSystem)
    for interface in file_system.interfaces:
        ec2_backends[self.account_id][self.region_name].delete_network_interface(interface)
    return answer


def delete_nat_gateway(self: EC2Backend, nat_gateway_id: str) -> NatGateway:
    gateway = _moto_delete_nat_gateway(self, nat_gateway_id)
    self.delete_network_interface(gateway._eni.id)
    return gateway


def delete_subnet(self: EC2Backend, subnet_id: str) -> Subnet:
    """Refuse while something has a network interface in the subnet."""
    inside = [
        eni.id for eni in self.enis.values() if getattr(eni.subnet, "id", eni.subnet) == subnet_id
    ]
    if inside:
        raise DependencyViolationError(f"The subnet '{subnet_id}' is in use by {inside}")
    return _moto_delete_subnet(self, subnet_id)


ASSOCIATIONS: dict[str, dict[str, Any]] = {}


def create_data_repository_association(self: FSxResponse) -> str:
    request = json.loads(self.body)
    (file_system,) = self.fsx_backend.describe_file_systems([request["FileSystemId"]])[0]
    assert file_system.file_system_type == "LUSTRE"
    s3_backends[self.current_account]["aws"].head_bucket(
        urlparse(request["DataRepositoryPath"]).netloc
    )
    association_id = f"dra-{secrets.token_hex(9)[:17]}"
    arn = (
        f"arn:aws:fsx:{self.region}:{self.current_account}:association/{file_system.file_system_id}"
    )
    ASSOCIATIONS[association_id] = {
        **request,
        "AssociationId": association_id,
        "ResourceARN": f"{arn}/{association_id}",
        "Lifecycle": "AVAILABLE",
    }
    return json.dumps({"Association": ASSOCIATIONS[association_id]})


def describe_data_repository_associations(self: FSxResponse) -> str:
    wanted = json.loads(self.body).get("AssociationIds") or list(ASSOCIATIONS)
    return json.dumps({"Associations": [_known_association(key) for key in wanted]})


def delete_data_repository_association(self: FSxResponse) -> str:
    association_id = json.loads(self.body)["AssociationId"]
    _known_association(association_id)
    del ASSOCIATIONS[association_id]
    return json.dumps({"AssociationId": association_id, "Lifecycle": "DELETING"})


def _known_association(association_id: str) -> dict[str, Any]:
    if association_id not in ASSOCIATIONS:
        raise JsonRESTError("DataRepositoryAssociationNotFound", f"{association_id} does not exist")
    return ASSOCIATIONS[association_id]


def install() -> None:
    fsx_models.FileSystem = AttachedFileSystem  # type: ignore[misc,assignment]
    FSxBackend.delete_file_system = delete_file_system  # type: ignore[method-assign]
    EC2Backend.delete_nat_gateway = delete_nat_gateway  # type: ignore[method-assign,assignment]
    EC2Backend.delete_subnet = delete_subnet  # type: ignore[method-assign,assignment]
    for operation in (
        create_data_repository_association,
        describe_data_repository_associations,
        delete_data_repository_association,
    ):
        setattr(FSxResponse, operation.__name__, operation)
