"""Checks of single values in a cluster's config: each takes a key and a value, and returns the value or refuses it."""

from __future__ import annotations

import re
from collections.abc import Callable

from ips2_dask.errors import BadInput
from ips2_dask.params import parse_bytes

Check = Callable[[str, object], object]

_SECRET_NAME = re.compile(
    r"(pass(word|wd|phrase)|secret|token|credential|access_?key|api_?key|private_?key)s?", re.IGNORECASE
)
_SECRET_VALUE = re.compile(r"://[^/\s:@]+:[^/\s@]+@|-----BEGIN |\bAKIA[0-9A-Z]{16}\b")
_NO_SECRETS = (
    "give it where the store or the manager looks for it: ~/.aws, an instance's role, SSH's agent, "
    "Kubernetes' secrets; or the environment of the command"
)
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\u2028\u2029\ud800-\udfff]")
"""Characters that no line of text may hold: control characters, line breaks and surrogates."""

CLOCK = re.compile(r"(?:(\d+)-)?(\d{1,3}):([0-5]\d)(?::([0-5]\d))?")


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
            _NO_SECRETS,
        )


def whole(low: int, high: int | None = None) -> Check:
    """A check for a whole number from ``low``, up to ``high`` if that is given."""

    def check(where: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
            between = f"of at least {low}" if high is None else f"from {low} to {high}"
            raise refuse(where, value, f"a whole number {between}", f"write {where.rpartition('.')[2]}: {max(low, 1)}")
        return value

    return check


def zero_or_whole(low: int) -> Check:
    """A check for 0, which switches something off, or a whole number from ``low``."""

    def check(where: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or (value != 0 and value < low):
            raise refuse(
                where, value, f"0, or a whole number of at least {low}", f"write {where.rpartition('.')[2]}: 0"
            )
        return value

    return check


def flag(where: str, value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise refuse(where, value, "true or false", "write one of them, without quotes")
    return value


def text(where: str, value: object) -> str:
    """A line of text that is not empty."""
    if not isinstance(value, str) or not value.strip() or _FORBIDDEN.search(value):
        raise refuse(where, value, "a line of text", "put the value in quotes")
    return value


def texts(where: str, value: object) -> tuple[str, ...]:
    """A list of lines."""
    if not isinstance(value, list | tuple):
        raise refuse(where, value, "a list", 'write it as ["...", "..."]')
    return tuple(text(f"{where}[{i}]", item) for i, item in enumerate(value))


def some_texts(where: str, value: object) -> tuple[str, ...]:
    """A list of at least one line."""
    items = texts(where, value)
    if not items:
        raise refuse(where, value, "a list of at least one", 'write it as ["node1", "node2"]')
    return items


def variables(where: str, value: object) -> dict[str, str]:
    """Names of environment variables and their values, none of which is secret."""
    if not isinstance(value, dict):
        raise refuse(where, value, "names and values", 'write it as {NAME: "value"}')
    environment = {}
    for name, content in value.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise refuse(where, name, "names of environment variables", "use letters, digits and _")
        if isinstance(content, bool) or not isinstance(content, str | int | float) or _FORBIDDEN.search(str(content)):
            raise refuse(f"{where}.{name}", content, "a line of text or a number", "put the value in quotes")
        refuse_secrets(f"{where}.{name}", name, content)
        environment[name] = str(content)
    return environment


def plain(where: str, value: object) -> dict[str, object]:
    """Names and values that another package checks."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise refuse(where, value, "names and values", "write it as {name: value}")
    for name, content in value.items():
        refuse_secrets(f"{where}.{name}", name, content)
    return dict(value)


def size(where: str, value: object) -> int:
    """Bytes, from a size with a unit."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise refuse(where, value, "a size such as 4GiB or 512MB", "give a number with a unit")
    return int(parse_bytes(value, where) or 0)


def clock(where: str, value: object) -> int:
    """Seconds of a time such as 01:30:00 or 2-00:00:00 (days)."""
    match = CLOCK.fullmatch(value) if isinstance(value, str) else None
    seconds = 0
    if match:
        days, hours, minutes, rest = (int(part or 0) for part in match.groups())
        seconds = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    if seconds < 60:  # YAML reads 1:30:00 without quotes as a number in base 60
        raise refuse(
            where, value, 'a time of at least a minute as "HH:MM:SS", in quotes', 'write "01:00:00" for an hour'
        )
    return seconds


def one_of(*names: str) -> Check:
    """A check for one of these words."""

    def check(where: str, value: object) -> str:
        if value not in names:
            raise refuse(where, value, f"one of {', '.join(names)}", "choose one of them")
        return str(value)

    return check


def matching(pattern: str, allowed: str, remedy: str) -> Check:
    """A check for a text that matches a pattern."""

    def check(where: str, value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value) or _FORBIDDEN.search(value):
            raise refuse(where, value, allowed, remedy)
        return value

    return check


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


def optional(inner: Check) -> Check:
    """A check that also allows null."""
    return lambda where, value: None if value is None else inner(where, value)
