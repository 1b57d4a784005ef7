"""Data files in object stores and on the web: list them by fsspec, and read a copy of each that the cache keeps.

A copy is kept by its address and by what the store says of its content, so a changed file is never taken for the old
one. Credentials are the environment's, and are never part of an address.
"""

from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, Literal

from posttrain.base.files import described_hash
from posttrain.base.secrets import without_secrets
from posttrain.base.text import clipped
from posttrain.config.values import without_credentials
from posttrain.errors import DataError

# What stores tell that changes with the content, by their own names: the first that a store tells is taken.
_OF_CONTENT = ("md5Hash", "crc32c", "blob_id", "ETag", "etag", "Content-MD5", "Digest")
_OF_TIME = ("LastModified", "Last-Modified", "last_modified", "mtime", "updated")

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
_OF_EXTRA = "pip install 'posttrain-toolkit[remote]'"
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS",
    "hf": "set HF_TOKEN",
}
_WILD = frozenset("*?")


@dataclass(frozen=True)
class RemoteFile:
    """A file in a store.

    Attributes:
        url: its address.
        path: its name for fsspec.
        size: in bytes.
        version: hash of what the store says of its content.
        checksum: of its content, as the name of a hash function and hexadecimal digits; None if the store tells none.
    """

    url: str
    path: str
    size: int
    version: str
    checksum: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        """The last part of the address."""
        return PurePosixPath(self.path).name


@dataclass(frozen=True)
class Listing:
    """The files that an address names, in the order of their names, without hidden ones.

    Attributes:
        kind: what the address is: of one file, of a folder with all its subfolders, or a pattern.
    """

    files: tuple[RemoteFile, ...]
    kind: Literal["file", "folder", "pattern"]


@lru_cache(maxsize=64)
def listed(url: str) -> Listing:
    """Ask the store for the files that an address names.

    A process asks once, so that all its parts see the same files.

    Raises:
        DataError: there are none, or the store does not answer, or does not tell what changes with a file's content.
    """
    system, path = file_system(url)
    with told(url):
        system.invalidate_cache()  # it remembers folders that it has listed for another address
        if not _WILD.isdisjoint(path):
            kind, found = "pattern", system.glob(path, detail=True)
        elif (info := system.info(path))["type"] == "directory":
            kind, found = "folder", system.find(path, detail=True)
        else:
            kind, found = "file", {path: info}
    scheme = url.partition("://")[0]
    base = path.rstrip("/") if kind == "folder" else str(PurePosixPath(path).parent)
    infos = [info for name, info in found.items() if info["type"] == "file" and not _is_hidden(name, base)]
    if not infos:
        raise DataError(f"{url}: the store has no such file")
    files = sorted((_file(scheme, info) for info in infos), key=lambda file: file.url)
    return Listing(tuple(files), kind)


def _is_hidden(name: str, base: str) -> bool:
    """Whether a file, or a folder between it and `base`, is hidden, or the name is only the mark of a folder."""
    return name.endswith("/") or any(part.startswith(".") for part in name.removeprefix(base).split("/"))


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of an address, and the name there; DataError if its package is not installed."""
    scheme = url.partition("://")[0]
    try:
        without_credentials(url)
    except ValueError as error:
        raise DataError(f"{scheme}://…: {error}") from None
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise DataError(f"{url} needs the package fsspec: {_OF_EXTRA}") from None
    if scheme in ("file", "local"):
        raise DataError(f"{url} is a file of this machine; give its path")
    try:
        with told(url):
            return url_to_fs(url)
    except ImportError as error:
        package = _PACKAGES.get(scheme)
        wanted = f"needs the package {package}: {_OF_EXTRA}" if package else f"cannot be read: {clipped(str(error))}"
        raise DataError(f"{url} {wanted}") from None


def current(file: RemoteFile) -> RemoteFile:
    """The file as the store has it now; errors as `listed`."""
    system, path = file_system(file.url)
    with told(file.url):
        system.invalidate_cache()
        return _file(file.url.partition("://")[0], system.info(path))


@contextmanager
def told(url: str) -> Iterator[None]:
    """Turn whatever a store's package raises into a DataError that says what is wrong with the address."""
    try:
        yield
    except (DataError, ImportError):
        raise
    except Exception as error:  # each package has errors of its own
        raise DataError(_reason(url, error)) from error


def _reason(url: str, error: Exception) -> str:
    scheme = url.partition("://")[0]
    causes = list(_causes(error))
    kinds = " ".join(type(each).__name__ for each in causes)
    said = without_secrets(clipped(str(causes[-1]) or type(causes[-1]).__name__))
    if "Credential" in kinds:
        hint = _CREDENTIALS.get(scheme, "they are read from the environment")
        return f"{url}: there are no credentials for the store ({said}); {hint}"
    if isinstance(error, PermissionError):
        return f"{url}: the store refuses access ({said}); check the credentials in the environment"
    if "Connect" in kinds or "Timeout" in kinds:
        return f"{url}: the store cannot be reached: {said}"
    if isinstance(error, FileNotFoundError):
        more = "" if url.endswith(str(error)) else f": {clipped(str(error))}"
        return f"{url}: the store has no such file{more}"
    return f"{url} cannot be read: {said}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _file(scheme: str, info: Mapping[str, Any]) -> RemoteFile:
    name = str(info["name"])
    url = name if "://" in name else f"{scheme}://{name}"
    changing = next((f"{key} {info[key]}" for key in (*_OF_CONTENT, *_OF_TIME) if info.get(key)), None)
    size = info.get("size")
    if size is None or changing is None:
        lacks = "size" if size is None else "checksum, ETag or time, so a change would go unnoticed"
        raise DataError(f"{url}: the server tells no {lacks}; download the file, and name the copy")
    version = described_hash({"size": size, "changing": changing})
    return RemoteFile(url, name, size, version, _checksum(info))


def _checksum(info: Mapping[str, Any]) -> tuple[str, str] | None:
    """The checksum that Hugging Face or Google tell; an ETag of S3 may be one, but does not say so."""
    if sha256 := (info.get("lfs") or {}).get("sha256"):
        return "sha256", sha256
    return ("md5", b64decode(info["md5Hash"]).hex()) if info.get("md5Hash") else None
