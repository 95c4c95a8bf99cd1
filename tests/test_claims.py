"""Figures in running text of the README and of docs are those of the records, or of the plan, that they come from."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from ips2_dask import Params
from ips2_dask.bench.records import RECORDS
from ips2_dask.plan.choices import EXACT_WORK, choose
from ips2_dask.plan.plan import Plan, make_plan
from ips2_dask.wording import size

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "notebooks" / "results"
WORDS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
)

Record = dict[str, Any]
Figures = Callable[[], list[str]]


class Claim(NamedTuple):
    """A sentence of a page: a pattern whose groups are its figures, and what computes them from a record."""

    page: str
    pattern: str
    figures: Figures

    def holds(self, text: str) -> bool:
        """Whether the sentence is in a text exactly once, with these figures."""
        found = re.findall(self.pattern.replace(" ", r"\s+"), text)
        groups = [[one] if isinstance(one, str) else list(one) for one in found]
        return groups == [self.figures()]


@functools.cache
def document(name: str) -> Record:
    """A record's file."""
    found: Record = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def results(name: str) -> list[Record]:
    found: list[Record] = document(name)["results"]
    return found


def one(name: str, **fields: object) -> Record:
    """The only record of a file with these fields."""
    (found,) = (record for record in results(name) if all(record.get(key) == value for key, value in fields.items()))
    return found


def two_digits(value: float) -> str:
    """A share as ``.45``."""
    return f"{value:.2f}".removeprefix("0")


def three_digits(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def gib(number: float) -> str:
    return size(number).removesuffix(" GiB")


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f}"


# ---- what each sentence is computed from

PEERS = ("default", "EVoC(c)", "SpectralClustering(c)", "KMeans(c)")


def means_over_draws(chosen: Callable[[int], bool]) -> list[str]:
    """How many open sets there are of so many samples, and each system's mean ARI over their draws."""
    sets = {r["data"] for r in results("roundings") if r["draw"] == 0 and chosen(r["m"])}
    means = []
    for system in PEERS:
        by_set: dict[str, list[float]] = {}
        for r in results("roundings"):
            if r["draw"] and r["variant"] == system and r["data"] in sets and r.get("ari") is not None:
                by_set.setdefault(r["data"], []).append(r["ari"])
        assert by_set.keys() == sets
        means.append(float(np.mean([np.mean(values) for values in by_set.values()])))
    return [WORDS[len(sets)], *map(two_digits, means)]


def k_means_of_columns() -> list[str]:
    """Mean NMI of k-means over the open sets: on c + 8 columns, their number, and on c."""
    tables = {"htru2", "satimage"}
    found = {
        name: [
            r["nmi"]
            for r in results("roundings")
            if r["draw"] == 0 and r["variant"] == name and r["data"] not in tables
        ]
        for name in ("kmeans c+8", "kmeans c")
    }
    more, fewer = (three_digits(float(np.mean(values))) for values in found.values())
    return [more, str(len(found["kmeans c"])), fewer]


def rules_for_c() -> list[str]:
    """Sets, and of the rule and the eigengap how often the number is that of the classes, and the mean ARI."""
    of: dict[str, list[Record]] = {}
    for r in results("numbers"):
        if r["draw"] == 0:
            of.setdefault(r["variant"], []).append(r)
    right = {name: sum(r["n_clusters"] == r["known"] for r in records) for name, records in of.items()}
    ari = {name: two_digits(float(np.mean([r["ari"] for r in records]))) for name, records in of.items()}
    return [
        str(len(of["default"])),
        str(right["default"]),
        ari["default"],
        str(right["eigengap"]),
        ari["eigengap"],
        ari["known"],
    ]


def others() -> list[str]:
    """The largest share of a core that other processes took in the records of benchmarks; and in that of `choosing`."""
    made = [name for name, of in RECORDS.items() if of.command.startswith("ips2 bench")]
    most = max(document(name)["load"]["others"] for name in made)
    return [two_digits(most), two_digits(document("choosing")["load"]["others"])]


def with_as_many_columns() -> list[str]:
    """NMI of IPS2 on MNIST with scikit-learn's k and number of columns, and of its better spectral clustering."""
    (ours,) = (r["nmi"] for r in results("peers") if r["system"] == "ips2-k10-c")
    best = max(r["nmi"] for r in results("peers") if r["system"].startswith("spectral"))
    return [three_digits(ours), three_digits(best)]


def ari(system: str, data: str | None = None) -> float:
    """Of a system of choosing.json, on one set or in the mean."""
    found = [r["ari"] for r in results("choosing") if r["system"] == system and data in (None, r["data"])]
    return float(np.mean(found))


