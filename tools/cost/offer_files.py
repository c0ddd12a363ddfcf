"""AWS's public price files, which need no credentials: one JSON file per service and region.

The file of EC2 has hundreds of megabytes, so files are read in pieces, and only the products of our queries
are kept. Source: AWS Billing user guide, "Getting price list files manually".
"""

import codecs
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from http.client import HTTPException
from typing import IO, Any

PUBLIC_FILES = "https://pricing.us-east-1.amazonaws.com"
SECONDS_WITHOUT_DATA = 60
CHUNK_BYTES = 1 << 20
MAX_VALUE_CHARACTERS = 64 << 20
"""Longest part of a file that is read at once. A product has some thousand characters."""
Opener = Callable[[str], AbstractContextManager[IO[bytes]]]
Product = dict[str, Any]


def open_url(url: str) -> AbstractContextManager[IO[bytes]]:
    """Open a file of AWS's public address."""
    return urllib.request.urlopen(url, timeout=SECONDS_WITHOUT_DATA)


def public_products(
    service: str,
    region: str,
    is_wanted: Callable[[Mapping[str, Any]], bool],
    *,
    opener: Opener = open_url,
) -> Iterator[Product]:
    """Yield the wanted products of a service in the form of the API, with their on-demand prices.

    Args:
        service: ServiceCode of the AWS Price List.
        region: region, such as us-west-2.
        is_wanted: condition on a product's family and attributes.
        opener: function that opens a URL for reading.

    Raises:
        ValueError: if the file has another form, or cannot be read.
    """
    url = f"{PUBLIC_FILES}/offers/v1.0/aws/{service}/current/{region}/index.json"
    try:
        yield from _products(url, is_wanted, opener)
    except urllib.error.HTTPError as error:
        raise ValueError(
            f"{url} answers {error.code} {error.reason}; omit --public to ask the API of an account"
        ) from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ValueError(
            f"{url} could not be read: {reason}; check the connection to the internet, and run it again"
        ) from None


def _products(
    url: str, is_wanted: Callable[[Mapping[str, Any]], bool], opener: Opener
) -> Iterator[Product]:
    """Yield the wanted products of one file."""
    wanted: dict[str, Any] = {}
    published = ""
    with opener(url) as file:
        reader = _Reader(file, url)
        for name in reader.members():
            if name == "publicationDate":
                published = str(reader.value())
            elif name == "products":
                for sku in reader.members():
                    product = reader.value()
                    if is_wanted(product):
                        wanted[sku] = product
            elif name == "terms":
                yield from _with_prices(reader, wanted, published)
                # Reserved prices follow, which nothing here uses.
                return
            else:
                reader.value()
    raise ValueError(f"{url}: the file ends before its prices; run it again")


def _with_prices(reader: "_Reader", wanted: dict[str, Any], published: str) -> Iterator[Product]:
    for kind in reader.members():
        if kind != "OnDemand":
            for _ in reader.members():
                reader.value()
            continue
        for sku in reader.members():
            terms = reader.value()
            if sku in wanted:
                yield {
                    "product": wanted[sku],
                    "terms": {"OnDemand": terms},
                    "publicationDate": published,
                }
        return


class _Reader:
    """Reads a JSON document in pieces: the members of objects one after the other."""

    def __init__(self, file: IO[bytes], url: str) -> None:
        self._file = file
        self._url = url
        self._decoder = json.JSONDecoder()
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._position = 0

    def members(self) -> Iterator[str]:
        """Yield the names of an object's members. The caller reads the value of each."""
        self._expect("{")
        if self._peek() == "}":
            self._expect("}")
            return
        while True:
            name = self.value()
            self._expect(":")
            yield str(name)
            if self._peek() == "}":
                self._expect("}")
                return
            self._expect(",")

    def value(self) -> Any:
        """Read the next value as a whole."""
        self._peek()
        while True:
            try:
                found, end = self._decoder.raw_decode(self._text, self._position)
            except json.JSONDecodeError:
                is_too_long = len(self._text) - self._position > MAX_VALUE_CHARACTERS
                if is_too_long or not self._read_more():
                    raise ValueError(f"{self._url}: the file is cut or is not JSON") from None
                continue
            # A number at the end of a piece may continue in the next one.
            if end == len(self._text) and self._read_more():
                continue
            self._position = end
            return found

    def _expect(self, character: str) -> None:
        if self._peek() != character:
            raise ValueError(
                f"{self._url}: expected {character}, got {self._peek() or 'the end of the file'}"
            )
        self._position += 1

    def _peek(self) -> str:
        """Return the next character that is no blank; empty at the end of the file."""
        while True:
            while self._position < len(self._text) and self._text[self._position].isspace():
                self._position += 1
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._read_more():
                return ""

    def _read_more(self) -> bool:
        piece = self._file.read(CHUNK_BYTES)
        self._text = self._text[self._position :] + self._utf8.decode(piece, final=not piece)
        self._position = 0
        return bool(piece)
