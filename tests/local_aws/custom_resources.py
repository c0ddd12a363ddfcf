"""Custom resources of the CDK's framework: the project's functions run, the CDK's installer is modelled.

The framework's functions and state machine are not run, but read: which functions they call, how often, and
whether their roles may. What those functions find wrong becomes the resource's failure, as in CloudFormation.
"""

from __future__ import annotations

import io
import json
import os
import types
import uuid
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from moto.awslambda.models import LambdaFunction, lambda_backends
from moto.ec2.models import ec2_backends
from moto.s3.models import s3_backends
from moto.sagemaker.models import sagemaker_backends
from moto.stepfunctions.models import stepfunctions_backends

from tests.local_aws.eks_clusters import ControlPlane, control_plane
from tests.local_aws.kubernetes import Key, Refused
from tests.local_aws.permissions import is_permitted
from tests.local_aws.resource_model import (
    Client,
    Context,
    Properties,
    Resource,
    ResourceType,
    shared_session,
)

ON_EVENT = "USER_ON_EVENT_FUNCTION_ARN"
IS_COMPLETE = "USER_IS_COMPLETE_FUNCTION_ARN"
STATE_MACHINE = "WAITER_STATE_MACHINE_ARN"
FIRST_TIME = 1_000_000.0
INSTALLER = "onEvent handler for EKS kubectl resource provider"

Event = dict[str, Any]


def as_text(value: Any) -> Any:
    """Properties as functions receive them: CloudFormation makes text of numbers and truth values."""
    if isinstance(value, dict):
        return {key: as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_text(item) for item in value]
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _function(context: Context, arn: str) -> LambdaFunction:
    return lambda_backends[context.account_id][context.region].get_function(arn)


def _called(context: Context, caller: LambdaFunction, variable: str) -> LambdaFunction:
    """The function that another one calls, which its role must allow."""
    arn = caller.environment_vars[variable]
    _require(context, caller.role, "lambda:InvokeFunction", arn)
    return _function(context, arn)


def _require(
    context: Context, role: str, action: str, arn: str, keys: Mapping[str, str] | None = None
) -> None:
    if not is_permitted(context.account_id, role, action, arn, keys):
        raise PermissionError(f"{role} is not authorized to perform {action} on {arn}")


class CustomResource(ABC):
    """A resource that a function handles; CloudFormation sends it the three kinds of events."""

    def create(self, context: Context, type_name: str, properties: Properties) -> Resource:
        event = self._event("Create", context, type_name, properties)
        answer = self.handle(context, event)
        physical_id = answer.get("PhysicalResourceId", event["RequestId"])
        return self._resource(context, type_name, properties, physical_id, answer)

    def update(self, context: Context, old: Resource, properties: Properties) -> Resource:
        if old.properties == properties:
            return old
        event = self._event("Update", context, old.type, properties)
        event |= {
            "PhysicalResourceId": old.physical_resource_id,
            "OldResourceProperties": as_text(old.properties),
        }
        try:
            answer = self.handle(context, event)
        except Exception:
            # How far the function came is not known, so the rollback sends it an event too.
            old.properties = properties
            raise
        physical_id = answer.get("PhysicalResourceId", old.physical_resource_id)
        if physical_id != old.physical_resource_id:
            raise ValueError(f"{context.logical_id}: replacement by {physical_id} is not modelled")
        return self._resource(context, old.type, properties, physical_id, answer)

    def delete(self, resource: Resource, policy: str) -> None:
        if policy != "Delete":
            raise ValueError(f"DeletionPolicy {policy} of {resource.type} is not modelled")
        event = self._event("Delete", resource.context, resource.type, resource.properties)
        event["PhysicalResourceId"] = resource.physical_resource_id
        self.handle(resource.context, event)

    @abstractmethod
    def handle(self, context: Context, event: Event) -> Event:
        """Do what the event says, and return the function's answer."""

    def _event(self, kind: str, context: Context, type_name: str, properties: Properties) -> Event:
        return {
            "RequestType": kind,
            "RequestId": str(uuid.uuid4()),
            "StackId": context.stack_name,
            "LogicalResourceId": context.logical_id,
            "ResourceType": type_name,
            "ResourceProperties": as_text(properties),
        }

    def _resource(
        self,
        context: Context,
        type_name: str,
        properties: Properties,
        physical_id: str,
        answer: Event,
    ) -> Resource:
        known = {**answer.get("Data", {}), "Ref": physical_id}
        attributes = {name: json.dumps(name) for name in answer.get("Data", {})}
        return Resource(context, type_name, properties, physical_id, known, attributes)


