"""Records that are read or refused, and the positions in error messages."""

from __future__ import annotations

import gzip
import hashlib
import string
from pathlib import Path

import pytest
from transformers import EsmTokenizer

from seqlm.proteins.alphabet import TOKENS, UNK, decode, encode
from seqlm.proteins.data.fasta import (
    RECORD_START,
    Block,
    SourceReader,
    parse_block,
    record_lines,
    split_block,
)

LONGEST = 1 << 20


def parsed(text: bytes) -> dict[str, str]:
    ids, tokens = parse_block(Block("x.fasta", 1, text))
    return {name.decode(): decode(list(protein)) for name, protein in zip(ids, tokens, strict=True)}


def read(path: Path, block_bytes: int = 1 << 16, longest: int = LONGEST) -> list[Block]:
    return list(SourceReader(path).blocks(RECORD_START, block_bytes, longest))


def test_ids_are_those_of_esm_tokenizer(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(TOKENS))
    tokenizer = EsmTokenizer(str(vocabulary))
    known = "".join(letter for letter in string.ascii_uppercase if letter in TOKENS)
    assert len(known) == 25
    for text in (known, known[::-1], "MKJV"):
        assert encode(text).tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
        _, tokens = parse_block(Block("x", 1, f">a\n{text}\n".encode()))
        assert list(tokens[0]) == encode(text).tolist()
    # EsmTokenizer makes one <unk> of a run; here each residue keeps its place.
    assert encode("MJJV").tolist()[1:3] == [UNK, UNK]


