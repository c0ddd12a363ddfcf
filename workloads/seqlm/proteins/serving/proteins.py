"""Read proteins from requests in JSON or CSV, and write answers as responses.

All mistakes in a request are reported at once, as problem details of HTTP (RFC 9457).
"""

import csv
import io
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import numpy as np
import numpy.typing as npt

from seqlm.proteins.data.plausibility import NUCLEOTIDES, is_nucleotides
from seqlm.proteins.reading.columns import Role, chosen_columns, is_header
from seqlm.proteins.reading.policies import Decision, Kind, Reader, decision
from seqlm.proteins.reading.sequences import SequenceError, cleaned, read_sequence

from .settings import PREFIX, ServeSettings

JSON = "application/json"
CSV = "text/csv"
MEDIA_TYPES = (JSON, CSV)
"""Media types of requests and answers."""
PROBLEM_TYPE = "application/problem+json"
MAX_ID = 256
"""Largest number of characters of an id."""
MAX_FAULTS_SHOWN = 20
"""Largest number of faults that an answer lists; it also has their total number."""
MAX_SHOWN = 60
"""Largest number of characters of a client's text that an answer repeats."""
MAX_COLUMNS_SHOWN = 10
"""Largest number of a client's columns that an answer repeats."""
Tokens = npt.NDArray[np.uint8]
"""Token ids of a protein, (L,), without CLS and EOS."""
_WORDS_OR_PEPTIDES = ("PEPTIDE", "PROTEIN", "SEQ", "INPUT")
"""Headers that are proteins, too, if they stand alone."""
_FORM = '{"proteins": ["MKT...", {"id": "P1", "sequence": "MKT..."}]}'
"""Example of a body in JSON, for messages."""
LABEL_SEPARATOR = ";"
"""Separator in CSV of labels that do not exclude each other."""
Answer = Mapping[str, Any]
"""Answer for one protein. All answers of a model have the same names, in the same order. Values are numbers,
texts, mappings of names to numbers, vectors (tuples of the same length for every protein), or lists, for
example with one entry per residue."""


class ResidueLabels(list[str]):
    """Labels of residues, with their separator in a cell of CSV."""

    separator = ""


@dataclass(frozen=True)
class Fault:
    """Mistake in a request."""

    where: str
    """Place in the request, such as ``proteins[3].sequence``."""
    got: str
    allowed: str


@dataclass(eq=False)
class Problem(Exception):
    """Reason for which a request is refused."""

    status: HTTPStatus
    detail: str
    faults: Sequence[Fault] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """Return the body of the answer, in JSON."""
        document: dict[str, Any] = {
            "title": self.status.phrase,
            "status": int(self.status),
            "detail": self.detail,
        }
        if self.faults:
            document["num_faults"] = len(self.faults)
            document["faults"] = [vars(fault) for fault in self.faults[:MAX_FAULTS_SHOWN]]
        return json.dumps(document).encode()


@dataclass(frozen=True)
class Protein:
    id: str
    """Id from the client, or the number of the protein in the request, from 0."""
    tokens: Tokens


@dataclass(frozen=True)
class _Record:
    """Record of a request before it is checked."""

    where: str
    """Place in the request, such as ``proteins[3]``."""
    id: Any
    """Value of the id, which may have any type; None if the client gives none."""
    sequence: Any
    """Value of the sequence, which may have any type; a text is cleaned."""


def read_proteins(body: bytes, media_type: str, settings: ServeSettings) -> list[Protein]:
    """Return the proteins of a request.

    Raises:
        Problem: 400 if the body is not JSON or CSV of this form, 413 for too many, 422 for wrong proteins.
    """
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _malformed(
            f"the body is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from None
    if media_type == JSON:
        records = _from_json(text, settings.max_proteins)
    else:
        records = _from_csv(text, settings.max_proteins)
    if not records:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, "the request has no protein; give at least one"
        )
    faults = [fault for record in records for fault in _faults(record, settings)]
    if faults:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"{len(faults)} of the request's values are not allowed",
            faults,
        )
    residues = sum(len(record.sequence) for record in records)
    if residues > settings.max_waiting_residues:
        raise Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the request has {residues} residues; at most {settings.max_waiting_residues} are allowed; "
            "split it",
        )
    proteins = []
    for index, record in enumerate(records):
        name = str(index) if record.id is None else record.id
        proteins.append(Protein(name, read_sequence(record.sequence)))
    return proteins


def _check_number(found: Sequence[object], max_proteins: int) -> None:
    """Refuse too many proteins before they are parsed: a million empty ones would delay answers to /ping."""
    if len(found) > max_proteins:
        raise Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the request has more than {max_proteins} proteins, which is the limit; split it",
        )


