"""The manifests of a job as files: for kubectl, and as a folder that HyperPod's command line (hyp) takes.

``hyp create`` renders the folder's ``k8s.jinja`` with its ``config.yaml``, and creates the one job that comes
out (sagemaker-hyperpod 3.12, ``cli/commands/init.py``). Here the template is the whole manifest.
"""

from pathlib import Path
from typing import Any

import yaml

from seqlm.launch.kubernetes_job import config_map, job_manifest
from seqlm.launch.pod_job import INSTANCE_TYPE_LABEL, Manifest, PodJob

HYP_TEMPLATE = "hyp-pytorch-job"
HYP_VERSION = "1.1"
HYP_CONFIG = "config.yaml"
HYP_MANIFEST = "k8s.jinja"
JOB_FILE = "job.yaml"
RUN_FILE = "run.yaml"


class _Plain(yaml.SafeDumper):
    """Text of several lines as a block. No anchors, which people need not read and jinja does not expect."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Plain, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Plain.add_representer(str, _text)


def to_yaml(manifest: Manifest) -> str:
    return yaml.dump(manifest, Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)


def write_files(job: PodJob, folder: Path) -> list[str]:
    """Write the manifests; returns what to do with them, line by line.

    Raises:
        ValueError: if the folder has files of another job.
    """
    files = {JOB_FILE: to_yaml(job_manifest(job)), RUN_FILE: to_yaml(config_map(job))}
    if job.operator == "hyperpod":
        files |= {HYP_CONFIG: to_yaml(hyp_config(job)), HYP_MANIFEST: hyp_manifest(job)}
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise ValueError(f"--to: {folder} has {', '.join(there)} already; give a folder of its own")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    lines = [f"written  {folder / name}" for name in files]
    lines += [f"next     kubectl apply -f {folder / RUN_FILE} -f {folder / JOB_FILE}"]
    if job.operator == "hyperpod":
        lines += [f"or       kubectl apply -f {folder / RUN_FILE} && cd {folder} && hyp create"]
    return lines


def hyp_config(job: PodJob) -> dict[str, Any]:
    """Fields of hyp's own schema, with the job's values. hyp takes a slice of a GPU or a number of nodes."""
    gpu_slice = job.resources.gpu_slice
    found: dict[str, Any] = {
        "template": HYP_TEMPLATE,
        "version": HYP_VERSION,
        "job_name": job.name,
        "namespace": job.namespace,
        "image": job.image,
        "instance_type": job.placement.node_labels.get(INSTANCE_TYPE_LABEL),
        "node_count": job.min_pods if gpu_slice is None else None,
        "accelerator_partition_type": f"mig-{gpu_slice}" if gpu_slice else None,
        "accelerator_partition_count": job.resources.num_gpus if gpu_slice else None,
        **(
            {"max_node_count": job.num_pods, "elastic_replica_increment_step": 1}
            if job.is_elastic
            else {}
        ),
        "tasks_per_node": str(job.num_processes),
        "max_retry": job.max_retries,
        "queue_name": job.placement.queue,
        "priority": job.placement.priority,
        "preferred_topology": job.placement.preferred_topology,
        "required_topology": job.placement.required_topology,
    }
    return {name: value for name, value in found.items() if value is not None}


def hyp_manifest(job: PodJob) -> str:
    """A template whose rendering with ``hyp_config`` is the manifest.

    Only image and retries are variables: what else is in hyp's schema hangs together with more than its own
    line.
    """
    text = "{% raw %}" + to_yaml(job_manifest(job)) + "{% endraw %}\n"
    for field, line in (
        ("image", f"image: {job.image}"),
        ("max_retry", f"jobMaxRetryCount: {job.max_retries}"),
    ):
        name = line.partition(":")[0]
        text = text.replace(line, f"{name}: {{% endraw %}}{{{{ {field} }}}}{{% raw %}}")
    return text
