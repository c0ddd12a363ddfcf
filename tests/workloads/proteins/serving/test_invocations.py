"""SageMaker's contract for clients: answers, and refusals that explain the mistake."""

from __future__ import annotations

import csv
import io
import json
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from seqlm.proteins.alphabet import encode
from seqlm.proteins.serving.heads import Hosts
from seqlm.proteins.serving.proteins import (
    MAX_ID,
    MEDIA_TYPES,
    PROBLEM_TYPE,
    Answer,
    Protein,
    ResidueLabels,
    Tokens,
    read_proteins,
    write_answers,
)
from seqlm.proteins.serving.settings import ServeSettings
from tests.workloads.proteins.serving.served import CSV, JSON, CountingModel, Served, serving

SETTINGS = ServeSettings(
    max_body_bytes=10_000,
    max_proteins=8,
    max_residues=100,
    max_waiting_residues=500,
    timeout_seconds=20,
)
MKT = Protein("a", encode("MKT"))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(CountingModel(), SETTINGS) as found:
        yield found


def test_ping(served: Served) -> None:
    reply = served.send("GET", "/ping")
    assert (reply.status, reply.body) == (200, b"")


def test_json_in_json_out(served: Served) -> None:
    reply = served.invoke({"proteins": ["MKT", {"id": "P1", "sequence": "lagv"}]})
    assert reply.status == 200 and reply.headers["content-type"] == JSON
    first, second = reply.json["predictions"]
    assert first == {
        "id": "0",
        "length": 3,
        "label": "of 3",
        "probabilities": {"long": 0.003, "short": 0.997},
        "first": 20,
    }
    assert second["id"] == "P1" and second["label"] == "of 4" and second["first"] == 4


def test_refuses_nucleotides_unless_a_setting_allows_them(served: Served) -> None:
    sequence = "ATGGCTAAAGTTCTGATCGGTACC"
    reply = served.invoke({"proteins": ["MKT", sequence]})
    assert reply.status == 422
    assert reply.json["faults"] == [
        {
            "where": "proteins[1].sequence",
            "got": "DNA or RNA (letters ACGTUN only)",
            "allowed": "a protein, or any letters with ESM2_SERVE_ALLOW_NUCLEOTIDES=1",
        }
    ]
    settings = ServeSettings.of({"ESM2_SERVE_ALLOW_NUCLEOTIDES": "1"})
    assert len(read_proteins(sequence.encode(), CSV, settings)) == 1


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        ("MKT\nLAGV\n", ["0", "1"]),
        ("a,MKT\r\nb,LAGV", ["a", "b"]),
        ("sequence,id\nMKT,a\nLAGV,b\n", ["a", "b"]),
        ('\ufeffid,sequence\n"a, b",MKT\n\nc,LAGV\n', ["a, b", "c"]),
        ("Entry,Sequence\na,MKT\nb,LAGV\n", ["a", "b"]),
        ("SEQ,Name\nMKT,a\nLAGV,b\n", ["a", "b"]),
        ("protein\nMKT\nLAGV\n", ["0", "1"]),
        ("a,MKT*\nb,LAGV*\n", ["a", "b"]),
        ('a,"MK\nT*"\nb,la gv\n', ["a", "b"]),
    ],
)
def test_csv_in_csv_out(served: Served, body: str, ids: list[str]) -> None:
    reply = served.invoke(body.encode(), f"{CSV}; charset=utf-8")
    assert reply.status == 200 and reply.headers["content-type"].startswith(CSV)
    rows = list(csv.DictReader(io.StringIO(reply.body.decode())))
    assert [row["id"] for row in rows] == ids
    assert [row["label"] for row in rows] == ["of 3", "of 4"]
    assert rows[0]["probability_long"] == "0.003"


