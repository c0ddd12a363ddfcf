"""Downloads match the table or are not installed, and the message has a remedy."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from node_setup import downloads
from node_setup.failure import SetupError
from node_setup.host import Host
from node_setup.node import Node
from tests.lifecycle.https_server import Answer, body, served, write_certificate
from tests.lifecycle.node import StandIns, node_of

FILE = "tool-1.0.linux.tar.gz"


def archive(**programs: bytes) -> bytes:
    """An archive of the shape that Prometheus' releases have, with members that must not get out of it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in {
            "../../../tmp/evil": b"x",
            "tool-1.0/LICENSE": b"...",
            **programs,
        }.items():
            member = tarfile.TarInfo(name if "/" in name else f"tool-1.0/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("tool-1.0/linked")
        link.type = tarfile.SYMTYPE
        link.linkname = "/etc/passwd"
        tar.addfile(link)
    return buffer.getvalue()


CONTENT = archive(tool=b"#!/bin/sh\necho 1.0\n")


class Source:
    """A server whose answers a test sets one after the other; the last one stays."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [body(CONTENT)]
        self.asked: list[str] = []

    def __call__(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append(request.path)
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        answer(request)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def url(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    certificate = tmp_path / "certificate.pem"
    write_certificate(certificate)
    monkeypatch.setenv("CURL_CA_BUNDLE", str(certificate))
    for name in (
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    with served(source, certificate) as base:
        yield base


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(Host, "sleep", lambda _, seconds: slept.append(seconds))
    return slept


def node_with_table(folder: Path, base: str, content: bytes = CONTENT, **settings: Any) -> Node:
    node = node_of(folder, **settings)
    entry = {
        "name": "tool",
        "version": "1.0",
        "architecture": platform.machine(),
        "url": f"{base}/releases/{FILE}",
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    node.files = folder / "files"
    node.files.mkdir(exist_ok=True)
    (node.files / "downloads.json").write_text(json.dumps({"files": [entry], "images": []}))
    return node


def fails(node: Node) -> str:
    with pytest.raises(SetupError) as caught:
        downloads.install_binaries(node, "tool", ("tool",))
    assert not node.host.path("/usr/local/bin/tool").exists()
    assert list(node.host.path("/var/cache/node-setup").glob("*")) == []
    return str(caught.value)


def test_a_program_is_installed_once(tmp_path: Path, source: Source, url: str) -> None:
    node = node_with_table(tmp_path, url)
    assert downloads.install_binaries(node, "tool", ("tool",))
    program = node.host.path("/usr/local/bin/tool")
    assert program.read_text() == "#!/bin/sh\necho 1.0\n"
    assert program.stat().st_mode & 0o777 == 0o755
    assert node.changes == ["tool 1.0"]
    assert not downloads.install_binaries(node, "tool", ("tool",))
    assert source.asked == [f"/releases/{FILE}"]
    assert sorted(path.name for path in program.parent.iterdir()) == ["tool"]


def test_a_program_that_somebody_replaced_is_put_back(
    tmp_path: Path, source: Source, url: str
) -> None:
    node = node_with_table(tmp_path, url)
    downloads.install_binaries(node, "tool", ("tool",))
    node.host.path("/usr/local/bin/tool").write_text("another")
    assert downloads.install_binaries(node, "tool", ("tool",))
    assert len(source.asked) == 2


def test_a_new_version_replaces_the_old_one(tmp_path: Path, source: Source, url: str) -> None:
    downloads.install_binaries(node_with_table(tmp_path, url), "tool", ("tool",))
    newer = archive(tool=b"2.0")
    source.answers = [body(newer)]
    node = node_with_table(tmp_path, url, newer)
    assert downloads.install_binaries(node, "tool", ("tool",))
    assert node.host.path("/usr/local/bin/tool").read_text() == "2.0"


def test_another_file_is_never_installed_nor_asked_for_again(
    tmp_path: Path, source: Source, url: str, pauses: list[float]
) -> None:
    source.answers = [body(b"changed on the way")]
    message = fails(node_with_table(tmp_path, url))
    assert hashlib.sha256(b"changed on the way").hexdigest() in message
    assert hashlib.sha256(CONTENT).hexdigest() in message
    assert (
        "it was not installed" in message and "find out before correcting downloads.json" in message
    )
    assert len(source.asked) == 1 and pauses == []


def test_a_source_that_is_down_for_a_while_is_waited_for(
    tmp_path: Path, source: Source, url: str, pauses: list[float]
) -> None:
    source.answers = [body(b"", 503), body(b"", 429), body(CONTENT)]
    assert downloads.install_binaries(node_with_table(tmp_path, url), "tool", ("tool",))
    assert pauses == [5, 10]


def test_a_transfer_that_ends_early_is_repeated(
    tmp_path: Path, source: Source, url: str, pauses: list[float]
) -> None:
    def cut(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(CONTENT)))
        request.end_headers()
        request.wfile.write(CONTENT[:20])

    source.answers = [cut, body(CONTENT)]
    assert downloads.install_binaries(node_with_table(tmp_path, url), "tool", ("tool",))
    source.answers = [cut]
    (tmp_path / "second").mkdir()
    message = fails(node_with_table(tmp_path / "second", url))
    assert "cannot be reached: curl: (18)" in message and "tried 5 times" in message


def test_a_file_that_is_gone_is_not_asked_for_again(
    tmp_path: Path, source: Source, url: str, pauses: list[float]
) -> None:
    source.answers = [body(b"", 404)]
    message = fails(node_with_table(tmp_path, url))
    assert "answers 404." in message and "needs another version" in message
    assert len(source.asked) == 1


def test_a_node_without_a_way_out_says_so(tmp_path: Path, url: str, pauses: list[float]) -> None:
    message = fails(node_with_table(tmp_path, "https://127.0.0.1:1"))
    assert "cannot be reached: curl: (7)" in message and "tried 5 times" in message
    assert "make mirror-downloads" in message
    assert pauses == [5, 10, 20, 40]


def test_refuses_a_server_without_a_trusted_certificate(
    tmp_path: Path, url: str, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.pem"
    write_certificate(other)
    monkeypatch.setenv("CURL_CA_BUNDLE", str(other))
    assert "curl: (60) SSL certificate problem" in fails(node_with_table(tmp_path, url))


def test_only_https_is_followed(tmp_path: Path, source: Source, url: str) -> None:
    def elsewhere(request: BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", "http://127.0.0.1:1/evil")
        request.end_headers()

    source.answers = [elsewhere]
    assert "does not begin with https://, or redirects to an address that does not" in fails(
        node_with_table(tmp_path, url)
    )
    assert "does not begin with https://" in fails(node_with_table(tmp_path, "http://127.0.0.1:1"))


def test_the_environments_proxy_is_used(
    tmp_path: Path, url: str, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy answers the request for a tunnel, so that it must have been asked."""
    with served(body(b"", 502)) as proxy:
        monkeypatch.setenv("https_proxy", proxy)
        message = fails(node_with_table(tmp_path, url))
        assert "cannot be reached" in message and "501" in message


def test_a_full_disk_says_so(tmp_path: Path, url: str) -> None:
    """/dev/full takes nothing, as a full disk does."""
    node = node_with_table(tmp_path, url)
    partial = node.host.path(f"/var/cache/node-setup/{FILE}.partial")
    partial.parent.mkdir(parents=True)
    partial.symlink_to("/dev/full")
    message = fails(node)
    assert "the disk is full" in message and "larger ebs_gib" in message


def test_from_the_clusters_bucket(tmp_path: Path, stand_ins: StandIns) -> None:
    original = tmp_path / FILE
    original.write_bytes(CONTENT)
    stand_ins.command("aws", f'cp "{original}" "${{@: -1}}"')
    node = node_with_table(tmp_path, "https://unreachable.invalid", downloads="artifact_bucket")
    assert downloads.install_binaries(node, "tool", ("tool",))
    uri = f"s3://sagemaker-esm2-slurm-123456789012-us-west-2/downloads/{FILE}"
    assert stand_ins.calls[0].startswith(f"aws s3 cp --only-show-errors --region us-west-2 {uri} ")


@pytest.mark.parametrize(
    ("said", "message", "tries"),
    [
        ("fatal error: An error occurred (404): Key does not exist", "make mirror-downloads", 1),
        ("fatal error: An error occurred (403): Forbidden", "make mirror-downloads", 1),
        ("[Errno 28] No space left on device", "the disk is full", 1),
        ("Could not connect to the endpoint URL", "check the S3 endpoint", 5),
    ],
)
def test_reports_why_the_bucket_refuses(
    tmp_path: Path, stand_ins: StandIns, pauses: list[float], said: str, message: str, tries: int
) -> None:
    stand_ins.command("aws", f"echo '{said}' >&2; exit 1")
    assert message in fails(
        node_with_table(tmp_path, "https://x.invalid", downloads="artifact_bucket")
    )
    assert len(stand_ins.calls) == tries


def test_reports_a_changed_copy_in_the_bucket(tmp_path: Path, stand_ins: StandIns) -> None:
    stand_ins.command("aws", 'echo changed > "${@: -1}"')
    message = fails(node_with_table(tmp_path, "https://x.invalid", downloads="artifact_bucket"))
    assert "someone changed the copy" in message


@pytest.mark.parametrize("content", [archive(other=b"x"), archive(**{"tool-1.0/bin/tool": b"x"})])
def test_an_archive_without_the_program_is_refused(
    tmp_path: Path, source: Source, url: str, content: bytes
) -> None:
    source.answers = [body(content)]
    assert f"{FILE} has no program tool" in fails(node_with_table(tmp_path, url, content))


def test_a_link_is_no_program(tmp_path: Path, url: str) -> None:
    node = node_with_table(tmp_path, url)
    with pytest.raises(SetupError, match="has no program linked"):
        downloads.install_binaries(node, "tool", ("linked",))


def test_what_is_no_archive_is_refused(tmp_path: Path, source: Source, url: str) -> None:
    source.answers = [body(b"no archive")]
    assert "is no tar archive" in fails(node_with_table(tmp_path, url, b"no archive"))


def test_an_architecture_that_is_not_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    node = node_of(tmp_path)
    with pytest.raises(
        SetupError, match="has node_exporter for x86_64, aarch64, and this node is riscv64"
    ):
        downloads.find_download(node, "node_exporter")
    with pytest.raises(SetupError, match=r"dcgm-exporter@sha256:\w+ is for x86_64, aarch64"):
        downloads.find_image(node, "dcgm-exporter")


def test_a_server_that_drips_is_left(
    tmp_path: Path, source: Source, url: str, pauses: list[float], monkeypatch: Any
) -> None:
    monkeypatch.setattr(downloads, "SECONDS_PER_TRY", 1)

    def drip(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "2")
        request.end_headers()
        request.wfile.write(b"x")
        request.wfile.flush()
        time.sleep(1.5)

    source.answers = [drip]
    message = fails(node_with_table(tmp_path, url))
    assert "curl: (28)" in message and "tried 5 times" in message
