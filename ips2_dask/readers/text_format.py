"""Settings of how a text file is read: header, delimiter, encoding, marks of numbers, and lines that are left out."""

from __future__ import annotations

import codecs
import dataclasses

from ips2_dask.errors import BadInput
from ips2_dask.readers.features import check_word

HEADER = ("auto", "yes", "no")
"""Whether the first line names the columns."""

UTF_8 = "utf-8"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFormat:
    r"""How a text file is read. Gzipped files are text files, too.

    Parameters
    ----------
    header : {"auto", "yes", "no"}
        Whether the first line names the columns. ``auto`` looks at it and at some lines below, and warns where it could
        be either.
    delimiter : str, optional
        The character between fields; a blank stands for runs of blanks and tabs. By default that of tab, semicolon,
        comma and blanks which divides most of the first lines into equally many fields, or what a first line such as
        ``sep=;`` says.
    encoding : str
        A name that Python knows, such as ``"latin-1"``, ``"cp1252"`` or ``"utf-16"``. A file that is not in UTF-8 is
        always read from its start, as a gzipped one is.
    decimal : str
        The decimal mark, ``"."`` or ``","``.
    thousands : str, optional
        A mark between groups of three digits, which numbers may have and need not have.
    comment : str, optional
        A character at which a line ends, unless it is in quotes. Lines that hold nothing else are no rows.
    skip_lines : int
        Lines before the table, such as titles.

    Raises
    ------
    BadInput
        Where a value is none of these, or one character would mean two things.

    Examples
    --------
    >>> from ips2_dask import TextFormat
    >>> TextFormat(delimiter=";", decimal=",", encoding="latin-1").delimiter
    ';'
    """

    header: str = "auto"
    delimiter: str | None = None
    encoding: str = UTF_8
    decimal: str = "."
    thousands: str | None = None
    comment: str | None = None
    skip_lines: int = 0

    def __post_init__(self) -> None:
        check_word("header", self.header, HEADER)
        check_word("decimal", self.decimal, (".", ","))
        if self.delimiter is not None:
            object.__setattr__(self, "delimiter", NAMED.get(self.delimiter, self.delimiter))
        for name in ("delimiter", "thousands", "comment"):
            _check_mark(name, getattr(self, name))
        for name, others in (("thousands", ("decimal",)), ("comment", ("delimiter", "decimal", "thousands"))):
            for other in others:
                if getattr(self, name) is not None and getattr(self, name) == getattr(self, other):
                    raise BadInput(
                        name,
                        f"{getattr(self, name)!r}, which is {other}, too",
                        "a character of its own",
                        "it would be unclear what it means",
                        f"change {name} or {other}",
                    )
        object.__setattr__(self, "encoding", _encoding(self.encoding))
        if isinstance(self.skip_lines, bool) or not isinstance(self.skip_lines, int) or self.skip_lines < 0:
            raise BadInput(
                "skip_lines",
                repr(self.skip_lines),
                "a whole number of lines, from 0",
                "it would be unclear where the table begins",
                "give skip_lines=1 (--skip-lines 1), for instance",
            )

    @property
    def given(self) -> dict[str, object]:
        """The settings that are not the defaults, as JSON can hold them."""
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        return {name: value for name, value in vars(self).items() if value != usual[name]}


NAMED = {r"\t": "\t", "tab": "\t", "\\s+": " "}
"""Other spellings of delimiters, which are easier to type into a shell."""


def _check_mark(name: str, mark: str | None) -> None:
    """Refuse what is not one printable ASCII character, or could be a part of a number or a word."""
    if mark is None:
        return
    blank = mark == " " or (name == "delimiter" and mark == "\t") or (name == "thousands" and mark == "\xa0")
    allowed = blank or (isinstance(mark, str) and len(mark) == 1 and mark.isascii() and mark.isprintable())
    if not allowed or mark.isalnum() or mark in '"+-' or (name == "comment" and mark == " "):
        raise BadInput(
            name,
            repr(mark),
            "a single ASCII character that is no letter, digit, quote, plus or minus",
            "fields could not be told from one another",
            "give another one, or leave it out",
        )


def _encoding(name: str) -> str:
    """Return Python's name of an encoding of text."""
    try:
        codec = codecs.lookup(name)
        " ".encode(name)  # those from bytes to bytes are none
    except (LookupError, TypeError, ValueError):
        raise BadInput(
            "encoding",
            repr(name),
            "an encoding that Python knows",
            "bytes could not be turned into text",
            "give latin-1, cp1252, utf-8 or utf-16, for instance",
        ) from None
    return UTF_8 if codec.name in ("utf-8", "ascii", "utf-8-sig") else codec.name


USUAL = TextFormat()
"""The format of a file of which nothing is said."""
