"""The publishers' data as their README says they are, what is said when they are not there, and generated data."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import os
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ips2_dask.datasets import BLOCK, curved_gaussians
from ips2_dask.errors import BadInput
from ips2_dask.paper import data as datasets
from ips2_dask.paper.data import PublishedFile

DATA = os.environ.get(datasets.VARIABLE)
needs_data = pytest.mark.skipif(not DATA, reason="IPS2_DATA names no directory of the publishers' files")

DIGIT_COUNTS = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]

load = functools.cache(datasets.load)  # the large ones take seconds

# name: samples, features, class counts in sorted order of the labels
REAL = {
    "soybean": (47, 35, [10, 10, 10, 17]),
    "scadi": (70, 205, [2, 7, 1, 12, 3, 29, 16]),
    "scadi57": (57, 205, [12, 29, 16]),
    "bbcsport": (282, 2544, [23, 63, 97, 80, 19]),
    "bbcsport60": (60, 2544, [20, 20, 20]),
    "yale": (165, 4096, [11] * 15),
    "yale5": (55, 4096, [11] * 5),
    "mnist": (70_000, 784, DIGIT_COUNTS),
    "mnist10k": (10_000, 784, [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]),
    "usps": (9298, 256, [1553, 1269, 929, 824, 852, 716, 834, 792, 708, 821]),
    "pendigits": (10_992, 16, [1143, 1143, 1144, 1055, 1144, 1055, 1056, 1142, 1055, 1055]),
    "letter": (20_000, 16, None),
    "allaml": (72, 7129, [47, 25]),
    "leukemia": (72, 7070, [47, 25]),
    "colon": (62, 2000, [40, 22]),
    "lung": (73, 325, [6, 5, 5, 16, 7, 13, 21]),
    "kddcup-all": (494_021, 38, None),
    "wine": (178, 13, [59, 71, 48]),
    "glass": (214, 9, [70, 76, 17, 13, 9, 29]),
    "htru2": (17_898, 8, [16_259, 1639]),
    "satimage": (6435, 36, [1533, 703, 1358, 626, 707, 1508]),
    "digits": (1797, 64, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]),
    "iris": (150, 4, [50, 50, 50]),
    "breast_cancer": (569, 30, [212, 357]),
}


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("name", REAL)
def test_real_data_have_the_shapes_and_classes_of_their_publisher(name: str) -> None:
    m, f, counts = REAL[name]
    found = load(name)
    assert found.X.shape == (m, f)
    assert found.labels.shape == (m,)
    assert np.isfinite(found.X).all()
    assert found.X.dtype == (np.float32 if name.startswith("mnist") else np.float64)
    sizes = np.unique(found.labels, return_counts=True)[1]
    assert len(sizes) == found.n_clusters
    if counts:
        if name in ("colon", "leukemia"):
            assert sorted(sizes) == sorted(counts)  # the README names no order
        else:
            assert sizes.tolist() == counts


@pytest.mark.slow
@needs_data
def test_letters_are_about_as_frequent_and_connections_are_not() -> None:
    sizes = np.unique(load("letter").labels, return_counts=True)[1]
    assert (len(sizes), sizes.min(), sizes.max()) == (26, 734, 813)
    labels, sizes = np.unique(load("kddcup-all").labels, return_counts=True)
    connections = dict(zip(labels.tolist(), sizes.tolist(), strict=True))
    assert len(connections) == 23
    assert (connections["smurf"], connections["neptune"], connections["normal"]) == (280_790, 107_201, 97_278)


@pytest.mark.slow
@needs_data
def test_kddcup_keeps_the_first_of_each_distinct_row() -> None:
    whole, distinct = load("kddcup-all"), load("kddcup")
    rows = {row.tobytes() for row in whole.X}
    assert {row.tobytes() for row in distinct.X} == rows
    assert len(distinct.X) == len(rows)
    assert (distinct.X[:2] == whole.X[:2]).all()


@pytest.mark.slow
@needs_data
def test_values_are_raw() -> None:
    assert load("yale").X.max() <= 1  # the paper's pixels are divided by 255
    ranges = {
        "soybean": (0, 6),
        "scadi": (0, 22),
        "mnist10k": (0, 255),
        "pendigits": (0, 100),
        "letter": (0, 15),
        "satimage": (27, 157),
    }
    for name, span in ranges.items():
        X = load(name).X
        assert (X.min(), X.max()) == span
    for name in ("leukemia", "colon", "lung"):
        assert np.unique(load(name).X).tolist() == [-2, 0, 2]


@needs_data
@pytest.mark.slow
def test_values_are_where_their_publishers_have_them() -> None:
    glass = load("glass")  # neither its running number nor its class is among the features
    assert glass.X[0].tolist() == [1.52101, 13.64, 4.49, 1.10, 71.78, 0.06, 8.75, 0.00, 0.00]
    assert not (np.diff(glass.X, axis=0) == 1).all(axis=0).any()
    mnist = load("mnist10k")
    nought, one = (mnist.X[mnist.labels == digit].mean(axis=0).reshape(28, 28) for digit in (0, 1))
    assert nought[14, 14] < 0.1 * nought.max()  # hollow
    assert one[14, 14] > 0.9 * one.max()
    assert one[14, 6] < 0.1 * one.max()
    X = load("bbcsport").X  # the README's two exact pairs of documents
    assert (X[96] == X[99]).all()
    assert (X[41] == X[81]).all()
    htru2 = load("htru2")
    row = [140.5625, 55.68378214, -0.234571412, -0.699648398, 3.199832776, 19.11042633, 7.975531794, 74.24222492]
    assert htru2.X[0].tolist() == row
    assert set(htru2.labels.tolist()) == {0, 1}
    satimage = load("satimage")  # the line above the pixels is no sample, and the parts follow one another
    assert satimage.X[0, :4].tolist() == [92, 115, 120, 94]
    assert satimage.labels[0] == 3
    first, second = (np.loadtxt(Path(str(DATA)) / f"satimage/sat.{part}", skiprows=1) for part in ("trn", "tst"))
    assert np.array_equal(satimage.X, np.concatenate([first, second])[:, :36])
    assert len(first) == 4435
    assert np.unique(satimage.labels).tolist() == [1, 2, 3, 4, 5, 7]


@needs_data
def test_draws_of_bbcsport_are_seeded_and_balanced() -> None:
    first, again, other = (datasets.bbcsport_draw(seed) for seed in (1, 1, 2))
    assert (first.X == again.X).all()
    assert (first.X != other.X).any()
    assert np.unique(first.labels, return_counts=True)[1].tolist() == [20, 20, 20]
    assert np.unique(first.labels).tolist() == [2, 3, 4]
    assert (np.diff(first.labels) >= 0).all()


@needs_data
def test_all_names_are_available_with_all_the_data() -> None:
    assert datasets.available() == datasets.names()


def test_some_sets_need_no_file(tmp_path: Path) -> None:
    assert datasets.available(tmp_path) == ["digits", "iris", "breast_cancer"]
    for name in datasets.available(tmp_path):
        m, f, counts = REAL[name]
        found = datasets.load(name, tmp_path)
        assert found.X.shape == (m, f)
        assert np.unique(found.labels, return_counts=True)[1].tolist() == counts
    assert datasets.load("iris").X[0].tolist() == [5.1, 3.5, 1.4, 0.2]
    assert datasets.load("breast_cancer").X.max() == 4254  # as measured, not standardised


def test_what_can_not_be_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(datasets.VARIABLE, raising=False)
    with pytest.raises(BadInput, match=r"'irises', allowed is soybean, scadi, .*, digits, iris, "):
        datasets.load("irises")
    with pytest.raises(BadInput, match=r"IPS2_DATA.*soybean/soybean-small\.data.*archive\.ics\.uci\.edu"):
        datasets.load("soybean")
    with pytest.raises(BadInput) as refusal:
        datasets.load("scadi57", tmp_path)
    assert str(tmp_path / "scadi" / "SCADI.csv") in str(refusal.value)
    assert "SCADI.csv in https://archive.ics.uci.edu/ml/machine-learning-databases/00446/SCADI.zip" in str(
        refusal.value
    )


@pytest.mark.parametrize(
    ("name", "path", "content", "said"),
    [
        ("wine", "wine/wine.data", b"1,2,3\n", r"content of sha256 .* \(6 bytes\)"),
        ("kddcup", "kddcup99/kddcup.data_10_percent.gz", gzip.compress(b"0,tcp,SF" * 1000)[:30], "broken archive"),
    ],
    ids=["another", "cut-off"],  # the archive holds the time
)
def test_a_file_that_is_another_or_was_cut_off_is_refused(
    name: str, path: str, content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_bytes(content)
    with pytest.raises(BadInput, match=said):
        datasets.load(name, tmp_path)


@needs_data
def test_a_repacked_copy_is_the_same_data(tmp_path: Path) -> None:
    assert DATA
    for path in ("wine/wine.data", "mnist/t10k-labels-idx1-ubyte.gz"):
        source = datasets.published_files()[path]
        content = datasets.content(source, DATA)
        (tmp_path / source.path).parent.mkdir()
        bare = source.path.removesuffix(".gz")
        if bare == source.path:
            (tmp_path / f"{bare}.gz").write_bytes(gzip.compress(content, 1))
        else:
            (tmp_path / bare).write_bytes(content)
        assert datasets.content(source, tmp_path) == content


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name
        pass


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address that serves it."""
    folder = tmp_path / "published"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_download_is_unpacked_checked_and_kept(tmp_path: Path, publisher: tuple[Path, str]) -> None:
    pytest.importorskip("pooch")
    folder, address = publisher
    content = b"1,2,3\n"
    with zipfile.ZipFile(folder / "set.zip", "w") as archive:
        archive.writestr("set.csv", content)
    digest = hashlib.sha256(content).hexdigest()
    source = PublishedFile("a/set.csv", digest, address + "set.zip")
    data = tmp_path / "data"
    assert datasets.content(source, data, download=True) == content
    shutil.rmtree(folder)
    assert datasets.content(source, data) == content
    assert {path.name: path.read_bytes() for path in (data / "a").iterdir()} == {"set.csv": content}


