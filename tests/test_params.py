"""Params and Resources refuse what the method can't use, in one line of five parts, and keep what it can."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import re
from typing import Any

import numpy as np
import pytest

from ips2_dask.errors import BadInput, IPS2Error
from ips2_dask.fields import parse_bytes
from ips2_dask.params import CHOICES, MAX_CLUSTERS, PAPER, PRESETS, Params, Resources

WORDS = {field.name: CHOICES[field.name] for field in dataclasses.fields(Params) if field.name in CHOICES}

REFUSED: list[tuple[str, Any]] = [
    *[("n_clusters", value) for value in (0, -3, 2.0, "2", None, True, math.nan)],
    *[("n_neighbors", value) for value in (1, 0, 65, 5.0, "5", None, True)],
    *[("sigma", value) for value in (0, -1.0, 1e30, math.inf, math.nan, "1", None, True, 1j)],
    *[("epsilon", value) for value in (0, 1e-30, -1e-4, 1e-3, 0.5, math.nan, "1e-4", None)],
    *[("fusion_weight", value) for value in (-0.01, 1.01, math.nan, "half", None, True)],
    *[("tol", value) for value in (0, 1, -1, math.nan, "1e-3")],
    *[("random_state", value) for value in (-1, 0.5, "0", None, True)],
    *[("bandwidth", value) for value in (0, -1, math.inf, math.nan, "max", "1.5", None, True)],
    *[(name, value) for name in WORDS for value in ("", "other", None, 1)],
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_value_outside_its_range_is_named_with_what_is_allowed(name: str, value: Any) -> None:
    with pytest.raises(BadInput) as caught:
        Params(**{name: value})
    error = caught.value
    assert error.thing == name
    assert error.found == repr(value)
    assert all((error.allowed, error.otherwise, error.remedy))


ALLOWED: list[tuple[str, Any]] = [
    ("n_clusters", 1),
    ("n_clusters", 10**6),
    ("n_neighbors", 2),
    ("n_neighbors", 64),
    ("sigma", 1e-6),
    ("sigma", 50),
    ("epsilon", 1e-29),
    ("epsilon", 9.9e-4),
    ("fusion_weight", 0),
    ("fusion_weight", 1),
    ("tol", 1e-12),
    ("tol", 0.99),
    ("random_state", 0),
    ("random_state", 2**40),
    ("bandwidth", "median"),
    ("bandwidth", 0.25),
    ("bandwidth", 3),
    *[(name, word) for name, words in WORDS.items() for word in words],
]


def test_the_remedy_of_a_whole_number_is_on_its_own_side() -> None:
    for name, value in (
        ("n_neighbors", 100),
        ("n_neighbors", 1),
        ("n_clusters", 0),
        ("max_clusters", 1),
        ("shards", 0),
    ):
        with pytest.raises(BadInput) as caught:
            Params(**{name: value})
        number = int(re.search(rf"give {name}=(\d+)", caught.value.remedy)[1])  # type: ignore[index]
        assert ("or less" in caught.value.remedy) == (value > number)
        assert getattr(Params(**{name: number}), name) == number
        assert ("no more than there are samples" in caught.value.remedy) == (value == 100)


def test_auto_is_spelt_as_for_the_estimator_and_stored_as_before() -> None:
    found = Params(n_clusters="auto", max_clusters=12, tol=0.1)
    assert found == Params(n_clusters=2, max_clusters=12, tol=0.1) == Params(**found.as_dict())
    assert Params(n_clusters="auto").max_clusters == MAX_CLUSTERS
    assert dataclasses.replace(Params(n_clusters=5), n_clusters="auto") == Params(n_clusters="auto")
    with pytest.raises(BadInput, match="max_clusters: found 1"):
        Params(n_clusters="auto", max_clusters=1)


def test_one_column_is_for_one_cluster_alone() -> None:
    assert Params(n_clusters=1, n_components=1).n_embedded == 1
    for given in ({"n_clusters": 2}, {"n_clusters": "auto"}, {"n_clusters": 1, "max_clusters": 5}):
        with pytest.raises(BadInput, match="n_components: found 1"):
            Params(**given, n_components=1)


@pytest.mark.parametrize(("name", "value"), ALLOWED)
def test_a_value_at_the_edge_of_its_range_is_kept(name: str, value: Any) -> None:
    assert getattr(Params(**{name: value}), name) == value


def test_numpy_numbers_become_plain_ones_that_json_can_hold() -> None:
    given: dict[str, Any] = {"n_clusters": np.int64(3), "sigma": np.float32(0.5), "random_state": np.uint8(7)}
    params = Params(**given, bandwidth=np.float64(2))
    assert json.loads(json.dumps(params.as_dict())) == params.as_dict()
    assert Params(**params.as_dict()) == params


def test_defaults_and_presets_are_those_of_the_design() -> None:
    params = Params()
    assert (params.n_neighbors, params.sigma, params.epsilon, params.affinity) == (5, 1.0, 1e-4, "heat-knn")
    assert (params.high_order, params.fusion, params.fusion_weight, params.assign_labels) == (
        "rms",
        "normalized",
        0.5,
        "auto",
    )
    assert (params.embedding, params.tol) == ("spectral", None)
    paper = Params(**PAPER)
    assert (paper.n_neighbors, paper.affinity, paper.tol) == (10, "gaussian", 1e-3)
    assert (paper.embedding, paper.assign_labels) == ("none", "kmeans")
    assert PRESETS == {"default": {}, "paper": PAPER}


def test_params_and_resources_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Params().sigma = 2.0  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Resources().n_workers = 2  # type: ignore[misc]


@pytest.mark.parametrize(("k", "stored"), [(2, 6), (5, 6), (6, 6), (7, 7), (12, 12)])
def test_the_stored_graph_serves_the_tensor_and_the_heat_kernel(k: int, stored: int) -> None:
    assert Params(n_neighbors=k).n_stored_neighbors == stored


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 << 30),
        ("4 gib", 4 << 30),
        ("512MB", 512 * 10**6),
        ("1.5k", 1500),
        ("2000000000", 2 * 10**9),
        (123, 123),
        ("1TiB", 1 << 40),
        ("7b", 7),
        ("3M", 3 * 10**6),
        (None, None),
    ],
)
def test_sizes_are_read_with_their_units(text: Any, size: int | None) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GiB", "0", "4 GiBs", "four", "1e9", "4XB", "0.2", "9" * 400, "9999999TiB"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="memory_limit") as caught:
        parse_bytes(text)
    assert caught.value.found == repr(text)


@pytest.mark.parametrize("name", ["n_workers", "threads_per_worker", "partition_rows"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
def test_resources_that_would_do_no_work_are_refused(name: str, value: Any) -> None:
    with pytest.raises(BadInput, match=name):
        Resources(**{name: value})


def test_bad_input_is_one_line_of_five_parts_and_a_value_error() -> None:
    error = BadInput("--sigma", "0", "a number\n  above 0", "all would be 1", "give --sigma 1")
    expected = "--sigma: found 0, allowed is a number above 0; otherwise all would be 1. Remedy: give --sigma 1."
    assert str(error) == expected
    assert isinstance(error, ValueError)
    assert isinstance(error, IPS2Error)
    assert error.exit_status == 2


def test_bad_input_survives_the_way_from_a_worker() -> None:
    error = BadInput("a", "b", "c", "d", "e")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is BadInput
    assert str(again) == str(error)
    assert again.remedy == "e"


def test_density_without_an_embedding_is_refused() -> None:
    with pytest.raises(BadInput, match=r"density.*embedding='none'.*Remedy: use embedding='spectral'"):
        Params(embedding="none", assign_labels="density")
