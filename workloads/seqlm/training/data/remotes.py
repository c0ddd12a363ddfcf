"""Remote files behind https:// and s3:// addresses, with the checksums that are published for them.

requests and boto3 are imported where an address needs them. S3's credentials are those that boto3 finds
(environment, profile, the machine's role).
"""

from __future__ import annotations

import base64
import hashlib
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode, urljoin, urlsplit, urlunsplit

if TYPE_CHECKING:
    import requests

CHUNK_BYTES = 1 << 20
TIMEOUT_SECONDS = (10, 60)
"""To connect, and between two pieces of an answer."""
METALINK_HOSTS = frozenset({"ftp.uniprot.org"})
"""Hosts that keep a RELEASE.metalink with sizes and md5 sums in each release folder."""
MAX_METALINK_BYTES = 64 << 20
_METALINK_TAG = "{http://www.metalinker.org/}"  # Metalink 3.0
_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_SIGNATURE_FIELD = re.compile(
    r"(?i)x-(amz|goog)-.*|signature|expires|awsaccesskeyid|key-pair-id|policy|sig|se"
)
# Strongest first. S3's default today, CRC64NVME, has no implementation in the Python standard library.
_CHECKSUM_FIELDS = {"ChecksumSHA256": "sha256", "ChecksumSHA1": "sha1", "ChecksumCRC32": "crc32"}


class FetchError(ValueError):
    """The file cannot be fetched; the message names the address and what to do."""


class TransientError(FetchError):
    """A failure that may pass: a broken connection, an overloaded server."""


class ChangedError(TransientError):
    """The remote is no longer the file whose beginning is on disk, or will not serve the rest of it."""


@dataclass(frozen=True)
class Checksum:
    """A digest as the source publishes it."""

    algorithm: str
    """``md5``, ``sha1``, ``sha256`` or ``crc32``."""
    hex_digest: str
    published_by: str


@dataclass(frozen=True)
class RemoteState:
    """Description of a remote file, as its server gives it without the content."""

    validator: str | None
    """Changes whenever the content does: a strong ETag or the modification date; None without either."""
    length_bytes: int | None
    checksum: Checksum | None


