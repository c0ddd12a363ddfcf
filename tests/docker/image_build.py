"""The Dockerfile, built for real by buildah: ``make test-image``; needs root and buildah.

Built on a base that stands in for NVIDIA's (stand_in_base.py), with an installer that stands in for EFA's
(stand_in_installer.py). What does not run, then, is what is in those two; the packages of the lock, however,
come from the package index, and every script of docker/ runs as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.docker.stand_in_base import OLD_HUB, SITE, make_root, mounted_folders
from tests.docker.stand_in_installer import make_installer
from tools.images.build import build_image
from tools.images.container_engine import ContainerEngine
from tools.images.source_revision import IMAGE_PATHS, Revision, read_revision

pytestmark = pytest.mark.timeout(1800)
"""The build takes four minutes of processor time, on cores that other tests may hold."""

REPOSITORY = Path(__file__).parents[2]
BASE = "localhost/stand-in-base"
WORK_PLACES = [
    "build/*",
    "downloads/*",
    "mirror/*",
    "tmp/*",
    "root/.cache",
    "root/.ssh",
    "root/.netrc",
    "var/lib/apt/lists/*",
]
SAMPLE_RUN = "/opt/esm2/workloads/seqlm/configs/esm2_8m_sample.yaml"


@dataclass(frozen=True)
class Built:
    container: str
    root: Path
    """The image's file system."""
    config: dict[str, Any]
    revision: Revision
    versions: dict[str, Any]
    left: frozenset[str]
    """Files that the build left in its working folders, listed before anything ran in the image."""
    last_layer_bytes: int

    def run(self, *command: str) -> str:
        """Run a command as the image's user, in its working directory."""
        return buildah(
            "run", "--workingdir", "/workspace", *mounted(), self.container, "--", *command
        )


def buildah(*arguments: str) -> str:
    done = subprocess.run(["buildah", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def mounted() -> list[str]:
    """Options that have the large packages there while commands run."""
    return [f"--volume={folder}:{SITE}/{folder.name}:ro" for folder in mounted_folders()]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    assert os.geteuid() == 0, "this needs root: sudo make test-image"
    folder = tmp_path_factory.mktemp("image")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(_storage(folder)))
        patch.setenv("BUILDAH_ISOLATION", "chroot")
        try:
            yield _build(folder)
        finally:
            # Mounts that pytest could not remove, and gigabytes that it would keep.
            buildah("umount", "--all")
            buildah("rm", "--all")
            shutil.rmtree(folder)


def _storage(folder: Path) -> Path:
    """Settings for storage of its own: overlays where the kernel allows them here, else whole copies."""
    for driver in ("overlay", "vfs"):
        settings = folder / f"{driver}.conf"
        places = f'graphroot = "{folder}/{driver}"\nrunroot = "{folder}/{driver}-run"\n'
        settings.write_text(f'[storage]\ndriver = "{driver}"\n{places}')
        environment = {**os.environ, "CONTAINERS_STORAGE_CONF": str(settings)}
        probe = ["buildah", "from", "--name", "probe", "scratch"]
        if subprocess.run(probe, env=environment, capture_output=True).returncode == 0:
            break
    return settings


def _build(folder: Path) -> Built:
    repository = folder / "repository"
    repository.mkdir()
    for name in IMAGE_PATHS:
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy2
        copy(REPOSITORY / name, repository / name)
    versions = json.loads((repository / "docker/versions.json").read_text())
    mirror = folder / "mirror"
    mirror.mkdir()
    pinned = versions["efa_installer"]
    tarball = make_installer(folder / "installer", pinned).rename(mirror / "installer.tar.gz")
    pinned["url"] = f"file:///mirror/{tarball.name}"
    pinned["sha256"] = hashlib.sha256(tarball.read_bytes()).hexdigest()
    versions["base"] |= {"image": BASE, "digest": _base(versions["base"]["torch"])}
    (repository / "docker/versions.json").write_text(json.dumps(versions))
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.com"]
    for command in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["commit", "--quiet", "--message", "image"],
    ):
        subprocess.run([*git, *command], cwd=repository, check=True)
    revision = read_revision(repository)
    options = [*mounted(), f"--volume={mirror}:/mirror:ro"]
    tag = build_image(ContainerEngine("buildah"), repository, revision, options)
    image = json.loads(buildah("inspect", "--type", "image", tag))
    last_layer_bytes = json.loads(image["Manifest"])["layers"][-1]["size"]
    container = buildah("from", tag)
    root = Path(buildah("mount", container))
    left = frozenset(
        str(path.relative_to(root)) for place in WORK_PLACES for path in root.glob(place)
    )
    return Built(container, root, image["Docker"], revision, versions, left, last_layer_bytes)