def when_to_use_what() -> list[str]:
    told, best = [ari(name) for name in ("ips2", "leiden-c")], ari("ips2") - ari("kmeans")
    on_letter, on_htru2 = [ari("leiden", "letter"), ari("auto", "letter")], [ari("auto", "htru2"), ari("ips2", "htru2")]
    values = [*told, best, ari("auto"), ari("leiden"), *on_letter, *on_htru2]
    return [two_digits(value) for value in values]


def gain_of_the_tensor() -> list[str]:
    """ARI with and without it, and on how many sets it is above and below by more than .01."""
    sets = list(dict.fromkeys(r["data"] for r in results("choosing")))
    gains = [ari("ips2", data) - ari("pairwise", data) for data in sets]
    above, below = sum(gain > 0.01 for gain in gains), sum(gain < -0.01 for gain in gains)
    return [three_digits(ari("ips2")), three_digits(ari("pairwise")), f"{above}", f"{len(sets)}", f"{below}"]


def share_of_k_means() -> list[str]:
    """Of the time that labels of MNIST take."""
    k_means, ours = (one("peers", system=name)["seconds"] for name in ("kmeans", "ips2"))
    return [{0.1: "tenth"}[round(k_means / ours, 1)]]


def strong_scaling() -> list[str]:
    """Samples, and the seconds of one worker and of two."""
    lines = (RESULTS / "two-cores.jsonl").read_text(encoding="utf-8").splitlines()
    last = {(r["m"], r["workers"]): r["seconds"] for r in map(json.loads, lines) if r["stage"] == "stages"}
    (m,) = {m for m, workers in last if workers == 1 and (m, 2) in last}
    return [f"{m:,}", *(f"{last[m, workers]:.0f}" for workers in (1, 2))]


def two_workers() -> list[str]:
    """Medians of all stages' seconds with one worker and with two, their ratio, and that of tensor and eigenpairs."""
    times = [
        float(
            np.median(
                [
                    r["seconds"]
                    for r in results("two-workers")
                    if r["kind"] == "time" and r["stage"] == "stages" and r["workers"] == workers
                ]
            )
        )
        for workers in (1, 2)
    ]
    ratios = [one("two-workers", kind="speedup", stage=name)["ratio"] for name in ("stages", "tensor and eigen")]
    return [*(f"{seconds:.0f}" for seconds in times), *(f"{ratio:.2f}" for ratio in ratios)]


def million_with_ten_neighbors() -> list[str]:
    total, eigen = (one("million-k10", stage=stage) for stage in ("total", "eigen"))
    pairs = f"{total['P'] / 1e6:.0f}"
    whole, of_eigen = minutes(total["seconds"]), minutes(eigen["seconds"])
    return [
        pairs,
        whole,
        of_eigen,
        gib(total["peak_bytes"]),
        three_digits(total["recall"]),
        exponent(total["residual"]),
    ]


def ten_million() -> list[str]:
    total, eigen = (one("ten-million", stage=stage) for stage in ("total", "eigen"))
    quality = three_digits(total["recall"]), exponent(total["residual"]), two_digits(total["nmi"])
    return [minutes(total["seconds"]), minutes(eigen["seconds"]), gib(total["peak_bytes"]), *quality]


def ten_million_from_disk() -> list[str]:
    total, eigen = (one("ten-million-3gib", stage=stage) for stage in ("total", "eigen"))
    maker = document("ten-million-3gib")["machine"]["cpu"].partition("(")[0]
    took = [maker, minutes(eigen["seconds"]), gib(total["peak_bytes"])]
    return [minutes(total["seconds"]), *took, two_digits(total["nmi"])]


def exponent(value: float) -> str:
    """A small number as ``1.9e-4``."""
    return f"{value:.1e}".replace("e-0", "e-")


def graphs_of_others() -> list[str]:
    """Of 500,000 samples: shares of our time, millions from which pynndescent is sooner, HNSW's recall, ours."""
    ours, other, hnsw = (
        one("graph-500k", kind="cheapest", builder=name) for name in ("shards", "pynndescent", "faiss-hnsw")
    )
    assert other["seconds"] < ours["seconds"] / 3
    each = (ours["seconds"] - other["seconds"]) / ours["m"]
    sooner = (other["compile_seconds"] - ours["compile_seconds"]) / each
    recalls = [three_digits(record["recall"]) for record in (hnsw, ours)]
    return ["a third", f"{sooner / 1e6:.1f}", two_digits(hnsw["seconds"] / ours["seconds"]), *recalls]