class HttpRemote:
    """One file behind an http(s) address; a failure that may pass is a TransientError."""

    def __init__(self, url: str) -> None:
        """Refuse addresses that cannot be used, before anything is sent."""
        import requests

        self.address = shown_address(url)
        self._url = url
        self._refuse_unencrypted(url)
        self.name = unquote(urlsplit(url).path.rpartition("/")[2])
        if not self.name or self.name.startswith(".") or "/" in self.name or "\\" in self.name:
            raise FetchError(
                f"{self.address}: the address names no file; give the full address of one FASTA file "
                "(folders can be given for s3:// and on disk)"
            )
        # Retries are the transfer's: they resume, and urllib3's own would log signed addresses.
        self._session = requests.Session()
        # Without this, servers that label .gz files as a transport encoding have them unpacked on the way.
        self._session.headers["Accept-Encoding"] = "identity"
        self._session.hooks["response"].append(
            lambda response, **_: self._refuse_unencrypted(
                urljoin(response.url, self._session.get_redirect_target(response) or "")
            )
        )

    def head(self) -> RemoteState:
        response = self._request("HEAD", self._url)
        if response.status_code in (403, 405, 501):
            # Some servers, and addresses signed for GET, refuse HEAD: ask for one byte instead.
            response = self._request("GET", self._url, {"Range": "bytes=0-0"})
        self._check_status(response)
        response.close()
        length = response.headers.get("Content-Length", "")
        if response.status_code == 206:
            length = response.headers.get("Content-Range", "").rpartition("/")[2]
        length_bytes = int(length) if length.isdigit() else None
        return RemoteState(_validator(response.headers), length_bytes, self._checksum(length_bytes))

    def read(self, offset_bytes: int, state: RemoteState) -> Iterator[bytes]:
        """Yield the content from ``offset_bytes`` on; ChangedError if it is no longer ``state``'s."""
        headers = {}
        if offset_bytes and state.validator is not None:
            headers = {"Range": f"bytes={offset_bytes}-", "If-Range": state.validator}
        with self._request("GET", self._url, headers) as response, _http_errors(self.address):
            if response.status_code != 416:
                self._check_status(response)
            served = response.headers.get("Content-Range", "bytes 0-")
            unchanged = _validator(response.headers) == state.validator
            if not unchanged or not served.startswith(f"bytes {offset_bytes}-"):
                raise ChangedError(
                    f"{self.address}: cannot be resumed, or has changed at the source; starting again"
                )
            yield from response.raw.stream(CHUNK_BYTES, decode_content=False)

    def _checksum(self, length_bytes: int | None) -> Checksum | None:
        if urlsplit(self._url).hostname not in METALINK_HOSTS:
            return None
        address = urljoin(self._url, "RELEASE.metalink")
        with self._request("GET", address) as response, _http_errors(self.address):
            if response.status_code == 404:
                return None
            self._check_status(response)
            document = response.raw.read(MAX_METALINK_BYTES, decode_content=False)
        size_bytes, checksum = parse_metalink(document, address, self.name)
        if None not in (size_bytes, length_bytes) and size_bytes != length_bytes:
            raise FetchError(
                f"{self.address}: has {length_bytes} bytes, but {address} says {size_bytes}; "
                "a new release may be on its way, run again later"
            )
        return checksum

    def _request(self, method: str, url: str, headers: Mapping[str, str] | None = None) -> requests.Response:
        with _http_errors(self.address):
            return self._session.request(method, url, headers=headers, timeout=TIMEOUT_SECONDS, stream=True)

    def _check_status(self, response: requests.Response) -> None:
        status = response.status_code
        if status in (200, 206):
            return
        response.close()
        message = f"{self.address}: the server answered {status} {response.reason}"
        if status in (408, 429) or status >= 500:
            raise TransientError(message)
        advice = "check the address"
        if status in (401, 403):
            advice = (
                "a signed address may have expired, or the file needs a login: download it yourself and give "
                "its path"
            )
        raise FetchError(f"{message}; {advice}")

    def _refuse_unencrypted(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "https" and parts.hostname not in _LOOPBACK_HOSTS:
            raise FetchError(
                f"{self.address}: unencrypted {shown_address(url)} is refused, because anyone on the way can "
                "change the proteins; use https://, or download the file yourself and give its path"
            )


class S3Remote:
    """One object, read from an offset so that a break costs only what had not arrived."""

    def __init__(self, bucket: str, key: str, client: Any) -> None:
        self.address = f"s3://{bucket}/{key}"
        self.name = key.rpartition("/")[2]
        self._object = {"Bucket": bucket, "Key": key}
        self._client = client

    def head(self) -> RemoteState:
        with _s3_errors(self.address):
            answer = self._client.head_object(**self._object, ChecksumMode="ENABLED")
        return RemoteState(answer["ETag"], answer["ContentLength"], _s3_checksum(answer))

    def read(self, offset_bytes: int, state: RemoteState) -> Iterator[bytes]:
        # S3 refuses any range of an empty object.
        part = {"Range": f"bytes={offset_bytes}-"} if offset_bytes else {}
        with _s3_errors(self.address):
            answer = self._client.get_object(**self._object, **part, IfMatch=state.validator)
            yield from answer["Body"].iter_chunks(CHUNK_BYTES)


def s3_remotes(address: str) -> list[S3Remote]:
    """Return the object at ``address``, or those under it if it ends with /, sorted."""
    match = re.fullmatch(r"s3://([A-Za-z0-9][A-Za-z0-9.\-]+)/(.*)", address)
    if match is None:
        raise FetchError(
            f"{address}: not an S3 address; write s3://bucket/key for one file or s3://bucket/prefix/ for "
            "a folder"
        )
    bucket, key = match.groups()
    with _s3_errors(address):
        import boto3
        from botocore.config import Config

        # Digests are compared over the whole file, also after a resume.
        config = Config(connect_timeout=TIMEOUT_SECONDS[0], response_checksum_validation="when_required")
        client: Any = boto3.client("s3", config=config)
        keys = [key]
        if not key or key.endswith("/"):
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
            keys = sorted(entry["Key"] for page in pages for entry in page.get("Contents", []))
    return [S3Remote(bucket, key, client) for key in keys]


@contextmanager
def _http_errors(address: str) -> Iterator[None]:
    """Raise the errors of requests and urllib3 as this program's.

    They are neither chained nor quoted, because they hold the whole address, signatures included.
    """
    from requests import ConnectionError, RequestException, Timeout
    from requests.exceptions import SSLError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (RequestException, HTTPError) as error:
        message = f"{address}: the connection failed ({type(error).__name__})"
        if isinstance(error, (ConnectionError, Timeout, HTTPError)) and not isinstance(error, SSLError):
            raise TransientError(message) from None
        raise FetchError(
            f"{message}; check the address, and this machine's clock and certificates (REQUESTS_CA_BUNDLE)"
        ) from None


@contextmanager
def _s3_errors(address: str) -> Iterator[None]:
    """Raise boto3's errors as this program's; not quoted, because they may hold a key id or an account."""
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        answered = f"{address}: S3 answered {status} {error.response['Error']['Code']}"
        if status in (412, 416):
            raise ChangedError(f"{address}: has changed in the bucket; starting again") from None
        if status == 429 or status >= 500:
            raise TransientError(answered) from None
        advice = "check the bucket's region (AWS_DEFAULT_REGION)"
        if status == 404:
            advice = (
                "there is no such object or bucket: check the address (aws s3 ls lists a prefix), and end it "
                "with / to mean all FASTA under it"
            )
        if status in (401, 403):
            advice = (
                "the role or user needs s3:GetObject on it and s3:ListBucket on the bucket, without which a "
                "missing object looks the same; check with aws sts get-caller-identity"
            )
        raise FetchError(f"{answered}; {advice}") from None
    except (exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.IncompleteReadError) as error:
        raise TransientError(f"{address}: the connection failed ({type(error).__name__})") from None
    except exceptions.BotoCoreError as error:
        raise FetchError(
            f"{address}: S3 cannot be used as configured ({type(error).__name__}); log in (aws configure, "
            "aws sso login), run where a role is attached, or check AWS_PROFILE and AWS_DEFAULT_REGION"
        ) from None


def shown_address(url: str) -> str:
    """Remove login and signature from ``url``, so that it may be printed and kept.

    The rest of a query string becomes a digest: two queries stay two addresses.
    """
    parts = urlsplit(url)
    kept = [(name, value) for name, value in parse_qsl(parts.query) if not _SIGNATURE_FIELD.fullmatch(name)]
    query = hashlib.sha256(urlencode(kept).encode()).hexdigest()[:12] if kept else ""
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, ""))


