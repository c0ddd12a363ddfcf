"""Forms of strings in a cluster file, each with a pattern, its meaning and examples.

Editors read pattern and example from the JSON schema. Error messages contain the meaning and an example.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import Field


@dataclass(frozen=True)
class Form:
    pattern: str
    meaning: str
    examples: tuple[str, str]
    """Two different examples."""


FORMS: dict[str, Form] = {}
"""Forms by pattern, which pydantic's validation errors contain."""


def _form(pattern: str, meaning: str, examples: tuple[str, str]) -> Form:
    assert pattern not in FORMS, "an error names its form by the pattern alone"
    form = Form(pattern, meaning, examples)
    FORMS[pattern] = form
    return form


def _id_form(prefix: str, what: str, *, digits: str = "0-9a-f") -> Form:
    """Register the form of an EC2 id."""
    examples = (f"{prefix}-0123456789abcdef0", f"{prefix}-0fedcba9876543210")
    return _form(rf"^{prefix}-[{digits}]{{8,17}}$", f"{what} is given by its id", examples)


def field(form: Form, *, max_length: int | None = None) -> Any:
    """Return the pydantic field of a string in this form; ``max_length`` is in characters."""
    return Field(pattern=form.pattern, max_length=max_length, examples=list(form.examples))


# This is stricter than SageMaker's [a-zA-Z0-9](-*[a-zA-Z0-9])*. Buckets and repositories require lower case,
# CloudFormation stacks and RDS identifiers begin with a letter, and RDS rejects two hyphens in a row.
CLUSTER_NAME = _form(
    r"^[a-z](-?[a-z0-9])*$",
    "lower-case letters, digits and single hyphens between them are allowed, a letter first",
    ("esm2-slurm", "team-a"),
)
GROUP_NAME = _form(
    r"^[a-z0-9](-*[a-z0-9])*$",
    "lower-case letters, digits and hyphens between them are allowed",
    ("workers", "p5"),
)
PARTITION = _form(
    r"^[a-zA-Z0-9](-*[a-zA-Z0-9])*$",
    "letters, digits and hyphens between them are allowed",
    ("gpu", "cpu"),
)
ZONE_ID = _form(
    r"^[a-z]{3,4}\d-([a-z]{3}\d-)?az\d$",
    "zones are given by id, because names differ between accounts",
    ("usw2-az2", "use1-az6"),
)
CIDR = _form(
    r"^\d{1,3}(\.\d{1,3}){3}/\d{1,2}$",
    "a range is an IPv4 address and a prefix length",
    ("10.0.0.0/16", "172.20.0.0/20"),
)
PUBLIC_CIDR = _form(
    r"^(\d{1,3}\.){3}\d{1,3}/\d{1,2}$",
    "a range is an IPv4 address and a prefix length",
    ("203.0.113.0/24", "203.0.113.7/32"),
)
MOUNT_PATH = _form(
    r"^/[a-z0-9_-]+(/[a-z0-9_-]+)*$",
    "a path is absolute, of lower-case letters, digits, _ and -, without a slash at its end",
    ("/fsx", "/data"),
)
VPC_ID = _id_form("vpc", "a VPC")
SUBNET_ID = _id_form("subnet", "a subnet")
ROUTE_TABLE_ID = _id_form("rtb", "a route table")
# ARNs are of the partition aws, which has all regions of config/facts/regions.py.
KMS = _form(
    r"^(aws|create|arn:aws:kms:[a-z0-9-]+:\d{12}:key/(mrk-[0-9a-f]{32}|[0-9a-f-]{36}))$",
    "aws (service keys), create (a new key) or a key's ARN (not an alias) is allowed",
    ("aws", "create"),
)
ECR_IMAGE = _form(
    r"^\d{12}\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com/[a-z0-9]([a-z0-9._/-]*[a-z0-9])?@sha256:[0-9a-f]{64}$",
    "an image is given by digest, <account>.dkr.ecr.<region>.amazonaws.com/<repository>@sha256:<64 digits>,"
    " as make push prints it",
    (
        f"123456789012.dkr.ecr.us-west-2.amazonaws.com/esm2/training@sha256:{'0' * 64}",
        f"210987654321.dkr.ecr.us-east-1.amazonaws.com/team/training@sha256:{'f' * 64}",
    ),
)
MODEL = _form(
    r"^(s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/([\w!.()/=-]+/|[\w!.()/=-]+\.tar\.gz)|(/[\w.=-]+)+)$",
    "a model is given as s3://<bucket>/<folder>/, as an archive, s3://<bucket>/<key>.tar.gz, or for EKS as a"
    " path on the cluster's file system",
    ("s3://proteins/models/localization/", "s3://proteins/models/localization.tar.gz"),
)
S3_FOLDER = _form(
    r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/([\w!.()=-]+/)*[\w!.()=-]+$",
    "a folder of a bucket is given as s3://<bucket>/<folder>",
    ("s3://proteins/captured", "s3://proteins/endpoints/captured"),
)
KEY_ARN = _form(
    r"^arn:aws:kms:[a-z0-9-]+:\d{12}:key/(mrk-[0-9a-f]{32}|[0-9a-f-]{36})$",
    "a key is given by its ARN, not by an alias",
    (
        "arn:aws:kms:us-west-2:123456789012:key/0a1b2c3d-0000-1111-2222-333344445555",
        "arn:aws:kms:us-east-1:123456789012:key/mrk-0123456789abcdef0123456789abcdef",
    ),
)
TRAINING_PLAN_ARN = _form(
    r"^arn:aws:sagemaker:[a-z0-9-]+:\d{12}:training-plan/[a-zA-Z0-9](-*[a-zA-Z0-9]){0,63}$",
    "a plan is given by its ARN, which `make plans-list` prints",
    (
        "arn:aws:sagemaker:us-east-1:123456789012:training-plan/esm2-p5",
        "arn:aws:sagemaker:us-west-2:123456789012:training-plan/esm2-trn2",
    ),
)
IMAGE_ID = _id_form("ami", "an image", digits="0-9a-fA-F")
KUBERNETES_VERSION = _form(
    r"^1\.(3[3-9]|[4-9][0-9])$",
    "a version is text in quotes, 1.33 or later",
    ("1.34", "1.33"),
)
DATABASE_CLASS = _form(
    r"^db\.[a-z0-9]+\.[a-z0-9]+$",
    "classes of RDS begin with db.",
    ("db.t4g.medium", "db.m6g.large"),
)
EMAIL = _form(
    r"^[A-Za-z0-9.!#$%&'*+/=?^_{|}~-]+@[A-Za-z0-9.-]+\.[A-Za-z0-9-]+$",
    "one mail address is allowed",
    ("hpc-budget@example.com", "platform@example.com"),
)
LOWER_CASE_NAME = _form(
    r"^[a-z][a-z0-9_-]*$",
    "lower-case letters, digits, _ and - are allowed, a letter first",
    ("ada", "proteins"),
)
SLURM_TIME = _form(
    r"^\d{1,3}-([01]\d|2[0-3]):[0-5]\d$",
    "a time is days-hours:minutes",
    ("7-00:00", "0-12:00"),
)
PRINCIPAL_ARN = _form(
    r"^arn:aws:iam::\d{12}:(role|user)/[\w+=,.@/-]+$",
    "a role or a user of IAM is given by its ARN",
    ("arn:aws:iam::123456789012:role/platform", "arn:aws:iam::123456789012:user/ada"),
)
EKS_CLUSTER = _form(
    r"^[0-9A-Za-z][A-Za-z0-9_-]*$",
    "an EKS cluster is given by its name",
    ("lab-eks", "platform_prod"),
)
ROLE = _form(
    r"^(arn:aws:iam::\d{12}:role/[\w+=,.@/-]+|[\w+=,.@-]{1,64})$",
    "a role of IAM is given by its name, or by its ARN if it has a path",
    ("hpc-node", "arn:aws:iam::123456789012:role/hpc/node"),
)
POLICY_ARN = _form(
    r"^arn:aws:iam::(aws|\d{12}):policy/[\w+=,.@/-]+$",
    "a policy of IAM is given by its ARN",
    (
        "arn:aws:iam::123456789012:policy/team-boundary",
        "arn:aws:iam::123456789012:policy/platform/hpc-boundary",
    ),
)
IAM_PATH = _form(
    r"^/([\w+=,.@-]+/)*$",
    "a path of IAM begins and ends with a slash",
    ("/hpc/", "/teams/proteins/"),
)
ROLE_NAME_PREFIX = _form(
    r"^[A-Za-z][\w+=,.@-]*$",
    "letters, digits and any of _+=,.@- are allowed, a letter first",
    ("hpc-", "TeamProteins-"),
)
NAMESPACE = _form(
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
    "a namespace has lower-case letters, digits and hyphens between them",
    ("hyperpod-ns-proteins", "kubeflow"),
)
# A letter comes first, which is stricter than SageMaker's form, so that YAML reads no name as a number.
TEAM_NAME = _form(
    r"^[a-z](-*[a-z0-9])*$",
    "lower-case letters, digits and hyphens between them are allowed, the first a letter",
    ("proteins", "structure"),
)
# SageMaker's ClusterKubernetesLabelKey, with Kubernetes's limit of 63 characters after the slash.
LABEL_KEY = _form(
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
    "a key is up to 63 letters, digits, - _ and ., after a domain and a slash if wanted",
    ("example.com/purpose", "purpose"),
)
LABEL_VALUE = _form(
    r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
    "1 to 63 letters, digits, - _ and . are allowed, with a letter or digit at both ends",
    ("training", "a10g"),
)
RELEASE_VERSION = _form(
    r"^\d+\.\d+\.\d+$",
    "a release is three numbers",
    ("1.2.3", "2.0.10"),
)
# The pattern of CloudFormation's ScheduleExpression, with a question mark for exactly one kind of day.
_MONTH = r"([1-9]|0[1-9]|1[0-2]|\*|\*/([1-9]|1[0-2]))"
_DAY_OF_MONTH = r"([1-9]|0[1-9]|[12][0-9]|3[01])"
_DAY_OF_WEEK = r"(MON|TUE|WED|THU|FRI|SAT|SUN|[1-7]|L|[1-7]#[1-5]|[1-7]L)"
CRON = _form(
    r"^cron\(([0-5][0-9]|[0-9]) ([01][0-9]|2[0-3]|[0-9]) "
    rf"({_DAY_OF_MONTH} {_MONTH} \?|\? {_MONTH} {_DAY_OF_WEEK}) (20[2-9][0-9]|\*)\)$",
    "a schedule is cron(minute hour day month weekday year) in UTC, with ? for day or weekday",
    ("cron(0 3 ? * SUN *)", "cron(30 22 1 * ? *)"),
)
ALARM_NAME = _form(
    r"^\S(.*\S)?$",
    "an alarm of CloudWatch is given by its name",
    ("trainings-stalled", "gpu-errors"),
)
GRAFANA_PRINCIPAL = _form(
    r"^[^\s,\x00-\x1f\x7f-\x9f]([^,\x00-\x1f\x7f-\x9f\u2028\u2029]*[^\s,\x00-\x1f\x7f-\x9f])?$",
    "one user, group or role is allowed, without commas",
    (
        "group/9067f2a1b2-0a1b2c3d-0000-1111-2222-333344445555",
        "user/0a1b2c3d-0000-1111-2222-333344445555",
    ),
)
HTTPS_URL = _form(
    r"^https://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]*)?$",
    "an address that begins with https:// is allowed, without a user or password",
    ("https://idp.example.com/app/metadata", "https://sso.example.com/saml/metadata.xml"),
)
ATTRIBUTE_NAME = _form(
    r"^[!-~]+$",
    "attribute names have ASCII characters only, without spaces",
    ("role", "http://schemas.example.com/claims/groups"),
)
SECURITY_GROUP_ID = _id_form("sg", "a security group")
SECRET_ARN = _form(
    r"^arn:aws:secretsmanager:[a-z0-9-]+:\d{12}:secret:[\w/+=.@-]+-[A-Za-z0-9]{6}$",
    "a secret is given by its ARN, with the six characters at its end",
    (
        "arn:aws:secretsmanager:us-west-2:123456789012:secret:slurm-AbCdEf",
        "arn:aws:secretsmanager:us-east-1:123456789012:secret:hpc/slurm-0aB1cD",
    ),
)
PROXY_URL = _form(
    r"^https?://[A-Za-z0-9.-]+:[0-9]{1,5}$",
    "a proxy is given as http://<host>:<port>, without a user or password",
    ("http://proxy.example.com:3128", "http://10.7.0.5:8080"),
)
PROXY_EXCEPTION = _form(
    r"^[A-Za-z0-9.*-]+(/[0-9]{1,2})?$",
    "a host, a domain with a dot at its beginning, or an address range is allowed",
    (".example.com", "repository.example.com"),
)
HOST_NAME = _form(
    r"^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)+$",
    "a server is given by its DNS name",
    ("slurm.c0ffee.us-west-2.rds.amazonaws.com", "mariadb.hpc.example.com"),
)
DATABASE_SCHEMA = _form(
    r"^[A-Za-z0-9$_]+$",
    "a schema has letters, digits, $ and _",
    ("slurm_acct_esm2_slurm", "slurm_acct_db"),
)
FILE_SYSTEM_ID = _id_form("fs", "a file system of FSx")
MOUNT_NAME = _form(
    r"^[a-z0-9_]{1,8}$",
    "the name under which Lustre is mounted has up to 8 lower-case letters and digits",
    ("fsx", "abcdev4v"),
)
BUCKET_NAME = _form(
    r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$",
    "a bucket is given by its name, without s3://",
    ("esm2-slurm-slurm-storage-data0123abcd", "lab-proteins"),
)
