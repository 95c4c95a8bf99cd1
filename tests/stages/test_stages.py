"""What each stage stores and says: on every executor, run twice, cut anywhere, and noticed where it is damaged."""

from __future__ import annotations

import ast
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
import scipy.sparse as sp
import zarr
from harness import DATA, run_on, slowly
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from ips2_dask import BadInput, Damaged, Params, Resources, Run, open_run, run
from ips2_dask.executors.base import Executor
from ips2_dask.kernels import tensor as tensor_kernel
from ips2_dask.kernels.sparse import reverse_lists
from ips2_dask.pipeline.keys import MODULES
from ips2_dask.stages import choose
from ips2_dask.store.base import Store
from ips2_dask.store.cache import cache
from ips2_dask.store.layout import ARRAYS, STAGES
from ips2_dask.store.zarr_store import ZarrStore

Array = npt.NDArray[Any]
PARAMS = Params(n_clusters=3, operator="triplets", duplicates="keep")


def parts(found: Run, stage: str, name: str, prefix: str = "") -> list[Array]:
    """A stage's array of each partition."""
    context = found._context
    return [np.asarray(context.read(stage, f"{prefix}p{b:06d}", name)) for b in range(context.n_partitions)]


def whole(found: Run, stage: str, name: str) -> Array:
    return np.asarray(found._context.read(stage, "whole", name))


def facts(found: Run, stage: str) -> dict[str, Any]:
    return dict(found._context.facts[stage])


# ---- ingest


def test_samples_are_the_input_less_a_centre_by_partition(executor: Executor, blobs: Array, tmp_path: Path) -> None:
    found = run_on(executor, blobs, PARAMS, 25, tmp_path)
    samples = parts(found, "ingest", "samples")
    assert [len(part) for part in samples] == [25, 25, 10]
    assert all(part.dtype == np.float32 for part in samples)
    back = np.concatenate(samples) * found.unit + whole(found, "ingest", "center")
    np.testing.assert_allclose(back, blobs, atol=1e-6)


@pytest.mark.slow
def test_a_file_that_workers_read_and_an_array_that_is_handed_on_give_the_same_samples(
    executor: Executor, blobs: Array, tmp_path: Path
) -> None:
    np.save(tmp_path / "blobs.npy", blobs)
    np.savetxt(tmp_path / "blobs.csv", blobs, delimiter=",", fmt="%.17g")
    stored = []
    for number, source in enumerate((blobs, tmp_path / "blobs.npy", tmp_path / "blobs.csv")):
        found = run_on(executor, source, dataclasses.replace(PARAMS, scale="zscore"), 25, tmp_path / f"run{number}")
        stored.append(np.concatenate(parts(found, "ingest", "samples")))
    assert stored[0].tobytes() == stored[1].tobytes() == stored[2].tobytes()


def test_what_ingest_only_needs_on_the_way_is_gone_afterwards(blobs: Array, tmp_path: Path) -> None:
    found = run(blobs, PARAMS, Resources(partition_rows=25), store=tmp_path)
    folder = tmp_path / found._context.folders["ingest"]
    assert not [path.name for path in folder.iterdir() if path.name.startswith("raw")]


@pytest.mark.parametrize(("value", "rows"), [(np.nan, 60), (np.inf, 7), (-np.inf, 44), (1e302, 45)])
def test_a_value_that_is_not_finite_is_named_with_its_row_and_column(blobs: Array, value: float, rows: int) -> None:
    blobs[44, 2] = value
    with pytest.raises(BadInput, match="row 44, column 2"):
        run(blobs, PARAMS, Resources(partition_rows=rows))


def test_constant_columns_equal_rows_and_rounded_integers_are_warned_about_with_numbers() -> None:
    X = np.random.default_rng(0).integers(0, 50, size=(40, 5))
    X[:, [1, 3]] = 7
    X[3, 0], X[4, 0] = 2**26 + 1, -(2**26) - 1
    texts = run(X, PARAMS).report()["warnings"]
    assert any(text.startswith("2 of 5 columns are constant") for text in texts)
    assert any(text.startswith("2 whole numbers") for text in texts)
    assert not any("duplicate" in text for text in texts)


