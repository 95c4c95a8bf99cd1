"""Data sets of the paper and beyond: the publishers' files by name, and the paper's small generated sets."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow.csv
from scipy.io import loadmat
from sklearn.datasets import load_breast_cancer, load_digits, load_iris

from ips2_dask.errors import BadInput
from ips2_dask.typing import AnyArray, Float64

if TYPE_CHECKING:
    from sklearn.utils import Bunch

Data = str | os.PathLike[str] | None
Noise = Literal["gaussian", "uniform", "rayleigh", "gamma", "none"]

VARIABLE = "IPS2_DATA"

SCADI_SMALLEST = 12  # samples of the smallest class that the paper's 57 have (12 + 29 + 16)
BBCSPORT_CLASSES = (2, 3, 4)
BBCSPORT_EACH = 20
YALE_SUBJECTS = 5

US_MEANS = (0.1, 0.5, 1.0)
DEVIATION = 0.5
USDATA1_FEATURES = tuple(range(60, 1861, 200))  # the paper's text; its figure begins with the second
USDATA2_FEATURES = 2360
USDATA2_THIRDS = tuple(range(10, 236, 25))  # sizes of the third cluster: 50 to 275 samples in all
NOISE_LEVELS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
FIFTY = (17, 17, 16)  # the paper says 50 samples in three clusters


@dataclass(frozen=True)
class Dataset:
    """Samples with their known labels."""

    name: str
    X: AnyArray = field(repr=False)  #: (m, f) raw values, float64 (MNIST float32)
    labels: AnyArray = field(repr=False)  #: (m,) integers or strings, for scoring only
    description: str  #: one sentence: what the samples, features and classes are
    addresses: tuple[str, ...] = ()  #: URLs of the publisher's files; empty for generated data

    @property
    def n_clusters(self) -> int:
        """c, the number of classes."""
        return len(np.unique(self.labels))


# publishers' files


class PublishedFile(NamedTuple):
    """A publisher's file; a copy that is gzipped, or is not, will do as well."""

    path: str  # below the data directory
    sha256: str  # of the content once gunzipped: copies are repacked, their content is not
    address: str

    @property
    def member(self) -> str:
        """Its name in the zip archive that the address gives; empty where it gives the file itself."""
        return self.path.rpartition("/")[2] if self.address.endswith(".zip") else ""


@cache
def published_files() -> dict[str, PublishedFile]:
    """The files of ``published.txt`` by path: a registry as pooch has them."""
    return {line.split()[0]: PublishedFile(*line.split()) for line in packaged("published.txt").splitlines()}


def packaged(name: str) -> str:
    """The text of a file beside this one."""
    return resources.files("ips2_dask.paper").joinpath(name).read_text("ascii")


def _directory(data: Data) -> Path | None:
    """The directory of data: ``data``, else that of the environment variable IPS2_DATA, else None."""
    chosen = data or os.environ.get(VARIABLE)
    return Path(os.path.expanduser(chosen)) if chosen else None


def _find(source: PublishedFile, folder: Path | None) -> Path | None:
    """The path of a file, gzipped or not, or None if the folder does not hold it."""
    if folder is None:
        return None
    bare = source.path.removesuffix(".gz")
    candidates = [folder / source.path, folder / bare, folder / f"{bare}.gz"]
    return next((path for path in candidates if path.is_file()), None)


def content(source: PublishedFile, data: Data = None, download: bool = False) -> bytes:
    """The unpacked content of a file whose checksum is the publisher's; parameters and errors as of `load`.

    With ``download`` a missing file is fetched and kept in the directory of data, or without one in pooch's cache.
    """
    folder = _directory(data)
    path = _find(source, folder)
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
    otherwise = "there would be nothing to load"
    if folder is None:
        problem = f"no directory of data to look for {source.path} in"
        place = f"give data=, or set {VARIABLE}, to a directory with {source.path} (from {whence}), or download=True"
        return BadInput("data", problem, "a directory", otherwise, place)
    remedy = f"fetch {whence} and put it there, or pass download=True (needs pooch and a network)"
    return BadInput(str(folder / source.path), "no such file", "the publisher's", otherwise, remedy)


