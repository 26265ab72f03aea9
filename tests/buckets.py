"""Files at addresses, caches of machines that are not there, and a server of Google's protocol here."""

import contextlib
import json
import logging
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import fsspec
import pytest

from data import fetched
from data.fetched import Address


@contextlib.contextmanager
def gcs_server() -> Iterator[str]:
  """The address of an empty bucket on a server that this process and its children find by themselves."""
  binary = shutil.which("fake-gcs-server")
  if binary is None:
    pytest.skip("no program fake-gcs-server on the PATH; https://github.com/fsouza/fake-gcs-server has it")
  for name in ("gcsfs", "google.auth"):  # they say that no credentials were found
    logging.getLogger(name).setLevel(logging.CRITICAL)
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  url = f"http://127.0.0.1:{port}"
  flags = ["-backend=memory", "-scheme=http", "-host=127.0.0.1", f"-port={port}", f"-external-url={url}"]
  found = {
    "STORAGE_EMULATOR_HOST": url,  # gcsfs, google-cloud-storage
    "TENSORSTORE_GCS_HTTP_URL": url,
    "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
    "NO_GCE_CHECK": "true",
  }
  server = subprocess.Popen([binary, *flags], stderr=subprocess.DEVNULL)
  try:
    _make_bucket(url)
    with mock.patch.dict(os.environ, found):
      yield "gs://bucket"
  finally:
    server.kill()
    server.wait()


def _make_bucket(url: str) -> None:
  body, kind = json.dumps({"name": "bucket"}).encode(), {"Content-Type": "application/json"}
  for _ in range(100):
    try:
      urllib.request.urlopen(urllib.request.Request(f"{url}/storage/v1/b", body, kind)).close()
      return
    except urllib.error.URLError:  # the server begins
      time.sleep(0.1)
  raise TimeoutError(url)


@contextlib.contextmanager
def machine(cache: Path) -> Iterator[None]:
  """Within the block copies are kept in `cache`, as on a machine of its own."""
  with mock.patch.dict(os.environ, {fetched.CACHE: str(cache)}):
    yield


def names(address: str) -> set[str]:
  """The files below an address."""
  return set(Address(address, flag="test").names())


def fetched_folder(address: str, folder: Path) -> Path:
  """All files below an address, in a folder."""
  Address(address, flag="test").get(sorted(names(address)), folder)
  return folder


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
  names, get = [], Address._get

  def noting(self, folder, wanted, digests):
    names.extend(wanted)
    get(self, folder, wanted, digests)

  monkeypatch.setattr(Address, "_get", noting)
  return names


def remove(address: str) -> None:
  """Removes a file."""
  system, path = fsspec.core.url_to_fs(address)
  system.rm(path)