def test_clean_data_are_not_warned_about(blobs: Array) -> None:
    assert run(blobs, PARAMS).report()["warnings"] == []


def test_duplicates_and_the_islands_they_form_are_counted() -> None:
    X = DATA["duplicates"]()  # copies: 14, 3, and twice 2
    texts = run(X, PARAMS).report()["warnings"]
    assert f"{14 + 3 + 2 + 2} of {len(X)} samples have an exact duplicate" in texts
    assert any(text.startswith("14 samples see only copies of themselves among their 5 nearest") for text in texts)
    assert run(X, dataclasses.replace(PARAMS, duplicates="merge")).report()["warnings"] == []


def test_known_labels_are_kept_as_codes_with_their_names(blobs: Array, tmp_path: Path) -> None:
    names = np.array(["wren", "auk", "owl"])[np.arange(60) % 3]
    rows = [",".join([*map(repr, row.tolist()), name]) for row, name in zip(blobs, names, strict=True)]
    (tmp_path / "birds.csv").write_text("\n".join(["a,b,c,d,kind", *rows]))
    found = run(tmp_path / "birds.csv", PARAMS, labels_column="kind")
    assert found.known_labels is not None
    assert facts(found, "ingest")["label_names"] == ["auk", "owl", "wren"]
    np.testing.assert_array_equal(np.array(["auk", "owl", "wren"])[found.known_labels], names)
    assert run(blobs, PARAMS).known_labels is None


@pytest.mark.parametrize("scale", ["zscore", "minmax", "l2"])
def test_scaling_makes_the_scaled_data_and_those_scaled_beforehand_the_same(blobs: Array, scale: str) -> None:
    by: dict[str, Callable[[Array], Array]] = {
        "zscore": lambda X: (X - X.mean(axis=0)) / X.std(axis=0),
        "minmax": lambda X: (X - X.min(axis=0)) / np.ptp(X, axis=0),
        "l2": lambda X: X / np.linalg.norm(X, axis=1, keepdims=True),
    }
    X = blobs * np.array([1, 10, 100, 0.1])
    scaled, beforehand = run(X, dataclasses.replace(PARAMS, scale=scale)), run(by[scale](X), PARAMS)
    np.testing.assert_array_equal(scaled.neighbors.indices, beforehand.neighbors.indices)
    np.testing.assert_allclose(scaled.neighbors.distances, beforehand.neighbors.distances, rtol=1e-4, atol=1e-6)


# ---- neighbors, tensor, assemble


def test_the_graph_has_six_columns_or_k_and_a_bandwidth_of_each_kind(any_data: Array) -> None:
    d = reference.distances(any_data)
    for k, columns in ((3, 6), (9, 9)):
        found = run(any_data, dataclasses.replace(PARAMS, n_neighbors=k), Resources(partition_rows=10))
        indices = np.concatenate(parts(found, "neighbors", "indices"))
        np.testing.assert_array_equal(indices, reference.neighborhoods(d, columns))
        expected = [reference.bandwidth_of(d, kind) / found.unit for kind in ("mean", "median")]
        np.testing.assert_allclose(whole(found, "neighbors", "bandwidths"), expected, rtol=1e-5)


@pytest.mark.slow
def test_pairs_and_entries_of_each_partition_belong_to_it_and_to_no_other(executor: Executor, tmp_path: Path) -> None:
    X = DATA["integers"]()
    found = run_on(executor, X, PARAMS, 10, tmp_path)
    bounds = found._context.bounds
    pairs = parts(found, "tensor", "pairs", "pairs-")
    for b, part in enumerate(pairs):
        assert ((bounds[b] <= part[:, 0]) & (part[:, 0] < bounds[b + 1])).all()
    joined = np.concatenate(pairs)
    expected = reference.active_pairs(reference.neighborhoods(reference.distances(X), 5))
    np.testing.assert_array_equal(joined, expected)
    assert facts(found, "tensor")["pair_offsets"] == [0, *np.cumsum([len(part) for part in pairs]).tolist()]
    codes = [
        rows * len(joined) + columns
        for rows, columns in zip(parts(found, "tensor", "indices_0"), parts(found, "tensor", "indices_1"), strict=True)
    ]
    assert len(np.unique(np.concatenate(codes))) == sum(map(len, codes))
    N = found.neighbors.indices
    for b, code in enumerate(codes):  # each entry lies in a neighbourhood of its partition
        held = [set(row) for row in N[bounds[b] : bounds[b + 1]].tolist()]
        for row, column in zip(*np.divmod(code, len(joined)), strict=True):
            samples = {*joined[row].tolist(), *joined[column].tolist()}
            assert any(samples <= row_held for row_held in held)