@dataclass
class Clock:
    """In place of the module ``time``: waits take no time."""

    now: float = FIRST_TIME

    def time(self) -> float:
        return self.now


def _cluster_arn(context: Context, name: str) -> str:
    return str(sagemaker_backends[context.account_id][context.region].clusters[name].arn)


def _interface_arn(context: Context, interface_id: str) -> str:
    return f"arn:aws:ec2:{context.region}:{context.account_id}:network-interface/{interface_id}"


def _interface_keys(context: Context, interface_id: str) -> dict[str, str]:
    backend = ec2_backends[context.account_id][context.region]
    tags = backend.get_network_interface(interface_id).get_tags()
    return {f"aws:ResourceTag/{tag['key']}": tag["value"] for tag in tags}


Asked = Callable[[Context, Properties], tuple[str, dict[str, str]]]
"""ARN and condition keys of a call, by its parameters."""
ASKED: Mapping[str, Asked] = {
    "sagemaker:DescribeCluster": lambda c, p: (_cluster_arn(c, p["ClusterName"]), {}),
    "sagemaker:ListClusterNodes": lambda c, p: (_cluster_arn(c, p["ClusterName"]), {}),
    "ec2:DescribeNetworkInterfaces": lambda c, p: ("*", {}),
    "ec2:DeleteNetworkInterface": lambda c, p: (
        _interface_arn(c, p["NetworkInterfaceId"]),
        _interface_keys(c, p["NetworkInterfaceId"]),
    ),
}
"""Calls that the functions may make, if their role allows it; others are a KeyError."""


@dataclass(frozen=True)
class FunctionsBoto3:
    """In place of boto3 in a function: clients with the function's region and its role's permissions."""

    context: Context
    role: str

    def client(self, service: str) -> Client:
        session: Any = shared_session()  # its own types know services by literals only
        made = session.client(
            service,
            region_name=self.context.region,
            endpoint_url=os.environ["AWS_ENDPOINT_URL"],
        )
        made.meta.events.register("provide-client-params", self._check)
        return made

    def _check(self, params: Properties, model: Any, **_: Any) -> None:
        action = f"{model.service_model.endpoint_prefix.removeprefix('api.')}:{model.name}"
        arn, keys = ASKED[action](self.context, params)
        _require(self.context, self.role, action, arn, keys)


class OwnFunctions(CustomResource):
    """A resource of the project's own functions, which run here with the code that was deployed."""

    def handle(self, context: Context, event: Event) -> Event:
        framework = _function(context, event["ResourceProperties"]["ServiceToken"])
        clock = Clock()
        answer = self._run(context, _called(context, framework, ON_EVENT), clock, event)
        machine_arn = framework.environment_vars[STATE_MACHINE]
        _require(context, framework.role, "states:StartExecution", machine_arn)
        machine = stepfunctions_backends[context.account_id][context.region].describe_state_machine(
            machine_arn
        )
        task = json.loads(machine.definition)["States"]["framework-isComplete-task"]
        _require(context, machine.roleArn, "lambda:InvokeFunction", task["Resource"])
        asker = _called(context, _function(context, task["Resource"]), IS_COMPLETE)
        (retry,) = task["Retry"]
        for _ in range(retry["MaxAttempts"] + 1):
            told = self._run(context, asker, clock, {**event, **answer})
            if told["IsComplete"]:
                return {**answer, "Data": {**answer.get("Data", {}), **told.get("Data", {})}}
            clock.now += retry["IntervalSeconds"]
        raise TimeoutError("Operation timed out")

    def _run(self, context: Context, function: LambdaFunction, clock: Clock, event: Event) -> Event:
        """Call a function's handler; each call reads the code anew, as a new Lambda does."""
        file, _, handler = function.handler.partition(".")
        source = zipfile.ZipFile(io.BytesIO(function.code_bytes)).read(f"{file}.py")
        module = types.ModuleType(file)
        exec(compile(source, f"{function.function_name}/{file}.py", "exec"), module.__dict__)
        replaced = {"boto3": FunctionsBoto3(context, function.role), "time": clock}
        unknown = replaced.keys() - vars(module).keys()
        assert not unknown, f"{function.function_name} imports no {unknown}"
        vars(module).update(replaced)
        answer: Event = getattr(module, handler)(event, None)
        return answer


