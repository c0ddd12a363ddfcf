"""Opening of files by their content."""

import bz2
import gzip
import hashlib
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from seqlm.proteins.data.fasta import RECORD_START, SourceReader
from seqlm.training.data import compressions
from seqlm.training.data.compressions import COMPRESSIONS, FOREIGN, UnreadableError
from seqlm.training.data.limits import MIB
from seqlm.training.data.source_file import Source, is_compressed, open_text

TEXT = b">a first\nMKV\n>b\nLAGG\n"


def zipped(data: bytes, *others: str) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("folder/x.fasta", data)
        for name in others:
            file.writestr(name, "x")
    return archive.getvalue()


def tarred(data: bytes) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as file:
        member = tarfile.TarInfo("x.fasta")
        member.size = len(data)
        file.addfile(member, io.BytesIO(data))
    return archive.getvalue()


def zstandard(data: bytes) -> bytes:
    packed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return packed


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstandard": zstandard,
    "zip": zipped,
}


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "file"
    path.write_bytes(data)
    return path


def content(tmp_path: Path, data: bytes) -> bytes:
    with Source(written(tmp_path, data)) as source:
        return source.read()


def test_every_compression_has_a_packer() -> None:
    assert set(PACKERS) == set(COMPRESSIONS)


@pytest.mark.parametrize("name", PACKERS)
def test_compressed_files_are_read_whatever_their_name(tmp_path: Path, name: str) -> None:
    packed = PACKERS[name](TEXT)
    assert content(tmp_path, packed) == TEXT
    assert is_compressed(tmp_path / "file")
    reader = SourceReader(tmp_path / "file")
    assert b"".join(block.data for block in reader.blocks(RECORD_START, 10, 1000)) == TEXT
    assert reader.sha256 == hashlib.sha256(packed).hexdigest(), "of the file as it lies on disk"


@pytest.mark.parametrize("name", PACKERS)
def test_large_content_is_read_in_pieces(tmp_path: Path, name: str) -> None:
    lines = b"".join(b"%d,MKTAYIAKQR\n" % number for number in range(300_000))
    with Source(written(tmp_path, PACKERS[name](lines))) as source:
        assert source.peek() == lines[: len(source.peek())]
        pieces = list(iter(lambda: source.read(MIB), b""))
    assert b"".join(pieces) == lines
    assert max(map(len, pieces)) <= MIB


@pytest.mark.parametrize("name", [name for name in PACKERS if name != "gzip"])
def test_truncated_files_are_named(tmp_path: Path, name: str) -> None:
    packed = PACKERS[name](b"".join(b"%d\n" % (number**3) for number in range(9_000)))
    with pytest.raises(ValueError, match=f"file is a (truncated|damaged) {name} file"):
        content(tmp_path, packed[: len(packed) // 2])


ENCODINGS = [
    ("plain", "Müller".encode(), "Müller"),
    ("byte order mark", "\ufeffMüller".encode(), "Müller"),
    ("UTF-16, little endian", "\ufeffMüller".encode("utf-16-le"), "Müller"),
    ("UTF-16, big endian", "\ufeffMüller".encode("utf-16-be"), "Müller"),
    ("Windows-1252", "Müller €".encode("cp1252"), "Müller €"),
]


@pytest.mark.parametrize(("name", "raw", "expected"), ENCODINGS)
def test_text_is_read_in_its_encoding(
    tmp_path: Path, name: str, raw: bytes, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for data in (raw, gzip.compress(raw)):
        assert content(tmp_path, data).decode() == expected
    notes = capsys.readouterr().err.splitlines()
    is_common = name in ("plain", "byte order mark")
    assert len(notes) == (0 if is_common else 1), "said once, however often the file is read"
    assert is_common or name.partition(",")[0] in notes[0]


def test_characters_at_the_end_of_a_piece_stay_whole(tmp_path: Path) -> None:
    text = "x" * (MIB - 1) + "ü" * 10
    assert content(tmp_path, text.encode()).decode() == text
    assert content(tmp_path, b"x" * (MIB - 1) + b"\xc3").decode() == "x" * (MIB - 1) + "Ã"


@pytest.mark.parametrize("raw", [b">a\rMKV\r", ">a\rMKV\r".encode("utf-16")])
def test_line_ends_of_old_macs_become_newlines(tmp_path: Path, raw: bytes) -> None:
    assert content(tmp_path, raw) == b">a\nMKV\n"


def test_text_has_the_requested_line_ends(tmp_path: Path) -> None:
    path = written(tmp_path, b"a\r\nb\r\n")
    with open_text(path, "") as stream:
        assert stream.read() == "a\r\nb\r\n"
    with open_text(path, "\n") as stream:
        assert stream.readline() == "a\r\n"


@pytest.mark.parametrize("head", FOREIGN)
def test_what_cannot_be_read_is_named(tmp_path: Path, head: bytes) -> None:
    for data in (head + b"\n" * 600, gzip.compress(head + b"\n" * 600)):
        with pytest.raises(UnreadableError, match=r"file is (a|an) .+"):
            content(tmp_path, data)


@pytest.mark.parametrize("pack", [lambda data: data, *PACKERS.values()])
def test_a_tar_archive_is_named_in_every_compression(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(UnreadableError, match="file is a tar archive; unpack it"):
        content(tmp_path, pack(tarred(TEXT)))


def test_binary_and_twice_compressed_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="is a binary file"):
        content(tmp_path, b">a\n\x00\x01")
    with pytest.raises(UnreadableError, match="compressed twice, by gzip and then by bzip2"):
        content(tmp_path, bz2.compress(gzip.compress(TEXT)))


def test_a_zip_archive_has_one_file(tmp_path: Path) -> None:
    assert content(tmp_path, zipped(TEXT, "__MACOSX/._x.fasta", ".DS_Store")) == TEXT
    with pytest.raises(
        UnreadableError, match=r"file is a zip archive of 2 files \(folder/x.fasta, y\)"
    ):
        content(tmp_path, zipped(TEXT, "y"))


def test_a_zip_archive_does_not_expand_without_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = zipped(b"A" * (8 * MIB))
    with pytest.raises(UnreadableError, match="larger than 1024 MiB or than 100 times"):
        content(tmp_path, bomb)
    monkeypatch.setattr(compressions, "MAX_EXPANSION", 2000)
    assert len(content(tmp_path, bomb)) == 8 * MIB
    monkeypatch.setattr(compressions, "MAX_EXPANDED_BYTES", 2 * MIB)
    with pytest.raises(UnreadableError, match="larger than 2 MiB"):
        content(tmp_path, bomb)
