"""Options on text files: what `TextFormat` says is done, what is found without it, and remedies that help."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_bad_input import refused as refused_by_command

from ips2_dask import Features, Params, TextFormat, open_run, run
from ips2_dask.cli.main import main
from ips2_dask.errors import BadInput
from ips2_dask.readers import Source, open_source
from ips2_dask.reports import command

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4)).round(3)


def opened(folder: Path, text: str | bytes, text_format: TextFormat | None = None, **options: Any) -> Source:
    path = folder / "x.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_source(path, text=text_format, **options)


def whole(source: Source) -> list[list[float]]:
    rows: list[list[float]] = source.read(0, source.shape[0]).tolist()
    return rows


def frame(titles: list[Any]) -> pd.DataFrame:
    return pd.DataFrame(X[:, : len(titles)], columns=titles)


def ints(titles: list[Any], low: int = 0, high: int = 99) -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(1).integers(low, high, (40, len(titles))), columns=titles)


NAMED = pd.Index([f"s{i}" for i in range(40)])
COUNTED = {
    "index": frame([0, 1, 2]).to_csv(),
    "index and whole numbers": ints([0, 1, 2]).to_csv(),
    "names": frame([0, 1, 2]).set_index(NAMED).to_csv(),
    "titled names": frame([0, 1, 2]).set_index(NAMED.rename("id")).to_csv(),
}
NUMBERS = {
    "pandas": frame([0, 1, 2, 3]).to_csv(index=False),
    "years": frame([2019, 2020, 2021, 2022]).to_csv(index=False),
    "wavelengths": frame([400.5, 410.25, 420.0]).to_csv(index=False),
    "binary": "0,1\n1,1\n0,0\n1,0\n",
    "one": frame([0]).to_csv(index=False),
}


@pytest.mark.parametrize("case", COUNTED)
def test_numbers_that_pandas_writes_beside_names_of_rows_are_names(case: str, tmp_path: Path) -> None:
    source = opened(tmp_path, COUNTED[case], features=Features(drop_columns=["id"]) if "titled" in case else None)
    assert source.shape == (40, 3)
    assert source.feature_names == ["0", "1", "2"]


@pytest.mark.parametrize("case", NUMBERS)
def test_a_first_row_of_numbers_alone_is_a_sample_unless_it_is_said_to_name_the_columns(
    case: str, tmp_path: Path
) -> None:
    n_lines, titles = NUMBERS[case].count("\n"), NUMBERS[case].split()[0].split(",")
    for text_format in (None, TextFormat(header="no")):
        source = opened(tmp_path, NUMBERS[case], text_format)
        assert (source.shape, source.feature_names) == ((n_lines, len(titles)), None)
    source = opened(tmp_path, NUMBERS[case], TextFormat(header="yes"))
    assert (source.shape, source.feature_names) == ((n_lines - 1, len(titles)), titles)


READ: dict[str, tuple[str | bytes, TextFormat]] = {
    "delimiter": ("a|b\n1|2\n3|4\n", TextFormat(delimiter="|")),
    "tab": ("a\tb c\n1\t2\n3\t4\n", TextFormat(delimiter="\\t")),
    "blanks": ("a,b c\n 1   2\n3\t4 \n", TextFormat(delimiter=" ")),
    "quoted blanks": ('"a b"   "c"\n"1" 2\n3  "4"\n', TextFormat()),
    "decimal": ("a;b\n1,0;2\n3;4,0\n", TextFormat(decimal=",")),
    "decimal between blanks": ("1,0 2,0\n3,0 4,0\n", TextFormat(decimal=",")),
    "decimal in quotes": ('a,b\n"1,0",2\n3,"4,0"\n', TextFormat(decimal=",")),
    "decimal without a header": ("1,0\t2,0\n3,0\t4,0\n", TextFormat(decimal=",")),
    "latin-1": ("größe;b\n1;2\n3;4\n".encode("latin-1"), TextFormat(encoding="latin-1")),
    "cp1252": ("€;b\n1;2\n3;4\n".encode("cp1252"), TextFormat(encoding="cp1252")),
    "utf-16": ("größe\tb\r\n1\t2\r\n3\t4\r\n".encode("utf-16"), TextFormat(encoding="utf-16")),
    "utf-16-be": ("größe\tb\r\n1\t2\r\n3\t4\r\n".encode("utf-16-be"), TextFormat(encoding="utf-16-be")),
    "shift_jis": ("表,b\n1,2\n3,4\n".encode("shift_jis"), TextFormat(encoding="shift_jis")),
    "bom": ("\ufeffa,b\n1,2\n3,4\n", TextFormat(encoding="utf-8-sig")),
    "sep": ("sep=;\na;b\n1;2\n3;4\n", TextFormat()),
    "sep with a bom": ('\ufeff"sep=|"\r\na|b\r\n1|2\r\n3|4\r\n', TextFormat()),
    "titles": ("A title, and more\n\na,b\n1,2\n3,4\n", TextFormat(skip_lines=2)),
    "comments": ('# "a, b, c\n#\na,b # x\n1,2#3\n# 5,6\n3,"4"# "\n', TextFormat(comment="#")),
    "comment in quotes": ('"%a",b\n1,2\n%\n3,4\n', TextFormat(comment="%")),
    "r": ('"a" "b"\n"r1" 1 2\n"r 2" 3 4\n', TextFormat()),
    "r csv": ('"a","b"\n"1",1,2\n"2",3,4\n', TextFormat()),
    "r with one row more": ("a,b\nr1,1,2\nr2,3,4\n", TextFormat(header="yes")),
    "no header": ("1,2\n3,4\n", TextFormat(header="no")),
    "header": ("7,8\n1,2\n3,4\n", TextFormat(header="yes")),
}


@pytest.mark.parametrize("case", READ)
def test_the_same_table_is_read_in_every_format(case: str, tmp_path: Path) -> None:
    text, text_format = READ[case]
    source = opened(tmp_path, text, text_format)
    assert whole(source) == [[1, 2], [3, 4]]
    assert source.read(1, 2).tolist() == [[3, 4]]
    assert source.parallel == (text_format.encoding == "utf-8")


def test_names_come_in_their_encoding_and_the_row_names_of_r_are_kept(tmp_path: Path) -> None:
    names = {case: opened(tmp_path, *READ[case]).feature_names for case in ("latin-1", "cp1252", "utf-16", "shift_jis")}
    assert [found[0] for found in names.values() if found] == ["größe", "€", "größe", "表"]
    source = opened(tmp_path, *READ["r"])
    assert source.feature_names == ["a", "b"]
    assert source.sample_names is not None
    assert source.sample_names.tolist() == ["r1", "r 2"]


def test_marks_between_thousands(tmp_path: Path) -> None:
    text = 'a;b\n"1,000";1,234,567.5\n12;-1,000\n'
    assert whole(opened(tmp_path, text, TextFormat(thousands=","))) == [[1000, 1234567.5], [12, -1000]]
    german = "a;b\n1.000;1.234.567,5\n12;-1.000\n"
    found = opened(tmp_path, german, TextFormat(thousands=".", decimal=","))
    assert whole(found) == [[1000, 1234567.5], [12, -1000]]
    with pytest.raises(BadInput, match="the first is '1,5' in row 0"):
        opened(tmp_path, "a;b\n1,5;2\n", TextFormat(thousands=","))


REMEDIES: dict[str, tuple[str | bytes, list[list[float]]]] = {
    "decimal": ("a;b\n1,5;2\n3;4,25\n", [[1.5, 2], [3, 4.25]]),
    "decimal taken for a delimiter": ("1,5 2,5\n3,0 4,25\n", [[1.5, 2.5], [3, 4.25]]),
    "decimals like thousands": ("a;b\n1,500;2\n3;4,25\n", [[1.5, 2], [3, 4.25]]),
    "thousands": ('a,b\n"1,500",2\n3,4\n', [[1500, 2], [3, 4]]),
    "swiss": ("a,b\n1'500,2\n3,4\n", [[1500, 2], [3, 4]]),
    "german": ("a;b\n1.500,5;2\n3;4\n", [[1500.5, 2], [3, 4]]),
    "latin-1": ("größe,b\n1,2\n3,4\n".encode("latin-1"), [[1, 2], [3, 4]]),
    "utf-16": ("größe,b\n1,2\n3,4\n".encode("utf-16"), [[1, 2], [3, 4]]),
    "titles": ("Measured in 2020\nby me\na,b\n1,2\n3,4\n5,6\n", [[1, 2], [3, 4], [5, 6]]),
    "comments": ("# Measured in 2020\na,b\n1,2\n3,4\n", [[1, 2], [3, 4]]),
    "delimiter": ("a|b\n1|2\n3|4\n", [[1, 2], [3, 4]]),
}


@pytest.mark.parametrize("case", REMEDIES)
def test_the_remedy_of_a_message_helps(case: str, tmp_path: Path) -> None:
    text, expected = REMEDIES[case]
    with pytest.raises(BadInput) as caught:
        opened(tmp_path, text)
    remedy = caught.value.remedy
    if case == "latin-1":
        remedy = re.sub(r".*\(encoding, --encoding\): ([\w-]+).*", r"encoding='\1'", remedy)
    options = re.findall(r"\b(delimiter|decimal|thousands|encoding|comment|skip_lines)=('.'|\"'\"|[\w'-]+)", remedy)
    alternative = " or " in remedy.partition(";")[0]  # one of them is enough
    settings = {name: eval(value) for name, value in options}
    if alternative:
        settings = dict([next(iter(settings.items()))])
    assert whole(opened(tmp_path, text, TextFormat(**settings))) == expected
    assert all(f"--{name.replace('_', '-')}" in caught.value.remedy for name in settings if case != "latin-1")


def test_numbers_with_marks_are_no_categories(tmp_path: Path) -> None:
    text = "a;b\n1,000;2\n20;3\n1,500,000;3\n"
    with pytest.raises(BadInput, match=r"numbers such as '1,.*--thousands ,\)") as caught:
        opened(tmp_path, text, features=Features(one_hot=["a"]))
    assert "leave the column out of one_hot" in caught.value.remedy
    found = opened(tmp_path, text, TextFormat(thousands=","), features=Features(one_hot=["a"]))
    assert found.feature_names == ["a_20", "a_1000", "a_1500000", "b"]
    found = opened(tmp_path, "a;b\n1,000;2\nx;3\n", features=Features(one_hot=["a"]))
    assert found.feature_names == ["a_1,000", "a_x", "b"]
    found = opened(tmp_path, "a;b\n1,50;2\n2,5;3\n", TextFormat(decimal=","), features=Features(one_hot=["a"]))
    assert found.feature_names == ["a_1.5", "a_2.5", "b"]


def test_bytes_that_are_in_no_encoding_are_named(tmp_path: Path) -> None:
    for text, encoding, said in (
        (b"a,b\n1,2\n\n3,\xe9\n", "utf-8", "the byte 0xe9 in line 4, no UTF-8"),
        (b"a,b\n1,2\n3,\x81\n", "cp1252", "the byte 0x81 in line 1 or below, no CP1252"),
        ("a,b\n1,2\n".encode("utf-16-le"), "utf-16", "does not start with BOM"),
        ("a,b\n1,2\n".encode("utf-16-le")[:-1], "utf-16-le", "no UTF-16-LE"),
    ):
        with pytest.raises(BadInput) as caught:
            opened(tmp_path, text, TextFormat(encoding=encoding), labels_column=-1)
        assert said in caught.value.found
        assert "--encoding" in caught.value.remedy


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"header": "maybe"}, "one of auto, yes, no"),
        ({"header": True}, "one of auto, yes, no"),
        ({"delimiter": ",,"}, "single ASCII character"),
        ({"delimiter": "a"}, "single ASCII character"),
        ({"delimiter": 3}, "single ASCII character"),
        ({"comment": "ä"}, "single ASCII character"),
        ({"comment": " "}, "single ASCII character"),
        ({"thousands": "1"}, "single ASCII character"),
        ({"decimal": ";"}, "one of ., ,"),
        ({"encoding": "nope"}, "encoding that Python knows"),
        ({"encoding": "base64"}, "encoding that Python knows"),
        ({"encoding": None}, "encoding that Python knows"),
        ({"skip_lines": -1}, "whole number"),
        ({"skip_lines": 1.5}, "whole number"),
        ({"decimal": ",", "thousands": ","}, "a character of its own"),
        ({"delimiter": ";", "comment": ";"}, "a character of its own"),
    ],
)
def test_settings_that_say_nothing_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        TextFormat(**wrong)
    assert said in caught.value.allowed
    assert caught.value.thing in wrong


def test_an_option_for_what_is_no_text_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", X)
    for source in (X, tmp_path / "x.npy", pd.DataFrame(X)):
        assert open_source(source, text=TextFormat()).shape == X.shape
        with pytest.raises(BadInput, match=r"decimal \(--decimal\) with an input that is no text file"):
            open_source(source, text=TextFormat(decimal=","))
    words = [str(tmp_path / "x.npy"), "--clusters", "2", "--skip-lines", "1"]
    for more in (["plan"], ["run", "--out", str(tmp_path / "r")], ["sweep", "--out", str(tmp_path / "r")]):
        line = refused_by_command(
            [more[0], *words[: 1 if more[0] == "sweep" else None], *words[-2:], *more[1:]], capsys
        )
        assert "skip_lines (--skip-lines) with an input that is no text file" in line
    assert not (tmp_path / "r").exists()


def test_a_run_and_its_new_samples_take_the_same_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pd.DataFrame(np.repeat([[0.5, 1, 2], [7, 9, 8.25]], 30, axis=0) + RNG.normal(size=(60, 3)))
    table.columns = ["größe", "b", "c"]
    text = "Titel\n" + table.to_csv(index=False, sep=";", decimal=",")
    path = tmp_path / "x.csv"
    path.write_bytes(text.encode("latin-1"))
    options = ["--encoding", "latin-1", "--decimal", ",", "--skip-lines", "1"]
    directory = str(tmp_path / "run")
    assert main(["run", str(path), "--clusters", "2", "--serial", "--quiet", "--out", directory, *options]) == 0
    found = open_run(directory)
    assert found.text_format == TextFormat(encoding="latin-1", decimal=",", skip_lines=1)
    again = command(found)
    assert "--encoding iso8859-1" in again
    assert "--decimal , --skip-lines 1" in again
    assert found.predict(path).tolist() == found.labels.tolist()
    assert found.predict(table.to_numpy()).tolist() == found.labels.tolist()
    table.to_csv(tmp_path / "y.csv", index=False)
    assert found.predict(tmp_path / "y.csv", text=TextFormat()).tolist() == found.labels.tolist()
    predict = ["predict", directory, str(tmp_path / "y.csv"), "--out", str(tmp_path / "labels.csv"), "--quiet"]
    said = refused_by_command(predict, capsys)
    assert "no column 'größe', 'b', 'c'" in said
    assert "give encoding (--encoding), decimal (--decimal), skip_lines (--skip-lines) as of this file" in said
    words = ["--encoding", "utf-8", "--decimal", ".", "--skip-lines", "0"]
    assert main([*predict, *words]) == 0
    assert pd.read_csv(tmp_path / "labels.csv")["label"].tolist() == found.labels.tolist()
    usual = run(tmp_path / "y.csv", Params(n_clusters=2))
    assert "text" not in usual.manifest["input"]
    assert json.dumps(usual.manifest["input"])


CODES = {
    "zip": ["01234", "1234", "01234", "9"],
    "digits": ["1", "2", "10", "1"],
    "signs": ["+1", "-1", "1", "-1"],
    "points": ["1", "1.0", "1.00", "1"],
}


@pytest.mark.parametrize("column", CODES)
@pytest.mark.parametrize("kind", ["csv", "frame", "parquet"])
def test_codes_are_categories_of_their_own_in_every_container(column: str, kind: str, tmp_path: Path) -> None:
    table = pd.DataFrame({**CODES, "n": [1.0, 2.0, 3.0, 4.0]})[[column, "n"]]
    table.to_csv(tmp_path / "x.csv", index=False)
    table.to_parquet(tmp_path / "x.parquet", index=False)
    given: dict[str, Any] = {"csv": tmp_path / "x.csv", "frame": table, "parquet": tmp_path / "x.parquet"}
    source = open_source(given[kind], features=Features(one_hot=[column]))
    fitted = source.fitted
    assert fitted is not None
    categories = fitted.one_hot[0].categories
    assert categories is not None
    different = sorted(set(CODES[column]))
    assert len(categories) == len(different)
    if not (kind == "csv" and column == "digits"):  # there these may be numbers
        assert list(categories) == different
    codes = [
        list(map(str, categories)).index(text if text in different and isinstance(categories[0], str) else f"{text}.0")
        for text in CODES[column]
    ]
    expected = np.column_stack([np.eye(len(categories))[codes], table["n"]])
    assert source.read(0, 4).tolist() == expected.tolist()
    for new in given.values():
        assert open_source(new, features=fitted).read(0, 4).tolist() == expected.tolist()


def test_a_code_is_no_number_of_a_run_and_warnings_are_none_of_ours(tmp_path: Path) -> None:
    source = opened(tmp_path, "a,n\n1,1\n2,2\n", features=Features(one_hot=["a"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BadInput, match="the category '01' in row 1"):
            opened(tmp_path, "a,n\n1.0,1\n01,2\n", features=source.fitted).read(0, 2)


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_wide_table_and_long_texts_are_no_longer_than_a_field_may_be(quote: str, tmp_path: Path) -> None:
    titles = ",".join(f"{quote}feature {column}{quote}" for column in range(20_000))
    source = opened(tmp_path, f"{titles}\n" + f"{',1' * 20_000}\n"[1:] * 2)
    assert source.shape == (2, 20_000)
    source = opened(tmp_path, f"a,b,text\n1,2,{quote}{'x y' * 100_000}{quote}\n+3,4,x\n", labels_column="text")
    assert whole(source) == [[1, 2], [3, 4]]
