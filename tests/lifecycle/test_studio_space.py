"""Start of a space of Studio, on its own files and commands."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

import session_plugin
import set_up_space
import slurm_session
from space import Space, SpaceError
from tests.lifecycle.node import StandIns
from tools.kubernetes.kubectl import CACHE, find_program

SCRIPTS = Path(__file__).parents[2] / "lifecycle" / "studio"
FILE_SYSTEM = "fs-0123456789abcdef0"
MOUNT = f"mnt/custom-file-systems/fsx_lustre/{FILE_SYSTEM}"
PARTITION = "/fsx/studio/users/ada"


def settings(**changes: Any) -> dict[str, Any]:
    return {
        "scheduler": "slurm",
        "cluster_name": "esm2-slurm",
        "region": "us-west-2",
        "file_system_id": FILE_SYSTEM,
        "lustre_mount_path": "/fsx",
        "partitions": "per_profile",
        "mlflow_tracking_uri": None,
        "controller_group": "controller",
        "profiles": {},
        "partition": PARTITION,
        **changes,
    }


@pytest.fixture
def space(tmp_path: Path) -> Space:
    root = tmp_path / "root"
    home = tmp_path / "home"
    (root / MOUNT).mkdir(parents=True)
    metadata = root / "opt/ml/metadata/resource-metadata.json"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(json.dumps({"DomainId": "d-1", "SpaceName": "mine"}))
    home.mkdir()
    return Space(settings(), root=root, home=home)


@pytest.fixture
def aws(stand_ins: StandIns) -> StandIns:
    owner = json.dumps({"OwnershipSettings": {"OwnerUserProfileName": "Ada"}})
    stand_ins.command("aws", f"[[ $2 != describe-space ]] || echo '{owner}'")
    return stand_ins


def test_the_partition_is_where_nodes_have_it(space: Space, aws: StandIns) -> None:
    set_up_space.set_up(space)
    set_up_space.set_up(space)
    link = space.path(PARTITION)
    assert os.readlink(link) == str(space.root / MOUNT)
    lines = (space.home / ".config/cluster.sh").read_text()
    assert lines == f"export CLUSTER_FOLDER={PARTITION}\n"
    assert (space.home / ".bashrc").read_text().count("cluster.sh") == 1
    asked = "aws sagemaker describe-space --domain-id d-1 --space-name mine --output json --region us-west-2"
    assert asked in aws.calls


def test_all_spaces_share_one_partition_if_the_file_says_so(space: Space, aws: StandIns) -> None:
    space.settings["partitions"] = "shared"
    set_up_space.set_up(space)
    assert space.path("/fsx/studio/shared").is_dir()


def test_without_the_file_system_it_says_what_to_do(
    space: Space, aws: StandIns, capsys: pytest.CaptureFixture[str]
) -> None:
    (space.root / MOUNT).rmdir()
    set_up_space.set_up(space)
    said = capsys.readouterr().out
    assert f"attach it to the space to have {PARTITION}" in said
    assert "no cluster_user for ada" in said


def test_refuses_a_space_without_an_owner(space: Space, stand_ins: StandIns) -> None:
    stand_ins.command("aws", "echo '{}'")
    with pytest.raises(SpaceError, match="create a private one"):
        set_up_space.set_up(space)


def test_notebooks_and_shells_log_to_mlflow(space: Space, aws: StandIns) -> None:
    uri = "arn:aws:sagemaker:us-west-2:1:mlflow-app/app-1"
    space.settings["mlflow_tracking_uri"] = uri
    set_up_space.set_up(space)
    shell = subprocess.run(
        ["bash", "-c", '. "$HOME/.bashrc"; echo "$MLFLOW_TRACKING_URI"'],
        env={"HOME": str(space.home), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert shell.stdout == f"{uri}\n"
    startup = space.home / ".ipython/profile_default/startup/00-cluster-mlflow.py"
    assert uri in startup.read_text()
    space.settings["mlflow_tracking_uri"] = None
    set_up_space.set_up(space)
    assert not startup.exists()


@pytest.mark.parametrize(
    ("arguments", "index"),
    [
        (["job.sh"], 0),
        (["-N", "2", "job.sh", "more"], 2),
        (["--nodes=2", "-H", "job.sh"], 2),
        (["-N2", "--exclusive", "job.sh"], 2),
    ],
)
def test_the_script_among_sbatchs_arguments(
    arguments: list[str], index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.sh").write_text("#!/bin/bash\n")
    found = slurm_session.batch_script(arguments)
    assert found == {"index": index, "name": "job.sh", "text": "#!/bin/bash\n"}


def test_no_script_is_needed_to_wrap_a_command() -> None:
    assert slurm_session.batch_script(["--nodes=2", "--wrap=hostname"]) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "name a script"), (["--nodes", "2", "job.sh"], "2 would be the script.*--nodes=2")],
)
def test_reports_a_missing_script(arguments: list[str], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        slurm_session.batch_script(arguments)


def test_the_cluster_sees_what_is_in_the_partition(space: Space, aws: StandIns) -> None:
    set_up_space.set_up(space)
    inside = space.root / MOUNT / "runs/one"
    inside.mkdir(parents=True)
    assert slurm_session.folder(space, inside) == f"{PARTITION}/runs/one"
    assert slurm_session.folder(space, space.path(PARTITION)) == PARTITION
    assert slurm_session.folder(space, space.home) == PARTITION


def test_a_script_that_is_too_long_is_refused_before_a_session(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.sh").write_text("x" * slurm_session.MAX_REQUEST)
    with pytest.raises(SpaceError, match="move long parts to a file in the partition"):
        slurm_session.run(space, "sbatch", ["job.sh"])


def test_the_plugin_is_installed_of_one_checksum_alone(
    space: Space, stand_ins: StandIns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "plugin.deb"
    package.write_bytes(b"a package")
    digest = hashlib.sha256(b"a package").hexdigest()
    table = tmp_path / "table.json"
    stand_ins.command("dpkg")
    monkeypatch.setattr(session_plugin, "TABLE", table)
    monkeypatch.setattr(session_plugin.platform, "machine", lambda: "x86_64")
    for sha256, installed in (("0" * 64, False), (digest, True)):
        entry = {"url": package.as_uri(), "sha256": sha256}
        table.write_text(json.dumps({"packages": {"x86_64": entry}}))
        if not installed:
            with pytest.raises(
                SpaceError, match=f"has SHA-256 {digest}, not {sha256}: it was not installed"
            ):
                session_plugin.install_plugin(space)
            assert stand_ins.calls == []
        else:
            session_plugin.install_plugin(space)
            assert stand_ins.calls == ["dpkg --install /tmp/session-manager-plugin.deb"]


def test_on_eks_kubectl_and_helm_are_there_and_know_the_cluster(
    space: Space, stand_ins: StandIns, tmp_path: Path
) -> None:
    """The real programs; of the aws command what it writes."""
    space.settings |= {
        "scheduler": "eks",
        "tools": "s3://assets/tools.zip",
        "namespaces": ["hyperpod-ns-a"],
    }
    tools = tmp_path / "tools.zip"
    with zipfile.ZipFile(tools, "w") as archive:
        for name in ("kubectl", "helm"):
            program = find_program(name, CACHE)
            assert program
            archive.write(program, f"{name}/{name}")
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "current-context": "c",
    }
    stand_ins.command(
        "aws",
        f"""case "$1 $2" in
        "s3 cp") cp "{tools}" "$5" ;;
        "eks update-kubeconfig") mkdir -p "$(dirname "$6")"; echo '{json.dumps(kubeconfig)}' > "$6" ;;
        *) echo '{{"OwnershipSettings": {{"OwnerUserProfileName": "ada"}}}}' ;;
        esac""",
    )
    set_up_space.set_up(space)
    binaries = space.path("/usr/local/bin")
    config = ["config", "view", "--minify", "--output=jsonpath={..namespace}"]
    viewed = subprocess.run(
        [binaries / "kubectl", *config],
        env={"HOME": str(space.home)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert viewed.stdout == "hyperpod-ns-a", viewed.stderr
    helm = subprocess.run(
        [binaries / "helm", "version"], capture_output=True, text=True, timeout=60
    )
    assert helm.returncode == 0 and 'Version:"v' in helm.stdout
    assert (space.home / ".kube/config").stat().st_mode & 0o077 == 0


def start(tmp_path: Path, stand_ins: StandIns) -> subprocess.CompletedProcess[str]:
    """The lifecycle configuration as SageMaker has it, with marks filled in."""
    text = (SCRIPTS / "start_space.sh").read_text().replace("@CURRENT@", "s3://b/studio/current")
    script = tmp_path / "start.sh"
    script.write_text(
        text.replace("@REGION@", "us-west-2").replace("/tmp/cluster-set-up", str(tmp_path / "f"))
    )
    return subprocess.run(
        ["bash", script],
        env={"HOME": str(tmp_path), "PATH": stand_ins.path},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_space_starts_whatever_happens_and_says_so(tmp_path: Path, stand_ins: StandIns) -> None:
    stand_ins.command("aws", "echo 'fatal error: An error occurred (403)' >&2; exit 1")
    for _ in range(2):
        done = start(tmp_path, stand_ins)
        assert done.returncode == 0 and "(403)" in done.stdout
    shell = subprocess.run(
        ["bash", "-c", '. "$HOME/.bashrc"'],
        env={"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert shell.stderr.count("lacks what it needs") == 1
    assert f"{tmp_path}/cluster-set-up.log" in shell.stderr


def test_a_space_that_is_set_up_says_nothing(tmp_path: Path, stand_ins: StandIns) -> None:
    current = '[[ "$*" != *"s3://b/studio/current -" ]] || { echo s3://b/studio/1; exit; }'
    fetch = '[[ "$*" == *--recursive*s3://b/studio/1\\ * ]] && mkdir -p "${@: -1}"'
    stand_ins.command(
        "aws", f'{current}\n{fetch} && echo "print(1)" > "${{@: -1}}/set_up_space.py"'
    )
    done = start(tmp_path, stand_ins)
    assert (done.returncode, done.stdout) == (0, "")
    assert not (tmp_path / ".bashrc").exists()
