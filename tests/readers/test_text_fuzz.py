"""Odd and damaged text tables: rows, and what messages say of them, compared with Python's own csv reader."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import slowly
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ips2_dask import TextFormat
from ips2_dask.errors import BadInput
from ips2_dask.readers import base, open_source
from ips2_dask.readers import text as text_reader
from ips2_dask.readers.columns import MISSING_WORDS, NUMBER


@dataclass
class Reference:
    """A table as `csv.reader` has it: the first line of each row, its fields, and the line that each begins in."""

    rows: list[tuple[int, list[str]]]
    open_quote: bool  # whether a quote does not end

    @classmethod
    def of(cls, text: str, delimiter: str) -> Reference:
        lines = list(io.StringIO(text, newline=""))
        reader = csv.reader(lines, delimiter=delimiter)
        rows, before = [], 0
        for fields in reader:
            if "".join(lines[before : reader.line_num]).encode().strip():
                rows.append((before + 1, fields))
            before = reader.line_num
        closed = list(csv.reader(io.StringIO(f"{text}\nlast", newline=""), delimiter=delimiter))
        return cls(rows, closed[-1] != ["last"])

    def line(self, row: int, column: int) -> int:
        first, fields = self.rows[row]
        return first + sum(len(re.findall("\r\n|\r|\n", field)) for field in fields[:column])


def value(field: str) -> float | None:
    """The number that a field is, NaN where it is missing, None where it is text."""
    if field.strip() in MISSING_WORDS:
        return math.nan
    return float(field) if NUMBER.fullmatch(field.strip()) else None


CELLS = st.one_of(
    st.sampled_from(["1", "-2.5", " 3 ", "+4e2", ".5", "07", "1"]),
    st.sampled_from(["", "NA", "?", "inf", "-nan", "1e999", "1e305", "x", "é", "1,5", "\xa06", "١"]),
    st.sampled_from(
        ['"1"', '"2\n"', '"\r\n3"', '"a\nb"', '"a""b"', '"a,b"', '""', '"\r"', '"x"y', '5"', 'a"b"', '" 1 "']
    ),
    st.text(alphabet='1,"\n\r ;\ta.\x0cé', max_size=4),
)
GOOD = st.sampled_from(["1", "-2.5", " 3 ", "+4e2", '"1"', '"2\n"', '"\r\n3"', "0.25"])


@st.composite
def tables(draw: Any, damaged: bool) -> tuple[str, str]:
    """Text of a table, and its delimiter."""
    delimiter = draw(st.sampled_from([",", ";", "\t"]))
    width = draw(st.integers(1, 3))
    cells = CELLS if damaged else GOOD
    ends = st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\n  \n"])
    rows = draw(st.lists(st.tuples(st.lists(cells, min_size=width, max_size=width), ends), min_size=1, max_size=12))
    text = "".join(delimiter.join(row) + end for row, end in rows)
    if damaged and draw(st.booleans()):
        at = draw(st.integers(0, len(text)))
        text = (
            text[:at]
            + draw(st.sampled_from(['"', delimiter, "\n", "\r", "", 'x"']))
            + text[at + draw(st.integers(0, 2)) :]
        )
    return text if draw(st.booleans()) else text.rstrip("\r\n"), delimiter


def says_the_truth(fault: str, table: Reference, m: int) -> None:
    """Check a message against the table whose rows have m fields."""
    if fault in ("no row of data", "an empty file"):
        assert not table.rows
    elif found := re.fullmatch(r"a quote that does not end, in the row that begins in line (\d+)", fault):
        assert table.open_quote
        assert int(found[1]) == table.rows[-1][0]
    elif found := re.fullmatch(r"(\d+) fields \(divided by .*\) in lines? (\d+)( to (\d+), which .*)?", fault):
        line, fields = next((line, fields) for line, fields in table.rows if line == int(found[2]))
        assert len(fields) == int(found[1]) != m
        assert int(found[4] or line) == line + len(re.findall("\r\n|\r|\n", "".join(fields)))
    elif found := re.fullmatch(r"(\d+) fields? in line (\d+), (.*); rows below have (\d+)", fault, re.DOTALL):
        assert (len(table.rows[0][1]), table.rows[0][0]) == (int(found[1]), int(found[2]))
        assert sum(len(fields) == int(found[4]) for _, fields in table.rows) > 1
    elif found := re.fullmatch(
        r"text in \d columns? \(column (\d).*\), the first is (.*) in row (\d+) \(line (\d+)\)", fault, re.DOTALL
    ):
        column, row = int(found[1]), int(found[3])
        field = table.rows[row][1][column]
        assert (found[2], int(found[4])) == (repr(field.strip()[:40]), table.line(row, column))
        assert value(field) is None
        assert all(value(fields[column]) is not None for _, fields in table.rows[:row])
    else:
        found = re.fullmatch(
            r"(?:a missing value \((.*)\)|the value (.*)) at row (\d+) \(line (\d+)\), column (\d)(?:, and .*)?",
            fault,
            re.DOTALL,
        )
        if found is None:  # a large number, which is named by row and column
            found = re.fullmatch(r"(?:.*?)(\S+)(?: \(and .*\))? at row (\d+), column (\d+)", fault, re.DOTALL)
            assert found is not None, fault
            assert value(table.rows[int(found[2])][1][int(found[3])]) == float(found[1])
            return
        row, column = int(found[3]), int(found[5])
        field = table.rows[row][1][column].strip()
        assert repr(field) == (found[1] or found[2])
        assert not math.isfinite(value(field) or 0.0)
        assert int(found[4]) == table.line(row, column)


def compare(folder: Path, text: str, delimiter: str, encoding: str, packed: bool, label: bool) -> None:
    table = Reference.of(text, delimiter)
    path = folder / ("x.csv.gz" if packed else "x.csv")
    data = text.encode(encoding)
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    m = len(table.rows[0][1]) if table.rows else 0
    place = m - 1 if label and m > 1 else None
    try:
        source = open_source(
            path, labels_column=place, text=TextFormat(header="no", delimiter=delimiter, encoding=encoding)
        )
    except BadInput as fault:
        says_the_truth(fault.found, table, m)
        return
    assert not table.open_quote
    columns = [column for column in range(m) if column != place]
    X = np.array([[value(fields[column]) for column in columns] for _, fields in table.rows], np.float64)
    assert all(len(fields) == m for _, fields in table.rows)
    assert np.array_equal(np.concatenate(list(source.blocks(3))), X)
    for start in range(0, len(X), 3):
        assert np.array_equal(source.read(start, len(X)), X[start:])
    if place is not None:
        labels = [fields[place].strip() for _, fields in table.rows]
        if "" in labels:
            with pytest.raises(BadInput, match=f"no label in row {labels.index('')},"):
                source.labels()
            return
        found = source.labels()
        assert found is not None
        assert found.tolist() == (labels if found.dtype.kind == "U" else [int(float(one)) for one in labels])


def fuzz(examples: int, damaged: bool) -> Any:
    @settings(
        deadline=None,
        max_examples=examples,
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(
        table=tables(damaged),
        size=st.sampled_from([1, 7, 40, base.PIECE_BYTES]),
        encoding=st.sampled_from(["utf-8", "latin-1", "utf-16", "utf-8"]),
        packed=st.booleans(),
        label=st.booleans(),
    )
    def one(tmp_path: Path, table: tuple[str, str], size: int, encoding: str, packed: bool, label: bool) -> None:
        text, delimiter = table
        text = text.replace("١", "1") if encoding == "latin-1" else text
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text_reader, "PIECE_BYTES", size)
            patch.setattr(text_reader, "LINES_PER_BLOCK", 1)
            compare(tmp_path, text, delimiter, encoding, packed, label)

    return one


@pytest.mark.parametrize("size", [1, 5, 8])
def test_a_quote_inside_of_a_field_is_none(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_reader, "PIECE_BYTES", size)
    monkeypatch.setattr(text_reader, "LINES_PER_BLOCK", 1)
    for text in ('a"b","2\n",1', '1,5",x"y"\n2,"6"",\n","z"q"\n', '1," ""\n",2\n3,"",4\n'):
        compare(tmp_path, text, ",", "utf-8", False, True)


test_rows_are_those_of_the_csv_reader = fuzz(60, damaged=False)
test_odd_and_damaged_tables_are_read_as_by_the_csv_reader_or_refused_with_the_right_line = fuzz(120, damaged=True)
test_more_of_them = pytest.mark.slow(fuzz(4_000, damaged=True))


@pytest.mark.parametrize("packed", slowly([False, True], False))
def test_quoted_line_breaks_in_a_file_of_several_blocks(packed: bool, tmp_path: Path) -> None:
    rows = [f'{i},"{"text " * (i % 7)}\n, ""{i}""\r\n",{i / 8}\r\n' for i in range(100_000)]
    text = "a,kind,b\r\n" + "".join(rows)
    assert len(text) > 1.1 * base.PIECE_BYTES
    path = tmp_path / ("x.csv.gz" if packed else "x.csv")

    def write(text: str) -> None:
        path.write_bytes(gzip.compress(text.encode(), 1) if packed else text.encode())

    write(text)
    source = open_source(path, labels_column="kind")
    assert source.feature_names == ["a", "b"]
    assert np.array_equal(source.read(0, 100_000), np.arange(100_000.0)[:, None] / [1, 8])
    assert source.read(99_990, 99_991).tolist() == [[99_990, 99_990 / 8]]
    labels = source.labels()
    assert labels is not None
    expected = [fields[1].strip() for fields in csv.reader(io.StringIO(text, newline=""))][1:]
    assert labels.tolist() == expected
    bad = 98_765
    for wrong, said in (
        (f"{bad},x\n{bad},", f"4 fields (divided by ',') in line {2 + 3 * bad}"),
        (f'{bad},"\n",oh', f"text in 1 column (column 2 ('b')), the first is 'oh' in row {bad} (line {3 + 3 * bad})"),
        (f'{bad},"\n",', f"a missing value ('') at row {bad} (line {3 + 3 * bad}), column 2 ('b')"),
        (f'"\n{bad}","\n\r",-inf', f"the value '-inf' at row {bad} (line {5 + 3 * bad}), column 2 ('b')"),
        (f'{bad},"{bad},1', f"a quote that does not end, in the row that begins in line {2 + 3 * bad}"),
    ):
        if said.startswith("4"):
            wrong = f"{bad},1,2,3"
        rest = rows[bad + 1 :] if "quote" not in said else ["1,2,3\r\n"] * 5
        write("".join(["a,kind,b\r\n", *rows[:bad], wrong + "\r\n", *rest]))
        with pytest.raises(BadInput) as caught:
            open_source(path, labels_column="kind")
        assert caught.value.found == said


def test_a_quote_that_does_not_end_is_looked_for_in_a_part_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_reader, "PIECE_BYTES", 1000)
    monkeypatch.setattr(text_reader, "LONGEST_BLOCK", 16_000)
    path = tmp_path / "x.csv"
    path.write_text("1,2\n" * 2000 + '3,"4\n' + "5,6\n" * 50_000)
    read: list[int] = []
    check = text_reader._check_quotes
    monkeypatch.setattr(text_reader, "_check_quotes", lambda data, *rest: read.append(len(data)) or check(data, *rest))
    with pytest.raises(BadInput, match="in the row that begins in line 2001"):
        open_source(path)
    assert read == [16_000]