def _from_json(text: str, max_proteins: int) -> list[_Record]:
    """Read an object with the list ``proteins``, of sequences or of objects with ``id`` and ``sequence``."""
    try:
        document = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        # Python's messages about very long numbers and deep nesting would not help a client.
        reason = (
            str(error)
            if isinstance(error, json.JSONDecodeError)
            else "a number or nesting too large"
        )
        raise _malformed(f"the body is not JSON: {reason}") from None
    if not isinstance(document, dict):
        raise _malformed(f"the body is {shown(document)}; allowed is an object: {_FORM}")
    unknown = [key for key in document if key != "proteins"]
    if unknown:
        raise _malformed(f"the body has the key {shown(unknown[0])}; allowed is {_FORM}")
    proteins = document.get("proteins")
    if not isinstance(proteins, list):
        raise _malformed(f"proteins is {shown(proteins)}; allowed is a list: {_FORM}")
    _check_number(proteins, max_proteins)
    return [_json_record(f"proteins[{index}]", item) for index, item in enumerate(proteins)]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, and refuse repeated keys, of which Python would keep the last."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _malformed(f"an object has the key {shown(key)} twice; give each key once")
        found[key] = value
    return found


def _json_record(where: str, item: Any) -> _Record:
    if isinstance(item, str):
        return _Record(where, None, _cleaned(item))
    if not isinstance(item, dict):
        raise _malformed(
            f"{where} is {shown(item)}; allowed is a sequence, or an object as in {_FORM}"
        )
    allowed = "allowed are the keys id and sequence, and sequence is required"
    unknown = [key for key in item if key not in ("id", "sequence")]
    if unknown:
        raise _malformed(f"{where} has the key {shown(unknown[0])}; {allowed}")
    if "sequence" not in item:
        raise _malformed(f"{where} has no sequence; {allowed}")
    return _Record(where, item.get("id"), _cleaned(item["sequence"]))


def _from_csv(text: str, max_proteins: int) -> list[_Record]:
    """Read CSV with a header that names the sequences, and maybe ids; without one, one or two columns."""
    try:
        filled = filter(None, csv.reader(io.StringIO(text, newline=""), strict=True))
        # The header, and one row more than is allowed. The rest need not be read.
        rows = list(itertools.islice(filled, max_proteins + 2))
    except csv.Error as error:
        raise _malformed(f"the body is not CSV: {error}") from None
    if not rows:
        return []
    columns: Sequence[str] = ["sequence"] if len(rows[0]) == 1 else ["id", "sequence"]
    if rows[0][0] in _WORDS_OR_PEPTIDES and len(rows[0]) == 1:
        raise _malformed(
            f"the first row, {rows[0][0]}, may be a header or a protein; begin with the header sequence"
        )
    if is_header(rows[0]):
        columns = _named(rows[0])
        rows = rows[1:]
    elif _looks_like_header(rows):
        raise _malformed(
            f"the first row, {', '.join(map(shown, rows[0][:MAX_COLUMNS_SHOWN]))}, looks like a header, and "
            "no column is named sequence; name the columns id and sequence, or leave the header out"
        )
    _check_number(rows, max_proteins)
    records = []
    for number, row in enumerate(rows):
        if len(row) != len(columns):
            raise _malformed(
                f"row {number} of proteins has {len(row)} columns; allowed are {len(columns)}: "
                + ",".join(columns)
            )
        cells: Mapping[str, str] = dict(zip(columns, row, strict=True))
        sequence = _cleaned(cells["sequence"])
        records.append(_Record(f"proteins[{number}]", cells.get("id"), sequence))
    return records


def _cleaned(sequence: Any) -> Any:
    """Return a sequence as the policies clean it; other values as they are."""
    return cleaned(sequence) if isinstance(sequence, str) else sequence


def _named(header: Sequence[str]) -> Sequence[str]:
    """Return the columns of a header by what they are: ``id`` and ``sequence``.

    Raises:
        Problem: if there are other columns, or several that may be one of them.
    """
    fields = {Role.ID: "the header: id", Role.SEQUENCE: "the header: sequence"}
    try:
        chosen = chosen_columns(
            header, "the body", id_column=None, sequence_column=None, fields=fields
        )
    except ValueError as error:
        raise _malformed(str(error)) from None
    names = {chosen.sequence: "sequence"}
    if chosen.id is not None:
        names[chosen.id] = "id"
    if set(names) != set(header) or len(names) != len(header):
        listed = ", ".join(map(shown, header[:MAX_COLUMNS_SHOWN]))
        raise _malformed(f"the header has the columns {listed}; allowed are id and sequence")
    return [names[name] for name in header]


