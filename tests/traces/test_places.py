"""Files are found where users have them: folders, patterns, pipes, object stores; nothing outside a folder is read."""

from __future__ import annotations

import io
import os
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvmill.errors import UserError
from kvmill.traces import places
from kvmill.traces.beside import source_of
from kvmill.traces.expand import expand
from kvmill.traces.files import read_file
from kvmill.traces.ingest import ingest
from kvmill.traces.inputs import records
from kvmill.traces.places import LocalFile, StandardInput, place_of
from kvmill.traces.reading import Bad, Record
from kvmill.traces.store import Store

LINE = b'{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}\n'


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *said: object) -> None:
        pass


def write(path: Path, data: bytes = LINE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def names(found: object) -> list[str]:
    return [place.name for place in found]  # type: ignore[attr-defined]


def test_a_folders_own_files_come_before_those_of_its_folders(tmp_path: Path) -> None:
    for name in ("b.json", "a/1.json", "a/z/2.json", "a/b.json", "z.json", "c/0.json"):
        write(tmp_path / name)
    found = expand([tmp_path])
    assert [str(place)[len(str(tmp_path)) + 1 :] for place in found] == [
        "b.json", "z.json", "a/1.json", "a/b.json", "a/z/2.json", "c/0.json",
    ]  # fmt: skip


def test_hidden_files_are_counted_and_links_out_of_the_folder_named(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside/secret.json")
    folder = tmp_path / "in"
    write(folder / "a.json")
    write(folder / ".hidden")
    write(folder / ".git/config")
    (folder / "link.json").symlink_to(outside)
    (folder / "all").symlink_to(outside.parent)
    (folder / "nowhere").symlink_to(folder / "nope")
    (folder / "same.json").symlink_to(folder / "a.json")
    (folder / "loop").symlink_to(folder)
    found = expand([folder])
    assert names(found) == ["a.json", "same.json"]
    assert found.hidden == 2
    assert found.links == [str(folder / name) for name in ("link.json", "nowhere", "all")]


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.json")
    write(tmp_path / "locked/b.json")
    plain = os.scandir

    def listed(path: str) -> object:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", path)
        return plain(path)

    monkeypatch.setattr(os, "scandir", listed)
    found = list(expand([tmp_path]))
    assert [place.name for place in found] == ["a.json", "locked"]
    with pytest.raises(UserError, match=r"cannot read .*locked"):
        list(records(found[1]))


def test_inputs_are_taken_once_each_with_what_named_them(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.json"), write(tmp_path / "b[1].json")
    found = expand([str(b), str(tmp_path / "*.json"), tmp_path])
    assert found.files == {LocalFile(b): str(b), LocalFile(a): str(tmp_path / "*.json")}
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no files in the folder"):
        expand([tmp_path / "empty"])
    with pytest.raises(UserError, match=r"no such file: .*\*\.nope"):
        expand([str(tmp_path / "*.nope")])


def test_a_named_pipe_is_read(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, LINE * 3)
    os.close(write_end)
    try:
        [place] = expand([f"/dev/fd/{read_end}"])
        assert place.size is None
        assert len(list(read_file(place).items)) == 3
    finally:
        os.close(read_end)


def test_standard_input_is_read_and_has_nothing_beside_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with write(tmp_path / "a").open("rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        [place] = expand(["-"])
        reading = read_file(place)
        assert isinstance(place, StandardInput)
        assert [item.value is not None for item in reading.items] == [True]
        assert reading.source.names("*") == []
        assert reading.source.text("a") is None


@pytest.fixture
def memory() -> Iterator[str]:
    fsspec = pytest.importorskip("fsspec", reason="fsspec comes with the replay dependencies")
    system = fsspec.filesystem("memory")
    for name in ("b.jsonl", "a.jsonl", "sub/c.jsonl", ".hidden", "sub/more/d.txt"):
        system.pipe(f"/traces/{name}", LINE)
    yield "memory://traces"
    system.rm("/traces", recursive=True)


def test_an_object_store_is_read_like_a_folder(memory: str) -> None:
    found = expand([memory])
    assert names(found) == ["a.jsonl", "b.jsonl", "c.jsonl", "d.txt"]
    assert found.hidden == 1
    assert names(expand([f"{memory}/*.jsonl"])) == ["a.jsonl", "b.jsonl"]
    [place] = expand([f"{memory}/a.jsonl"])
    assert place.size == len(LINE)
    assert str(place) == "memory:///traces/a.jsonl"
    assert [r.value["messages"][0]["content"] for r in records(place) if isinstance(r, Record)] == ["Hi"]
    with pytest.raises(UserError, match="no such file: memory://traces/nope"):
        expand([f"{memory}/nope"])


def test_files_beside_one_in_an_object_store(memory: str) -> None:
    source = source_of(place_of(f"{memory}/a.jsonl"))
    assert source.names("sub/*.jsonl") == ["sub/c.jsonl"]
    assert source.names("*.jsonl") == ["a.jsonl", "b.jsonl"]
    assert len(list(source.records("sub/c.jsonl"))) == 1
    assert source.text("sub/more/d.txt") == LINE.decode()
    assert names(source.opened) == ["c.jsonl", "d.txt"]
    assert source.text("../traces/b.jsonl") is None
    assert list(source.records("nope")) == []


def test_a_protocol_that_nobody_reads_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(UserError, match=r"nope://x: Protocol not known: nope"):
        expand(["nope://x"])
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UserError, match=r"s3://bucket/x: s3:// cannot be read yet: pip install 'kvmill\[s3\]'"):
        expand(["s3://bucket/x"])
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UserError, match=r"needs fsspec: pip install 'kvmill\[s3\]'"):
        expand(["memory://x"])


def test_tables_and_archives_are_read_from_an_object_store(memory: str) -> None:
    fsspec = pytest.importorskip("fsspec")
    table, archive = io.BytesIO(), io.BytesIO()
    pq.write_table(pa.table({"a": [1, 2]}), table)
    with zipfile.ZipFile(archive, "w") as members:
        members.writestr("header.json", "{}")
    system = fsspec.filesystem("memory")
    system.pipe("/traces/t", table.getvalue())
    system.pipe("/traces/z", archive.getvalue())
    assert [r.value for r in records(f"{memory}/t") if isinstance(r, Record)] == [{"a": 1}, {"a": 2}]
    assert [r.value["member"] for r in records(f"{memory}/z") if isinstance(r, Record)] == ["header.json"]


def test_a_connection_that_breaks_in_the_middle_is_one_line(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_of(f"{memory}/a.jsonl")
    file = place.open()
    assert file.read(5) == LINE[:5]
    monkeypatch.setattr(type(file._file), "read", lambda self, count=-1: 1 / 0)  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"cannot read memory://traces/a\.jsonl: division by zero"):
        list(records(place))


def test_what_a_remote_file_system_raises_is_one_line() -> None:
    with pytest.raises(UserError, match="cannot read s3://b/x: no credentials"), places.told("s3://b/x"):
        raise RuntimeError("no credentials")


def test_signatures_and_passwords_of_addresses_are_neither_printed_nor_stored(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="fsspec reads http:// with aiohttp")
    write(tmp_path / "www/a.jsonl")
    handler = partial(Quiet, directory=str(tmp_path / "www"))
    store = Store(tmp_path / "store")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        where = f"127.0.0.1:{server.server_port}"
        report = ingest(store, [f"http://me:pass-word@{where}/a.jsonl?X-Signature=sig-nature"])
        with pytest.raises(UserError) as refused:
            ingest(store, [f"http://{where}/none.jsonl?X-Signature=sig-nature"])
        server.shutdown()
    assert report.accepted == 1
    assert store.info(report.run).config["paths"] == [f"http://{where}/a.jsonl"]
    assert str(refused.value) == f"no such file: http://{where}/none.jsonl"
    files = b"".join(path.read_bytes() for path in store.path.rglob("*") if path.is_file()) + repr(report).encode()
    assert b"sig-nature" not in files
    assert b"pass-word" not in files


def test_files_beside_are_never_taken_from_outside(tmp_path: Path) -> None:
    write(tmp_path / "secret.txt")
    here = write(tmp_path / "run/a.json")
    write(tmp_path / "run/events/1.json")
    write(tmp_path / "run/events/10.json", b"")
    (tmp_path / "run/out.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "run/in.txt").symlink_to(here)
    source = source_of(LocalFile(here))
    assert source.names("events/*.json") == ["events/1.json", "events/10.json"]
    assert source.names("*.txt") == ["in.txt"]
    for name in ("../secret.txt", "out.txt", str(tmp_path / "secret.txt"), "nope", "events", "a\0b"):
        assert source.text(name) is None
        assert list(source.records(name)) == []
    assert source.opened == []
    assert len(list(source.records("events/1.json"))) == 1
    [bad] = source.records("events/10.json")
    assert isinstance(bad, Bad)
    assert "is empty" in bad.reason
    assert names(source.opened) == ["1.json", "10.json"]