@pytest.mark.parametrize(
    ("accept", "written"),
    [
        (CSV, CSV),
        ("text/html, application/json;q=0.9", JSON),
        ("*/*", JSON),
        ("", JSON),
        ("text/*", CSV),
        ("application/json;q=0, text/csv", CSV),
        ("application/json;q=0.1, text/csv;q=0.2", CSV),
        ("text/csv;q=0.001, */*;q=0.8", JSON),
        ("TEXT/CSV; q=0, application/*", JSON),
        ("application/json;q=0, */*", CSV),
        ("text/csv, application/json", CSV),
        ("application/json;q=1.0, text/csv;q=1", JSON),
    ],
)
def test_accept_decides_the_answer_s_form(served: Served, accept: str, written: str) -> None:
    reply = served.invoke({"proteins": ["MKT"]}, Accept=accept)
    assert reply.status == 200 and reply.headers["content-type"].startswith(written)


REFUSED: list[tuple[Any, str, int, str]] = [
    (b"mutant,mutatedsequence\nA1G,MKT\n", CSV, 400, "columns 'mutant', 'mutatedsequence'"),
    (b"seq,peptide\nMKT,MKL\n", CSV, 400, "may all have the sequence"),
    (b"PEPTIDE\nMKT\n", CSV, 400, "may be a header or a protein"),
    (b"Gene,Chain\na,MKT\n", CSV, 400, "looks like a header, and no column is named sequence"),
    (b"", JSON, 400, "not JSON"),
    (b"\xff\xfe", JSON, 400, "not UTF-8"),
    (b'{"proteins": [' * 5000, JSON, 413, "10000 bytes"),
    (b"[" * 9000, JSON, 400, "nesting"),
    (b"9" * 9000, JSON, 400, "a number"),
    ([], JSON, 400, "the body is a list"),
    ({}, JSON, 400, "proteins is null"),
    ({"proteins": "MKT"}, JSON, 400, "proteins is 'MKT'"),
    ({"proteins": ["MKT"], "top": 3}, JSON, 400, "the key 'top'"),
    (b'{"proteins": ["MKT"], "proteins": ["M"]}', JSON, 400, "the key 'proteins' twice"),
    (
        b'{"proteins": [{"sequence": "MKT", "sequence": "M"}]}',
        JSON,
        400,
        "the key 'sequence' twice",
    ),
    ({"proteins": [["MKT"]]}, JSON, 400, "proteins[0] is a list"),
    ({"proteins": [{"id": "a"}]}, JSON, 400, "has no sequence"),
    ({"proteins": [{"seq": "MKT"}]}, JSON, 400, "the key 'seq'"),
    ({"proteins": []}, JSON, 422, "no protein"),
    ({"proteins": ["M"] * 9}, JSON, 413, "more than 8 proteins"),
    # Nothing is checked in a body that is too large, which may contain a million mistakes.
    ({"proteins": [7] * 9}, JSON, 413, "more than 8 proteins"),
    (b"M\n" * 10 + b'"', CSV, 413, "more than 8 proteins"),
    (b"sequence\n" + b"M\n" * 9, CSV, 413, "more than 8 proteins"),
    ({"proteins": ["M" * 90] * 8}, JSON, 413, "720 residues; at most 500"),
    (b"", CSV, 422, "no protein"),
    (b'id,sequence\n"a,MKT', CSV, 400, "not CSV"),
    (b"sequence,colour\nMKT,red", CSV, 400, "'colour'"),
    (b"a,MKT,b", CSV, 400, "3 columns"),
    (b"id,sequence\na", CSV, 400, "1 columns"),
]


@pytest.mark.parametrize(("body", "content_type", "status", "said"), REFUSED)
def test_refusals_name_what_is_wrong(
    served: Served, body: object, content_type: str, status: int, said: str
) -> None:
    reply = served.invoke(body, content_type)
    assert reply.headers["content-type"] == "application/problem+json"
    assert (reply.status, reply.json["status"]) == (status, status)
    assert said in reply.json["detail"]


