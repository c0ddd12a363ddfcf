"""Names of what jobs find in an EKS cluster: for the constructs that make it and the tools that submit."""

from __future__ import annotations

from config.eks_cluster import EksCluster
from config.task_governance import team_namespace

COMMON_NAMESPACE = "hyperpod-training"
"""Where jobs run without teams. HyperPod resumes jobs by itself in kubeflow and in hyperpod* (SageMaker
developer guide, "Automatic node recovery and auto-resume")."""
POD_SECURITY = {"pod-security.kubernetes.io/enforce": "baseline"}
"""Labels of namespaces of jobs, whose pods need nothing of the node's own: in its network, or with its files,
they would have its credentials."""
LUSTRE_CLAIM = "fsx"
"""The PersistentVolumeClaim of the Lustre file system, of this name in every namespace of jobs."""
LUSTRE_STORAGE_CLASS = "fsx-lustre"
JOB_SERVICE_ACCOUNT = "training"
"""Whose rights to AWS the pods of jobs have, where the cluster has something for them: its MLflow."""
JOB_ENVIRONMENT = "training-environment"
"""The ConfigMap with variables for jobs, of this name in every namespace of jobs."""
TRAINING_UID = 10001
"""User and group that the training image runs as; workloads/esm2/Dockerfile makes them."""


def job_namespaces(cluster: EksCluster) -> list[str]:
    """Where jobs may run: each team's namespace, or the common one."""
    teams = cluster.task_governance.teams if cluster.task_governance else []
    return [team_namespace(team.name) for team in teams] or [COMMON_NAMESPACE]


def job_folder(namespace: str) -> str:
    """The folder of the file system that belongs to a namespace's jobs, as they see it below their mount."""
    return namespace
