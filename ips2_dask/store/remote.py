"""Stores behind a URL: filesystems opened with few requests, many at a time, and their failures in one line."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import parse_qsl, urlsplit

import fsspec
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import FsspecStore

from ips2_dask.errors import BadInput, Unreachable

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

Item = TypeVar("Item")
Result = TypeVar("Result")

WIDTH = 32
"""Requests of one process at a time: an object store answers each after some 25 ms, however many are under way."""


def side_by_side(function: Callable[[Item], Result], items: Sequence[Item], width: int = WIDTH) -> Iterator[Result]:
    """The results of a function that mostly waits, in the order of the items.

    At most ``width`` calls run at once, in threads, and at most as many results wait for the caller, who may so add up
    arrays without ever holding all of them. After the first error in the order of the items no other call begins.
    """
    if len(items) < 2:
        yield from map(function, items)
        return
    waiting: collections.deque[Future[Result]] = collections.deque()
    with ThreadPoolExecutor(min(width, len(items)), thread_name_prefix="ips2-store") as pool:
        try:
            for item in items:
                if len(waiting) == width:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(function, item))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


EXTRAS = {"s3": "s3", "s3a": "s3"}
"""The extra of this package that brings a protocol."""

PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "http": "aiohttp", "https": "aiohttp"}
"""The package that brings another one."""

PLAIN_QUERIES = frozenset({"versionId", "download"})
"""Parameters of a URL that say which object is meant; others may sign the request."""


MOST_DELETED = 1000
"""Objects that one request to S3 may delete."""


def is_remote(place: str) -> bool:
    """Whether something is a URL, not a path."""
    return "://" in place


def named_place(place: str | os.PathLike[str]) -> str:
    """A URL as it is, but the path of a file's; in a path the home in place of ~."""
    return os.path.expanduser(os.fspath(place).removeprefix("file://"))


def full_place(place: str | os.PathLike[str]) -> str:
    """As `named_place`, a path from the root on: processes may work in other folders, or change theirs."""
    name = named_place(place)
    return name if is_remote(name) else str(Path(name).absolute())


def open_system(url: str, *, asynchronous: bool = False) -> tuple[AbstractFileSystem, str]:
    """The filesystem of a URL and the path in it; credentials come from where its own tools look for them.

    Raises ``BadInput`` where the package of that protocol is missing, or the URL itself holds credentials.
    """
    check_url(url)
    options: dict[str, Any] = {"asynchronous": asynchronous, "use_listings_cache": False}
    if _protocol(url) in ("s3", "s3a"):
        options["max_concurrency"] = 1  # or each read asks for the size first
        own = fsspec.config.conf.get(_protocol(url), {}).get("config_kwargs", {})
        options["config_kwargs"] = {"max_pool_connections": WIDTH, **own}  # botocore's ten would hold the others up
    protocol, why = _protocol(url), "there would be no way to it"
    try:
        system, path = fsspec.url_to_fs(url, **options)
    except ImportError as error:
        package = f"'ips2-dask[{EXTRAS[protocol]}]'" if protocol in EXTRAS else PACKAGES.get(protocol, "that package")
        found = f"a URL whose protocol needs a package that is not installed ({error})"
        _throw(BadInput(plain(url), found, "a path, or a URL that fsspec can open here", why, f"pip install {package}"))
    except ValueError as error:
        found = f"a URL that can't be opened ({' '.join(str(error).split())[:200]})"
        _throw(
            BadInput(plain(url), found, "a URL that fsspec knows: s3://, gs://, az://, https:// ...", why, "correct it")
        )
    return system, str(path)


def deletes_many(system: AbstractFileSystem) -> bool:
    """Whether `delete_objects` can delete many objects of a filesystem by one request."""
    return "s3" in system.protocol


def delete_objects(system: AbstractFileSystem, paths: Sequence[str]) -> None:
    """Delete objects of an S3 store by one request for each thousand; those that are not there are passed over."""

    def delete(first: int) -> list[str]:
        keys = {system.split_path(path)[1]: path for path in paths[first : first + MOST_DELETED]}
        bucket = system.split_path(paths[first])[0]
        asked = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = system.call_s3("delete_objects", Bucket=bucket, Delete=asked)
        return [keys[error["Key"]] for error in answer.get("Errors", ())]

    for left in side_by_side(delete, range(0, len(paths), MOST_DELETED)):
        for path in left:  # alone, so that its error is raised, or that it is tried again
            system.rm_file(path)


