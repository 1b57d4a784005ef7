"""A real object store on this machine: moto's server, which speaks S3's protocol over HTTP."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

KEY, SECRET = "who-may-read-rows", "what-only-they-know"


class ObjectStore:
    """A bucket `rows`.

    Attributes:
        environment: the variables with which `s3://` means this store.
    """

    def __init__(self, address: str) -> None:
        import boto3

        self.environment = {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self._client: Any = boto3.client(
            "s3", endpoint_url=address, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1"
        )
        self._client.create_bucket(Bucket="rows")

    def put(self, files: Mapping[str, bytes]) -> None:
        """Write files, by their names in the bucket."""
        for name, content in files.items():
            self._client.put_object(Bucket="rows", Key=name, Body=content)

    def empty(self) -> None:
        """Remove all files."""
        for file in self._client.list_objects_v2(Bucket="rows").get("Contents", []):
            self._client.delete_object(Bucket="rows", Key=file["Key"])


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """An empty store in a process of its own; the test is skipped where the packages are missing."""
    for package in ("moto", "flask", "s3fs", "boto3"):
        pytest.importorskip(package)
    command = [sys.executable, "-m", "moto.server", "-p", "0"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        address = next(found[0] for line in server.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
        threading.Thread(target=server.stderr.read, daemon=True).start()  # or a full pipe would stop the server
        yield ObjectStore(address)
    finally:
        server.kill()
        server.wait()
