"""Objects of S3 become local files."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions
import pytest
from moto import mock_aws

from seqlm.proteins.data import sources
from seqlm.training.data import remotes, transfer
from seqlm.training.data.transfer import FetchError, fetch

PROTEINS = b">a\nMKV\n" * 60_000


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(transfer, "FIRST_BACKOFF_SECONDS", 0.0)
    with mock_aws():
        client: Any = boto3.client("s3")
        client.create_bucket(Bucket="proteins")
        yield client


def test_an_object_is_downloaded_verified_and_reused(
    bucket: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bucket.put_object(Bucket="proteins", Key="in/p.fasta", Body=PROTEINS)
    for _ in range(2):
        (path,) = fetch("s3://proteins/in/p.fasta", tmp_path, sources.PROTEINS)
        assert path.read_bytes() == PROTEINS
    assert "agrees with S3's" in caplog.text
    assert "is already at" in caplog.text


def test_an_object_is_resumed(bucket: Any, tmp_path: Path) -> None:
    bucket.put_object(Bucket="proteins", Key="p.fasta", Body=PROTEINS)
    etag = bucket.head_object(Bucket="proteins", Key="p.fasta")["ETag"]
    note = {"address": "s3://proteins/p.fasta", "validator": etag, "length_bytes": len(PROTEINS)}
    (tmp_path / "p.fasta.partial").write_bytes(PROTEINS[:1000])
    (tmp_path / "p.fasta.partial.json").write_text(json.dumps(note))
    read = remotes.S3Remote.read
    offsets = []

    def spy(self: Any, offset_bytes: int, state: remotes.RemoteState) -> Iterator[bytes]:
        offsets.append(offset_bytes)
        return read(self, offset_bytes, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remotes.S3Remote, "read", spy)
        (path,) = fetch("s3://proteins/p.fasta", tmp_path, sources.PROTEINS)
    assert path.read_bytes() == PROTEINS
    assert offsets == [1000]


def test_an_object_that_changed_is_read_anew(
    bucket: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.put_object(Bucket="proteins", Key="p.fasta", Body=PROTEINS)
    (remote,) = remotes.s3_remotes("s3://proteins/p.fasta")
    state = remote.head()
    bucket.put_object(Bucket="proteins", Key="p.fasta", Body=b">n\nMM\n")
    with pytest.raises(remotes.ChangedError, match="changed in the bucket"):
        list(remote.read(0, state))
    (path,) = fetch("s3://proteins/p.fasta", tmp_path, sources.PROTEINS)
    assert path.read_bytes() == b">n\nMM\n"


def test_a_prefix_gives_all_fasta_under_it(
    bucket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for key in ("in/b.fa", "in/sub/a.fasta.gz", "in/notes.txt", "in/", "other.fa"):
        bucket.put_object(Bucket="proteins", Key=key, Body=key.encode())
    paths = fetch("s3://proteins/in/", tmp_path, sources.PROTEINS)
    assert [(p.name, p.read_text()) for p in paths] == [
        ("b.fa", "in/b.fa"),
        ("a.fasta.gz", "in/sub/a.fasta.gz"),
    ]
    errors = capsys.readouterr().err.splitlines()
    (note,) = [line for line in errors if line.startswith("note: ")]
    assert "read 2 FASTA or structure objects, left out 1 others" in note
    assert note.endswith(": notes.txt; give an object's own address to read it")
    assert len(fetch("s3://proteins/", tmp_path / "all", sources.PROTEINS)) == 3


def test_a_prefix_of_a_source_also_gives_tables(bucket: Any, tmp_path: Path) -> None:
    for key in ("in/b.csv.xz", "in/c.parquet", "in/d.faa.zst"):
        bucket.put_object(Bucket="proteins", Key=key, Body=b"x")
    paths = fetch("s3://proteins/in/", tmp_path, sources.SOURCES)
    assert [path.name for path in paths] == ["b.csv.xz", "c.parquet", "d.faa.zst"]


def test_a_prefix_without_proteins_names_its_objects(bucket: Any, tmp_path: Path) -> None:
    bucket.put_object(Bucket="proteins", Key="in/notes.txt", Body=b"x")
    with pytest.raises(FetchError, match=r"Left out: notes\.txt\.$"):
        fetch("s3://proteins/in/", tmp_path, sources.PROTEINS)


def test_an_empty_object_is_an_empty_file(bucket: Any, tmp_path: Path) -> None:
    bucket.put_object(Bucket="proteins", Key="empty.fa", Body=b"")
    (path,) = fetch("s3://proteins/empty.fa", tmp_path, sources.PROTEINS)
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("location", "message"),
    [
        (
            "s3://proteins/no.fa",
            r"s3://proteins/no.fa: S3 answered 404 404; there is no such object.*end it with / to mean all",
        ),
        (
            "s3://proteins/none/",
            r"s3://proteins/none/: no FASTA or structure object under this prefix; .*\.fasta",
        ),
        (
            "s3://nobucket/none/",
            r"s3://nobucket/none/: S3 answered 404 NoSuchBucket; there is no such object or bucket: check",
        ),
    ],
)
def test_missing_objects_are_named(
    bucket: Any, location: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(FetchError, match=message):
        fetch(location, tmp_path, sources.PROTEINS)


def _client_error(status: int, code: str) -> Exception:
    from botocore.exceptions import ClientError

    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "GetObject")


class FailingClient:
    """Client of S3 that raises an error at every request."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def head_object(self, **_: str) -> dict[str, object]:
        raise self._error

    def get_object(self, **_: str) -> dict[str, object]:
        raise self._error


