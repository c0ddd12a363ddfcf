"""Archives from elsewhere, by a Python with tarfile's filter and by one without."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tools.archives import extract


@pytest.fixture(params=["with", "without"], autouse=True)
def its_filter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


def archive(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarFile:
    """Return an archive with one entry."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.type = kind
        entry.linkname = "/etc"
        entry.mode = 0o6777
        entry.mtime = 1000
        entry.size = 4
        tar.addfile(entry, io.BytesIO(b"text"))
    return tarfile.open(fileobj=io.BytesIO(stream.getvalue()))


def test_files_are_unpacked_with_their_time_and_no_more_rights(tmp_path: Path) -> None:
    extract(archive("below/it/file"), tmp_path)
    found = tmp_path / "below/it/file"
    assert found.read_text() == "text" and found.stat().st_mtime == 1000
    assert found.stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    ("name", "kind"),
    [("../file", tarfile.REGTYPE), ("a/../../file", tarfile.REGTYPE), ("link", tarfile.SYMTYPE)],
)
def test_what_leads_outside_is_refused(tmp_path: Path, name: str, kind: bytes) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(tarfile.TarError):
        extract(archive(name, kind), folder)
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]