# their formats


def _table(*contents: bytes, label: int, drop: tuple[int, ...] = (), header: int = 0) -> tuple[AnyArray, AnyArray]:
    """Read CSV without quotes: X float64 (m, f), and the column ``label``, int64 if all of it are digits, else str."""
    rows = [line.split(",") for text in contents for line in text.decode("ascii").splitlines()[header:] if line]
    cells = np.char.strip(np.array(rows))
    labels = cells[:, label]
    features = np.delete(cells, [label, *drop], axis=1).astype(np.float64)
    return features, labels.astype(np.int64) if np.char.isdigit(labels).all() else labels


def _scadi57(content: bytes) -> tuple[AnyArray, AnyArray]:
    X, labels = _table(content, label=-1, header=1)
    classes, sizes = np.unique(labels, return_counts=True)
    in_large_class = np.isin(labels, classes[sizes >= SCADI_SMALLEST])
    return X[in_large_class], labels[in_large_class]


def _stored(content: bytes) -> dict[str, AnyArray]:
    return dict(loadmat(io.BytesIO(content)))


def _matlab(content: bytes) -> tuple[AnyArray, AnyArray]:
    """Read a file of the ASU feature-selection collection: X holds samples by features, Y labels."""
    stored = _stored(content)
    return stored["X"].astype(np.float64), stored["Y"].ravel().astype(np.int64)


def _bbcsport(content: bytes) -> tuple[AnyArray, AnyArray]:
    stored = _stored(content)
    second_view = stored["X"][0, 1]  # (2544, 282)
    return second_view.T.astype(np.float64), stored["truth"].ravel().astype(np.int64)


def _bbcsport60(content: bytes) -> tuple[AnyArray, AnyArray]:
    X, labels = _bbcsport(content)
    first = np.concatenate([np.flatnonzero(labels == c)[:BBCSPORT_EACH] for c in BBCSPORT_CLASSES])
    return X[first], labels[first]


def _yale(content: bytes) -> tuple[AnyArray, AnyArray]:
    stored = _stored(content)
    return stored["fea"].T / 255.0, stored["gnd"].ravel().astype(np.int64)


def _yale5(content: bytes) -> tuple[AnyArray, AnyArray]:
    X, labels = _yale(content)
    return X[labels <= YALE_SUBJECTS], labels[labels <= YALE_SUBJECTS]


def _idx(content: bytes) -> AnyArray:
    """Read an array of bytes in IDX: two zero bytes, type 8, the number of axes, their lengths as big-endian int32."""
    axes = content[3]
    shape = np.frombuffer(content, dtype=">i4", count=axes, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)


def _mnist(*contents: bytes) -> tuple[AnyArray, AnyArray]:
    """Read files of images and labels in turn; float32, which holds 0 to 255 as they are in half of the memory."""
    images, labels = ([_idx(content) for content in contents[first::2]] for first in (0, 1))
    X = np.concatenate([part.reshape(len(part), -1) for part in images]).astype(np.float32)
    return X, np.concatenate(labels).astype(np.int64)


def _columns(*contents: bytes, label: int, header: int = 0) -> tuple[AnyArray, AnyArray]:
    """Read columns divided by white space, below ``header`` lines; the first or the last is the class."""
    rows = np.concatenate([np.loadtxt(io.BytesIO(content), skiprows=header) for content in contents])
    return np.ascontiguousarray(np.delete(rows, label, axis=1)), rows[:, label].astype(np.int64)


def _kddcup_all(content: bytes) -> tuple[AnyArray, AnyArray]:
    options = pyarrow.csv.ReadOptions(autogenerate_column_names=True)
    columns = pyarrow.csv.read_csv(io.BytesIO(content), read_options=options).columns
    texts = (1, 2, 3, 41)  # protocol, service, flag; the class, with a full stop at its end
    X = np.column_stack([column.to_numpy() for i, column in enumerate(columns) if i not in texts])
    return X.astype(np.float64), np.char.rstrip(columns[41].to_numpy().astype(str), ".")


