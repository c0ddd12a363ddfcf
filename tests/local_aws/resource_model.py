"""Mapping of CloudFormation resource types to calls of the services' own APIs.

Properties are shaped after botocore's model of the call, which also decides what is refused: a property that
the call does not take, and that no setting of the row handles, is an error, never dropped.
"""

from __future__ import annotations

import functools
import json
import os
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import boto3
import jmespath  # type: ignore[import-untyped]
from botocore.exceptions import ClientError
from botocore.model import ListShape, MapShape, Shape, StructureShape

Properties = dict[str, Any]
Client = Any  # boto3's clients share no type; what is called on them is checked against botocore's models

SECRET_REFERENCE = re.compile(r"\{\{resolve:secretsmanager:(.+?):SecretString:(\w*):*\}\}")


@functools.cache
@functools.cache
def client(service: str, region: str) -> Client:
    session: Any = shared_session()  # its own types know services by literals only
    return session.client(service, region_name=region, endpoint_url=os.environ["AWS_ENDPOINT_URL"])


@functools.cache
def shared_session() -> boto3.Session:
    """One for all clients: it keeps the models that it has read."""
    return boto3.Session()


@dataclass(frozen=True)
class Context:
    """Place of a resource's declaration."""

    region: str
    account_id: str
    stack_name: str
    logical_id: str

    def generated_name(self) -> str:
        """A name as CloudFormation makes them up, within IAM's 64 characters."""
        return f"{self.stack_name[:24]}-{self.logical_id[:24]}-{uuid.uuid4().hex[:12].upper()}"

    def with_secrets(self, value: Any) -> Any:
        """``value`` with its dynamic references to Secrets Manager replaced by the secrets."""
        if isinstance(value, dict):
            return {key: self.with_secrets(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.with_secrets(item) for item in value]
        if isinstance(value, str) and "{{resolve:" in value:
            return SECRET_REFERENCE.sub(self._secret, value)
        return value

    def _secret(self, reference: re.Match[str]) -> str:
        secret = client("secretsmanager", self.region).get_secret_value(SecretId=reference[1])[
            "SecretString"
        ]
        return str(json.loads(secret)[reference[2]] if reference[2] else secret)


@dataclass
class Resource:
    """A deployed resource: what moto's intrinsic functions and stack listings ask of it."""

    context: Context
    cf_resource_type: str
    properties: Properties
    physical_resource_id: str
    known: dict[str, Any]
    """Request and answer with the API's names; ``Ref`` is the physical id."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Attribute of Fn::GetAtt: its jmespath in ``known``."""

    @property
    def logical_resource_id(self) -> str:
        return self.context.logical_id

    @property
    def type(self) -> str:
        return self.cf_resource_type

    def is_created(self) -> bool:
        return True

    def get_cfn_attribute(self, name: str) -> Any:
        if name not in self.attributes:
            raise ValueError(
                f"{self.logical_resource_id}: {self.cf_resource_type} has no attribute {name}"
            )
        value = jmespath.search(self.attributes[name], self.known)
        if value is None:
            raise ValueError(f"{self.logical_resource_id}: attribute {name} has no value")
        return value


class ResourceType(Protocol):
    def create(self, context: Context, type_name: str, properties: Properties) -> Resource: ...
    def update(self, context: Context, old: Resource, properties: Properties) -> Resource: ...
    def delete(self, resource: Resource, policy: str) -> None: ...


def shaped(value: Any, shape: Shape, where: str) -> Any:
    """``value`` as ``shape`` wants it: the API's capitals, documents as JSON text, tag lists as maps.

    Raises ValueError for members that the shape does not have.
    """
    match shape:
        case StructureShape():
            names = {name.lower(): name for name in shape.members}
            unknown = [name for name in value if name.lower() not in names]
            if unknown:
                raise ValueError(f"{where}: {unknown} is not modelled")
            return {
                (api_name := names[name.lower()]): shaped(
                    item, shape.members[api_name], f"{where}.{name}"
                )
                for name, item in value.items()
            }
        case ListShape():
            if not isinstance(value, list):
                raise ValueError(f"{where}: got {value!r}, a list is wanted")
            return [shaped(item, shape.member, where) for item in value]
        case MapShape() if isinstance(value, list):
            return {tag["Key"]: tag["Value"] for tag in value}
    match shape.type_name:
        case "string" if not isinstance(value, str):
            return json.dumps(value)
        case "integer" | "long":
            return int(value)
        case "boolean" if isinstance(value, str):
            return {"true": True, "false": False}[value]
    return value


def call(client: Client, operation: str, params: Properties, where: str) -> dict[str, Any]:
    """Call ``operation`` with ``params`` shaped after its model, and return both, answer over question."""
    method = client.meta.method_to_api_mapping[operation]
    sent = shaped(params, client.meta.service_model.operation_model(method).input_shape, where)
    answer = getattr(client, operation)(**sent)
    answer.pop("ResponseMetadata", None)
    return {**sent, **answer}


Setting = Callable[[Client, dict[str, Any], Any], object]
Delete = Callable[[Client, dict[str, Any]], object]
Observe = Callable[[Client, dict[str, Any]], dict[str, Any]]


def deleting(operation: str, **params: str) -> Delete:
    """Deletion by one call; ``params`` are jmespaths in what is known of the resource."""
    return lambda client, known: getattr(client, operation)(
        **{name: jmespath.search(path, known) for name, path in params.items()}
    )


@dataclass(frozen=True)
class ApiResource:
    """A resource type that one call creates and one deletes; properties beyond the call are settings."""

    service: str
    create_operation: str
    ref: str
    """jmespath of the physical id."""
    delete_by: Delete
    attributes: Mapping[str, str] = field(default_factory=dict)
    generated_name: str | None = None
    """Property to make up if it is absent."""
    lower_case: bool = False
    tag_type: str | None = None
    """EC2's word for the resource in TagSpecifications."""
    prepare: Callable[[Properties, Context], Properties] = lambda properties, context: properties
    """The properties as parameters of the call, where they differ by more than capitals."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """Property: the call that sets it on the resource, when it is created and again when it changes."""
    observe: Observe = lambda client, known: {}
    """Further values that attributes need."""
    update_operation: str | None = None
    """The call that changes every property it takes."""
    update_keys: frozenset[str] = frozenset()
    """Properties that name the resource in that call; they and what changed are sent. None sends all."""

    def create(self, context: Context, type_name: str, properties: Properties) -> Resource:
        params = {k: v for k, v in properties.items() if k not in self.settings}
        if self.generated_name and self.generated_name not in params:
            name = context.generated_name()
            params[self.generated_name] = name.lower() if self.lower_case else name
        if self.tag_type and "Tags" in params:
            params["TagSpecifications"] = [
                {"ResourceType": self.tag_type, "Tags": params.pop("Tags")}
            ]
        api = client(self.service, context.region)
        where = f"{context.logical_id} ({type_name})"
        known = call(api, self.create_operation, self.prepare(params, context), where)
        known |= {"Ref": jmespath.search(self.ref, known), "Region": context.region}
        known["AccountId"] = context.account_id
        assert known["Ref"], f"{type_name}: no {self.ref} in {known}"
        known |= self.observe(api, known)
        for name in properties.keys() & self.settings.keys():
            self.settings[name](api, known, properties[name])
        return Resource(context, type_name, properties, str(known["Ref"]), known, self.attributes)

    def update(self, context: Context, old: Resource, properties: Properties) -> Resource:
        names = old.properties.keys() | properties.keys()
        changed = {name for name in names if old.properties.get(name) != properties.get(name)}
        if not changed:
            return old
        api = client(self.service, context.region)
        known = dict(old.known)
        where = f"{context.logical_id} ({old.type})"
        if changed & self.update_keys:
            raise ValueError(f"{where}: replacement is not modelled")
        settings = changed & self.settings.keys()
        if not changed <= properties.keys() or (
            changed != settings and self.update_operation is None
        ):
            raise ValueError(f"{where}: changing {sorted(changed - settings)} is not modelled")
        for name in settings:
            self.settings[name](api, known, properties[name])
        if self.update_operation and changed != settings:
            sent = changed | self.update_keys if self.update_keys else properties.keys()
            params = {name: properties[name] for name in sent - self.settings.keys()}
            known |= call(api, self.update_operation, self.prepare(params, context), where)
        return Resource(
            context, old.type, properties, old.physical_resource_id, known, self.attributes
        )

    def delete(self, resource: Resource, policy: str) -> None:
        if policy != "Delete":
            raise ValueError(f"DeletionPolicy {policy} of {resource.type} is not modelled")
        try:
            self.delete_by(client(self.service, resource.context.region), resource.known)
        except ClientError as error:
            # What someone else has deleted is deleted, as CloudFormation sees it.
            if not error.response["Error"]["Code"].endswith("NotFound"):
                raise
