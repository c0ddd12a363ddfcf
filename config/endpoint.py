"""Typed endpoint file: one model behind SageMaker's contract, on SageMaker or on the EKS cluster."""

from typing import Annotated

from pydantic import Field

from config import text_forms as forms
from config.cluster import Iam, LogDays
from config.section import Section


class Instances(Section):
    """Number of instances, scaled by load."""

    min: Annotated[int, Field(ge=1, le=1000)] = 1
    """Fewest instances. Two or more are spread over zones and survive the loss of one zone."""
    max: Annotated[int, Field(ge=1, le=1000)] = 4
    invocations_per_minute: Annotated[int, Field(ge=1)] = 600
    """Requests per instance and minute that scaling aims for: three quarters of a load test's maximum."""
    scale_out_seconds: Annotated[int, Field(ge=0, le=3600)] = 60
    """Pause after instances were added."""
    scale_in_seconds: Annotated[int, Field(ge=0, le=3600)] = 600
    """Pause after instances were removed."""


class EndpointVpc(Section):
    """Private subnets of the instances' interfaces; they need access to S3 (gateway endpoint)."""

    vpc_id: Annotated[str, forms.field(forms.VPC_ID)]
    subnet_ids: Annotated[
        list[Annotated[str, forms.field(forms.SUBNET_ID)]], Field(min_length=1, max_length=16)
    ]


class Capture(Section):
    """Capture of requests and responses, including proteins, in S3."""

    to: Annotated[str, forms.field(forms.S3_FOLDER)]
    percent: Annotated[int, Field(ge=1, le=100)] = 100
    """Share of the requests that is captured."""


class Alarms(Section):
    email: Annotated[str, forms.field(forms.EMAIL)] | None = None
    """Address that receives alarms. Null notifies no one; alarms still roll back failed updates."""
    latency_seconds: Annotated[int, Field(ge=1, le=60)] = 10
    """Alarm threshold for the 95th percentile of the model's latency."""


class Limits(Section):
    """Limits of the server; null keeps the server's defaults (docs/serving.md)."""

    max_body_bytes: Annotated[int, Field(ge=1024, le=25 << 20)] | None = None
    max_proteins: Annotated[int, Field(ge=1, le=100_000)] | None = None
    max_residues: Annotated[int, Field(ge=1, le=100_000)] | None = None
    tokens_per_pack: Annotated[int, Field(ge=64, le=1 << 20)] | None = None
    max_waiting_residues: Annotated[int, Field(ge=1, le=1 << 40)] | None = None
    timeout_seconds: Annotated[int, Field(ge=1, le=3600)] | None = None
    drain_seconds: Annotated[int, Field(ge=0, le=300)] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the container, read by ``seqlm.proteins.serving.settings``."""
        given = self.model_dump(exclude_none=True)
        return {f"ESM2_SERVE_{name.upper()}": str(value) for name, value in given.items()}


class KubernetesService(Section):
    """The same server as pods on the EKS cluster."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 2
    gpus: Annotated[int, Field(ge=0, le=1)] = 1
    """GPUs per pod; the server uses one."""
    cpus: Annotated[int, Field(ge=1, le=192)] = 4
    """CPUs per pod."""
    memory_gib: Annotated[int, Field(ge=2, le=2048)] = 16
    """Memory per pod."""


class Endpoint(Section):
    """Endpoint that serves one model."""

    name: Annotated[str, forms.field(forms.CLUSTER_NAME, max_length=40)]
    """Name that clients invoke."""
    region: str
    """AWS region, for example us-west-2."""
    image: Annotated[str, forms.field(forms.ECR_IMAGE, max_length=255)]
    """Container image by digest, in the endpoint's region; usually given at deployment with -c image=..."""
    model: Annotated[str, forms.field(forms.MODEL, max_length=1024)]
    """Model files (content of runs/<run>/model) as a folder or an archive; usually given at deployment with
    -c model=s3://... For EKS, a path on the cluster's file system, given with MODEL=/fsx/..."""
    instance_type: str
    """Instance type, such as ml.g5.xlarge; config/facts/instance_catalogue.py lists the supported types."""
    instances: Instances = Instances()
    kms: Annotated[str, forms.field(forms.KMS)] = "aws"
    """Key of volumes, logs and captured requests: the services' own (aws), a new one (create), or an ARN."""
    model_key_arn: Annotated[str, forms.field(forms.KEY_ARN)] | None = None
    """Key that encrypts the model's objects, if it is not S3's own."""
    vpc: EndpointVpc | None = None
    """VPC of the instances; null is SageMaker's network. Containers have no network access in either."""
    capture: Capture | None = None
    """Capture of requests; null captures none."""
    iam: Iam = Iam()
    """Permissions boundary, path and name prefix of the endpoint's role."""
    log_days: LogDays = 30
    startup_seconds: Annotated[int, Field(ge=60, le=3600)] = 600
    """Most seconds from the container's start until it answers /ping; loading the 15B model takes minutes."""
    alarms: Alarms = Alarms()
    limits: Limits = Limits()
    kubernetes: KubernetesService | None = None
    """Settings for make serve TARGET=eks; null if the file is for SageMaker only."""
    tags: dict[str, str] = Field(default={})