def _kddcup(content: bytes) -> tuple[AnyArray, AnyArray]:
    X, labels = _kddcup_all(content)
    rows = np.ascontiguousarray(X + 0.0).view(np.dtype((np.void, X.shape[1] * X.itemsize))).ravel()
    first = np.sort(np.unique(rows, return_index=True)[1])
    return X[first], labels[first]


def _shipped(read: Callable[[], Bunch]) -> tuple[AnyArray, AnyArray]:
    """Return a set that comes with scikit-learn."""
    bunch = read()
    return bunch.data, bunch.target


_READERS: dict[str, Callable[..., tuple[AnyArray, AnyArray]]] = {
    "table-last": partial(_table, label=-1),
    "table-first": partial(_table, label=0),
    "scadi": partial(_table, label=-1, header=1),
    "scadi57": _scadi57,
    "glass": partial(_table, label=-1, drop=(0,)),
    "usps": partial(_columns, label=0),
    "satimage": partial(_columns, label=-1, header=1),
    "bbcsport": _bbcsport,
    "bbcsport60": _bbcsport60,
    "yale": _yale,
    "yale5": _yale5,
    "mnist": _mnist,
    "matlab": _matlab,
    "kddcup": _kddcup,
    "kddcup_all": _kddcup_all,
    "digits": partial(_shipped, load_digits),
    "iris": partial(_shipped, load_iris),
    "breast_cancer": partial(_shipped, load_breast_cancer),
}


class _Entry(NamedTuple):
    """A line of ``sets.tsv``."""

    name: str
    reader: str  # of ``_READERS``: it takes the contents of the files in their order
    files: str  # their paths, "-" where scikit-learn ships it
    description: str

    @property
    def sources(self) -> list[PublishedFile]:
        return [published_files()[path] for path in self.files.split() if path != "-"]


@cache
def _entries() -> dict[str, _Entry]:
    lines = packaged("sets.tsv").splitlines()[1:]
    return {entry.name: entry for entry in (_Entry(*line.split("\t")) for line in lines)}


def load(name: str, data: Data = None, *, download: bool = False) -> Dataset:
    """Load a data set by name.

    Parameters
    ----------
    name : str
        One of those that `names` returns.
    data : path, optional
        The directory of data; by default that of the environment variable IPS2_DATA.
    download : bool
        Fetch missing files (needs pooch and a network).

    Returns
    -------
    Dataset

    Raises
    ------
    BadInput
        If there is no such name, or a file is missing or not the publisher's.
    """
    if name not in _entries():
        allowed = ", ".join(names())
        raise BadInput("data set", repr(name), allowed, "there would be nothing to load", "give one of these names")
    entry = _entries()[name]
    X, labels = _READERS[entry.reader](*(content(source, data, download) for source in entry.sources))
    return Dataset(name, X, labels, entry.description, tuple(source.address for source in entry.sources))


def names() -> list[str]:
    """Return the names that `load` takes."""
    return list(_entries())


def available(data: Data = None) -> list[str]:
    """Return the names of the sets whose files are in the directory; `load` compares their checksums."""
    folder = _directory(data)
    return [name for name, entry in _entries().items() if all(_find(source, folder) for source in entry.sources)]


def bbcsport_draw(seed: int, data: Data = None, *, download: bool = False) -> Dataset:
    """Draw sixty documents of bbcsport's classes 2 to 4, twenty of each, without replacement, in file order.

    The paper uses 60 documents in 3 classes and does not say which; results depend much on the draw, so several draws
    belong in a report. Parameters and errors as of `load`.
    """
    whole = load("bbcsport", data, download=download)
    rng = np.random.default_rng(seed)
    rows = [rng.choice(np.flatnonzero(whole.labels == c), BBCSPORT_EACH, replace=False) for c in BBCSPORT_CLASSES]
    chosen = np.sort(np.concatenate(rows))
    description = f"60 documents of bbcsport, 20 of each of the classes 2 to 4, drawn with seed {seed}"
    return Dataset(f"bbcsport-draw{seed}", whole.X[chosen], whole.labels[chosen], description, whole.addresses)