def _base(torch_version: str) -> str:
    """Make the base image; its digest."""
    container = buildah("from", "scratch")
    make_root(Path(buildah("mount", container)), torch_version=torch_version)
    for variable in ("PATH=/usr/local/bin:/usr/bin", "PIP_CONSTRAINT=/etc/pip/constraint.txt"):
        buildah("config", "--env", variable, container)
    buildah("commit", "--quiet", "--rm", container, BASE)
    return str(json.loads(buildah("inspect", "--type", "image", BASE))["FromImageDigest"])


def test_stack_is_the_pinned_one(built: Built) -> None:
    lines = built.run("python3", "-m", "seqlm", "--version").splitlines()
    printed = dict(line.split(maxsplit=1) for line in lines)
    pinned = built.versions["efa_installer"]
    assert printed["code"] == built.revision.sha
    assert printed["efa_installer"] == pinned["version"]
    assert printed["libfabric"] == pinned["libfabric"]
    assert printed["aws_ofi_nccl"] == pinned["aws_ofi_nccl"]
    assert printed["nccl_net_plugin"] == "none"
    assert printed["transformers"] == "5.23.0"


def test_base_keeps_what_it_ships(built: Built) -> None:
    site = built.root / SITE[1:]
    assert (site / f"torch-{built.versions['base']['torch']}.dist-info").is_dir()
    assert len(list(site.glob("torch-*.dist-info"))) == 1
    assert not (site / f"huggingface_hub-{OLD_HUB}.dist-info").exists()  # named as replaced
    assert len(list(site.glob("huggingface_hub-*.dist-info"))) == 1


def test_one_plugin_is_left(built: Built) -> None:
    assert not (built.root / "opt/amazon/aws-ofi-nccl").exists()
    assert not (built.root / "etc/ld.so.conf.d/aws-ofi-nccl.conf").exists()
    assert "libnccl-ofi-ngc-v3" in (built.root / "var/lib/dpkg/status").read_text()


def test_user_has_no_privileges_and_does_not_own_the_code(built: Built) -> None:
    assert built.config["config"]["User"] == "10001:10001"
    assert built.run("id", "-u") == "10001"
    built.run("bash", "-c", "echo x >/workspace/file && ! echo x 2>/dev/null >>/opt/esm2/LICENSE")
    theirs = built.run(
        "bash", "-c", "find / -xdev -user 10001 -not -path '/proc/*' -not -path '/tmp/*'"
    )
    assert {path.split("/")[1] for path in theirs.splitlines()} <= {"home", "workspace"}


def test_stages_work_as_that_user(built: Built) -> None:
    """Real data preparation, from the embedded sample, with the packages that the build installed."""
    arguments = ["--config", SAMPLE_RUN, "data.path=/workspace/sample"]
    assert "proteins" in built.run("python3", "-m", "seqlm", "data", *arguments)


def test_serve_is_a_command(built: Built) -> None:
    """SageMaker's call without a model names the missing folder."""
    said = built.run("bash", "-c", "serve 2>&1 || echo ended with $?")
    assert "--model: there is no folder /opt/ml/model" in said and "ended with 2" in said


def test_nothing_is_left_of_the_build(built: Built) -> None:
    assert built.left == frozenset()
    names = {path.name for path in (built.root / "opt/esm2").rglob("*")}
    assert not {name for name in names if re.search(r"\.git|\.env|id_rsa|\.pem", name)}


def test_what_the_image_says_of_itself(built: Built) -> None:
    labels = built.config["config"]["Labels"]
    title = "org.opencontainers.image"
    assert labels[f"{title}.revision"] == built.revision.sha
    assert labels[f"{title}.created"] == built.revision.committed_at
    assert labels[f"{title}.base.name"] == f"{BASE}@{built.versions['base']['digest']}"
    assert not built.config["config"].get("Healthcheck")
    assert built.config["created"].startswith(built.revision.committed_at.removesuffix("Z"))


def test_code_is_the_last_layer(built: Built) -> None:
    """And little else is in it, so that a change of the code is pushed and pulled in seconds."""
    last = built.config["history"][-1]["created_by"]
    assert "COPY" in last and "/opt/esm2" in last
    assert built.last_layer_bytes < 10e6


def test_modules_are_compiled_by_contents(built: Built) -> None:
    """Times in layers are the commit's: modules compiled by time would be compiled again in every process."""
    for folder in ("opt/esm2/workloads", f"{SITE[1:]}/transformers"):
        compiled = list((built.root / folder / "__pycache__").glob("*.pyc"))
        assert compiled
        assert {path.read_bytes()[4] & 1 for path in compiled} == {1}  # PEP 552: flag 1 is by hash
