"""Text tables: what counts as delimiter, header, number and missing value, and what is said of a bad line."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ips2_dask import TextFormat
from ips2_dask.errors import BadInput
from ips2_dask.readers import Source, base, open_source
from ips2_dask.readers import text as text_reader


def opened(folder: Path, text: str | bytes, ending: str = "csv", **options: Any) -> Source:
    path = folder / f"x.{ending}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_source(path, **options)


def rows(folder: Path, text: str | bytes, ending: str = "csv", **options: Any) -> list[list[float]]:
    source = opened(folder, text, ending, **options)
    whole: list[list[float]] = source.read(0, source.shape[0]).tolist()
    return whole


def refused(folder: Path, text: str | bytes, **options: Any) -> str:
    with pytest.raises(BadInput) as caught:
        opened(folder, text, **options)
    return caught.value.found


@pytest.mark.parametrize(
    "text",
    [
        "1,2\n3,4\n",
        "1,2\n3,4",
        "1;2\n3;4\n",
        "1\t2\n3\t4\n",
        "1 2\n3 4\n",
        "  1   2  \n\t3\t \t4\n",
        "1,2\r\n3,4\r\n",
        "1,2\r3,4\r",
        "\n\n1,2\n\n  \n3,4\n\n",
        " 1, 2\n 3, 4\n",
        '"1","2"\n"3","4"\n',
        "+1,2.0\n3e0,.4e1\n",
        "1.,2\n0003,4\n",
        "\ufeff1,2\n3,4\n",
        "a,b\n1,2\n3,4\n",
        '"a, and","b"\n1,2\n3,4\n',
        "\ufeffa;b\n1;2\n3;4\n",
        ",0,1\n0,1,2\n1,3,4\n",
        '"",a,b\n0,1,2\n1,3,4\n',
    ],
)
def test_the_same_table_is_read_however_it_is_written(text: str, tmp_path: Path) -> None:
    assert rows(tmp_path, text) == [[1, 2], [3, 4]]


def test_a_table_of_one_column_needs_no_delimiter(tmp_path: Path) -> None:
    assert rows(tmp_path, "1\n2\n\n3\n") == [[1], [2], [3]]
    assert opened(tmp_path, "a\n1\n2\n").feature_names == ["a"]


def test_the_label_column_does_not_make_a_header(tmp_path: Path) -> None:
    for column in (2, -1, "2", "-1"):
        source = opened(tmp_path, "1,2,x\n3,4,y\n", labels_column=column)
        assert source.feature_names is None
        assert source.read(0, 2).tolist() == [[1, 2], [3, 4]]
        labels = source.labels()
        assert labels is not None
        assert labels.tolist() == ["x", "y"]


def test_a_number_that_is_a_value_of_the_first_row_is_no_name(tmp_path: Path) -> None:
    source = opened(tmp_path, "T,0,0\nI,1,2\n", labels_column="0")
    assert source.shape == (2, 2)


def test_a_header_of_numbers_is_found_by_the_label_s_name(tmp_path: Path) -> None:
    source = opened(tmp_path, "0,1,class\n1,2,5\n3,4,6\n", labels_column="class")
    assert source.feature_names == ["0", "1"]
    assert source.labels().tolist() == [5, 6]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "2"], [1, 2]),
        (["6.0000", "-5."], [6, -5]),
        (["1", "x"], ["1", "x"]),
        ([" a ", "b b"], ["a", "b b"]),
        (["0.5", "1"], ["0.5", "1"]),
        (["NA", "?"], ["NA", "?"]),
        (["é", "漢字"], ["é", "漢字"]),
        (["1" * 30, "2"], ["1" * 30, "2"]),
    ],
)
def test_labels_are_integers_if_all_of_them_are(texts: list[str], expected: list[Any], tmp_path: Path) -> None:
    text = "a,y\n" + "".join(f"{i},{label}\n" for i, label in enumerate(texts))
    labels = opened(tmp_path, text, labels_column="y").labels()
    assert labels is not None
    assert labels.tolist() == expected


def test_a_missing_label_is_named_by_its_row(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no label in row 1"):
        opened(tmp_path, "a,y\n1,x\n2,\n", labels_column="y").labels()


def test_ragged_rows_are_named_by_line_and_count(tmp_path: Path) -> None:
    found = refused(tmp_path, "a,b,c\n1,2,3\n\n4,5\n6,7,8\n")
    assert found == "2 fields (divided by ',') in line 4"
    assert "4 fields" in refused(tmp_path, "1,2,3\n4,5,6,7\n")
    assert refused(tmp_path, "1 2 3\n4 5 6\n7 8\n") == "2 fields (divided by blanks) in line 3"
    assert "in line 2" in refused(tmp_path, "a,b\n1,2,3\n")
    assert "in line 3" in refused(tmp_path, "a,y\n1,x\n2\n", labels_column="y")


def test_text_columns_are_named_with_the_first_value(tmp_path: Path) -> None:
    found = refused(tmp_path, "a,b,c\n1,2,3\n4,x,6\n7,y,z\n")
    assert found == "text in 2 columns (column 1 ('b'), column 2 ('c')), the first is 'x' in row 1 (line 3)"
    found = refused(tmp_path, "1,tcp,3,x\n4,udp,6,y\n")
    assert found == "text in 2 columns (column 1, column 3), the first is 'tcp' in row 0 (line 1)"
    for value in ("0x10", "1_000", "1e", "--1", "true", "1 2", "٣"):
        assert f"'{value}'" in refused(tmp_path, f"1,2\n3,{value}\n")


@pytest.mark.parametrize("value", ["", "NA", "N/A", "?", "null", "NULL", "None", " ", " NA "])
def test_missing_values_are_named_by_row_line_and_column(value: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        opened(tmp_path, f"a,b\n1,2\n\n3,{value}\n{value},4\n")
    fault = str(caught.value)
    assert f"a missing value ({value.strip()!r}) at row 1 (line 4), column 1 ('b'), and 1 more" in fault


@pytest.mark.parametrize("value", ["nan", "inf", "-Infinity", "NaN", "1e400", "+inf"])
def test_values_that_are_not_finite_are_named_as_they_are_written(value: str, tmp_path: Path) -> None:
    assert f"the value {value!r}" in refused(tmp_path, f"1,2\n3,{value}\n")


def test_values_too_large_for_any_unit_are_named(tmp_path: Path) -> None:
    assert "1e+305 at row 1, column 1 ('b')" in refused(tmp_path, "a,b\n1,2\n3,1e305\n")


def test_a_file_without_a_row_of_data_is_refused(tmp_path: Path) -> None:
    for content in ("\n\n", "  \n", "a,b\n", "a,b", "\ufeff\n"):
        assert refused(tmp_path, content) == "no row of data"


def test_what_is_no_utf_8_text_is_refused(tmp_path: Path) -> None:
    assert "UTF-16" in refused(tmp_path, "1,2\n3,4\n".encode("utf-16"))
    assert "UTF-16" in refused(tmp_path, b"1,2\0\n")
    assert "the byte 0xf6 in line 1, no UTF-8" in refused(tmp_path, "größe,b\n1,2\n".encode("latin-1"))
    with pytest.raises(BadInput, match="byte 0xe9 in line 1,"):
        opened(tmp_path, b"1,\xe9\n" * 50, labels_column=1)
    late = b"1,a\n" * 50 + b"2,\xe9\n"
    with pytest.raises(BadInput, match=r"byte 0xe9 in line 51, .*--encoding\): latin-1"):
        opened(tmp_path, late, labels_column=1).labels()


def test_the_header_of_a_wide_table_may_be_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_reader, "PIECE_BYTES", 16)
    monkeypatch.setattr(text_reader, "LINES_PER_BLOCK", 1)
    source = opened(tmp_path, ",".join(f"feature{j}" for j in range(50)) + "\n" + ("1," * 50)[:-1] + "\n")
    assert source.shape == (1, 50)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_any_rows_are_found_whatever_the_size_of_the_blocks(
    packed: bool, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = np.random.default_rng(0).integers(0, 99999, (200, 3)).astype(float)
    lines = ["a,b,c,y"] + [
        ",".join([*map(repr, row), f"c{i}"]) + ending * (i % 5 == 0) for i, row in enumerate(X.tolist())
    ]
    text = ending.join(lines).encode()
    monkeypatch.setattr(text_reader, "LINES_PER_BLOCK", 1)
    for size in (1, 50, 333, base.PIECE_BYTES):
        monkeypatch.setattr(text_reader, "PIECE_BYTES", size)
        source = opened(
            tmp_path, gzip.compress(text) if packed else text, "csv.gz" if packed else "csv", labels_column="y"
        )
        for start, stop in ((0, 200), (0, 1), (57, 58), (99, 161), (199, 200)):
            assert np.array_equal(source.read(start, stop), X[start:stop])
        assert np.array_equal(np.concatenate(list(source.blocks(7))), X)
        assert source.labels().tolist() == [f"c{i}" for i in range(200)]  # type: ignore[union-attr]


def test_faults_far_into_a_file_have_the_right_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_reader, "PIECE_BYTES", 64)
    monkeypatch.setattr(text_reader, "LINES_PER_BLOCK", 1)
    good = "".join(f"{i},{i}\n\n" for i in range(500))
    assert "'x' in row 500 (line 1002)" in refused(tmp_path, f"a,b\n{good}x,1\n")
    assert "1 fields (divided by ',') in line 1002" in refused(tmp_path, f"a,b\n{good}1\n")
    with pytest.raises(BadInput, match=r"row 500 \(line 1002\)"):
        opened(tmp_path, f"a,b\n{good},1\n")


def test_reading_the_end_of_a_plain_file_does_not_read_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_reader, "PIECE_BYTES", 1000)
    source = opened(tmp_path, "".join(f"{i},{i}\n" for i in range(10_000)))
    parsed: list[int] = []
    parse = text_reader._parse_columns
    monkeypatch.setattr(
        "ips2_dask.readers.text._parse_columns",
        lambda block, *rest: parsed.append(block.offset) or parse(block, *rest),  # type: ignore[func-returns-value]
    )
    assert source.read(9000, 9001).tolist() == [[9000, 9000]]
    assert len(parsed) == 1
    assert parsed[0] > 80_000


def test_numbers_that_only_the_slow_way_knows_are_read_in_the_same_order(tmp_path: Path) -> None:
    text = "a,y,b\n 1 ,x,2\n\n   \n+3,z,4\n"
    source = opened(tmp_path, text, labels_column="y")
    assert source.read(0, 2).tolist() == [[1, 2], [3, 4]]
    assert source.labels().tolist() == ["x", "z"]  # type: ignore[union-attr]


@settings(deadline=None, max_examples=50)
@given(
    X=arrays(np.float64, st.tuples(st.integers(1, 20), st.integers(1, 5)), elements=st.floats(-1e38, 1e38)),
    delimiter=st.sampled_from([",", ";", "\t", " "]),
    header=st.booleans(),
)
def test_numbers_that_pandas_writes_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, X: Any, delimiter: str, header: bool
) -> None:
    path = tmp_path_factory.mktemp("text") / "x.csv"
    frame = pd.DataFrame(X, columns=[f"f{j}" for j in range(X.shape[1])])
    frame.to_csv(path, sep=delimiter, header=header, index=False)
    source = open_source(path, text=TextFormat(header="yes" if header else "no"))
    assert np.array_equal(source.read(0, len(X)), X)
    assert source.feature_names == (list(frame.columns) if header else None)
