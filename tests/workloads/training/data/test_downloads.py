"""Downloads that break, change, lie about their length or are refused."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from seqlm.proteins.data import sources
from seqlm.training.checksums import digest_of
from seqlm.training.data import remotes, transfer
from seqlm.training.data.locks import try_lock
from seqlm.training.data.transfer import FetchError, fetch
from tests.workloads.training.data.faulty_site import Site, etag, serve

PROTEINS = b">a\nMKV\n" * 60_000


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(transfer, "FIRST_BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(remotes, "METALINK_HOSTS", frozenset())
    with serve() as state:
        yield state


@pytest.fixture
def proteins(site: Site) -> str:
    """The address of a FASTA that can be had."""
    site.files["/pub/p.fasta"] = PROTEINS
    return f"{site.address}/pub/p.fasta"


def without_locks(folder: Path) -> list[str]:
    """Return the names in a folder, without the folder of locks."""
    return sorted(path.name for path in folder.iterdir())


def _ranges(site: Site) -> list[str | None]:
    return [wanted for method, _, wanted in site.requests if method == "GET"]


def test_a_download_is_whole_and_leaves_nothing_half_done(proteins: str, tmp_path: Path) -> None:
    downloads = tmp_path / "new" / "downloads"
    assert fetch(proteins, downloads, sources.PROTEINS) == [downloads / "p.fasta"]
    assert (downloads / "p.fasta").read_bytes() == PROTEINS
    assert without_locks(downloads) == ["p.fasta", "p.fasta.source.json"]


def test_a_broken_connection_is_resumed_where_it_broke(
    proteins: str, site: Site, tmp_path: Path
) -> None:
    site.break_after_bytes = [100_000, 50_000]
    (path,) = fetch(proteins, tmp_path, sources.PROTEINS)
    assert path.read_bytes() == PROTEINS
    first, second, third = _ranges(site)
    assert first is None
    assert second is not None
    assert third is not None
    assert 0 < int(second[6:-1]) <= 100_000
    assert int(second[6:-1]) < int(third[6:-1]) <= 150_000


def test_a_second_run_resumes_after_a_kill(proteins: str, site: Site, tmp_path: Path) -> None:
    note = {"address": proteins, "validator": etag(PROTEINS), "length_bytes": len(PROTEINS)}
    (tmp_path / "p.fasta.partial").write_bytes(PROTEINS[:77_000])
    (tmp_path / "p.fasta.partial.json").write_text(json.dumps(note))
    (path,) = fetch(proteins, tmp_path, sources.PROTEINS)
    assert path.read_bytes() == PROTEINS
    assert _ranges(site) == ["bytes=77000-"]


def test_a_kill_before_the_rename_sends_nothing_again(
    proteins: str, site: Site, tmp_path: Path
) -> None:
    note = {"address": proteins, "validator": etag(PROTEINS), "length_bytes": len(PROTEINS)}
    (tmp_path / "p.fasta.partial").write_bytes(PROTEINS)
    (tmp_path / "p.fasta.partial.json").write_text(json.dumps(note))
    (path,) = fetch(proteins, tmp_path, sources.PROTEINS)
    assert path.read_bytes() == PROTEINS
    assert _ranges(site) == []


@pytest.mark.parametrize(
    "note", [None, "torn {", '{"address": "%s", "validator": "old", "length_bytes": 9}']
)
def test_a_partial_of_other_content_is_dropped(
    note: str | None, proteins: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "p.fasta.partial").write_bytes(b"x" * 9_000)
    if note is not None:
        (tmp_path / "p.fasta.partial.json").write_text(note.replace("%s", proteins))
    (path,) = fetch(proteins, tmp_path, sources.PROTEINS)
    assert path.read_bytes() == PROTEINS
    assert "starting again" in caplog.text


def test_a_file_that_changes_during_the_transfer_is_read_anew(
    proteins: str, site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site.break_after_bytes = [100_000]
    newer = PROTEINS.replace(b"MKV", b"MRV")
    seen = []

    def change_before_the_second_get() -> None:
        seen.append(1)
        if len(seen) == 2:
            site.files["/pub/p.fasta"] = newer

    site.before_get = change_before_the_second_get
    (path,) = fetch(proteins, tmp_path, sources.PROTEINS)
    assert path.read_bytes() == newer
    assert "changed at the source; starting again; trying again" in caplog.text


def test_a_server_without_ranges_is_read_from_the_start(
    proteins: str, site: Site, tmp_path: Path
) -> None:
    site.ranges = False
    site.break_after_bytes = [100_000]
    (path,) = fetch(proteins, tmp_path, sources.PROTEINS)
    assert path.read_bytes() == PROTEINS


def test_a_server_that_always_breaks_at_the_same_byte_is_given_up(
    proteins: str, site: Site, tmp_path: Path
) -> None:
    site.ranges = False
    site.break_after_bytes = [100_000] * 50
    with pytest.raises(FetchError, match="8 times in a row"):
        fetch(proteins, tmp_path, sources.PROTEINS)


def test_errors_of_the_server_are_waited_out(proteins: str, site: Site, tmp_path: Path) -> None:
    site.statuses = [500, 503, 429]
    (path,) = fetch(proteins, tmp_path, sources.PROTEINS)
    assert path.read_bytes() == PROTEINS


def test_a_server_that_stays_down_is_given_up(proteins: str, site: Site, tmp_path: Path) -> None:
    site.statuses = [500] * 50
    with pytest.raises(
        FetchError,
        match=r"p\.fasta: the server answered 500 Internal Server Error, 8 times in a row; check the network",
    ):
        fetch(proteins, tmp_path, sources.PROTEINS)
    assert not (tmp_path / "p.fasta").exists()


def test_gives_up_if_no_server_listens(site: Site, tmp_path: Path) -> None:
    with pytest.raises(
        FetchError, match=r"127\.0\.0\.1:9/p\.fa: the connection failed .* 8 times in a row"
    ):
        fetch("http://127.0.0.1:9/p.fa", tmp_path, sources.PROTEINS)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "the server answered 404 Not Found; check the address"),
        (410, "the server answered 410 Gone; check the address"),
        (401, "the server answered 401 Unauthorized; a signed address may have expired"),
        (418, "the server answered 418 I'm a Teapot; check the address"),
    ],
)
def test_a_refusal_names_the_address_and_what_to_do(
    status: int, message: str, proteins: str, site: Site, tmp_path: Path
) -> None:
    site.statuses = [status] * 2
    with pytest.raises(FetchError, match=rf"{proteins}: {message}"):
        fetch(proteins, tmp_path, sources.PROTEINS)
    assert len(site.requests) == 1


def test_requests_one_byte_if_the_server_refuses_head(
    proteins: str, site: Site, tmp_path: Path
) -> None:
    site.head_status = 403
    (path,) = fetch(proteins, tmp_path, sources.PROTEINS)
    assert path.read_bytes() == PROTEINS
    assert _ranges(site) == ["bytes=0-0", None]


def test_a_wrong_length_is_an_error_and_nothing_is_kept(
    proteins: str, site: Site, tmp_path: Path
) -> None:
    site.announced_extra_bytes = 5
    with pytest.raises(
        FetchError,
        match=rf"announced {len(PROTEINS) + 5} bytes and sent {len(PROTEINS)}; the file was not",
    ):
        fetch(proteins, tmp_path, sources.PROTEINS)
    assert without_locks(tmp_path) == []


def test_a_complete_file_is_checked_but_not_sent_again(
    proteins: str, site: Site, tmp_path: Path
) -> None:
    fetch(proteins, tmp_path, sources.PROTEINS)
    site.requests.clear()
    assert fetch(proteins, tmp_path, sources.PROTEINS) == [tmp_path / "p.fasta"]
    assert [method for method, _, _ in site.requests] == ["HEAD"]


def test_a_complete_file_is_used_without_a_network(
    proteins: str, site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fetch(proteins, tmp_path, sources.PROTEINS)
    site.statuses = [500]
    assert fetch(proteins, tmp_path, sources.PROTEINS) == [tmp_path / "p.fasta"]
    assert f"using the complete copy at {tmp_path / 'p.fasta'} unchecked" in caplog.text


def test_a_complete_file_is_replaced_when_the_source_changed(
    proteins: str, site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fetch(proteins, tmp_path, sources.PROTEINS)
    site.files["/pub/p.fasta"] = b">new\nMM\n"
    (path,) = fetch(proteins, tmp_path, sources.PROTEINS)
    assert path.read_bytes() == b">new\nMM\n"
    assert "has changed since" in caplog.text


def test_a_file_that_was_cut_on_disk_is_not_reused(proteins: str, tmp_path: Path) -> None:
    (path,) = fetch(proteins, tmp_path, sources.PROTEINS)
    path.write_bytes(b">a\n")
    fetch(proteins, tmp_path, sources.PROTEINS)
    assert path.read_bytes() == PROTEINS


def test_two_sources_of_one_name_do_not_overwrite_each_other(
    proteins: str, site: Site, tmp_path: Path
) -> None:
    site.files["/other/p.fasta"] = b">b\nAAA\n"
    other = f"{site.address}/other/p.fasta"
    for _ in range(2):
        (first,) = fetch(proteins, tmp_path, sources.PROTEINS)
        (second,) = fetch(other, tmp_path, sources.PROTEINS)
        assert (first.read_bytes(), second.read_bytes()) == (PROTEINS, b">b\nAAA\n")


def test_a_file_of_the_users_own_is_never_overwritten(proteins: str, tmp_path: Path) -> None:
    (tmp_path / "p.fasta").write_text("mine")
    with pytest.raises(FetchError, match="is in the way and was not downloaded by this program"):
        fetch(proteins, tmp_path, sources.PROTEINS)
    assert (tmp_path / "p.fasta").read_text() == "mine"


def test_refuses_a_second_download_of_one_file(proteins: str, tmp_path: Path) -> None:
    lock = try_lock(tmp_path / "p.fasta.partial")
    assert lock is not None
    with lock, pytest.raises(FetchError, match="is being written by another process"):
        fetch(proteins, tmp_path, sources.PROTEINS)


def test_a_disk_too_small_is_found_before_the_download(
    proteins: str, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1_000))  # type: ignore[attr-defined]
    with pytest.raises(
        FetchError, match=rf"{len(PROTEINS)} bytes to download but 1000 free on the disk of"
    ):
        fetch(proteins, tmp_path, sources.PROTEINS)
    assert _ranges(site) == []


def test_a_disk_that_fills_up_keeps_what_arrived(
    proteins: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(remote: object, state: object, stream: IO[bytes], *_: object, **__: object) -> None:
        stream.write(PROTEINS[:1000])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(transfer, "_append", full)
    with pytest.raises(
        FetchError,
        match=r"cannot write to .*: No space left on device; free space or set data\.down",
    ):
        fetch(proteins, tmp_path, sources.PROTEINS)
    assert (tmp_path / "p.fasta.partial").read_bytes() == PROTEINS[:1000]


def test_a_download_folder_that_cannot_be_made_is_named(proteins: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        FetchError, match=r"cannot write to .*file/x: .*set data\.downloads to another"
    ):
        fetch(proteins, tmp_path / "file" / "x", sources.PROTEINS)


def test_progress_is_shown_in_bytes_on_stderr(
    proteins: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fetch(proteins, tmp_path, sources.PROTEINS)
    out, err = capfd.readouterr()
    assert out == ""
    assert "p.fasta" in err
    assert "B/s" in err


def test_a_control_character_in_a_name_does_not_reach_the_terminal(
    site: Site, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    site.files["/pub/p%1B.fasta"] = PROTEINS
    fetch(f"{site.address}/pub/p%1B.fasta", tmp_path, sources.PROTEINS)
    assert r"p\x1b.fasta" in (err := capfd.readouterr().err) and "\x1b.fasta" not in err


# UniProt's published checksums


def _metalink(name: str, content: bytes, md5: str | None = None) -> bytes:
    md5 = md5 or hashlib.md5(content).hexdigest()
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<metalink version="3.0" xmlns="http://www.metalinker.org/"><version>2025_01</version><files>
<file name="README"><size>4</size><verification><hash type="md5">00</hash></verification></file>
<file name="{name}"><size>{len(content)}</size><verification><hash type="sha1">ff</hash>
<hash type="md5"> {md5.upper()} </hash></verification><resources/></file></files></metalink>""".encode()