@pytest.mark.parametrize(
    "text",
    [
        b">a one\nMKV\nLA\n>b\nGG\n",
        b">a one\nMKVLA\n>b\nGG",
        b">a\r\nMKV\r\nLA\r\n>b\r\nGG\r\n",
        b">a\n\nMKV\n\nLA\n\n\n>b\nGG\n\n",
        b">a\nmkvla\n>b\ngg\n",
        b">a\nMKVLA*\n>b\nGG*\n",
        b">a\nMK VLA*\n\n>b\n G\tG\n*\n",
        b"> a \nMKVLA\n>b\tx\nGG\n",
    ],
    ids=[
        "wrapped",
        "no-final-newline",
        "crlf",
        "blank-lines",
        "lower-case",
        "stop",
        "spaces",
        "blank-after-gt",
    ],
)
def test_accepted_forms_read_the_same(text: bytes) -> None:
    assert parsed(text) == {"a": "MKVLA", "b": "GG"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b">a\nMK1V\n", r"x.fasta:2: b?'1' in record a"),
        (b">a\nMKV\n>b\nMK\nLA-GG\n", r"x.fasta:5: '-' in record b"),
        (b">a\nMK.V\n", r"x.fasta:2: '\.' in record a"),
        (b">a\nMKV\n>b\nMK*V\n", r"x.fasta:4: '\*' in record b"),
        (b">a\nMKV**\n", r"x.fasta:2: '\*' in record a"),
        (b">a\nMKV\n\n>b x\n>c\nLA\n", r"x.fasta:4: record b has no sequence"),
        (b">a\n*\n", r"x.fasta:1: record a has no sequence"),
        (b">a", r"x.fasta:1: record a has no sequence"),
        (b">a\nMKV\n>\nLA\n", r"x.fasta:3: header without an id"),
        (b">a\nMKV\n> \nLA\n", r"x.fasta:3: header without an id"),
        (b">a\nMKV\n >b\nLA\n", r"x.fasta:3: '>' in record a"),
        (b">a\xff\nMKV\n", r"x.fasta:1: the id .* is not UTF-8"),
        (b">a\nMK\xc3\xa9V\n", r"x.fasta:2: .*xc3' in record a"),
        (b">a\nMKV\x00LA\n", r"x.fasta:2: .*x00' in record a"),
    ],
)
def test_bad_record_is_named_with_its_line(text: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_block(Block("x.fasta", 1, text))


def test_line_numbers_continue_over_blocks(tmp_path: Path) -> None:
    path = tmp_path / "x.fasta"
    path.write_text("\n\n" + "".join(f">r{i}\nMKVLA\nGG\n" for i in range(50)))
    blocks = read(path, block_bytes=40)
    assert len(blocks) > 5
    located = [place for block in blocks for place in record_lines(block)]
    assert located == [(f"r{i}".encode(), 3 + 3 * i) for i in range(50)]
    parts = [part for block in read(path) for part in split_block(block, max_records=7)]
    assert len(parts) > 5
    assert [place for part in parts for place in record_lines(part)] == located
    assert b"".join(part.data for part in parts) == b"".join(block.data for block in blocks)


def test_protein_of_ten_megabytes_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.fasta"
    path.write_bytes(b">a\nMKV\n>long\n" + b"LAGVSERTID" * 1_000_000 + b"\n>b\nGG\n")
    blocks = read(path, block_bytes=1 << 20, longest=16 << 20)
    lengths = [len(tokens) for block in blocks for tokens in parse_block(block)[1]]
    assert lengths == [3, 10_000_000, 2]
    with pytest.raises(ValueError, match=r"x.fasta:3: a record of more than 1048576 bytes"):
        read(path, block_bytes=1 << 18)


@pytest.mark.parametrize("block_bytes", [1 << 16, 700_000, 900_000])
@pytest.mark.parametrize("behind", ["", "\n", "\n>b\nGG\n", "\n" + ">b\nGG\n" * 300_000])
def test_the_bound_of_a_record_does_not_depend_on_the_blocks(
    tmp_path: Path, block_bytes: int, behind: str
) -> None:
    path = tmp_path / "x.fasta"
    for residues, is_allowed in ((1_040_000, True), (1_060_000, False)):
        path.write_text(f">a\nMKV\n>long\n{'M' * residues}{behind}")
        if is_allowed:
            read(path, block_bytes)
            continue
        with pytest.raises(ValueError, match=r"x.fasta:3: a record of more than 1048576 bytes"):
            read(path, block_bytes)


def test_gzip_of_several_members_reads_as_one(tmp_path: Path) -> None:
    path = tmp_path / "x.fasta.gz"
    path.write_bytes(gzip.compress(b">a\nMKV\n>b\nL") + gzip.compress(b"A\n>c\nGG\n"))
    reader = SourceReader(path)
    text = b"".join(block.data for block in reader.blocks(RECORD_START, 1 << 16, LONGEST))
    assert parsed(text) == {"a": "MKV", "b": "LA", "c": "GG"}
    assert reader.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_gzip_is_recognized_by_content(tmp_path: Path) -> None:
    path = tmp_path / "x.fasta"
    path.write_bytes(gzip.compress(b">a\nMKV\n"))
    assert parsed(read(path)[0].data) == {"a": "MKV"}


def test_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "x.fasta"
    path.write_bytes(b"\xef\xbb\xbf>a\nMKV\n")
    assert parsed(read(path)[0].data) == {"a": "MKV"}


def test_damaged_gzip_names_the_file(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b">r%d\nMKVLAGG\n" % i for i in range(20_000)))
    path = tmp_path / "x.fasta.gz"
    for damaged, message in (
        (whole[: len(whole) // 2], "x.fasta.gz is a truncated gzip file"),
        (whole[:-4], "x.fasta.gz is a truncated gzip file"),
        (whole[:-8] + b"\0\0\0\0" + whole[-4:], "x.fasta.gz is a damaged gzip file"),
        *(
            (
                whole + behind,
                "x.fasta.gz has other bytes behind its gzip data; remove them or fetch it again",
            )
            for behind in (b"\n", b"junk", b"junk" * 100, b"\0\0junk")
        ),
    ):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=message):
            read(path)


@pytest.mark.parametrize(
    "name",
    [b"a\x00b", b"\x1b[31ma", b"a\x7f", b"a\x1f", b"a\xc2\x85", b"\xc3\xa4\xc2\x9b31m"],
    ids=repr,
)
def test_ids_with_control_characters_are_refused(name: bytes) -> None:
    for text in (b">good\nMK\n>" + name + b" x\nMKV\n", b">" + name + b"\nMK1\n"):
        line = 3 if text.startswith(b">good") else 1
        with pytest.raises(
            ValueError, match=f"x.fasta:{line}: the id .* control characters; rename"
        ) as caught:
            parse_block(Block("x.fasta", 1, text))
        assert str(caught.value).isprintable()
    assert parsed(b">\xc3\xa4-\xe2\x82\xac\nMK\n") == {"\u00e4-\u20ac": "MK"}
