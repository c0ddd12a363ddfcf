"""Print an EKS cluster's token for kubectl: ``python -m tools.kubernetes.eks_token --name N --region R``.

The token equals that of the AWS command line: a presigned STS call, which EKS's control plane sends to learn
the caller's identity (kubernetes-sigs/aws-iam-authenticator, "API Authorization from Outside a Cluster").
"""

import argparse
import base64
import json
from datetime import UTC, datetime, timedelta

import boto3

from tools.aws_session import open_session
from tools.command_line import run_command

PREFIX = "k8s-aws-v1."
"""Start of a token, before the URL in base64."""
CLUSTER_HEADER = "x-k8s-aws-id"
"""Header with the cluster's name, which is part of the signature."""
PRESIGNED_SECONDS = 60
"""Validity of the URL for other callers than EKS."""
LIFETIME = timedelta(minutes=14)
"""EKS accepts a token for 15 minutes after its signature."""
API_VERSION = "client.authentication.k8s.io/v1"


def main() -> int:
    parser = argparse.ArgumentParser(description="Print a token for kubectl, as ExecCredential.")
    parser.add_argument("--name", required=True, help="name of the EKS cluster")
    parser.add_argument("--region", required=True, help="region of the EKS cluster")
    parser.add_argument("--profile", help="profile of the aws command to use")
    options = parser.parse_args()
    session = open_session(region=options.region, profile=options.profile)
    ends = datetime.now(UTC) + LIFETIME
    status = {
        "token": token(session, options.name),
        "expirationTimestamp": ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    print(
        json.dumps(
            {"apiVersion": API_VERSION, "kind": "ExecCredential", "spec": {}, "status": status}
        )
    )
    return 0


def token(session: boto3.Session, cluster_name: str) -> str:
    """Return a token that is valid for 15 minutes, for this cluster only.

    Raises:
        NoCredentialsError: if there are no credentials to sign with.
    """
    sts = session.client("sts")
    sts.meta.events.register(
        "before-sign.sts.GetCallerIdentity",
        lambda request, **_: request.headers.add_header(CLUSTER_HEADER, cluster_name),
    )
    url = sts.generate_presigned_url(
        "get_caller_identity", ExpiresIn=PRESIGNED_SECONDS, HttpMethod="GET"
    )
    return PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


if __name__ == "__main__":
    run_command(main)
