"""Files served over https://, and UniProt's published checksums for its own."""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import ssl
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode, urljoin, urlsplit, urlunsplit

from .transfer import CHUNK_BYTES, ChangedError, Checksum, FetchError, RemoteState, TransientError

if TYPE_CHECKING:  # only http(s) addresses need it
    import requests

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = (10.0, 60.0)
"""To connect, and between two pieces of an answer."""
METALINK_HOSTS = frozenset({"ftp.uniprot.org"})
"""Hosts that keep a RELEASE.metalink with sizes and md5 sums in each release folder."""
METALINK_NAME = "RELEASE.metalink"
MAX_METALINK_BYTES = 64 << 20
_METALINK_TAG = "{http://www.metalinker.org/}"  # Metalink 3.0
_SIGNATURE_FIELDS = ("x-amz-", "signature", "expires", "awsaccesskeyid", "key-pair-id", "policy", "sig", "se")


class HttpRemote:
    """One file behind an http(s) address."""

    def __init__(self, url: str) -> None:
        """Refuses addresses that cannot be used, before anything is sent."""
        self.address = shown_address(url)
        parts = urlsplit(url)
        if parts.scheme != "https" and not _is_loopback(parts.hostname):
            raise FetchError(
                f"{self.address}: unencrypted http:// is refused, since anyone on the way can change the "
                "proteins; use https://, or download the file yourself and give its path"
            )
        self.name = unquote(parts.path.rsplit("/", 1)[-1])
        if not self.name or self.name.startswith(".") or "/" in self.name or "\\" in self.name:
            raise FetchError(
                f"{self.address}: the address names no file; give the full address of one FASTA file "
                "(folders can be given for s3:// and on disk)"
            )
        self._url = url
        self._session = _session()
        # Without this, servers that label .gz files as a transport encoding have them unpacked on the way.
        self._session.headers["Accept-Encoding"] = "identity"

    def head(self) -> RemoteState:
        response = self._request("HEAD")
        if response.status_code in (403, 405, 501):
            # Some servers, and addresses signed for GET, refuse HEAD: ask for one byte instead.
            response = self._request("GET", {"Range": "bytes=0-0"})
        self._raise_for_status(response)
        _, _, total = response.headers.get("Content-Range", "").partition("/")
        length = total if response.status_code == 206 else response.headers.get("Content-Length", "")
        return RemoteState(
            validator=_validator(response.headers), length_bytes=int(length) if length.isdigit() else None
        )

    def read(self, offset_bytes: int, state: RemoteState) -> Iterator[bytes]:
        headers = {}
        if offset_bytes:
            assert state.validator is not None, "only a file with a validator is resumed"
            headers = {"Range": f"bytes={offset_bytes}-", "If-Range": state.validator}
        response = self._request("GET", headers)
        with response:
            if response.status_code == 416:
                raise ChangedError("the server has no bytes where the file on disk ends")
            self._raise_for_status(response)
            if _validator(response.headers) != state.validator:
                raise ChangedError("the file has changed at the source")
            if offset_bytes and response.status_code != 206:
                raise ChangedError("the server does not resume")
            if offset_bytes and not response.headers.get("Content-Range", "").startswith(
                f"bytes {offset_bytes}-"
            ):
                raise ChangedError("the server sent another part than the one asked for")
            with _breaks_pass():
                yield from response.raw.stream(CHUNK_BYTES, decode_content=False)

    def published_checksum(self, state: RemoteState) -> Checksum | None:
        if urlsplit(self._url).hostname not in METALINK_HOSTS:
            return None
        address = urljoin(self._url, METALINK_NAME)
        response = self._request("GET", url=address)
        with response:
            if response.status_code == 404:
                log.warning(
                    "%s: no %s beside it, so only its length was verified", self.address, METALINK_NAME
                )
                return None
            self._raise_for_status(response)
            with _breaks_pass():
                document = response.raw.read(MAX_METALINK_BYTES + 1, decode_content=False)
        entry = parse_metalink(document, address).get(self.name)
        if entry is None:
            log.warning("%s: %s does not list it, so only its length was verified", self.address, address)
            return None
        size_bytes, md5 = entry
        if size_bytes is not None and state.length_bytes not in (None, size_bytes):
            raise FetchError(
                f"{self.address}: has {state.length_bytes} bytes, but {address} says {size_bytes}; "
                "a new release may be on its way, run again later"
            )
        return Checksum(algorithm="md5", hex_digest=md5, published_by=address)

    def _request(
        self, method: str, headers: Mapping[str, str] | None = None, *, url: str | None = None
    ) -> requests.Response:
        import requests

        # The causes are not chained or quoted: requests' messages hold the whole address, signatures
        # included.
        try:
            return self._session.request(
                method,
                url or self._url,
                headers=headers,
                timeout=TIMEOUT_SECONDS,
                stream=True,
                allow_redirects=True,
            )
        except requests.exceptions.SSLError as error:
            cause = "its certificate is not trusted" if _is_certificate_failure(error) else "TLS failed"
            raise FetchError(
                f"{self.address}: {cause}; check the address and this machine's clock and "
                "certificates (REQUESTS_CA_BUNDLE)"
            ) from None
        except (requests.ConnectionError, requests.Timeout) as error:
            raise TransientError(f"{self.address}: cannot be reached ({type(error).__name__})") from None
        except requests.RequestException as error:
            raise FetchError(
                f"{self.address}: the request failed ({type(error).__name__}); check the address"
            ) from None

    def _raise_for_status(self, response: requests.Response) -> None:
        status = response.status_code
        if status in (429, 408) or status >= 500:
            response.close()
            raise TransientError(f"{self.address}: the server answered {status}")
        if status in (404, 410):
            raise FetchError(
                f"{self.address}: there is no such file (the server answered {status}); check the address"
            )
        if status in (401, 403):
            raise FetchError(
                f"{self.address}: no permission (the server answered {status}); a signed address may have "
                "expired, or the file needs a login: download it yourself and give its path"
            )
        if status not in (200, 206):
            raise FetchError(
                f"{self.address}: the server answered {status} instead of the file; check the address"
            )