class Installer(CustomResource):
    """A resource of the CDK's function for kubectl and Helm, which is modelled here and never runs."""

    taken: frozenset[str]
    """Properties beyond the cluster and the function that the model heeds."""

    def handle(self, context: Context, event: Event) -> Event:
        properties = event["ResourceProperties"]
        unknown = properties.keys() - self.taken - {"ClusterName", "ServiceToken"}
        if unknown:
            raise ValueError(f"{context.logical_id}: {sorted(unknown)} is not modelled")
        function = _called(context, _function(context, properties["ServiceToken"]), ON_EVENT)
        assert function.description == INSTALLER, function.description
        plane = control_plane(context.account_id, context.region, properties["ClusterName"])
        _require(context, function.role, "eks:DescribeCluster", plane.arn)
        self._check_reach(context, function, plane)
        if not plane.is_administrator(function.role):
            raise PermissionError("error: You must be logged in to the server (Unauthorized)")
        return self.install(context, function, plane, event)

    @abstractmethod
    def install(
        self, context: Context, function: LambdaFunction, plane: ControlPlane, event: Event
    ) -> Event:
        """Do what the event says in the control plane.

        The function ignores refused deletions; here they fail, because the project should have none.
        """

    def _check_reach(self, context: Context, function: LambdaFunction, plane: ControlPlane) -> None:
        """Raise TimeoutError for a function outside of the network of a private control plane."""
        place = function.vpc_config
        groups = plane.settings["resourcesVpcConfig"]["securityGroupIds"]
        inside = bool(place and {*place["SecurityGroupIds"]} & {*groups})
        if not (inside or plane.settings["resourcesVpcConfig"]["endpointPublicAccess"]):
            raise TimeoutError(f"{function.function_name} does not reach {plane.arn}: i/o timeout")


class Manifest(Installer):
    taken = frozenset({"Manifest", "Overwrite", "PruneLabel"})

    def install(
        self, context: Context, function: LambdaFunction, plane: ControlPlane, event: Event
    ) -> Event:
        properties = event["ResourceProperties"]
        objects = json.loads(properties["Manifest"])
        if event["RequestType"] == "Delete":
            plane.kubernetes.delete(objects)
        elif event["RequestType"] == "Update":
            plane.kubernetes.apply(objects, prune=properties.get("PruneLabel"))
        elif properties.get("Overwrite") == "true":
            plane.kubernetes.apply(objects)
        else:
            raise ValueError(f"{context.logical_id}: kubectl create is not modelled")
        return {}


class Chart(Installer):
    taken = frozenset({"ChartAssetURL", "CreateNamespace", "Namespace", "Release", "Values"})

    def install(
        self, context: Context, function: LambdaFunction, plane: ControlPlane, event: Event
    ) -> Event:
        properties = event["ResourceProperties"]
        place = (properties["Namespace"], properties["Release"])
        if event["RequestType"] == "Delete":
            plane.kubernetes.uninstall(*place)
            return {}
        bucket, _, key = properties["ChartAssetURL"].removeprefix("s3://").partition("/")
        _require(context, function.role, "s3:GetObject", f"arn:aws:s3:::{bucket}/{key}")
        chart = s3_backends[context.account_id]["aws"].get_object(bucket, key)
        if chart is None:
            raise ValueError(f"there is no object {properties['ChartAssetURL']}")
        create = properties.get("CreateNamespace") == "true"
        values = json.loads(properties["Values"])
        plane.kubernetes.upgrade(*place, chart.value, values, create=create)
        return {}


class ReadyNodes(Installer):
    """The one value that the project asks for: how many pods of a DaemonSet run."""

    taken = frozenset({"JsonPath", "ObjectName", "ObjectNamespace", "ObjectType", "TimeoutSeconds"})

    def install(
        self, context: Context, function: LambdaFunction, plane: ControlPlane, event: Event
    ) -> Event:
        if event["RequestType"] == "Delete":
            return {}
        properties = event["ResourceProperties"]
        if (properties["ObjectType"], properties["JsonPath"]) != (
            "daemonset",
            ".status.numberAvailable",
        ):
            raise ValueError(f"{context.logical_id}: {properties['JsonPath']} is not modelled")
        name, namespace = properties["ObjectName"], properties["ObjectNamespace"]
        nodes = plane.ready_nodes()
        # Without nodes, the object has no such field.
        if Key("DaemonSet", namespace, name) not in plane.kubernetes.objects or not nodes:
            raise Refused(f"Timeout waiting for output from kubectl command: {namespace}/{name}")
        return {"Data": {"Value": str(nodes)}}


CUSTOM_TYPES: dict[str, ResourceType] = {
    "Custom::AWSCDK-EKS-HelmChart": Chart(),
    "Custom::AWSCDK-EKS-KubernetesObjectValue": ReadyNodes(),
    "Custom::AWSCDK-EKS-KubernetesResource": Manifest(),
    "Custom::HyperPodNodes": OwnFunctions(),
    "Custom::HyperPodPodInterfaces": OwnFunctions(),
}
