"""Files in S3, with the credentials that boto3 finds (environment, profile, the machine's role)."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from .transfer import (
    CHUNK_BYTES,
    ChangedError,
    Checksum,
    FetchError,
    RemoteState,
    TransientError,
    with_retries,
)

# boto3 makes its clients at run time; the types of each service would be a package of their own.
S3Client = Any

log = logging.getLogger(__name__)

# Strongest first. S3's default today, CRC64NVME, has no implementation in the Python standard library.
_CHECKSUM_FIELDS = {"ChecksumSHA256": "sha256", "ChecksumSHA1": "sha1", "ChecksumCRC32": "crc32"}


class S3Remote:
    """One object, read by ranges so that a break costs only what had not arrived."""

    def __init__(self, bucket: str, key: str, client: S3Client) -> None:
        self.address = f"s3://{bucket}/{key}"
        self.name = key.rsplit("/", 1)[-1]
        self._bucket, self._key, self._client = bucket, key, client
        self._checksum: Checksum | None = None

    def head(self) -> RemoteState:
        try:
            answer = self._client.head_object(Bucket=self._bucket, Key=self._key, ChecksumMode="ENABLED")
        except _errors() as error:
            raise_for(self.address, error)
        self._checksum = _checksum_of(dict(answer))
        return RemoteState(validator=answer["ETag"], length_bytes=answer["ContentLength"])

    def published_checksum(self, state: RemoteState) -> Checksum | None:
        if self._checksum is None:
            log.warning(
                "%s: S3 keeps no digest of the whole object, so only its length was verified", self.address
            )
        return self._checksum

    def read(self, offset_bytes: int, state: RemoteState) -> Iterator[bytes]:
        assert state.validator is not None, "every S3 object has an ETag"
        if state.length_bytes == 0:
            return
        try:
            answer = self._client.get_object(
                Bucket=self._bucket, Key=self._key, Range=f"bytes={offset_bytes}-", IfMatch=state.validator
            )
            yield from answer["Body"].iter_chunks(CHUNK_BYTES)
        except _errors() as error:
            raise_for(self.address, error)


def _errors() -> tuple[type[Exception], ...]:
    """Return the errors of boto3 and its transport, imported late: only S3 addresses need boto3."""
    from botocore.exceptions import BotoCoreError, ClientError
    from urllib3.exceptions import HTTPError

    return BotoCoreError, ClientError, HTTPError


def s3_client() -> S3Client:
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        config=Config(
            # Retries are ours, so that they resume; digests are checked over the whole file, also after a
            # resume.
            retries={"total_max_attempts": 1},
            response_checksum_validation="when_required",
            connect_timeout=10,
            read_timeout=60,
        ),
    )


def split_s3_address(address: str) -> tuple[str, str]:
    match = re.fullmatch(r"s3://([A-Za-z0-9][A-Za-z0-9.\-]+)/(.*)", address)
    if match is None:
        raise FetchError(
            f"{address}: not an S3 address; write s3://bucket/key for one file or s3://bucket/prefix/ for "
            "a folder"
        )
    return match[1], match[2]


def list_keys(client: S3Client, bucket: str, prefix: str) -> list[str]:
    """Every key under ``prefix``, sorted."""
    address = f"s3://{bucket}/{prefix}"

    def attempt() -> list[str]:
        try:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
            return sorted(entry["Key"] for page in pages for entry in page.get("Contents", []))
        except _errors() as error:
            raise_for(address, error)

    return with_retries(address, attempt)


def raise_for(address: str, error: Exception) -> NoReturn:
    """``error`` of boto3 as one of ours. Its text is not quoted: it may hold a key id or an account."""
    import botocore.exceptions
    from urllib3.exceptions import HTTPError

    if isinstance(error, botocore.exceptions.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = error.response.get("Error", {}).get("Code", "")
        if code == "NoSuchBucket":
            raise FetchError(f"{address}: there is no such bucket; check the address") from None
        if status == 404:
            raise FetchError(
                f"{address}: there is no such object; check the address (aws s3 ls lists a prefix), "
                "and end it with / to mean all FASTA under it"
            ) from None
        if status in (401, 403):
            raise FetchError(
                f"{address}: no permission ({code}); the role or user needs s3:GetObject on it and "
                "s3:ListBucket on the bucket, without which a missing object looks the same; check with "
                "aws sts get-caller-identity"
            ) from None
        if status in (412, 416):
            raise ChangedError("the object has changed in the bucket")
        if status >= 500 or code in ("SlowDown", "RequestTimeout", "Throttling"):
            raise TransientError(f"S3 answered {status} {code}")
        raise FetchError(
            f"{address}: S3 answered {status} {code}; check the bucket's region (AWS_DEFAULT_REGION)"
        ) from None
    if isinstance(
        error,
        (botocore.exceptions.NoCredentialsError, botocore.exceptions.PartialCredentialsError),
    ):
        raise FetchError(
            f"{address}: no AWS credentials found; log in (aws configure, aws sso login) or run where a "
            "role is attached"
        ) from None
    if isinstance(
        error,
        (
            botocore.exceptions.ConnectionError,
            botocore.exceptions.HTTPClientError,
            botocore.exceptions.IncompleteReadError,
            HTTPError,
        ),
    ):
        raise TransientError(f"the connection broke ({type(error).__name__})")
    raise FetchError(
        f"{address}: S3 cannot be used as configured ({type(error).__name__}); "
        "check AWS_PROFILE, AWS_DEFAULT_REGION and the profile's settings"
    ) from None


def _checksum_of(answer: dict[str, object]) -> Checksum | None:
    """Find a digest of the whole object in HeadObject's answer."""
    # Objects put in one piece are FULL_OBJECT too, and older S3-compatible servers leave the field out.
    if answer.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT":
        for field, algorithm in _CHECKSUM_FIELDS.items():
            value = str(answer.get(field, ""))
            # "digest-parts" is a digest of the parts' digests.
            if value and "-" not in value:
                return Checksum(algorithm, base64.b64decode(value).hex(), f"S3's {field}")
    etag = str(answer.get("ETag", "")).strip('"')
    # The ETag is the md5 of objects put in one piece, unless KMS or the customer's key encrypts them.
    single_piece = re.fullmatch(r"[0-9a-f]{32}", etag) is not None
    plain = answer.get("ServerSideEncryption", "AES256") == "AES256" and "SSECustomerAlgorithm" not in answer
    return Checksum("md5", etag, "S3's ETag") if single_piece and plain else None
