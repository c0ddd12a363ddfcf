"""Entry script of new nodes, with a stand-in for the aws command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from constructs.nodes.lifecycle_entry import entry_script
from tests.lifecycle.node import StandIns

CURRENT = "s3://sagemaker-esm2-123456789012-us-west-2/lifecycle/current"
VERSION = CURRENT.replace("current", "0123456789abcdef")
# The last two arguments are source and target; "-" is standard output.
AWS = """
source="${{@: -2:1}}" target="${{@: -1}}"
if [[ $target == - ]]; then
    {pointer}
else
    mkdir -p "$target"
    echo 'echo "runs in ${{PWD##*/}} with $SECONDS_TO_SHIP_LOG"; exit 4' > "$target/on_init_complete.sh"
    {fetch}
fi
"""


def run(folder: Path, pointer: str, fetch: str = "true") -> tuple[int, str, list[str], str]:
    """Return the status, the output, the calls of aws and sleep, and the log on the node's disk."""
    stand_ins = StandIns(folder / "stand_ins")
    stand_ins.command("aws", AWS.format(pointer=pointer, fetch=fetch))
    stand_ins.command("sleep")
    done = subprocess.run(
        ["/bin/bash", "-c", entry_script("us-west-2", CURRENT, "on_init_complete.sh")],
        env={"PATH": stand_ins.path, "DESTDIR": str(folder / "root")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    log = folder / "root/var/log/provision/provisioning.log"
    return done.returncode, done.stdout, stand_ins.calls, log.read_text() if log.exists() else ""


def test_the_script_of_the_current_version_runs_and_gives_its_status(tmp_path: Path) -> None:
    status, output, calls, log = run(tmp_path, f"printf {VERSION}")
    assert (status, log) == (4, "")
    assert f"run_from_s3: {VERSION} on " in output
    assert output.endswith("runs in 0123456789abcdef with 60\n")
    assert [call.split()[-2] for call in calls] == [CURRENT, f"{VERSION}/"]
    assert not Path(calls[-1].split()[-1]).exists()


@pytest.mark.parametrize(
    ("pointer", "fetch", "message"),
    [
        ("exit 1", "true", f"ERROR: the scripts could not be fetched from {CURRENT}. "),
        ("printf ''", "true", f"ERROR: {CURRENT} holds '', which is no version of the scripts. "),
        (
            "printf s3://other/lifecycle/latest",
            "true",
            "holds 's3://other/lifecycle/latest', which is no",
        ),
        (
            f"printf {VERSION}",
            "exit 1",
            f"ERROR: the scripts could not be fetched from {VERSION}. ",
        ),
    ],
    ids=["no object", "empty", "another address", "no version"],
)
def test_a_node_without_scripts_fails_and_its_log_is_shipped(
    pointer: str, fetch: str, message: str, tmp_path: Path
) -> None:
    status, output, calls, log = run(tmp_path, pointer, fetch)
    assert status == 1
    assert message in output and message in log
    assert calls[-1] == "sleep 60"
    assert "runs in" not in output
