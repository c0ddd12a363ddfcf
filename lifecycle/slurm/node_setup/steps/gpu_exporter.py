"""Metrics of NVIDIA GPUs from NVIDIA's dcgm-exporter, in NVIDIA's container."""

import re
import tempfile

from node_setup.downloads import Image, find_image
from node_setup.endpoint import require_free_port, wait_for_metric
from node_setup.failure import SetupError
from node_setup.node import Node, log
from node_setup.service import is_running, run_unit

UNIT = "gpu-exporter.service"
PORT = 9400
LOCAL_NAME = "node-setup/dcgm-exporter"
JOB_MAPPING_PROLOG = "700_dcgm_job_map_*"
"""HyperPod's prolog, which writes the ids of jobs to /run/slurm/dcgm-job-mapping/<GPU>."""
PULL_PAUSES_SECONDS = (10, 20, 40)
"""Pauses after each try but the last."""
SECONDS_PER_PULL = 600
SECONDS_TO_ANSWER = 180


def run_exporter(node: Node) -> None:
    """Install and start the exporter on workers with NVIDIA GPUs, and check that it reports each GPU."""
    if node.facts.hardware.num_gpus == 0:
        return
    image = find_image(node, "dcgm-exporter")
    if not is_running(node, UNIT):
        require_free_port(node, PORT, "metrics of GPUs")
    local = f"{LOCAL_NAME}:{image.version}"
    changed = _have_image(node, image, local)
    listen = f"{node.facts.address}:{PORT}"
    run_unit(node, UNIT, changed=changed, listen=listen, image=local)
    answer = wait_for_metric(
        node,
        f"http://{listen}/metrics",
        r"DCGM_FI_DEV_GPU_TEMP\{",
        unit=UNIT,
        timeout_seconds=SECONDS_TO_ANSWER,
    )
    uuids = re.findall(r'^DCGM_FI_DEV_GPU_TEMP\{.*?UUID="([^"]+)"', answer, re.MULTILINE)
    found = len(set(uuids))
    hardware = node.facts.hardware
    if found != hardware.num_gpus:
        node.warn(
            f"dcgm-exporter has metrics of {found} GPUs, and {hardware.instance_type} has "
            f"{hardware.num_gpus}: see "
            "`nvidia-smi --list-gpus`; replace the node if one is lost"
        )
    if not list(node.host.path("/opt/slurm/etc/prolog.d").glob(JOB_MAPPING_PROLOG)):
        node.warn(
            "metrics of GPUs carry no job ids: this image has no "
            f"/opt/slurm/etc/prolog.d/{JOB_MAPPING_PROLOG}"
        )


def _have_image(node: Node, image: Image, local: str) -> bool:
    """Pull the image with the table's digest, tag it ``local``, and return whether a pull was necessary."""
    record = f"/var/lib/node-setup/images/{image.name}"
    recorded = node.host.path(record)
    inspect = ("docker", "image", "inspect", "--format", "{{.Id}}", local)
    named = node.host.try_run(*inspect)
    known = recorded.read_text() if recorded.is_file() else ""
    if named.status == 0 and known == f"{image.reference} {named.output.strip()}\n":
        return False
    if node.settings.downloads == "internet":
        reference = image.reference
        _pull(node, reference)
    else:
        reference = _pull_mirrored(node, image)
    node.host.run("docker", "tag", reference, local)
    image_id = node.host.run(*inspect).strip()
    node.host.write_text(record, f"{image.reference} {image_id}\n")
    node.changed(f"image {image.name} {image.version}")
    return True


def _pull_mirrored(node: Node, image: Image) -> str:
    """Pull from this cluster's image repository, which `make mirror-downloads` fills; return the reference.

    The digest is the same, so the registry cannot return another image.
    """
    region = node.settings.region
    account = node.host.run(
        "aws",
        "sts",
        "get-caller-identity",
        "--query",
        "Account",
        "--output",
        "text",
        "--region",
        region,
        remedy="see `sudo aws sts get-caller-identity` on the node; a closed network needs the endpoint sts",
    ).strip()
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    registry = f"{account}.dkr.ecr.{region}.{suffix}"
    password = node.host.run(
        "aws",
        "ecr",
        "get-login-password",
        "--region",
        region,
        remedy="a closed network needs the endpoints ecr.api and ecr.dkr",
    )
    reference = f"{registry}/{node.settings.cluster_name}/training@{image.digest}"
    # A separate configuration keeps the password, which is valid for twelve hours, out of root's files.
    with tempfile.TemporaryDirectory() as folder:
        login = {"DOCKER_CONFIG": folder}
        node.host.run(
            "docker",
            "login",
            "--username",
            "AWS",
            "--password-stdin",
            registry,
            stdin=password,
            env=login,
        )
        _pull(node, reference, env=login)
    return reference


def _pull(node: Node, reference: str, env: dict[str, str] | None = None) -> None:
    for pause in (*PULL_PAUSES_SECONDS, None):
        done = node.host.try_run(
            "docker", "pull", "--quiet", reference, timeout_seconds=SECONDS_PER_PULL, env=env
        )
        if done.status == 0:
            return
        if "no space left on device" in done.said:
            raise SetupError(
                f"the disk is full: {done.said}",
                "see `docker info --format '{{.DockerRootDir}}'` and `df -h`; in the cluster file "
                "node_setup.container_storage: local_disk moves it",
            )
        is_permanent = re.search(r"not found|manifest unknown|denied|unauthorized", done.said)
        if pause is None or is_permanent:
            break
        log(f"  {done.said}; trying again in {pause} s")
        node.host.sleep(pause)
    mirrored = "in a closed network set node_setup.downloads: artifact_bucket and run `make mirror-downloads`"
    if env is not None:
        mirrored = "run `make mirror-downloads` on a machine with internet access"
    raise SetupError(
        f"image {reference} cannot be pulled: {done.said}",
        f"see `docker info` on the node; {mirrored}",
    )
