"""The typed form of an endpoint file: one model behind SageMaker's contract, there or on the EKS cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from config import text_forms as forms
from config.cluster import LogDays
from config.section import Section


class Instances(Section):
    """How many, scaled by load."""

    min: Annotated[int, Field(ge=1, le=1000)] = 1
    """Two or more spread over zones, and survive the loss of one."""
    max: Annotated[int, Field(ge=1, le=1000)] = 4
    invocations_per_minute: Annotated[int, Field(ge=1)] = 600
    """Of one instance, which scaling aims at: three quarters of what a load test finds it to bear."""
    scale_out_seconds: Annotated[int, Field(ge=0, le=3600)] = 60
    """Rest after instances were added."""
    scale_in_seconds: Annotated[int, Field(ge=0, le=3600)] = 600
    """Rest after instances were removed."""


class EndpointVpc(Section):
    """Private subnets of the instances' interfaces; they need a way to S3, as a gateway endpoint."""

    vpc_id: Annotated[str, forms.field(forms.VPC_ID)]
    subnet_ids: Annotated[
        list[Annotated[str, forms.field(forms.SUBNET_ID)]], Field(min_length=1, max_length=16)
    ]


class Capture(Section):
    """Requests and answers written to S3, proteins and all."""

    to: Annotated[str, forms.field(forms.S3_FOLDER)]
    percent: Annotated[int, Field(ge=1, le=100)] = 100
    """Of the requests."""


class Alarms(Section):
    email: Annotated[str, forms.field(forms.EMAIL)] | None = None
    """Who is told; null sets the alarms, which updates roll back by, and tells nobody."""
    latency_seconds: Annotated[int, Field(ge=1, le=60)] = 10
    """For the model's 95th percentile."""


class Limits(Section):
    """What the server admits; null leaves the server's own (docs/serving.md)."""

    max_body_bytes: Annotated[int, Field(ge=1024, le=25 << 20)] | None = None
    max_proteins: Annotated[int, Field(ge=1, le=100_000)] | None = None
    max_residues: Annotated[int, Field(ge=1, le=100_000)] | None = None
    tokens_per_pack: Annotated[int, Field(ge=64, le=1 << 20)] | None = None
    max_waiting_residues: Annotated[int, Field(ge=1, le=1 << 40)] | None = None
    timeout_seconds: Annotated[int, Field(ge=1, le=3600)] | None = None
    drain_seconds: Annotated[int, Field(ge=0, le=300)] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the container (``workloads/esm2/serving/settings.py`` reads them)."""
        given = self.model_dump(exclude_none=True)
        return {f"ESM2_SERVE_{name.upper()}": str(value) for name, value in given.items()}


class KubernetesService(Section):
    """The same server as pods of the EKS cluster."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 2
    gpus: Annotated[int, Field(ge=0, le=1)] = 1
    """Of a pod; the server uses one."""
    cpus: Annotated[int, Field(ge=1, le=192)] = 4
    """Of a pod."""
    memory_gib: Annotated[int, Field(ge=2, le=2048)] = 16
    """Of a pod."""


class Endpoint(Section):
    """One model to be served."""

    name: Annotated[str, forms.field(forms.CLUSTER_NAME, max_length=40)]
    """What clients invoke."""
    region: str
    """Where it is, as us-west-2."""
    image: Annotated[str, forms.field(forms.ECR_IMAGE, max_length=255)]
    """By digest, in the endpoint's region; usually given at deployment, -c image=..."""
    model: Annotated[str, forms.field(forms.MODEL, max_length=1024)]
    """Files of a model, as runs/<run>/model, as they are or as an archive; usually given at deployment,
    -c model=s3://... For EKS a path on the cluster's file system, MODEL=/fsx/..."""
    instance_type: str
    """As ml.g5.xlarge; config/facts/instance_catalogue.py lists those that the image runs on."""
    instances: Instances = Instances()
    kms: Annotated[str, forms.field(forms.KMS)] = "aws"
    """Key of volumes, logs and captured requests: the services' (aws), a new one (create), or an ARN."""
    model_key_arn: Annotated[str, forms.field(forms.KEY_ARN)] | None = None
    """Key that the model's objects are encrypted with, if not S3's own."""
    vpc: EndpointVpc | None = None
    """Null leaves instances in SageMaker's network. In either case containers reach nothing."""
    capture: Capture | None = None
    """Null writes no request down."""
    log_days: LogDays = 30
    startup_seconds: Annotated[int, Field(ge=60, le=3600)] = 600
    """From the container's start until it answers /ping; the 15B model is read for minutes."""
    alarms: Alarms = Alarms()
    limits: Limits = Limits()
    kubernetes: KubernetesService | None = None
    """For make serve TARGET=eks; null where it is for SageMaker alone."""
    tags: dict[str, str] = Field(default={})
