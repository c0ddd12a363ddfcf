"""EKS add-ons and their versions, for each Kubernetes version that a cluster file may request.

`aws eks describe-addon-versions --kubernetes-version 1.34 --addon-name <name>` prints the offered versions.
Most add-on versions support several Kubernetes versions.
"""

from collections.abc import Mapping

from config.kubernetes import KUBERNETES_VERSIONS

VPC_CNI = "vpc-cni"
KUBE_PROXY = "kube-proxy"
POD_IDENTITY_AGENT = "eks-pod-identity-agent"
COREDNS = "coredns"
CERT_MANAGER = "cert-manager"
LUSTRE_DRIVER = "aws-fsx-csi-driver"
TRAINING_OPERATOR = "amazon-sagemaker-hyperpod-training-operator"
TASK_GOVERNANCE = "amazon-sagemaker-hyperpod-taskgovernance"
OBSERVABILITY = "amazon-sagemaker-hyperpod-observability"
CONTAINER_INSIGHTS = "amazon-cloudwatch-observability"

_FOR_EVERY_VERSION = {
    # Versions from 1.21.1 support the cluster-wide policies that keep pods from the nodes' credentials.
    VPC_CNI: "v1.21.1-eksbuild.1",
    POD_IDENTITY_AGENT: "v1.3.10-eksbuild.1",
    COREDNS: "v1.12.4-eksbuild.1",
    CERT_MANAGER: "v1.18.2-eksbuild.2",
    LUSTRE_DRIVER: "v1.8.0-eksbuild.1",
    TRAINING_OPERATOR: "v1.2.1-eksbuild.1",
    TASK_GOVERNANCE: "v1.6.0-eksbuild.1",
    OBSERVABILITY: "v1.0.5-eksbuild.2",
    CONTAINER_INSIGHTS: "v5.3.0-eksbuild.1",
}

ADDON_VERSIONS: Mapping[str, Mapping[str, str]] = {
    version: {**_FOR_EVERY_VERSION, KUBE_PROXY: facts.kube_proxy}
    for version, facts in KUBERNETES_VERSIONS.items()
}


def addon_version(kubernetes_version: str, name: str) -> str | None:
    """Return the version of an add-on.

    None has EKS choose: kube-proxy follows a Kubernetes version that the table lacks.
    """
    if kubernetes_version in ADDON_VERSIONS:
        return ADDON_VERSIONS[kubernetes_version][name]
    return None if name == KUBE_PROXY else _FOR_EVERY_VERSION[name]