def test_a_partitions_triplets_are_a_binsparse_matrix(tmp_path: Path) -> None:
    X = DATA["random"]()
    found = run(X, PARAMS, Resources(partition_rows=12), store=tmp_path)
    receipt = found._context.receipt("tensor", 0)
    assert receipt is not None
    group = zarr.open_group(tmp_path / found._context.folders["tensor"] / receipt["attempt"], mode="r")
    described: Any = group.attrs["binsparse"]
    assert described["format"] == "COO"
    assert described["structure"] == "symmetric_upper"
    assert described["shape"] == [len(found.pairs)] * 2
    assert described["number_of_stored_values"] == group["values"].shape[0]  # type: ignore[union-attr]
    assert {name: str(group[name].dtype) for name in described["data_types"]} == described["data_types"]  # type: ignore[union-attr]


def test_stored_owners_are_the_kernels_as_bits() -> None:
    X = DATA["star"]()
    found = run(X, PARAMS, Resources(partition_rows=12))
    k = PARAMS.n_neighbors
    bits = np.concatenate(parts(found, "tensor", "owned"))
    n = len(tensor_kernel.local_pairs(k).masks)
    N = found.neighbors.indices
    expected = tensor_kernel.owned_subsets(N, reverse_lists(N), 0, len(N))
    np.testing.assert_array_equal(np.unpackbits(bits, axis=1)[:, :n].astype(bool), expected)


def test_components_are_those_of_the_oracles_tensor(any_data: Array) -> None:
    for k in (2, 4, 8):
        found = run(any_data, dataclasses.replace(PARAMS, n_neighbors=k), Resources(partition_rows=9))
        N = reference.neighborhoods(reference.distances(any_data), k)
        pairs = reference.active_pairs(N)
        label = reference.components(reference.restricted(reference.tensor(reference.distances(any_data), N), pairs))
        of_samples = np.concatenate(parts(found, "assemble", "components", "components-"))
        np.testing.assert_array_equal(of_samples[pairs[:, 0]], of_samples[pairs[:, 1]])
        assert len(set(zip(of_samples[pairs[:, 0]].tolist(), label.tolist(), strict=True))) == label.max() + 1
        assert facts(found, "assemble")["components"] == label.max() + 1
        assert facts(found, "assemble")["largest"] == np.bincount(of_samples).max()


# ---- eigen, fuse, label


def test_the_eigen_stage_says_what_it_found(blobs: Array) -> None:
    found = run(blobs, PARAMS)
    said = facts(found, "eigen")
    values = whole(found, "eigen", "values")
    residuals = whole(found, "eigen", "residuals")
    assert said["verdict"] == "settled"
    assert said["stop"] == {"measure": said["stop"]["measure"], "wanted": 2.0, "found": said["history"][-1]["change"]}
    assert said["n_vectors"] == len(values) == np.concatenate(parts(found, "eigen", "vectors")).shape[1]
    assert said["residual_max"] == residuals.max() <= 1e-1
    exact = facts(run(blobs, dataclasses.replace(PARAMS, tol=1e-4)), "eigen")
    assert exact["verdict"] == "converged"
    assert exact["residual_max"] == exact["stop"]["found"] <= exact["stop"]["wanted"] == 1e-4
    assert said["gap"] > 0
    np.testing.assert_allclose(said["eigenvalues"], [1.0, *values][:3])


def test_a_tolerance_that_no_arithmetic_meets_is_warned_about() -> None:
    found = run(np.random.default_rng(0).normal(size=(120, 3)), dataclasses.replace(PARAMS, tol=1e-16))
    assert found.report()["verdict"] in ("stagnated", "out_of_products")
    assert any("above tol 1e-16" in text and "loosen tol" in text for text in found.report()["warnings"])