def test_a_download_with_other_content_is_refused_and_not_kept(tmp_path: Path, publisher: tuple[Path, str]) -> None:
    pytest.importorskip("pooch")
    folder, address = publisher
    (folder / "set.csv").write_text("<html>moved</html>")
    source = PublishedFile("a/set.csv", "0" * 64, address + "set.csv")
    with pytest.raises(BadInput, match="content of sha256"):
        datasets.content(source, tmp_path / "data", download=True)
    assert list((tmp_path / "data" / "a").iterdir()) == []


def test_a_publisher_that_does_not_answer_is_named(tmp_path: Path, publisher: tuple[Path, str]) -> None:
    pytest.importorskip("pooch")
    address = publisher[1] + "gone.csv"
    with pytest.raises(BadInput, match=r"gone\.csv: found no answer .*put it at .*set\.csv"):
        datasets.content(PublishedFile("a/set.csv", "0" * 64, address), tmp_path / "data", download=True)


GENERATORS: dict[str, Callable[[int], datasets.Dataset]] = {
    "usdata1": lambda seed: datasets.usdata1(60, seed=seed),
    "usdata2": lambda seed: datasets.usdata2(35, seed=seed),
    "three_clusters": datasets.three_clusters,
    "two_clusters": datasets.two_clusters,
}


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_generated_data_depend_on_the_seed_alone(make: Callable[[int], datasets.Dataset]) -> None:
    assert (make(3).X == make(3).X).all()
    assert (make(3).X != make(4).X).all()


