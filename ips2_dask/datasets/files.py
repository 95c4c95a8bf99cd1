"""Finding, fetching and checking a publisher's file, and unpacking its content."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tempfile
import zipfile
from pathlib import Path

from ips2_dask.datasets.sources import PublishedFile
from ips2_dask.errors import BadInput

VARIABLE = "IPS2_DATA"


def directory(data: str | os.PathLike[str] | None) -> Path | None:
    """Return the directory of data: ``data``, else that of the environment variable IPS2_DATA, else None."""
    chosen = data or os.environ.get(VARIABLE)
    return Path(os.path.expanduser(chosen)) if chosen else None


def find(source: PublishedFile, folder: Path | None) -> Path | None:
    """Return the path of a file, gzipped or not, or None if the folder does not hold it."""
    if folder is None:
        return None
    bare = source.path.removesuffix(".gz")
    candidates = [folder / source.path, folder / bare, folder / f"{bare}.gz"]
    return next((path for path in candidates if path.is_file()), None)


def content(source: PublishedFile, data: str | os.PathLike[str] | None = None, download: bool = False) -> bytes:
    """Return the unpacked content of a file whose checksum is the publisher's.

    Parameters
    ----------
    source : PublishedFile
        The file.
    data : path, optional
        The directory of data; by default that of the environment variable IPS2_DATA.
    download : bool
        Fetch a missing file with pooch and keep it in the directory of data, or without one in pooch's cache.

    Returns
    -------
    bytes
        Gunzipped, with the checksum of the source.

    Raises
    ------
    BadInput
        If the file is missing (the message says where to fetch it), can't be fetched, or has another checksum.
    """
    folder = directory(data)
    path = find(source, folder)
    if path is None and not download:
        raise _missing(source, folder)
    return _checked(source, path.read_bytes(), str(path)) if path else _fetched(source, folder)


def _fetched(source: PublishedFile, folder: Path | None) -> bytes:
    import pooch  # noqa: PLC0415 - optional, and only this needs it

    path = (folder or Path(pooch.os_cache("ips2_dask"))) / source.path
    if path.is_file():  # in pooch's cache
        return _checked(source, path.read_bytes(), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as aside:
        try:
            # our checksum is of the content; pooch's would be of the package
            received = Path(pooch.retrieve(source.address, known_hash=None, fname=path.name, path=aside))
        except OSError as error:
            otherwise = "the data set would be missing"
            remedy = f"fetch it by other means and put it at {path}"
            raise BadInput(source.address, f"no answer ({error})", "an address", otherwise, remedy) from error
        unpacked = _checked(source, received.read_bytes(), source.address)
        if source.member:
            received.write_bytes(unpacked)
        received.replace(path)
    return unpacked


def _checked(source: PublishedFile, packed: bytes, origin: str) -> bytes:
    try:
        unpacked = _unpacked(source, packed)
    except (OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        otherwise = "the data set would be cut short"
        raise BadInput(origin, f"a broken archive ({error})", "a whole one", otherwise, "fetch it again") from error
    digest = hashlib.sha256(unpacked).hexdigest()
    if digest != source.sha256:
        problem = f"content of sha256 {digest[:16]}... ({len(unpacked):,} bytes)"
        otherwise = "scores would not be those of the published data"
        remedy = f"fetch the publisher's file, {source.address}, or load yours as a file of your own"
        raise BadInput(origin, problem, f"sha256 {source.sha256[:16]}...", otherwise, remedy)
    return unpacked


def _unpacked(source: PublishedFile, packed: bytes) -> bytes:
    if packed.startswith(b"\x1f\x8b"):
        return gzip.decompress(packed)
    if source.member and packed.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            return archive.read(source.member)
    return packed


def _missing(source: PublishedFile, folder: Path | None) -> BadInput:
    whence = f"{source.member} in {source.address}" if source.member else source.address
    if folder is None:
        problem = f"no directory of data to look for {source.path} in"
        return BadInput(
            "data",
            problem,
            "a directory",
            "there would be nothing to load",
            f"give data=, or set {VARIABLE}, to a directory with {source.path} (from {whence}), or download=True",
        )
    remedy = f"fetch {whence} and put it there, or pass download=True (needs pooch and a network)"
    return BadInput(
        str(folder / source.path), "no such file", "the publisher's", "there would be nothing to load", remedy
    )
