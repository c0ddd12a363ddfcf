"""Downloads of the build: whole and as pinned, or not at all."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docker/download.py"
CONTENTS = b"installer" * 1000


def download(tmp_path: Path, url: str, sha256: str) -> subprocess.CompletedProcess[str]:
    versions = tmp_path / "versions.json"
    versions.write_text(json.dumps({"thing": {"url": url, "sha256": sha256}}))
    # As in the build, without this repository's packages on the path; without waiting between attempts.
    impatient = "import runpy, sys, time; time.sleep = lambda _: None; del sys.argv[0]; "
    impatient += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [
        sys.executable,
        "-I",
        "-c",
        impatient,
        SCRIPT,
        versions,
        "thing",
        tmp_path / "new/file",
    ]
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)


def test_pinned_file_arrives(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(CONTENTS)
    done = download(tmp_path, source.as_uri(), hashlib.sha256(CONTENTS).hexdigest())
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new/file").read_bytes() == CONTENTS


def test_other_contents_are_refused_and_not_kept(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(CONTENTS + b"!")
    pinned = hashlib.sha256(CONTENTS).hexdigest()
    done = download(tmp_path, source.as_uri(), pinned)
    assert done.returncode == 1
    assert pinned in done.stderr and "do not use the file" in done.stderr
    assert list((tmp_path / "new").iterdir()) == []


def test_a_missing_file_is_tried_again(tmp_path: Path) -> None:
    done = download(tmp_path, (tmp_path / "absent").as_uri(), "0" * 64)
    assert done.returncode == 1
    assert "attempt 5 of 5" in done.stderr
    assert "Traceback" not in done.stderr