def open_zarr(url: str, *, read_only: bool = False, kind: type[FsspecStore] = FsspecStore) -> Any:
    """A Zarr store of a URL, of a given class: a `FreshStore` is under a name that nobody has used before."""
    system, path = open_system(url, asynchronous=True)
    if not system.async_impl:
        from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper  # noqa: PLC0415  few protocols need it

        system = AsyncFileSystemWrapper(system, asynchronous=True)
    return kind(system, path=path, read_only=read_only)


class Recording:
    """What the stores that are written to add to Zarr's: size and end of what was written under each key.

    The end is a chunk's checksum, four bytes, or the whole of metadata.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.written: dict[str, tuple[int, bytes]] = {}

    async def set(self, key: str, value: Buffer, *rest: Any) -> None:
        """Write a value."""
        self.record(key, value)
        await super().set(key, value, *rest)  # type: ignore[misc]

    def record(self, key: str, value: Buffer) -> None:
        """Keep the size and the end of a value."""
        self.written[key] = len(value), (value if _is_metadata(key) else value[-4:]).to_bytes()


def _is_metadata(key: str) -> bool:
    return key.rsplit("/", 1)[-1] == "zarr.json"


class FreshStore(Recording, FsspecStore):
    """A Zarr store under a name that nobody has used: it knows every key that exists, and asks the server for none."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._pending: list[asyncio.Task[None]] = []

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """The metadata that were written under a key; None for a chunk, which is always written whole."""
        del byte_range
        return prototype.buffer.from_bytes(self.written[key][1]) if await self.exists(key) else None

    async def exists(self, key: str) -> bool:
        """Whether metadata were written under a key."""
        return _is_metadata(key) and key in self.written

    async def set(self, key: str, value: Buffer, *rest: Any) -> None:
        """Write a value; metadata are written while chunks are, which need not wait for them."""
        if not _is_metadata(key):
            await super().set(key, value, *rest)
            return
        self.record(key, value)
        self._pending.append(asyncio.create_task(FsspecStore.set(self, key, value, *rest)))

    async def await_writes(self) -> None:
        """Wait until all metadata are written."""
        for outcome in await asyncio.gather(*self._pending, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome


def check_url(url: str) -> None:
    """Refuse a URL that holds credentials; the message does not repeat them."""
    for link in url.split("::"):
        parts = urlsplit(link)
        signed = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True) if name not in PLAIN_QUERIES]
        if "@" not in parts.netloc and not signed:
            continue
        fault = f"a URL with the parameter {signed[0]!r}" if signed else "a URL with a user's name or password in it"
        raise BadInput(
            plain(url),
            fault,
            "a URL without credentials",
            "they would be written into the manifest and shown in lists of processes",
            "leave them out, and put them where the tools of that store look for them (environment variables, ~/.aws)",
        )


def plain(url: str) -> str:
    """A URL without what may be secret in it, for messages."""
    return re.sub(r"\?[^:]*", "", re.sub(r"://[^/@]*@", "://", url))


@contextlib.contextmanager
def reaching(url: str) -> Iterator[None]:
    """Raise ``Unreachable`` for a store that can't be reached (no credentials, no bucket, no answer) within a block.

    The error of a missing object passes, since callers look for objects that may not exist.
    """
    try:
        yield
    except Exception as error:
        check_answer(url, error)
        raise


def check_answer(url: str, error: Exception) -> None:
    """Raise ``Unreachable`` for an error of a store that gives no access or no answer; return for any other."""
    package = type(error).__module__.partition(".")[0]
    of_store = isinstance(error, OSError) or package in ("botocore", "aiobotocore", "aiohttp", "google", "azure")
    if not of_store or isinstance(error, BadInput | FileNotFoundError):
        return
    denied = isinstance(error, PermissionError) or "Credential" in type(error).__name__
    found = "a store that does not let us in" if denied else "a store that can't be used"
    found += f" ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
    allowed = "a store that this user may use" if denied else "a bucket or folder that is there and answers"
    remedy = GIVE_CREDENTIALS if denied else CHECK_THE_WAY
    _throw(Unreachable(plain(url), found, allowed, "nothing could be read or written", remedy))


GIVE_CREDENTIALS = (
    "put the credentials where its own tools look for them, "
    "for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or ~/.aws/credentials, here and on the workers"
)
CHECK_THE_WAY = (
    "check the URL, the network and, for S3, AWS_ENDPOINT_URL and the region, "
    "and run the same command again, which continues"
)


def _protocol(url: str) -> str:
    return url.rpartition("::")[2].partition("://")[0]


def _throw(fault: BadInput) -> NoReturn:
    """Raise a fault without its cause, which may not be one that can be sent from a worker."""
    try:
        raise fault
    finally:
        fault.__context__ = None