def exact_up_to() -> list[str]:
    """Samples of 784 features, and of 64, up to which every pair is compared, to five thousand."""
    return [f"{round((EXACT_WORK / (f + 64)) ** 0.5 / 5000) * 5000:,}" for f in (784, 64)]


def last_that(holds: Callable[[int], bool], below: int) -> int:
    """The largest number for which something holds that holds for all smaller ones, and not ``below``."""
    low, high = 1, below
    assert not holds(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def triplets_up_to() -> list[str]:
    return [f"{last_that(lambda m: choose(m, 64, Params(n_clusters=10)).operator == 'triplets', 10**6):,}"]


def plan(m: int, workers: int) -> Plan:
    return make_plan(m, 64, Params(n_clusters=20), n_workers=workers)


@functools.cache
def pairs_of_noise() -> list[str]:
    """Pairs a sample that some neighbourhood of five holds, of 20,000 normal points in 64 dimensions and in eight."""
    found: list[str] = []
    for f in (64, 8):
        X = np.random.default_rng(0).normal(size=(20_000, f))
        N = NearestNeighbors(n_neighbors=5).fit(X).kneighbors(X, return_distance=False)
        first, second = (N[:, at].ravel() for at in np.triu_indices(5))
        pairs = np.unique(np.minimum(first, second) * len(X) + np.maximum(first, second))
        found.append(f"{len(pairs) / len(X):.1f}")
    return found


def pairs_of_growth() -> list[str]:
    each = [r["P"] / r["m"] for r in results("scaling") if r["kind"] == "time" and r["stage"] == "total"]
    return [f"{min(each):.1f}", f"{max(each):.1f}"]


def pairs_of_all() -> list[str]:
    """Fewest and most pairs a sample of what was counted with five neighbours, and with ten."""
    few = [float(value) for value in (*pairs_of_growth(), *pairs_of_noise())]
    records = [*results("product"), one("million-k10", stage="total")]
    many = [r["P"] / r["m"] for r in records if r["k"] == 10]
    return [f"{value:.1f}" for value in (min(few), max(few), min(many), max(many))]


def cut_of_the_known_classes() -> list[str]:
    """How many times the better k-means' normalised cut that of the known classes is: the median over whole sets."""
    cuts: dict[str, dict[str, float]] = {}
    for r in results("roundings"):
        if r["draw"] == 0 and r["variant"] in ("default", "kmeans c", "kmeans c+8"):
            of = cuts.setdefault(r["data"], {})
            of[r["variant"]] = r["known_cut" if r["variant"] == "default" else "cut"]
    ratios = [of["default"] / min(of["kmeans c"], of["kmeans c+8"]) for of in cuts.values()]
    return [f"{np.median(ratios):.2f}"]


def copies_of_kdd() -> list[str]:
    record = one("copies", data="kddcup-all", variant="default")
    return [f"{record['m']:,}", f"{record['distinct']:,}"]


CLAIMS = {
    "README, large sets": Claim(
        "README.md",
        r"On (\w+) open sets of that size IPS2, told the number of clusters, has a mean ARI of "
        r"(\.\d+); EVoC, told it too, has (\.\d+), scikit-learn's spectral clustering (\.\d+), k-means (\.\d+)\.",
        lambda: means_over_draws(lambda m: m >= 1000),
    ),
    "README, small sets": Claim(
        "README.md",
        r"on (\w+) such sets IPS2 has (\.\d+), spectral clustering (\.\d+), EVoC (\.\d+), "
        r"k-means (\.\d+)\.",
        lambda: [means_over_draws(lambda m: m < 1000)[at] for at in (0, 1, 3, 2, 4)],
    ),
    "README, k-means": Claim("README.md", r"k-means will do, in a (\w+) of the time", share_of_k_means),
    "README, choosing c": Claim(
        "docs/choosing.md",
        r"On (\d+) open sets this rule finds the number of known classes on (\d+), and its labels have a "
        r"mean ARI of (\.\d+)\. The eigengap finds it on (\d+), with (\.\d+); told the number of classes, a run has "
        r"(\.\d+)\.",
        rules_for_c,
    ),
    "README, when to use what": Claim(
        "docs/choosing.md",
        r"has the best means, (\.\d+) of ARI; Leiden at a resolution sought for c clusters follows with "
        r"(\.\d+), and k-means is (\.\d+) behind\. If you don't, `IPS2\(.auto.\)` has them, (\.\d+) of ARI where "
        r"Leiden at its default resolution has (\.\d+); only where there are dozens of classes, as in letter, does "
        r"Leiden's larger number serve better \((\.\d+) against (\.\d+)\)\. Where one of two classes is small, as in "
        r"htru2, tell the number: `auto` has (\.\d+) there and `IPS2\(c\)` (\.\d+)\.",
        when_to_use_what,
    ),
    "README, what the tensor adds": Claim(
        "README.md",
        r"in the same way: (\.\d+) against (\.\d+) of ARI\. It is above by more than \.01 on (\d+) of the "
        r"(\d+) sets and below by as much on (\d+);",
        gain_of_the_tensor,
    ),
    "README, load": Claim(
        "docs/benchmarks.md", r"[Oo]ther processes took at most (\.\d+) of a core \((\.\d+) during `[^`]+`\)", others
    ),
    "README, columns": Claim(
        "docs/benchmarks.md", r"it has an NMI of (\.\d+) where scikit-learn's best has (\.\d+)\.", with_as_many_columns
    ),
    "README, two workers": Claim(
        "docs/benchmarks.md",
        r"an Intel processor ([\d,]+) samples took one worker (\d+) s and two workers (\d+) s",
        strong_scaling,
    ),
    "README, two workers of one thread": Claim(
        "docs/benchmarks.md",
        r"Medians of three: (\d+) s and (\d+) s, ([\d.]+) times as fast; tensor and eigenpairs together "
        r"([\d.]+) times\.",
        two_workers,
    ),
    "README, a million": Claim(
        "docs/benchmarks.md",
        r"a million samples have (\d+) million pairs: `[^`]+` takes (\d+) minutes, (\d+) of them for the "
        r"eigenpairs, and at most ([\d.]+) GiB; recall (\.\d+), residual ([\de.-]+)\.",
        million_with_ten_neighbors,
    ),
    "README, ten million": Claim(
        "docs/benchmarks.md",
        r"`[^`]+ --keep DIR` took (\d+) minutes, (\d+) of them for the eigenpairs, and at most ([\d.]+) "
        r"GiB for all processes together; recall (\.\d+), residual ([\de.-]+), NMI (\.\d+)\.",
        ten_million,
    ),
    "README, ten million from disk": Claim(
        "docs/benchmarks.md",
        r"14400 --keep DIR` took (\d+) minutes on an (\w+) processor, (\d+) of them for the "
        r"eigenpairs, and at most ([\d.]+) GiB; NMI (\.\d+)\.",
        ten_million_from_disk,
    ),
    "README, compiled": Claim(
        "docs/benchmarks.md",
        r"With everything compiled before, EVoC takes ([\d.]+) s and IPS2 ([\d.]+) ",
        lambda: [f"{one('peers-compiled', system=name)['seconds']:.1f}" for name in ("evoc", "ips2")],
    ),
    "README, recall on MNIST": Claim(
        "docs/benchmarks.md",
        r"where IPS2's has a recall of (\.\d+)\.",
        lambda: [two_digits(one("graph-mnist", kind="cheapest", builder="shards")["recall"])],
    ),
    "README, others' graphs": Claim(
        "docs/benchmarks.md",
        r"once compiled, takes less than (a third) of our time; that makes up for compiling from some "
        r"([\d.]+) million samples on \(`--graph pynndescent`\)\. faiss' HNSW takes (\.\d+) of our time, at a "
        r"recall of (\.\d+) instead of (\.\d+)\.",
        graphs_of_others,
    ),
    "README, exact graphs": Claim(
        "README.md", r"is exact up to some ([\d,]+) samples of 784 features, or ([\d,]+) of 64", exact_up_to
    ),
    "README, sharded search": Claim(
        "docs/benchmarks.md",
        r"is the default above some ([\d,]+) samples of 784 features, or ([\d,]+) of 64",
        exact_up_to,
    ),
    "README, a large plan": Claim(
        "README.md",
        r"here at most ([\d.]+) GiB in a worker, and about (\d+) minutes",
        lambda: [gib(plan(10**8, 200).worker_bytes), minutes(plan(10**8, 200).seconds)],
    ),
    "plan, a billion": Claim(
        "docs/plan.md",
        r"has ([\d.]+) GiB in a worker, ([\d.]+) GiB in the driver, and (\d+) minutes",
        lambda: [
            gib(plan(10**9, 1000).worker_bytes),
            gib(plan(10**9, 1000).client_bytes),
            minutes(plan(10**9, 1000).seconds),
        ],
    ),
    "plan, a million": Claim(
        "docs/plan.md",
        r"are planned to take (\d+) s, and took (\d+) s",
        lambda: [f"{plan(10**6, 2).seconds:.0f}", f"{one('scaling', stage='stages', m=10**6)['seconds']:.0f}"],
    ),
    "plan, triplets": Claim("docs/plan.md", r"are stored up to ([\d,]+) samples", triplets_up_to),
    "plan, pairs of noise": Claim(
        "docs/plan.md", r"normal distribution have ([\d.]+) in 64 dimensions and ([\d.]+) in eight", pairs_of_noise
    ),
    "plan, pairs of growth": Claim(
        "docs/plan.md", r"curved clusters of `scaling.json` ([\d.]+) to ([\d.]+)\.", pairs_of_growth
    ),
    "labels, known classes": Claim(
        "docs/labels.md", r"whose own cut is ([\d.]+) times the better k-means' in the median", cut_of_the_known_classes
    ),
    "method, exact after all": Claim(
        "docs/method.md",
        r"for 100,000 x 64 `ips2 plan` counts (\d+) s more",
        lambda: [f"{plan(10**5, 2).exact_seconds:.0f}"],
    ),
    "method, pairs": Claim(
        "docs/method.md",
        r"are not zero: ([\d.]+) to ([\d.]+) a sample where that was counted at k = 5, "
        r"([\d.]+) to ([\d.]+) at k = 10\.",
        pairs_of_all,
    ),
    "method, columns": Claim(
        "docs/method.md",
        r"k-means on c \+ 8 columns has a mean NMI of (\.\d+) on (\d+) open sets, on c columns "
        r"(\.\d+)",
        k_means_of_columns,
    ),
    "tables, equal rows": Claim(
        "docs/tables.md", r"numeric columns of KDD's ([\d,]+) rows ([\d,]+) are distinct", copies_of_kdd
    ),
}


@functools.cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CLAIMS)
def test_figures_in_running_text_are_those_of_their_records(name: str) -> None:
    claim = CLAIMS[name]
    assert claim.holds(text_of(claim.page)), claim.figures()