@pytest.mark.parametrize("fusion", ["average", "normalized"])
def test_entries_are_each_once_the_pairs_of_s_and_where_v_has_all_its_own_the_active_ones(
    blobs: Array, fusion: str
) -> None:
    found = run(blobs, dataclasses.replace(PARAMS, fusion=fusion), Resources(partition_rows=17))
    entries = np.concatenate(parts(found, "fuse", "entries"))
    codes = entries[:, 0].astype(np.int64) * 60 + entries[:, 1]
    assert (np.diff(codes) > 0).all()
    d = reference.distances(blobs)
    edges = np.argwhere(np.triu(reference.pairwise_similarity(d)))
    active = reference.active_pairs(reference.neighborhoods(d, 5))
    own = active if fusion == "average" else active[active[:, 0] == active[:, 1]]
    expected = np.unique(np.concatenate([edges, own]) @ np.array([60, 1]))
    np.testing.assert_array_equal(codes, expected)
    assert facts(found, "fuse")["n_entries"] == len(codes)


@pytest.mark.parametrize("affinity", ["heat-knn", "gaussian"])
def test_v_has_maximum_one_and_u_is_between_s_and_v(blobs: Array, affinity: str) -> None:
    found = run(blobs, dataclasses.replace(PARAMS, affinity=affinity, fusion="average"), Resources(partition_rows=17))
    S, V, U = (found.similarity(kind) for kind in ("pairwise", "high_order", "fused"))
    assert V.max() == pytest.approx(1.0)
    assert abs(U - (S + V) / 2).max() < 1e-12
    assert all(abs(M - M.T).max() == 0 for M in (S, V, U))


