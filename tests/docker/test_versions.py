"""The one file of versions, and the document that says where they come from."""

from __future__ import annotations

import json
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
VERSIONS = json.loads((REPOSITORY / "docker/versions.json").read_text())
DOCUMENT = (REPOSITORY / "docs/training-image.md").read_text()


def test_everything_fetched_is_pinned_by_hash() -> None:
    for file in ("docker/versions.json", "docker/bionemo/versions.json"):
        base = json.loads((REPOSITORY / file).read_text())["base"]
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", base["digest"]), file
    installer = VERSIONS["efa_installer"]
    assert re.fullmatch(r"[0-9a-f]{64}", installer["sha256"])
    assert installer["url"].startswith("https://") and installer["version"] in installer["url"]


def test_code_runs_on_this_torch() -> None:
    """The tests run with 2.13, and varlen attention is in no release before 2.10."""
    pinned = re.search(
        r"^torch==(\d+\.\d+)", (REPOSITORY / "requirements.txt").read_text(), re.MULTILINE
    )
    assert pinned is not None
    assert VERSIONS["base"]["torch"].startswith(f"{pinned[1]}.")


def test_document_names_the_versions() -> None:
    base = VERSIONS["base"]
    installer = VERSIONS["efa_installer"]
    for value in (base["tag"], base["digest"], base["torch"], installer["sha256"]):
        assert value in DOCUMENT, value
    for name in ("version", "libfabric", "aws_ofi_nccl"):
        assert installer[name] in DOCUMENT, name


def test_no_version_stands_anywhere_else() -> None:
    dockerfiles = [
        REPOSITORY / "workloads/Dockerfile",
        *(REPOSITORY / "docker").glob("*/Dockerfile"),
    ]
    for path in [*(REPOSITORY / "docker").glob("*.sh"), *dockerfiles]:
        text = path.read_text()
        for value in (VERSIONS["base"]["tag"], VERSIONS["efa_installer"]["version"], "sha256:2140"):
            assert value not in text, (path, value)


def test_bionemos_image_is_made_by_the_same_scripts_and_checked() -> None:
    """On a base by digest, without root, with code that its user cannot change."""
    text = (REPOSITORY / "docker/bionemo/Dockerfile").read_text()
    assert {line for line in text.splitlines() if line.startswith("FROM")} == {
        "FROM ${BASE_IMAGE} AS downloads",
        "FROM ${BASE_IMAGE} AS code",
        "FROM ${BASE_IMAGE}",
    }
    for command in (
        "/build/install_efa.sh /downloads/aws-efa-installer.tar.gz /build/versions.json",
        "/build/install_python_packages.sh /build/bionemo",
        "python3 -m seqlm.bionemo.installed",
    ):
        assert command in text
    users = re.findall(r"^USER (\S+)$", text, re.MULTILINE)
    assert users[-1] == "10001:10001" and "go-w /opt/esm2" in text
    assert "ENV GIT_SHA=${GIT_SHA}" in text, "which identifies an imported file"


def test_only_what_is_needed_goes_into_a_build() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert next(line for line in lines if not line.startswith("#")) == "*"
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert kept == {"LICENSE", "docker", "workloads"}