def _looks_like_header(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row is written in other letters than the sequences after it."""
    if len(rows) < 2 or not rows[0] or not rows[1]:
        return False
    return rows[0][-1] != rows[0][-1].upper() and rows[1][-1] == rows[1][-1].upper()


def _faults(record: _Record, settings: ServeSettings) -> list[Fault]:
    """Return all mistakes in a record."""
    found: list[Fault] = []
    name = record.id
    if name is not None:
        is_text = isinstance(name, str) and 0 < len(name) <= MAX_ID and name.isprintable()
        if not is_text:
            kind = Kind.CONTROL_CHARACTER if name else Kind.NO_ID
            allowed = f"1 to {MAX_ID} printable characters"
            found.append(_fault(kind, f"{record.where}.id", shown(name), allowed))
    sequence = record.sequence
    where = f"{record.where}.sequence"
    if not isinstance(sequence, str):
        found.append(Fault(where, shown(sequence), "a text of residues, as MKT..."))
        return found
    if not 0 < len(sequence) <= settings.max_residues:
        kind = Kind.LONG if sequence else Kind.EMPTY
        allowed = f"1 to {settings.max_residues} residues"
        found.append(_fault(kind, where, f"{len(sequence)} residues", allowed))
    try:
        tokens = read_sequence(sequence)
    except SequenceError as error:
        found.append(_fault(error.kind, where, error.got, error.allowed))
        return found
    if len(tokens) and not settings.allow_nucleotides and is_nucleotides(tokens):
        got = f"DNA or RNA (letters {NUCLEOTIDES} only)"
        allowed = f"a protein, or any letters with {PREFIX}ALLOW_NUCLEOTIDES=1"
        found.append(_fault(Kind.NUCLEOTIDES, where, got, allowed))
    return found


def _fault(kind: Kind, where: str, got: str, allowed: str) -> Fault:
    """Return the mistake of a kind that the server refuses."""
    if decision(kind, Reader.SERVER) is not Decision.STOP:
        raise KeyError(f"the server has no refusal of {kind}")
    return Fault(where, got, allowed)


def _malformed(detail: str) -> Problem:
    return Problem(HTTPStatus.BAD_REQUEST, detail)


def write_answers(proteins: Sequence[Protein], answers: Sequence[Answer], media_type: str) -> bytes:
    """Return the body of a response, with the answers in the order of the request."""
    pairs = list(zip(proteins, answers, strict=True))
    if media_type == JSON:
        predictions = [{"id": one.id, "length": len(one.tokens), **answer} for one, answer in pairs]
        return json.dumps(
            {"predictions": predictions}, allow_nan=False, separators=(",", ":")
        ).encode()
    rows = [{"id": one.id, "length": len(one.tokens), **_columns(answer)} for one, answer in pairs]
    header = rows[0].keys()
    lines: list[Iterable[Any]] = [header, *(row.values() for row in rows)]
    return "".join(",".join(map(_cell, line)) + "\n" for line in lines).encode()


def _cell(value: str | int | float) -> str:
    """Write a cell as pyarrow does for ``make predict``: text quoted, numbers with the digits of fp32."""
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"'
    if isinstance(value, int):
        return str(value)
    return np.format_float_positional(np.float32(value), trim="-")


def _columns(answer: Answer) -> dict[str, Any]:
    """Return the columns of ``make predict``; an embedding has one column per number."""
    columns: dict[str, Any] = {}
    for name, value in answer.items():
        if name == "values" and isinstance(value, Mapping):
            columns |= value
        elif name == "probabilities" and isinstance(value, Mapping):
            columns |= {f"probability_{key}": item for key, item in value.items()}
        elif name == "probabilities" and isinstance(value, list):
            columns["probability"] = " ".join(f"{item:.4f}" for item in value)
        elif name == "labels" and isinstance(value, list):
            separator = value.separator if isinstance(value, ResidueLabels) else LABEL_SEPARATOR
            columns["label"] = separator.join(value)
        elif isinstance(value, tuple):
            columns |= {f"{name}_{index}": item for index, item in enumerate(value)}
        else:
            columns[name] = value
    return columns


def shown(value: object) -> str:
    """Return a client's value for a message: short, escaped, on one line."""
    if isinstance(value, str):
        return ascii(value[:MAX_SHOWN]) + ("..." if len(value) > MAX_SHOWN else "")
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return "a number"