@pytest.mark.parametrize(
    ("protein", "where", "got", "allowed"),
    [
        ("MK1", "proteins[1].sequence", "'1' at position 3", "letters A-Z"),
        ("MK-T", "proteins[1].sequence", "'-' at position 3", "letters A-Z"),
        ("MK*T", "proteins[1].sequence", "'*' at position 3", "letters A-Z"),
        ("MK\u00c4", "proteins[1].sequence", r"'\xc4' at position 3", "letters A-Z"),
        ("\ud800", "proteins[1].sequence", r"'\ud800' at position 1", "letters A-Z"),
        ("", "proteins[1].sequence", "0 residues", "1 to 100 residues"),
        ("M" * 101, "proteins[1].sequence", "101 residues", "1 to 100 residues"),
        ({"sequence": 7}, "proteins[1].sequence", "a number", "a text"),
        ({"id": "", "sequence": "M"}, "proteins[1].id", "''", "1 to 256 printable"),
        ({"id": 7, "sequence": "M"}, "proteins[1].id", "a number", "1 to 256 printable"),
        ({"id": "\ud800", "sequence": "M"}, "proteins[1].id", r"'\ud800'", "1 to 256 printable"),
    ],
)
def test_a_bad_protein_is_named(
    served: Served, protein: object, where: str, got: str, allowed: str
) -> None:
    reply = served.invoke({"proteins": ["MKT", protein]})
    assert reply.status == 422 and reply.json["num_faults"] == 1
    (fault,) = reply.json["faults"]
    assert (fault["where"], fault["got"]) == (where, got)
    assert allowed in fault["allowed"]


def test_faults_are_listed_up_to_a_limit(served: Served) -> None:
    reply = served.invoke({"proteins": [{"id": "\n", "sequence": "1" * 101}] * 8})
    assert reply.json["num_faults"] == 24 and len(reply.json["faults"]) == 20