def changed(text: str, claim: Claim) -> Iterator[str]:
    """The text with each figure of a claim changed in turn, and without its sentence."""
    match = re.search(claim.pattern.replace(" ", r"\s+"), text)
    assert match is not None
    for group in range(1, len(match.groups()) + 1):
        first, last = match.span(group)
        other = re.sub(r"\d$", lambda digit: str((int(digit[0]) + 1) % 10), match[group])
        other = WORDS[5] if other == match[group] else other
        yield text[:first] + other + text[last:]
    yield text[: match.start()] + text[match.end() :]


@pytest.mark.parametrize("name", CLAIMS)
def test_a_figure_that_is_changed_is_noticed(name: str) -> None:
    claim = CLAIMS[name]
    for text in changed(text_of(claim.page), claim):
        assert text != text_of(claim.page)
        assert not claim.holds(text)


def test_records_made_before_labels_were_cut_from_density_are_said_to_be() -> None:
    said = re.findall(r"<!-- before density: (.*?) -->", text_of("README.md"))
    made_before = {
        path.stem
        for path in RESULTS.glob("*.json")
        if "fast-plscan" not in document(path.stem)["versions"] and any("nmi" in r for r in results(path.stem))
    }
    assert set(" ".join(said).split()) == made_before


# ---- what a run does by default