@contextmanager
def _breaks_pass() -> Iterator[None]:
    """Turn a broken connection into a failure that may pass."""
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (HTTPError, OSError) as error:
        raise TransientError(f"the connection broke ({type(error).__name__})") from None


def _session() -> requests.Session:
    """Return a session that refuses to be redirected to an unencrypted address."""
    import requests

    session = requests.Session()

    def stay_encrypted(response: requests.Response, **unused: Any) -> None:
        parts = urlsplit(urljoin(response.url, session.get_redirect_target(response) or ""))
        if parts.scheme != "https" and not _is_loopback(parts.hostname):
            raise FetchError(
                f"{shown_address(response.url)}: leads on to {shown_address(urlunsplit(parts))}, which is "
                "not https://; give an address that stays encrypted"
            )

    session.hooks["response"].append(stay_encrypted)
    return session


def shown_address(url: str) -> str:
    """``url`` without login and signature, so that it may be printed and kept.

    What is left of a query string becomes a digest: two queries stay two addresses.
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    kept = [pair for pair in parse_qsl(parts.query) if not pair[0].lower().startswith(_SIGNATURE_FIELDS)]
    query = hashlib.sha256(urlencode(kept).encode()).hexdigest()[:12] if kept else ""
    return urlunsplit((parts.scheme, host, parts.path, query, ""))


def parse_metalink(document: bytes, address: str) -> dict[str, tuple[int | None, str]]:
    """Size in bytes and md5 of each file of a Metalink 3.0 document.

    Raises:
        FetchError: if it is not one. Document types are refused: entities in them can blow up without bound.
    """
    if len(document) > MAX_METALINK_BYTES:
        raise FetchError(
            f"{address}: longer than {MAX_METALINK_BYTES} bytes, so it is not a list of checksums"
        )
    try:
        root = ElementTree.fromstring(document, parser=ElementTree.XMLParser(target=_NoDoctype()))
    except ElementTree.ParseError as error:
        raise FetchError(
            f"{address}: not a metalink ({error}); the checksum cannot be verified, run again later"
        ) from None
    entries: dict[str, tuple[int | None, str]] = {}
    for file in root.iter(f"{_METALINK_TAG}file"):
        for digest in file.iter(f"{_METALINK_TAG}hash"):
            size = (file.findtext(f"{_METALINK_TAG}size") or "").strip()
            if digest.get("type") == "md5" and digest.text:
                entries[file.get("name", "")] = (
                    int(size) if size.isdigit() else None,
                    digest.text.strip().lower(),
                )
    return entries


class _NoDoctype(ElementTree.TreeBuilder):
    def doctype(self, *_: object) -> None:
        raise ElementTree.ParseError("it has a document type")


def _validator(headers: Mapping[str, str]) -> str | None:
    """Pick the value that If-Range accepts: weak ETags (W/...) are not allowed there."""
    etag = headers.get("ETag", "")
    return etag if etag.startswith('"') else headers.get("Last-Modified")


def _is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def _is_certificate_failure(error: BaseException) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return True
        seen = seen.__cause__ or seen.__context__
    return "CERTIFICATE_VERIFY_FAILED" in str(error)