def test_other_media_types_are_refused(served: Served) -> None:
    assert served.invoke(b"MKT", "text/plain").status == 415
    assert served.send("POST", "/invocations", b"{}").status == 415
    assert served.invoke(b"{}", Content_Encoding="gzip").status == 415
    assert served.invoke(b"{}", Content_Encoding="identity, gzip").status == 415
    assert served.invoke({"proteins": ["M"]}, Content_Encoding="identity").status == 200
    reply = served.invoke({"proteins": ["M"]}, Accept="image/png")
    assert reply.status == 406 and "application/json or text/csv" in reply.json["detail"]
    assert served.invoke({"proteins": ["M"]}, Accept="*/*;q=0").status == 406


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Content-Type: text/csv\r\nContent-Length: 3", b"200"),
        ("Content-Type: text/csv\r\nTransfer-Encoding: chunked", b"200"),
        ("Content-Type: text/csv\r\nContent-Length: 3\r\nTransfer-Encoding: chunked", b"400"),
        (
            "Content-Type: text/csv\r\nContent-Encoding: identity\r\nContent-Encoding: gzip\r\n"
            "Content-Length: 3",
            b"415",
        ),
        ("Content-Type: text/csv\r\nContent-Type: text/html\r\nContent-Length: 3", b"415"),
    ],
)
def test_a_head_that_contradicts_itself_is_refused(
    served: Served, headers: str, status: bytes
) -> None:
    body = "3\r\nMKT\r\n0\r\n\r\n" if "chunked" in headers else "MKT"
    head = f"POST /invocations HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as client:
        client.sendall(f"{head}{body}".encode())
        answer = client.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert (b"\r\nconnection: close\r\n" in answer.lower()) == (status == b"400")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200),
        ("model.localhost", 200),
        ("127.9.8.7", 200),
        ("[::1]:80", 200),
        ("Proxy.Example:443", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("user@evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("[::1", 421),
        ("10.0.0.1", 421),
    ],
)
def test_a_page_of_another_name_reaches_no_server_of_this_machine(
    served: Served, host: str, status: int
) -> None:
    """A page can give its own name the address 127.0.0.1 (DNS rebinding)."""
    for method, path in (("GET", "/ping"), ("GET", "/openapi.json")):
        reply = served.send(method, path, Host=host)
        assert reply.status == status
    if status == 421:
        assert "allowed are localhost, loopback addresses, proxy.example" in reply.json["detail"]


def test_a_server_for_the_network_has_every_name_unless_some_are_given() -> None:
    assert Hosts.of("0.0.0.0").allow("model.example")
    assert not Hosts.of("0.0.0.0", ["model.example"]).allow("evil.example")
    assert Hosts.of("0.0.0.0", ["model.example"]).allow("model.example:8080")
    assert Hosts.of("::1").allow("localhost") and not Hosts.of("::1").allow("evil.example")
    assert Hosts.of("127.0.0.1").allow(None), "HTTP/1.0, which no browser sends"


def test_other_paths_and_methods_are_refused(served: Served) -> None:
    missing = served.send("GET", "/")
    assert missing.status == 404 and "GET /ping and POST /invocations" in missing.json["detail"]
    assert served.send("GET", "/invocations").status == 405
    assert served.send("DELETE", "/ping").status == 405


def test_the_description_has_the_limits_and_types_of_the_server(served: Served) -> None:
    reply = served.send("GET", "/openapi.json")
    assert reply.status == 200 and reply.headers["content-type"] == JSON
    invoke = reply.json["paths"]["/invocations"]["post"]
    schemas = reply.json["components"]["schemas"]
    assert schemas["Request"]["properties"]["proteins"]["maxItems"] == SETTINGS.max_proteins
    assert schemas["Sequence"]["maxLength"] == SETTINGS.max_residues
    assert schemas["Id"]["maxLength"] == MAX_ID
    limits = {f"ESM2_SERVE_{name.upper()}": value for name, value in vars(SETTINGS).items()}
    assert reply.json["info"]["x-limits"] == limits
    assert (
        set(invoke["requestBody"]["content"])
        == set(invoke["responses"]["200"]["content"])
        == {*MEDIA_TYPES}
    )
    refused = reply.json["components"]["responses"].values()
    assert all(set(answer["content"]) == {PROBLEM_TYPE} for answer in refused)


def test_a_large_body_is_refused_before_it_is_complete(served: Served) -> None:
    reply = served.invoke(b" " * 15_000)
    assert reply.status == 413 and reply.headers["connection"] == "close"
    assert served.send("GET", "/ping").status == 200


def test_unexpected_errors_are_problem_details() -> None:
    class NoNumber(CountingModel):
        def run(self, proteins: Sequence[Tokens]) -> list[Answer]:
            return [{"value": float("nan")} for _ in proteins]

    with serving(NoNumber(), SETTINGS) as served:
        reply = served.invoke({"proteins": ["MKT"]})
        assert reply.status == reply.json["status"] == 500 and "nan" not in reply.body.decode()
        assert reply.headers["content-type"] == "application/problem+json"
        assert served.send("GET", "/ping").status == 200


def test_json_has_no_infinite_numbers() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_answers([MKT], [{"value": float("nan")}], JSON)
    assert json.loads(write_answers([MKT], [{"value": 1.5}], JSON)) == {
        "predictions": [{"id": "a", "length": 3, "value": 1.5}]
    }


def test_columns_of_csv_are_those_of_make_predict() -> None:
    residues = ResidueLabels("HHC")
    for answer, expected in (
        ({"embedding": (0.5, 1.0)}, '"id","length","embedding_0","embedding_1"\n"a",3,0.5,1\n'),
        ({"values": {'he"at': 0.30000001192092896}}, '"id","length","he""at"\n"a",3,0.3\n'),
        (
            {"labels": ["x", "y"], "probabilities": {"x": 0.75, "y": 0.5}},
            '"id","length","label","probability_x","probability_y"\n"a",3,"x;y",0.75,0.5\n',
        ),
        (
            {"labels": residues, "probabilities": [0.5, 0.75, 1.0]},
            '"id","length","label","probability"\n"a",3,"HHC","0.5000 0.7500 1.0000"\n',
        ),
    ):
        assert write_answers([MKT], [answer], CSV).decode() == expected


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("MAX_PROTEINS", "0", "from 1 to 100000"),
        ("MAX_PROTEINS", "1e3", "'1e3'"),
        ("MAX_PROTEIN", "3", "no such setting"),
        ("KERNELS", "fast", "allowed are auto, on, off"),
        ("MAX_WAITING_RESIDUES", "5", "may have 1022"),
    ],
)
def test_wrong_settings_are_reported(name: str, value: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ServeSettings.of({f"ESM2_SERVE_{name}": value, "PATH": "/bin"})
    assert ServeSettings.of({"ESM2_SERVE_MAX_RESIDUES": "50"}).max_residues == 50
    assert ServeSettings.of({"ESM2_SERVE_KERNELS": "off"}).kernels == "off"