class AnsweringClient:
    """Client of S3 with this answer about an object of one byte."""

    def __init__(self, answer: dict[str, object]) -> None:
        self._answer = answer

    def head_object(self, **_: str) -> dict[str, object]:
        return {"ContentLength": 1, **self._answer}


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            _client_error(403, "AccessDenied"),
            FetchError,
            r"S3 answered 403 AccessDenied; .*s3:GetObject",
        ),
        (_client_error(301, "PermanentRedirect"), FetchError, "check the bucket's region"),
        (_client_error(503, "SlowDown"), remotes.TransientError, "S3 answered 503 SlowDown"),
        (_client_error(412, "PreconditionFailed"), remotes.ChangedError, "has changed"),
        (
            botocore.exceptions.NoCredentialsError(),
            FetchError,
            r"cannot be used as configured \(NoCredentialsError\); log in",
        ),
        (
            botocore.exceptions.ProfileNotFound(profile="x"),
            FetchError,
            r"cannot be used as configured .*check AWS_PROFILE",
        ),
        (
            botocore.exceptions.EndpointConnectionError(endpoint_url="x"),
            remotes.TransientError,
            r"connection failed \(EndpointConnectionError\)",
        ),
    ],
)
def test_errors_of_s3_say_what_to_do(error: Exception, kind: type[Exception], message: str) -> None:
    remote = remotes.S3Remote("proteins", "p.fa", FailingClient(error))
    with pytest.raises(remotes.FetchError, match=message) as raised:
        remote.head()
    assert type(raised.value) is kind
    state = remotes.RemoteState("etag", 1, None)
    with pytest.raises(remotes.FetchError, match=message) as raised:
        list(remote.read(0, state))
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("answer", "algorithm"),
    [
        ({"ETag": '"' + "a" * 32 + '"'}, "md5"),
        ({"ETag": '"' + "a" * 32 + '-3"'}, None),
        ({"ETag": '"' + "a" * 32 + '"', "ServerSideEncryption": "aws:kms"}, None),
        ({"ETag": '""', "ChecksumSHA256": base64.b64encode(b"x" * 32).decode()}, "sha256"),
        ({"ETag": '""', "ChecksumCRC32": "AAAAAA=="}, "crc32"),
        ({"ETag": '""', "ChecksumCRC32": "AAAAAA==", "ChecksumType": "COMPOSITE"}, None),
        ({"ETag": '""', "ChecksumCRC64NVME": "AAAAAAAAAAA="}, None),
    ],
)
def test_only_digests_of_the_whole_object_are_used(
    answer: dict[str, object], algorithm: str | None
) -> None:
    state = remotes.S3Remote("proteins", "p.fa", AnsweringClient(answer)).head()
    assert (state.checksum.algorithm if state.checksum else None) == algorithm