@pytest.mark.parametrize(
    ("made", "sizes", "f"),
    [
        (datasets.usdata1(60), [20, 20, 20], 60),
        (datasets.usdata2(235), [20, 20, 235], 2360),
        (datasets.three_clusters(), [17, 17, 16], 500),
        (datasets.two_clusters(), [17, 17], 500),
    ],
    ids=lambda made: made.name if isinstance(made, datasets.Dataset) else None,
)
def test_generated_data_have_the_sizes_of_the_paper(made: datasets.Dataset, sizes: list[int], f: int) -> None:
    assert made.X.shape == (sum(sizes), f)
    assert np.bincount(made.labels).tolist() == sizes


def test_the_clusters_of_section_3_4_have_their_means_and_deviation() -> None:
    X, labels = datasets.three_clusters().X, datasets.three_clusters().labels
    for cluster, mean in enumerate((1, 2.5, 5)):
        assert X[labels == cluster].mean() == pytest.approx(mean, abs=0.03)
        assert X[labels == cluster].std() == pytest.approx(0.5, abs=0.03)


NOISES: list[tuple[datasets.Noise, float, float]] = [  # mean and variance at level .5
    ("none", 0, 0),
    ("gaussian", 0, 0.25),
    ("uniform", 0.5, 1 / 12),
    ("rayleigh", 0.5 * np.sqrt(np.pi / 2), 0.25 * (2 - np.pi / 2)),
    ("gamma", 50, 500),
]


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "mean", "variance"), NOISES)
@pytest.mark.parametrize("level", [0.2, 0.5, 0.8])
def test_noises_have_the_moments_of_their_distributions(
    noise: datasets.Noise, mean: float, variance: float, level: float
) -> None:
    made = datasets.usdata1(1860, noise=noise, level=level)
    strength, deviation = level / 0.5, float(np.sqrt(0.25 + variance * (level / 0.5) ** 2))
    for cluster, centre in enumerate((0.1, 0.5, 1.0)):
        X = made.X[made.labels == cluster]
        assert X.mean() == pytest.approx(centre + strength * mean, abs=6 * deviation / np.sqrt(X.size))
        assert X.std() == pytest.approx(deviation, rel=0.05)


