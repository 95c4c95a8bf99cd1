"""A finished run directory rewritten as a run in chunks lays it out: labels and embedding by partition and bucket."""

from __future__ import annotations

import shutil
from pathlib import Path

from ips2_dask import Run, open_run
from ips2_dask.store.context import part_name
from ips2_dask.store.integrity import content_of
from ips2_dask.store.zarr_store import ZarrStore

BY_PARTITION = ("embedding", "pairwise_basis", "high_order_basis", "component", "follows")


def in_chunks(made: Run, path: Path, bucket_rows: int) -> Run:
    """A copy of a run's directory in the layout of a run whose vectors are in chunks, opened from there.

    Parameters
    ----------
    made : Run
        A run in a directory, whose vectors are in core.
    path : Path
        Of the copy.
    bucket_rows : int
        Rows of the input in a bucket.
    """
    shutil.copytree(str(made.path), path)
    source, store = open_run(path)._context, ZarrStore(str(path))
    folder, order = source.folders["label"], source.order()
    receipt = store.receipt(folder, "whole")
    assert receipt is not None
    by_row = {name: store.read(folder, "whole", name) for name in receipt["arrays"]}
    by_sample = {name: values if order is None else values[order] for name, values in by_row.items()}
    embedded = store.receipt(folder, "embedding")
    if embedded is not None:
        arrays = {name: store.read(folder, "embedding", name) for name in embedded["arrays"]}
    for b in range(source.n_partitions):
        rows = slice(*source.span(b))
        store.write(folder, f"labels-{part_name(b)}", {name: a[rows] for name, a in by_sample.items()}, {})
        if embedded is not None:
            own = {name: arrays[name][rows] for name in BY_PARTITION if name in arrays}
            store.write(folder, f"embedding-{part_name(b)}", own, {})
    n_rows = len(by_row["labels"])
    for number, low in enumerate(range(0, n_rows, bucket_rows)):
        bucket = {name: values[low : low + bucket_rows] for name, values in by_row.items()}
        store.write(folder, f"rows-{number:06d}", bucket, {})
    if embedded is not None:
        store.drop(folder, "embedding")
        store.write(folder, "embedding", {"u_values": arrays["u_values"]}, embedded["facts"])
    store.drop(folder, "whole")
    store.write(folder, "whole", {}, {})
    _register(store, folder, {"buckets": -(-n_rows // bucket_rows)})
    return open_run(path)


def _register(store: ZarrStore, folder: str, facts: dict[str, int]) -> None:
    """Add facts of stage label and its new parts to the documents of the run."""
    manifest = store.get_document("manifest.json")
    assert manifest is not None
    manifest["choices"]["vectors"] = "chunked"
    manifest["stages"][-1]["facts"] |= facts
    store.put_document("manifest.json", manifest)
    for entry in manifest["stages"]:
        name = f"{entry['folder']}/stage.json"
        document = store.get_document(name)
        assert document is not None
        parts = {
            part: {"attempt": receipt["attempt"], "content": content_of(receipt)}
            for part, receipt in store.parts(entry["folder"]).items()
        }
        store.put_document(name, {**document, "facts": entry["facts"], "parts": parts})
    assert manifest["stages"][-1]["folder"] == folder
