"""CloudFormation's functions evaluated, with plausible values for what only a deployment knows."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from tests.stacks.synthesized import Templates

ACCOUNT = "123456789012"
_ARN = {
    "AWS::IAM::Role": "arn:aws:iam::{account}:role/{id}",
    "AWS::ECR::Repository": "arn:aws:ecr:{region}:{account}:repository/{id}",
    "AWS::KMS::Key": "arn:aws:kms:{region}:{account}:key/1234abcd-12ab-34cd-56ef-1234567890ab",
    "AWS::S3::Bucket": "arn:aws:s3:::{id}",
    "AWS::APS::Workspace": "arn:aws:aps:{region}:{account}:workspace/ws-0123",
    "AWS::Logs::LogGroup": "arn:aws:logs:{region}:{account}:log-group:{id}:*",
    "AWS::EKS::Cluster": "arn:aws:eks:{region}:{account}:cluster/{id}",
    "AWS::SageMaker::MlflowApp": "arn:aws:sagemaker:{region}:{account}:mlflow-app/app-ABCDEFGHIJKL",
    "AWS::SQS::Queue": "arn:aws:sqs:{region}:{account}:{id}",
    "AWS::Lambda::Function": "arn:aws:lambda:{region}:{account}:function:{id}",
}
_SECRET = "arn:aws:secretsmanager:{region}:{account}:secret:accounting-AbCdEf"
_REF = {
    "AWS::EC2::VPC": "vpc-0123456789abcdef0",
    "AWS::EC2::Subnet": "subnet-0123456789abcdef0",
    "AWS::FSx::FileSystem": "fs-0123456789abcdef0",
    "AWS::SecretsManager::Secret": _SECRET,
    "AWS::SecretsManager::SecretTargetAttachment": _SECRET,
}
_ATTRIBUTE = {
    ("AWS::EC2::SecurityGroup", "GroupId"): "sg-0123456789abcdef0",
    ("AWS::FSx::FileSystem", "DNSName"): "fs-0123456789abcdef0.fsx.{region}.amazonaws.com",
    ("AWS::FSx::FileSystem", "LustreMountName"): "abcdefgh",
    ("AWS::RDS::DBInstance", "Endpoint.Address"): "accounting.c0ffee.{region}.rds.amazonaws.com",
    ("AWS::APS::Workspace", "PrometheusEndpoint"): (
        "https://aps-workspaces.{region}.amazonaws.com/workspaces/ws-0123/"
    ),
    ("AWS::APS::Workspace", "WorkspaceId"): "ws-0123",
    ("AWS::Grafana::Workspace", "Id"): "g-0123456789",
    (
        "AWS::Grafana::Workspace",
        "Endpoint",
    ): "g-0123456789.grafana-workspace.{region}.amazonaws.com",
    ("AWS::SageMaker::MlflowTrackingServer", "TrackingServerArn"): (
        "arn:aws:sagemaker:{region}:{account}:mlflow-tracking-server/{id}"
    ),
    ("AWS::SageMaker::Domain", "DomainId"): "d-0123456789ab",
    ("AWS::SageMaker::StudioLifecycleConfig", "StudioLifecycleConfigArn"): (
        "arn:aws:sagemaker:{region}:{account}:studio-lifecycle-config/start"
    ),
    ("AWS::SageMaker::Model", "ModelName"): "model-abcdefghij12",
    ("AWS::SageMaker::EndpointConfig", "EndpointConfigName"): "config-abcdefghij12",
    (
        "AWS::SageMaker::Cluster",
        "ClusterArn",
    ): "arn:aws:sagemaker:{region}:{account}:cluster/abcdefghij12",
}


class Evaluator:
    """Evaluates what stands in the templates of one cluster."""

    def __init__(self, templates: Templates, region: str) -> None:
        self.region = region
        self._types = {
            name: resource["Type"]
            for template in templates.values()
            for name, resource in template["Resources"].items()
        }
        self._exports = {
            output["Export"]["Name"]: output["Value"]
            for template in templates.values()
            for output in template.get("Outputs", {}).values()
            if "Export" in output
        }

    def __call__(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self(item) for item in value]
        if not isinstance(value, dict):
            return value
        match list(value.items()):
            case [("Ref", str(name))]:
                return self._ref(name)
            case [("Fn::GetAtt", [name, attribute])]:
                return self._attribute(name, attribute)
            case [("Fn::ImportValue", name)]:
                return self(self._exports[name])
            case [("Fn::Join", [separator, parts])]:
                return separator.join(str(part) for part in self(parts))
            case [("Fn::Base64", text)]:
                return base64.b64encode(self(text).encode()).decode()
            case [("Fn::Select", [index, items])]:
                return self(items)[int(index)]
            case [("Fn::Sub", str(text))]:
                return re.sub(r"\$\{([^}]+)\}", lambda found: self._ref(found[1]), text)
            case [("Fn::If", [_, yes, _])]:
                return self(yes)
            case [("Fn::Split", [separator, text])]:
                return self(text).split(separator)
            case [(function, _)] if function.startswith("Fn::"):
                raise NotImplementedError(json.dumps(value))
        return {name: self(item) for name, item in value.items()}

    def _ref(self, name: str) -> str:
        pseudo = {
            "AWS::AccountId": ACCOUNT,
            "AWS::Region": self.region,
            "AWS::Partition": "aws",
            "AWS::URLSuffix": "amazonaws.com",
        }
        if name in pseudo:
            return pseudo[name]
        kind = self._types[name]
        return self._filled(_REF.get(kind, "{id}"), name)

    def _attribute(self, name: str, attribute: str) -> str:
        kind = self._types[name]
        return self._filled(_ARN[kind] if attribute == "Arn" else _ATTRIBUTE[kind, attribute], name)

    def _filled(self, form: str, name: str) -> str:
        return form.format(account=ACCOUNT, region=self.region, id=name)