def parse_metalink(document: bytes, address: str, name: str) -> tuple[int | None, Checksum | None]:
    """Return the size in bytes and the md5 that a Metalink 3.0 document has for the file ``name``.

    Raises:
        FetchError: if it is not one. expat (2.4.1 and later) refuses entities that blow up.
    """
    try:
        root = ElementTree.fromstring(document)
    except ElementTree.ParseError as error:
        raise FetchError(
            f"{address}: not a metalink ({error}); the checksum cannot be verified, run again later"
        ) from None
    for file in root.iter(f"{_METALINK_TAG}file"):
        if file.get("name") == name:
            size = file.findtext(f"{_METALINK_TAG}size", "").strip()
            md5 = file.findtext(f".//{_METALINK_TAG}hash[@type='md5']", "").strip().lower()
            return int(size) if size.isdigit() else None, Checksum("md5", md5, address) if md5 else None
    return None, None


def _validator(headers: Mapping[str, str]) -> str | None:
    """Pick the value that If-Range accepts: weak ETags (W/...) are not allowed there."""
    etag = headers.get("ETag", "")
    return etag if etag.startswith('"') else headers.get("Last-Modified")


def _s3_checksum(answer: Mapping[str, Any]) -> Checksum | None:
    """Find a digest of the whole object in HeadObject's answer."""
    # Objects put in one piece are FULL_OBJECT too, and older S3-compatible servers leave the field out.
    if answer.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT":
        for field, algorithm in _CHECKSUM_FIELDS.items():
            value = answer.get(field, "")
            # "digest-parts" is a digest of the parts' digests.
            if value and "-" not in value:
                return Checksum(algorithm, base64.b64decode(value).hex(), f"S3's {field}")
    etag = answer["ETag"].strip('"')
    # The ETag is the md5 of objects put in one piece, unless KMS or the customer's key encrypts them.
    single_piece = re.fullmatch(r"[0-9a-f]{32}", etag) is not None
    plain = answer.get("ServerSideEncryption", "AES256") == "AES256" and "SSECustomerAlgorithm" not in answer
    return Checksum("md5", etag, "S3's ETag") if single_piece and plain else None