# generated sets: USdata1 and USdata2 (section 4.4), their noises, and the sets of section 3.4


def usdata1(n_features: int, noise: Noise = "gaussian", level: float = 0.5, seed: int = 0) -> Dataset:
    """USdata1: three normal clusters of 20 samples, means .1, .5 and 1, deviation .5, and noise on top.

    The paper's numbers of features are ``USDATA1_FEATURES``, its four noises at level .5 N(0, .5), U(0, 1), Rayleigh
    with B = .5 and Gamma with A = 5 and B = 10. Noise is proportional to ``level``; the paper's are ``NOISE_LEVELS``.
    X is float64 (60, n_features). The same seed gives the same data.
    """
    return _clusters(f"usdata1-{n_features}", (20, 20, 20), US_MEANS, n_features, noise, level, seed)


def usdata2(n_third: int, seed: int = 0, noise: Noise = "gaussian", level: float = 0.5) -> Dataset:
    """USdata2: the clusters of USdata1 in 2,360 features, the third with ``n_third`` samples instead of 20.

    The paper does not say whether USdata1's noise is on it; ``noise="none"`` leaves it out. Its sizes are
    ``USDATA2_THIRDS``.
    """
    return _clusters(f"usdata2-{n_third}", (20, 20, n_third), US_MEANS, USDATA2_FEATURES, noise, level, seed)


def three_clusters(seed: int = 0) -> Dataset:
    """The set of section 3.4: 50 samples, 500 features, three normal clusters, means 1, 2.5 and 5, deviation .5."""
    return _clusters("three_clusters", FIFTY, (1.0, 2.5, 5.0), 500, "none", 0.0, seed)


def two_clusters(seed: int = 0) -> Dataset:
    """The two-cluster version: the first two clusters of `three_clusters` of the same seed, 34 samples."""
    whole = three_clusters(seed)
    rows = whole.labels < 2
    return Dataset("two_clusters", whole.X[rows], whole.labels[rows], f"{whole.description}, the third left out")


def _clusters(
    name: str, sizes: Sequence[int], means: Sequence[float], f: int, noise: Noise, level: float, seed: int
) -> Dataset:
    if min(*sizes, f) < 1:
        problem = f"{sizes[-1]} samples and {f} features"
        raise BadInput(name, problem, "one or more of both", "there would be nothing to cluster", "raise them")
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    X = np.array(means)[labels][:, None] + DEVIATION * rng.standard_normal((len(labels), f))
    X += _noise(rng, noise, level, X.shape)
    drawn = ", ".join(f"{size} around {mean:g}" for size, mean in zip(sizes, means, strict=True))
    description = f"{f} features, normal clusters ({drawn}; deviation {DEVIATION}), {noise} noise {level:g}"
    return Dataset(name, X, labels, description)


def _noise(rng: np.random.Generator, noise: str, level: float, shape: tuple[int, ...]) -> Float64:
    if not level >= 0:
        raise BadInput("level", str(level), "0 or more", "noise would have no strength", "give the paper's level=0.5")
    draw: dict[str, Callable[[], Float64]] = {
        "gaussian": lambda: level * rng.standard_normal(shape),
        "uniform": lambda: 2 * level * rng.random(shape),
        "rayleigh": lambda: rng.rayleigh(level, shape),
        "gamma": lambda: 20 * level * rng.standard_gamma(5.0, shape),
        "none": lambda: np.zeros(shape),
    }
    if noise not in draw:
        allowed = "gaussian, uniform, rayleigh, gamma or none"
        raise BadInput("noise", repr(noise), allowed, "there would be nothing to draw from", "give one of these")
    return draw[noise]()