def test_above_the_dense_limit_a_gaussian_similarity_lives_on_the_active_pairs(
    blobs: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = dataclasses.replace(PARAMS, affinity="gaussian", fusion="average")
    everywhere = np.asarray(run(blobs, params).similarity("pairwise"))
    monkeypatch.setattr("ips2_dask.stages.similarity_views.DENSE_MAX_SAMPLES", 50)
    found = run(blobs, params, Resources(partition_rows=25))
    S = sp.csr_array(found.similarity("pairwise"))
    i, j = found.pairs.T
    assert S.nnz == 2 * len(i) - 60
    np.testing.assert_allclose(S.toarray()[i, j], everywhere[i, j], atol=1e-6)
    V = found.similarity("high_order")
    assert abs(found.similarity() - (S + V) / 2).max() < 1e-12


def far_groups(*sizes: int) -> tuple[Array, Array]:
    truth = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(5)
    return rng.normal(size=(len(truth), 3)) + 100 * np.array([[g % 4, g // 4, 0] for g in truth]), truth


@pytest.mark.parametrize("assign", ["auto", "kmeans", "density"])
@pytest.mark.parametrize("embedding", ["spectral", "none"])
@pytest.mark.parametrize("affinity", ["heat-knn", "gaussian"])
def test_far_groups_get_labels_of_their_own_by_every_way_of_labelling(
    assign: str, embedding: str, affinity: str
) -> None:
    if (embedding, assign) == ("none", "density"):
        with pytest.raises(BadInput, match="density"):
            Params(embedding=embedding, assign_labels=assign)
        return
    X, truth = far_groups(20, 20, 20)
    params = Params(n_clusters=3, assign_labels=assign, embedding=embedding, affinity=affinity, n_neighbors=9)
    found = run(X, params)
    assert adjusted_rand_score(truth, found.labels) == 1
    _, first = np.unique(found.labels, return_index=True)
    assert (np.diff(first) > 0).all()
    assert (found.certainty > 0.9).all()
    if embedding == "none":
        assert found.embedding is None
    else:
        assert found.embedding is not None
        np.testing.assert_allclose(np.linalg.norm(found.embedding, axis=1), 1, rtol=1e-6)


def test_signed_similarities_make_an_affinity_too() -> None:
    X, truth = far_groups(20, 20, 20)
    found = run(X, Params(n_clusters=3, high_order="signed", method="ppc"))
    assert adjusted_rand_score(truth, found.labels) == 1


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")  # scikit-learn's k-means may say it too
def test_fewer_clusters_than_asked_for_are_said() -> None:
    X = np.repeat(np.array([[0.0, 0], [5, 0], [0, 9]]), 8, axis=0)
    params = Params(n_clusters=5, affinity="gaussian", fusion_weight=0.0, embedding="none")
    found = run(X, params)  # k-means on the rows of S, of which there are three different ones
    np.testing.assert_array_equal(found.labels, np.repeat([0, 1, 2], 8))
    assert "only 3 of 5 clusters could be told apart" in found.report()["warnings"]


# ---- twice


def doubled(name: str, module: Any, seen: list[str]) -> Any:
    """A stage that runs twice, the second time over what the first one stored, and must give the same."""

    def run_twice(context: Any, executor: Any, report: Any) -> Any:
        store, folder = context.store, context.folders[name]
        first = module.run(context, executor, report)
        before = {key: store.read(folder, *key) for key in arrays_of(store, folder)}
        second = module.run(context, executor, report)
        assert json.dumps(second, sort_keys=True) == json.dumps(first, sort_keys=True)
        assert before
        for key, array in before.items():
            assert store.read(folder, *key).tobytes() == array.tobytes(), (name, key)
        seen.append(name)
        return second

    return SimpleNamespace(VERSION=module.VERSION, depends_on=module.depends_on, run=run_twice)


def arrays_of(store: Store, folder: str) -> list[tuple[str, str]]:
    """Part and name of every array of a folder of a run, from the receipts."""
    return [(part, array) for part, receipt in store.parts(folder).items() for array in receipt["arrays"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"operator": "matrix-free"},
        {"affinity": "gaussian"},
        {"fusion": "normalized"},
        {"tensor": "decomposable", "operator": "auto"},
        {"embedding": "none"},
        {"assign_labels": "density"},
    ],
)
def test_every_stage_is_harmless_to_run_twice(
    blobs: Array, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    params = dataclasses.replace(PARAMS, **change)
    expected = run(blobs, params, Resources(partition_rows=25)).labels
    seen: list[str] = []
    for name, module in list(MODULES.items()):
        monkeypatch.setitem(MODULES, name, doubled(name, module, seen))
    found = run(blobs, params, Resources(partition_rows=25), store=tmp_path)
    assert seen == list(STAGES)
    np.testing.assert_array_equal(found.labels, expected)


# ---- damage


VARIANTS: dict[str, dict[str, Any]] = {
    "sparse": {"fusion": "normalized"},
    "dense": {"affinity": "gaussian"},
    "decomposable": {"tensor": "decomposable", "operator": "auto"},
}


@pytest.fixture(scope="module", params=sorted(VARIANTS))
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a small finished run, for tests that leave it as they found it."""
    X = DATA["random"]()
    params = dataclasses.replace(PARAMS, **VARIANTS[request.param])
    place = tmp_path_factory.mktemp("finished")
    labels = np.arange(len(X))[:, None] % 2
    np.savetxt(place / "source.csv", np.hstack([X, labels]), delimiter=",", fmt="%.17g")
    run(place / "source.csv", params, Resources(partition_rows=16), store=place / "run", labels_column=4)
    cache.clear()
    return place / "run"


@pytest.fixture
def spoiled(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoiled."""
    cache.clear()
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def every_array(directory: Path) -> list[tuple[str, str, str, Path]]:
    """Folder, part, name and place of every array of a run."""
    store = ZarrStore(str(directory))
    found = []
    for folder in sorted(path.name for path in directory.iterdir() if path.is_dir()):
        for part, name in arrays_of(store, folder):
            receipt = store.receipt(folder, part)
            assert receipt is not None
            found.append((folder, part, name, directory / folder / receipt["attempt"] / name))
    return found


def chunks(array: Path) -> list[Path]:
    return sorted(path for path in array.rglob("*") if path.is_file() and path.name != "zarr.json")


def assert_damaged(directory: Path, folder: str, part: str, name: str) -> None:
    with pytest.raises(Damaged, match=f"{folder}/{part}") as caught:
        ZarrStore(str(directory)).read(folder, part, name)
    assert f"/{name}:" in str(caught.value)
    assert "Remedy:" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_stored_array_is_described_in_the_layout(finished: Path) -> None:
    for folder, _, name, place in every_array(finished):
        described = ARRAYS[folder.split("-")[0]][name]
        node = json.loads((place / "zarr.json").read_text())
        assert node["attributes"]["meaning"] == described.meaning
        codecs = [codec["name"] for codec in node["codecs"]]
        assert codecs[-1] == "crc32c"
        assert ("zstd" in codecs) == described.packed


def test_a_run_is_a_zarr_group_that_others_can_read(finished: Path) -> None:
    assert zarr.open_group(finished, mode="r").metadata.zarr_format == 3
    found = open_run(finished)
    for folder, part, name, place in every_array(finished):
        read = np.asarray(zarr.open_array(place, mode="r")[...])
        np.testing.assert_array_equal(read, found._store.read(folder, part, name))


@pytest.mark.slow
def test_a_missing_chunk_of_any_array_is_noticed_and_named(finished: Path) -> None:
    tried = 0
    for folder, part, name, place in every_array(finished):
        for chunk in chunks(place):
            content = chunk.read_bytes()
            store = ZarrStore(str(finished))
            assert store.scan(folder, None, True).faults == []
            chunk.unlink()
            assert_damaged(finished, folder, part, name)
            tried += 1
            chunk.write_bytes(content)
    assert tried > 15


def test_a_flipped_bit_of_any_array_is_noticed_and_named(finished: Path) -> None:
    rng = np.random.default_rng(0)
    for folder, part, name, place in every_array(finished):
        for chunk in chunks(place):
            content = chunk.read_bytes()
            for at in (int(rng.integers(len(content))), len(content) - 1):
                spoiled = bytearray(content)
                spoiled[at] ^= 1 << int(rng.integers(8))
                chunk.write_bytes(spoiled)
                assert_damaged(finished, folder, part, name)
            chunk.write_bytes(content)


def test_a_truncated_file_of_any_array_is_noticed_and_named(finished: Path) -> None:
    for folder, part, name, place in every_array(finished):
        for file in [*chunks(place), place / "zarr.json"]:
            content = file.read_bytes()
            for length in (0, len(content) - 1):
                file.write_bytes(content[:length])
                assert_damaged(finished, folder, part, name)
            file.write_bytes(content)


def test_an_array_that_was_put_in_the_place_of_another_is_noticed(spoiled: Path) -> None:
    arrays = every_array(spoiled)
    folder, part, name, place = next(a for a in arrays if a[2] == "samples")
    other = next(a[3] for a in arrays if a[2] == "samples" and a[1] != part)
    shutil.rmtree(place)
    shutil.copytree(other, place)
    assert_damaged(spoiled, folder, part, name)


def test_a_missing_receipt_is_named(spoiled: Path) -> None:
    folder = next(path.name for path in spoiled.iterdir() if path.name.startswith("label"))
    (spoiled / folder / "rows-000000.json").unlink()
    found = open_run(spoiled)
    for read in (lambda: found.labels, lambda: found.write_labels(spoiled.parent / "labels.csv")):
        with pytest.raises(Damaged, match=f"{folder}/rows-000000: the receipt is missing or damaged"):
            read()
    assert not (spoiled.parent / "labels.csv").exists()


def test_what_a_damaged_array_gives_is_an_error_and_never_a_result(spoiled: Path) -> None:
    assert len(open_run(spoiled).labels) == 31
    cache.clear()
    place = next(place for _, part, name, place in every_array(spoiled) if (part, name) == ("rows-000000", "labels"))
    (chunk,) = chunks(place)
    chunk.unlink()
    with pytest.raises(Damaged, match="labels"):
        _ = open_run(spoiled).labels


@pytest.mark.parametrize("spoil", slowly(["missing", "empty", "half", "other"], "half", "other"))
def test_a_part_without_a_whole_receipt_is_computed_again(blobs: Array, spoil: str, tmp_path: Path) -> None:
    first = run(blobs, PARAMS, Resources(partition_rows=25), store=tmp_path)
    cache.clear()
    folder = tmp_path / first._context.folders["neighbors"]
    receipt = folder / "p000001.json"
    text = receipt.read_text()
    kept = (folder / "p000000.json").read_text()
    if spoil == "missing":
        receipt.unlink()
    else:
        receipt.write_text({"empty": "", "half": text[: len(text) // 2], "other": "[1, 2]"}[spoil])
    (folder / "stage.json").unlink()
    again = run(blobs, PARAMS, Resources(partition_rows=25), store=tmp_path)
    assert (folder / "p000000.json").read_text() == kept
    assert json.loads(receipt.read_text())["attempt"] != json.loads(text)["attempt"]
    np.testing.assert_array_equal(again.neighbors.indices, first.neighbors.indices)
    np.testing.assert_array_equal(again.labels, first.labels)


def test_two_attempts_never_mix(tmp_path: Path) -> None:
    store = ZarrStore(str(tmp_path))
    one = {"indices": np.zeros((4, 3), np.int32), "distances": np.zeros((4, 3), np.float32)}
    other = {"indices": np.ones((5, 3), np.int32), "distances": np.ones((5, 3), np.float32)}
    store.write("neighbors-x", "p000000", one, {"who": 1})
    again = store.write("neighbors-x", "p000000", other, {"who": 2})
    assert store.receipt("neighbors-x", "p000000") == again
    for name, array in other.items():
        np.testing.assert_array_equal(store.read("neighbors-x", "p000000", name), array)


def test_an_attempt_that_died_before_its_receipt_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ZarrStore(str(tmp_path))
    arrays = {"indices": np.arange(12, dtype=np.int32).reshape(4, 3)}
    first = store.write("neighbors-x", "p000000", arrays, {})

    def die(name: str, text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store.files, "write", die)
    with pytest.raises(KeyboardInterrupt):
        store.write("neighbors-x", "p000000", {"indices": np.full((4, 3), 9, np.int32)}, {})
    fresh = ZarrStore(str(tmp_path))
    assert fresh.receipt("neighbors-x", "p000000") == first
    np.testing.assert_array_equal(fresh.read("neighbors-x", "p000000", "indices"), arrays["indices"])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (0,)])
def test_empty_arrays_are_stored_like_any_other(tmp_path: Path, shape: tuple[int, ...]) -> None:
    store = ZarrStore(str(tmp_path))
    array = np.zeros(shape, np.float32)
    store.write("eigen-x", "p000000", {"vectors": array}, {})
    found = store.read("eigen-x", "p000000", "vectors")
    assert found.shape == shape
    assert found.dtype == np.float32


def test_arrays_longer_than_a_chunk_are_cut_by_rows_and_each_chunk_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ips2_dask.store.arrays.CHUNK_BYTES", 100)
    store = ZarrStore(str(tmp_path))
    array = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    store.write("ingest-x", "p000000", {"samples": array}, {})
    np.testing.assert_array_equal(store.read("ingest-x", "p000000", "samples"), array)
    ((folder, part, name, place),) = every_array(tmp_path)
    files = chunks(place)
    assert len(files) == 9
    files[4].unlink()
    assert_damaged(tmp_path, folder, part, name)


@pytest.mark.slow
def test_digits_keep_their_shape_through_all_stages(executor: Executor, tmp_path: Path) -> None:
    X = load_digits().data[:150].astype(np.uint8)
    found = run_on(executor, X, Params(n_clusters=10), 40, tmp_path)
    assert found.labels.shape == (150,)
    assert found.neighbors.indices.shape == (150, 5)
    assert found.eigenvectors.shape == (len(found.pairs), 10)
    assert found.similarity().shape == (150, 150)
    assert found.path == str(tmp_path)


@pytest.mark.parametrize("stage", [*MODULES.values(), choose])
def test_stages_meet_in_stored_arrays_and_import_one_another_by_no_way(stage: Any) -> None:
    others = {one.__name__ for one in (*MODULES.values(), choose)} - {stage.__name__}
    seen, waiting = set[str](), [stage.__name__]
    while waiting:
        path = Path(stage.__file__).with_name(f"{waiting.pop().rpartition('.')[2]}.py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ips2_dask.stages"):
                names = [f"{node.module}.{one.name}" for one in node.names] if node.module == "ips2_dask.stages" else []
                found = {*(names or [str(node.module)])} - seen
                seen, waiting = seen | found, [*waiting, *found]
    assert not seen & others