def test_what_the_generators_refuse_is_named() -> None:
    pink: Any = "pink"
    with pytest.raises(BadInput, match="'pink'"):
        datasets.usdata1(60, noise=pink)
    with pytest.raises(BadInput, match="level"):
        datasets.usdata1(60, level=-1)
    with pytest.raises(BadInput, match="0 features"):
        datasets.usdata1(0)
    with pytest.raises(BadInput, match="0 samples"):
        datasets.usdata2(0)
    with pytest.raises(BadInput, match="n_clusters"):
        curved_gaussians(10, n_clusters=0)
    with pytest.raises(BadInput, match="no step"):
        curved_gaussians(10, rows=slice(0, 10, 2))


def test_curved_gaussians_are_float32_in_all_clusters_and_seeded() -> None:
    X, labels = curved_gaussians(3000, f=16, n_clusters=7, seed=5)
    assert X.shape == (3000, 16)
    assert labels.shape == (3000,)
    assert X.dtype == np.float32
    assert labels.dtype == np.int64
    assert np.isfinite(X).all()
    sizes = np.bincount(labels, minlength=7)
    assert len(sizes) == 7
    assert sizes.max() < 2.6 * sizes.min()
    again, other = (curved_gaussians(3000, f=16, n_clusters=7, seed=seed)[0] for seed in (5, 6))
    assert (again == X).all()
    assert (other != X).any()


@pytest.mark.parametrize(
    "rows",
    [
        slice(0, 10),
        slice(BLOCK - 3, BLOCK + 4),
        slice(BLOCK, 2 * BLOCK),
        slice(2 * BLOCK + 50, None),
        slice(-5, None),
        slice(7, 7),
        slice(9, 3),
    ],
    ids=str,
)
def test_any_rows_of_curved_gaussians_are_those_of_the_whole(rows: slice) -> None:
    m = 2 * BLOCK + 100
    X, labels = curved_gaussians(m, f=3, n_clusters=4)
    part, part_labels = curved_gaussians(m, f=3, n_clusters=4, rows=rows)
    assert (part == X[rows]).all()
    assert (part_labels == labels[rows]).all()
    assert part.shape == X[rows].shape


def test_blocks_of_curved_gaussians_are_not_copies_of_one_another() -> None:
    X, _ = curved_gaussians(2 * BLOCK, f=2)
    assert (X[:BLOCK] != X[BLOCK:]).mean() > 0.999


def test_rows_do_not_depend_on_how_many_there_are() -> None:
    few, many = (curved_gaussians(m, f=4, rows=slice(0, 50))[0] for m in (60, 10**9))
    assert (few == many).all()


@pytest.mark.slow
def test_curved_gaussians_are_clustered_better_by_neighbors_than_by_means_and_perfectly_by_neither() -> None:
    from sklearn.cluster import KMeans, SpectralClustering  # noqa: PLC0415 - slow to import, and for this test only
    from sklearn.metrics import normalized_mutual_info_score as nmi  # noqa: PLC0415

    X, labels = curved_gaussians(2000)
    spectral = SpectralClustering(20, affinity="nearest_neighbors", n_neighbors=10, random_state=0).fit_predict(X)
    means = KMeans(20, n_init=3, random_state=0).fit_predict(X)
    assert 0.78 < nmi(labels, spectral) < 0.95
    assert nmi(labels, means) < nmi(labels, spectral) - 0.02
