"""Remote files behind https:// and s3:// addresses, with the checksums that are published for them.

Only functions import requests and boto3, because most runs need neither. Credentials for S3 are those that
boto3 finds: environment, profile, or the machine's role.
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
"""Size of the pieces in which content is read."""
CONNECT_TIMEOUT_SECONDS = 10
READ_TIMEOUT_SECONDS = 60
"""Longest time between two pieces of an answer."""
METALINK_HOSTS = frozenset({"ftp.uniprot.org"})
"""Hosts that keep a RELEASE.metalink with sizes and md5 sums in each release folder."""
MAX_METALINK_BYTES = 64 << 20
"""Size to which a metalink is read."""
_METALINK_TAG = "{http://www.metalinker.org/}"  # Metalink 3.0
_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
"""Hosts that may be reached without encryption."""
_SIGNATURE_FIELD = re.compile(
    r"(?i)x-(amz|goog)-.*|signature|expires|awsaccesskeyid|key-pair-id|policy|sig|se"
)
"""Names of the fields of a query that are parts of a signature."""
_CHECKSUM_FIELDS = {"ChecksumSHA256": "sha256", "ChecksumSHA1": "sha1", "ChecksumCRC32": "crc32"}
"""S3's fields with checksums and their algorithms, the strongest first. Python's standard library lacks
CRC64NVME, S3's default."""


class FetchError(ValueError):
    """The file cannot be fetched; the message names the address and what to do."""


class TransientError(FetchError):
    """A failure that may pass, such as a broken connection or an overloaded server."""


class ChangedError(TransientError):
    """The remote file differs from the one that was begun on disk, or its server cannot resume."""


@dataclass(frozen=True)
class Checksum:
    """Checksum of a remote file, as its source publishes it."""

    algorithm: str
    """``md5``, ``sha1``, ``sha256`` or ``crc32``."""
    hex_digest: str
    published_by: str
    """Source of the checksum, for messages."""


@dataclass(frozen=True)
class RemoteState:
    """Description of a remote file, as its server gives it without the content."""

    validator: str | None
    """Strong ETag or modification date, which changes with the content; None without either."""
    length_bytes: int | None
    """Size of the file; None if it is not known."""
    checksum: Checksum | None
    """Published checksum; None if there is none."""


class HttpRemote:
    """File behind an http(s) address.

    Args:
        url: address, which may be signed.

    Raises:
        FetchError: if the address cannot be used; nothing is sent. All methods raise it, too, and
            TransientError for a failure that may pass.
    """

    def __init__(self, url: str) -> None:
        import requests

        self.address = shown_address(url)
        self._url = url
        self._refuse_unencrypted(url)
        self.name = unquote(urlsplit(url).path.rpartition("/")[2])
        if not self.name or self.name.startswith(".") or "/" in self.name or "\\" in self.name:
            raise FetchError(
                f"{self.address}: the address names no file; give the full address of one file "
                "(folders can be given for s3:// and on disk)"
            )
        # The transfer retries and resumes. Retries of urllib3 would log signed addresses.
        self._session = requests.Session()
        # Otherwise .gz files are unpacked if a server labels them as a transport encoding.
        self._session.headers["Accept-Encoding"] = "identity"
        self._session.hooks["response"].append(self._check_redirect)

    def _check_redirect(self, response: requests.Response, **_: object) -> None:
        target = self._session.get_redirect_target(response) or ""
        self._refuse_unencrypted(urljoin(response.url, target))

    def head(self) -> RemoteState:
        """Return the state of the file."""
        response = self._request("HEAD", self._url)
        if response.status_code in (403, 405, 501):
            # Some servers, and addresses signed for GET, refuse HEAD. One byte has the same headers.
            response = self._request("GET", self._url, {"Range": "bytes=0-0"})
        self._check_status(response)
        response.close()
        length = response.headers.get("Content-Length", "")
        if response.status_code == 206:
            length = response.headers.get("Content-Range", "").rpartition("/")[2]
        length_bytes = int(length) if length.isdigit() else None
        return RemoteState(_validator(response.headers), length_bytes, self._checksum(length_bytes))

    def read(self, offset_bytes: int, state: RemoteState) -> Iterator[bytes]:
        """Yield the content from ``offset_bytes`` on.

        Args:
            offset_bytes: number of bytes to leave out.
            state: state of the file when its first bytes were read.

        Raises:
            ChangedError: if the file is in another state, or cannot be read from an offset.
        """
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

    def _request(
        self, method: str, url: str, headers: Mapping[str, str] | None = None
    ) -> requests.Response:
        timeouts = (CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS)
        with _http_errors(self.address):
            return self._session.request(
                method, url, headers=headers, timeout=timeouts, stream=True
            )

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
                "change the file; use https://, or download the file yourself and give its path"
            )