SHAPES = ((1_797, 64), (70_000, 784), (1_000_000, 64), (10_000_000, 16))


def defaults() -> str:
    """The table of automatic decisions, as docs/plan.md shows it."""
    chosen = [choose(m, f, Params(n_clusters=10)) for m, f in SHAPES]
    rows = {
        "neighbours": ["exact" if c.graph == "exact" else f"{c.n_shards:,} {c.graph}" for c in chosen],
        "operator": [c.operator for c in chosen],
        "triplets in the run directory": ["yes" if c.operator == "triplets" else "no" for c in chosen],
        "pairs": ["solved for" if c.exact else "Ritz vectors" for c in chosen],
        "block vectors": [c.vectors if c.vectors == "in-core" else "in chunks" for c in chosen],
        "solved by": ["the driver" if c.vectors == "in-core" else "workers" for c in chosen],
    }
    head = " | ".join(f"{m:,} x {f}" for m, f in SHAPES)
    lines = [f"| | {head} |", "|" + "---|" * (len(SHAPES) + 1)]
    return "".join(f"{line}\n" for line in [*lines, *(f"| {name} | {' | '.join(row)} |" for name, row in rows.items())])


def test_the_table_of_defaults_is_what_is_chosen() -> None:
    shown = re.search(r"<!-- defaults -->\n(.*?)<!-- /defaults -->", text_of("docs/plan.md"), re.DOTALL)
    assert shown is not None
    assert shown[1] == defaults()
