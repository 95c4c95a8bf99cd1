"""Checks of what a cluster's config says: how each value is read and what is allowed, secrets, and missing packages."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from ips2_dask.errors import BadInput
from ips2_dask.params import parse_bytes

_SECRET_NAME = re.compile(
    r"(pass(word|wd|phrase)|secret|token|credential|access_?key|api_?key|private_?key)s?", re.IGNORECASE
)
_SECRET_VALUE = re.compile(r"://[^/\s:@]+:[^/\s@]+@|-----BEGIN |\bAKIA[0-9A-Z]{16}\b")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\u2028\u2029\ud800-\udfff]")
"""Characters that no line of text may hold: control characters, line breaks and surrogates."""

_CLOCK = re.compile(r"(?:(\d+)-)?(\d{1,3}):([0-5]\d)(?::([0-5]\d))?")


def refuse(where: str, value: object, allowed: str, remedy: str) -> BadInput:
    """The error of a value that is not allowed."""
    return BadInput(where, repr(value), allowed, "the cluster would not start as it was meant to", remedy)


def refuse_secrets(where: str, name: str, value: object) -> None:
    """Refuse a key or a value that looks like a credential: configs and records of jobs are read by others."""
    if _SECRET_NAME.search(name) or (isinstance(value, str) and _SECRET_VALUE.search(value)):
        raise BadInput(
            where,
            "what looks like a credential",
            "nothing secret in a config",
            "it would be shared with the file",
            "give it where the store or the manager looks for it: ~/.aws, an instance's role, SSH's agent, "
            "Kubernetes' secrets; or the environment of the command",
        )


def need(module: str, extra: str, what: str) -> ModuleType:
    """Import a module for ``what``; without it, name the extra of ips2-dask that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        found, otherwise = f"no package {package} that can be imported ({error})", f"{what} would not work"
        raise BadInput(what, found, "an installed one", otherwise, f"run: pip install 'ips2-dask[{extra}]'") from error


class Check(NamedTuple):
    """What a key may say: ``read`` raises TypeError or ValueError for another value; KEY in ``remedy`` is the key."""

    read: Callable[[Any], Any]
    allowed: str
    remedy: str

    def value(self, where: str, found: object) -> Any:
        """The value of the key ``where`` as the config has it, or an error."""
        try:
            return self.read(found)
        except (TypeError, ValueError):
            raise refuse(where, found, self.allowed, self.remedy.replace("KEY", where.rpartition(".")[2])) from None


def _is_line(value: object) -> bool:
    return isinstance(value, str) and value.strip() != "" and not _FORBIDDEN.search(value)


def _where(allowed: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """A reader that hands on a value for which something is true."""

    def read(value: Any) -> Any:
        if not allowed(value):
            raise ValueError
        return value

    return read


def whole(low: int, high: int | None = None, or_zero: bool = False) -> Check:
    """A whole number from ``low``, up to ``high`` if that is given; or 0, which switches something off."""
    between = f"of at least {low}" if high is None else f"from {low} to {high}"

    def fits(value: object) -> bool:
        return type(value) is int and ((low <= value and (high is None or value <= high)) or (or_zero and value == 0))

    return Check(
        _where(fits), f"{'0, or ' * or_zero}a whole number {between}", f"write KEY: {0 if or_zero else max(low, 1)}"
    )


def one_of(*names: str) -> Check:
    """One of these words."""
    return Check(_where(lambda value: value in names), f"one of {', '.join(names)}", "choose one of them")


def matching(pattern: str, allowed: str, remedy: str) -> Check:
    """A line of text that matches a pattern."""
    return Check(_where(lambda value: _is_line(value) and re.fullmatch(pattern, value) is not None), allowed, remedy)


def _lines(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(map(_is_line, value)):
        raise ValueError
    return tuple(value)


def _variables(value: Any) -> dict[str, str]:
    """Environment variables, numbers among them as text."""
    for name, content in _names(value).items():
        text = isinstance(content, str | int | float) and not isinstance(content, bool)
        if not text or _FORBIDDEN.search(str(content)) or not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ValueError
    return {name: str(content) for name, content in value.items()}


def _names(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ValueError
    return value


def _seconds(value: Any) -> int:
    """Seconds of 01:30:00 or 2-00:00:00 (days); YAML reads 1:30:00 without quotes as a number in base 60."""
    match = _CLOCK.fullmatch(value)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0, 0)
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total < 60:
        raise ValueError
    return total


_size = _where(lambda value: type(value) in (str, int))
flag = Check(_where(lambda value: isinstance(value, bool)), "true or false", "write one of them, without quotes")
text = Check(_where(_is_line), "a line of text", "put the value in quotes")
texts = Check(_lines, "a list of lines of text", 'write it as ["...", "..."]')
some_texts = Check(lambda value: _lines(value or None), "a list of at least one", 'write it as ["node1", "node2"]')
variables = Check(
    _variables, "names of environment variables with a line of text or a number", 'write it as {NAME: "value"}'
)
plain = Check(lambda value: dict(_names(value)), "names and values", "write it as {name: value}")
size = Check(lambda value: parse_bytes(_size(value)), "a size such as 4GiB or 512MB", "give a number with a unit")
clock = Check(_seconds, 'a time of at least a minute as "HH:MM:SS", in quotes', 'write "01:00:00" for an hour')
address = matching(
    r"(tcp|tls|ws|wss|ucx)://(\[[0-9a-fA-F:]+\]|[^\s:/\[\]@]+):\d{1,5}",
    "the address of a scheduler",
    "write it as tls://HOST:8786",
)
dashboard = matching(r"([^\s:/]*|\[[0-9a-fA-F:]+\]):\d{1,5}", "HOST:PORT", "write 127.0.0.1:0 for any free port")
url = matching(r"https?://[^\s@]+", "an address of http or https", "write it as https://gateway.example.org")
dns_label = matching(
    r"[a-z]([a-z0-9-]{0,51}[a-z0-9])?", "a name of small letters, digits and -", "shorten or respell it"
)