class S3Remote:
    """Object in S3.

    Args:
        bucket: name of the bucket.
        key: key of the object.
        client: boto3's client of S3.
    """

    def __init__(self, bucket: str, key: str, client: Any) -> None:
        self.address = f"s3://{bucket}/{key}"
        self.name = key.rpartition("/")[2]
        self._object = {"Bucket": bucket, "Key": key}
        self._client = client

    def head(self) -> RemoteState:
        """Return the state of the object."""
        with _s3_errors(self.address):
            answer = self._client.head_object(**self._object, ChecksumMode="ENABLED")
        return RemoteState(answer["ETag"], answer["ContentLength"], _s3_checksum(answer))

    def read(self, offset_bytes: int, state: RemoteState) -> Iterator[bytes]:
        """Yield the content from ``offset_bytes`` on; see ``HttpRemote.read``."""
        # S3 refuses any range of an empty object, even the whole.
        part = {"Range": f"bytes={offset_bytes}-"} if offset_bytes else {}
        with _s3_errors(self.address):
            answer = self._client.get_object(**self._object, **part, IfMatch=state.validator)
            yield from answer["Body"].iter_chunks(CHUNK_BYTES)


def s3_remotes(address: str) -> list[S3Remote]:
    """Return the object at an address, or the sorted objects below it if it ends with /."""
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

        # The transfer verifies the whole file, also if it was resumed.
        config = Config(
            connect_timeout=CONNECT_TIMEOUT_SECONDS, response_checksum_validation="when_required"
        )
        client: Any = boto3.client("s3", config=config)
        keys = [key]
        if not key or key.endswith("/"):
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
            keys = sorted(entry["Key"] for page in pages for entry in page.get("Contents", []))
    return [S3Remote(bucket, key, client) for key in keys]


@contextmanager
def _http_errors(address: str) -> Iterator[None]:
    """Turn errors of requests and urllib3 into those of this module.

    They are neither chained nor quoted, because they contain the whole address with its signature.
    """
    from requests import ConnectionError, RequestException, Timeout
    from requests.exceptions import SSLError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (RequestException, HTTPError) as error:
        message = f"{address}: the connection failed ({type(error).__name__})"
        if isinstance(error, (ConnectionError, Timeout, HTTPError)) and not isinstance(
            error, SSLError
        ):
            raise TransientError(message) from None
        raise FetchError(
            f"{message}; check the address, and this machine's clock and certificates (REQUESTS_CA_BUNDLE)"
        ) from None


@contextmanager
def _s3_errors(address: str) -> Iterator[None]:
    """Turn errors of boto3 into those of this module; they may contain a key id, so they are not quoted."""
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
                "with / to mean all files under it"
            )
        if status in (401, 403):
            advice = (
                "the role or user needs s3:GetObject on it and s3:ListBucket on the bucket, without which a "
                "missing object looks the same; check with aws sts get-caller-identity"
            )
        raise FetchError(f"{answered}; {advice}") from None
    except (
        exceptions.ConnectionError,
        exceptions.HTTPClientError,
        exceptions.IncompleteReadError,
    ) as error:
        raise TransientError(f"{address}: the connection failed ({type(error).__name__})") from None
    except exceptions.BotoCoreError as error:
        raise FetchError(
            f"{address}: S3 cannot be used as configured ({type(error).__name__}); log in (aws configure, "
            "aws sso login), run where a role is attached, or check AWS_PROFILE and AWS_DEFAULT_REGION"
        ) from None


def shown_address(url: str) -> str:
    """Return an address without login and signature, so that it may be printed and stored.

    The rest of its query becomes a digest, so that different queries stay different addresses.
    """
    parts = urlsplit(url)
    kept = [
        (name, value)
        for name, value in parse_qsl(parts.query)
        if not _SIGNATURE_FIELD.fullmatch(name)
    ]
    query = hashlib.sha256(urlencode(kept).encode()).hexdigest()[:12] if kept else ""
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, ""))


def parse_metalink(document: bytes, address: str, name: str) -> tuple[int | None, Checksum | None]:
    """Return the size in bytes and the md5 of a file in a Metalink 3.0 document; None if it has none.

    Args:
        document: content of the metalink. expat (2.4.1 and later) refuses entities that expand too far.
        address: address of the metalink, for messages.
        name: name of the file.

    Raises:
        FetchError: if the document is not XML.
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
            size_bytes = int(size) if size.isdigit() else None
            md5 = file.findtext(f".//{_METALINK_TAG}hash[@type='md5']", "").strip().lower()
            return size_bytes, Checksum("md5", md5, address) if md5 else None
    return None, None


def _validator(headers: Mapping[str, str]) -> str | None:
    """Return a value for If-Range, which does not accept weak ETags (W/...)."""
    etag = headers.get("ETag", "")
    return etag if etag.startswith('"') else headers.get("Last-Modified")


def _s3_checksum(answer: Mapping[str, Any]) -> Checksum | None:
    """Return a checksum of the whole object from the answer of HeadObject; None if it has none."""
    # Objects that were written in one piece are FULL_OBJECT, too. Older servers lack the field.
    if answer.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT":
        for field, algorithm in _CHECKSUM_FIELDS.items():
            value = answer.get(field, "")
            # A value of the form digest-N is the digest of the digests of N parts.
            if value and "-" not in value:
                return Checksum(algorithm, base64.b64decode(value).hex(), f"S3's {field}")
    etag = answer["ETag"].strip('"')
    # The ETag is the md5 of an object in one piece, unless KMS or a key of the customer encrypts it.
    is_one_piece = re.fullmatch(r"[0-9a-f]{32}", etag) is not None
    has_s3_key = answer.get("ServerSideEncryption", "AES256") == "AES256"
    if not is_one_piece or not has_s3_key or "SSECustomerAlgorithm" in answer:
        return None
    return Checksum("md5", etag, "S3's ETag")
