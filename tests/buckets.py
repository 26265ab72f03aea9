"""A server of the S3 protocol on this machine, and caches of machines that are not there."""

import contextlib
import logging
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import fsspec
from moto.server import ThreadedMotoServer

from data.buckets import mirror
from data.buckets.place import Address

BUCKET = "bucket"


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
  """The endpoint of a server with an empty bucket, which this process and its children find by themselves."""
  logging.getLogger("werkzeug").setLevel(logging.ERROR)
  server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
  server.start()
  try:
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    urllib.request.urlopen(f"{endpoint}/moto-api/reset", b"")  # this process keeps what earlier servers had
    with mock.patch.dict(os.environ, environment(endpoint)):
      fsspec.filesystem("s3", skip_instance_cache=True).mkdir(BUCKET)
      yield endpoint
  finally:
    server.stop()


def environment(endpoint: str) -> dict[str, str]:
  """What tells the libraries where the server is, and who asks."""
  return {
    "AWS_ENDPOINT_URL": endpoint,
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
  }


@contextlib.contextmanager
def machine(cache: Path) -> Iterator[None]:
  """Within the block copies are kept in `cache`, as on a machine of its own."""
  with mock.patch.dict(os.environ, {mirror.CACHE: str(cache)}):
    yield


def names(address: str) -> set[str]:
  """The files below an address."""
  system, root = fsspec.core.url_to_fs(address)
  system.invalidate_cache()
  return {path[len(root) + 1 :] for path in system.find(root)}


def fetched(address: str, folder: Path) -> Path:
  """All files below an address, in a folder."""
  system, root = fsspec.core.url_to_fs(address)
  for name in names(address):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(system.cat_file(f"{root}/{name}"))
  return folder


@contextlib.contextmanager
def strict(endpoint: str) -> Iterator[None]:
  """Within the block the server knows no key, so that every one is a wrong one."""
  _allow(endpoint, 0)
  try:
    yield
  finally:
    _allow(endpoint, float("inf"))


def _allow(endpoint: str, requests: float) -> None:
  body, kind = str(requests).encode(), {"Content-Type": "application/octet-stream"}
  urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset-auth", body, kind)).close()


def put(address: str, content: dict[str, bytes]) -> None:
  """Writes files below an address."""
  system, root = fsspec.core.url_to_fs(address)
  for name, data in content.items():
    system.pipe_file(f"{root}/{name}", data)


def put_folder(address: str, folder: Path) -> None:
  """Writes all files of a folder below an address."""
  put(
    address,
    {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()},
  )


def noted(monkeypatch) -> list[str]:
  """Names of the files that are fetched from now on."""
  names, fetch = [], Address.fetch

  def noting(self, wanted):
    names.extend(wanted)
    fetch(self, wanted)

  monkeypatch.setattr(Address, "fetch", noting)
  return names


def remove(address: str) -> None:
  """Removes a file."""
  system, path = fsspec.core.url_to_fs(address)
  system.rm(path)