@pytest.fixture
def published(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(remotes, "METALINK_HOSTS", frozenset({"127.0.0.1"}))
    return site


def test_a_published_checksum_is_verified(
    proteins: str, published: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    published.files["/pub/RELEASE.metalink"] = _metalink("p.fasta", PROTEINS)
    fetch(proteins, tmp_path, sources.PROTEINS)
    assert "md5 agrees with" in caplog.text


def test_a_wrong_checksum_is_an_error_and_the_file_is_not_kept(
    proteins: str, published: Site, tmp_path: Path
) -> None:
    published.files["/pub/RELEASE.metalink"] = _metalink("p.fasta", PROTEINS, md5="0" * 32)
    with pytest.raises(
        FetchError, match=r"md5 is [0-9a-f]{32}, but .*RELEASE\.metalink says 0{32}; the file was"
    ):
        fetch(proteins, tmp_path, sources.PROTEINS)
    assert without_locks(tmp_path) == []


@pytest.mark.parametrize("metalink", [None, _metalink("q.fasta", b"")])
def test_a_missing_checksum_is_said(
    metalink: bytes | None,
    proteins: str,
    published: Site,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if metalink is not None:
        published.files["/pub/RELEASE.metalink"] = metalink
    fetch(proteins, tmp_path, sources.PROTEINS)
    assert "no checksum of it is published, so only its length was verified" in caplog.text


def test_a_size_other_than_published_is_an_error(
    proteins: str, published: Site, tmp_path: Path
) -> None:
    published.files["/pub/RELEASE.metalink"] = _metalink("p.fasta", b"short")
    with pytest.raises(
        FetchError, match=rf"has {len(PROTEINS)} bytes, but .* says 5; a new release"
    ):
        fetch(proteins, tmp_path, sources.PROTEINS)
    assert [path for method, path, _ in published.requests if method == "GET"] == [
        "/pub/RELEASE.metalink"
    ]


# addresses


def test_a_redirect_must_stay_encrypted(proteins: str, site: Site, tmp_path: Path) -> None:
    site.redirect_to = "http://user:secret@example.org/p.fasta"
    with pytest.raises(FetchError, match=r"unencrypted http://example.org/p.fasta is refused"):
        fetch(proteins, tmp_path, sources.PROTEINS)


def test_credentials_are_neither_shown_nor_stored(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site.files["/p.fasta"] = PROTEINS
    host = site.address.removeprefix("http://")
    secret = f"http://me:hunter2@{host}/p.fasta?X-Amz-Signature=s3cret&x-amz-credential=s3cret"
    site.statuses = [500]
    fetch(secret, tmp_path, sources.PROTEINS)
    site.statuses = [404]
    with pytest.raises(FetchError) as refused:
        fetch(secret, tmp_path / "again", sources.PROTEINS)
    written = "".join(p.read_text() for p in tmp_path.glob("*.json"))
    for text in (caplog.text, str(refused.value), written):
        assert "hunter2" not in text
        assert "s3cret" not in text
    assert f"http://{host}/p.fasta" in written


@pytest.mark.parametrize("algorithm", ["sha256", "sha1", "md5", "crc32"])
def test_digests_are_those_of_the_content(algorithm: str, tmp_path: Path) -> None:
    import zlib

    (tmp_path / "x").write_bytes(PROTEINS)
    expected = f"{zlib.crc32(PROTEINS):08x}"
    with contextlib.suppress(ValueError):
        expected = hashlib.new(algorithm, PROTEINS).hexdigest()
    assert digest_of(tmp_path / "x", algorithm) == expected
