"""How S and V become U, told c, by kind of data: records of fusion.json.

Sets and draws are those of `number_of_clusters`; means are over kinds, of sets, of draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import battery
import numpy as np
from known_sets import measuring, number, script, table
from number_of_clusters import DRAWN_BELOW, DRAWS, KINDS, by_kind, kind_of, known

from ips2_dask.bench.harness import Record
from ips2_dask.params import Params
from ips2_dask.pipeline.run import run

COLUMNS = ("data", "kind", "draw", "m", "variant", "ari")

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "normalized": ("V on the pairs of S, both normalised: the default", {}),
    "average": ("V on all active pairs, both as they are: the paper's", {"fusion": "average"}),
    "pairwise": ("S alone", {"fusion_weight": 0.0}),
    "high-order": ("V alone, on all active pairs", {"method": "ppc"}),
}
"""What is measured, and the parameters of its run."""


def measure(names: Sequence[str], seed: int = 0) -> Iterator[Record]:
    """A record for each set, draw and variant; with several labelings the best one's, each with its own c."""
    for name in names:
        for draw in range(DRAWS):
            data = known(name, draw, seed)
            if draw and len(data.X) > DRAWN_BELOW:
                break
            what: Record = {"data": name, "kind": kind_of(name), "draw": draw, "m": len(data.X)}
            for variant, (_, given) in VARIANTS.items():
                with measuring():
                    numbers = {len(np.unique(one[one > 0])) for one in data.references}
                    params = [Params(n_clusters=c, random_state=seed, **given) for c in sorted(numbers)]
                    ari = max(data.score(run(data.X, one).labels) for one in params)
                yield {**what, "variant": variant, "ari": ari}


def markdown(records: Sequence[Record]) -> str:
    """The mean ARI of each variant over kinds, of each kind, and the set that loses the most by it."""
    means = by_kind(records)
    kinds = list(next(iter(means.values())))
    sets = {v: {str(r["data"]): [] for r in records} for v in means}
    for r in records:
        sets[str(r["variant"])][str(r["data"])].append(float(str(r["ari"])))
    rows = []
    for variant, of in means.items():
        gaps = {name: float(np.mean(sets["normalized"][name]) - np.mean(one)) for name, one in sets[variant].items()}
        worst, best = max(gaps, key=gaps.__getitem__), min(gaps, key=gaps.__getitem__)
        ends = "–" if variant == "normalized" else f"{worst} {number(-gaps[worst])}, {best} {number(-gaps[best], '+')}"
        cells = [number(float(np.mean(list(of.values())))), *(number(of[kind]) for kind in kinds), ends]
        rows.append([variant, VARIANTS[variant][0], *cells])
    return table(["variant", "what it is", "mean", *kinds, "most below and above the default"], rows)


if __name__ == "__main__":
    script(measure, COLUMNS, [*(name for names in KINDS.values() for name in names), *battery.sets()])
