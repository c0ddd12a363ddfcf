"""make fetch puts complete files into their folder; damaged data changes nothing."""

from __future__ import annotations

import base64
import io
import tarfile
from pathlib import Path

import pytest

from tools.jobs.delivery import Delivery


def archive(**contents: str) -> str:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, text in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return base64.b64encode(stream.getvalue()).decode()


def received(text: str, *, width: int = 76) -> Delivery:
    """With the archive in lines of that many characters."""
    delivery = Delivery(io.BytesIO())
    lines = [text[start : start + width] for start in range(0, len(text), width)]
    for line in ["a greeting", "run mine", "left /fsx/mine/model, 9 MiB", "files", *lines]:
        delivery.take(line)
    return delivery


@pytest.mark.parametrize("width", [76, 7, 10_000])
def test_lines_may_be_broken_anywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    delivery = received(archive(report="<svg>", metrics="{}" * 5000), width=width)
    assert delivery.unpack(tmp_path, status=0, instead="look there") == 0
    assert (tmp_path / "mine/report").read_text() == "<svg>"
    assert (tmp_path / "mine/metrics").read_text() == "{}" * 5000
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["metrics", "report"]
    assert "not fetched: /fsx/mine/model, 9 MiB; look there" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["cut", "cut within four", "foreign"])
def test_what_came_damaged_changes_nothing(tmp_path: Path, damage: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/report").write_text("of before")
    text = archive(report="<svg>", metrics="{}" * 5000)
    changed = {
        "cut": text[:-40],
        "cut within four": text[:-3],
        "foreign": f"{text[:40]}?{text[41:]}",
    }
    with pytest.raises(
        ValueError, match=r"what came is damaged \(.+\); run the same command again"
    ):
        received(changed[damage]).unpack(tmp_path, status=0, instead="")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["report"]
    assert (tmp_path / "mine/report").read_text() == "of before"
