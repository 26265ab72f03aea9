"""A manifest is read as it was written, or not at all."""

import json
import shutil

import pytest

from data import errors, manifest


def test_a_flipped_bit_of_the_manifest_is_refused_or_changes_nothing(prepared, tmp_path):
  copy = shutil.copytree(prepared, tmp_path / "copy")
  path, before = copy / manifest.NAME, manifest.read(copy)
  content, refused = path.read_bytes(), 0
  for at in range(len(content)):
    flipped = bytearray(content)
    flipped[at] ^= 1 << at % 8
    path.write_bytes(flipped)
    try:
      assert manifest.read(copy) == before, at
    except errors.DataError:
      refused += 1
  assert refused > 0.7 * len(content)  # all but spaces


def test_a_manifest_of_an_earlier_version_has_no_digest_of_itself(prepared, tmp_path):
  content = json.loads((prepared / manifest.NAME).read_text())
  del content["sha256"]
  (tmp_path / manifest.NAME).write_text(json.dumps(content))
  assert manifest.read(tmp_path) == manifest.read(prepared)
  del content["splits"]["train"]["shards"]
  (tmp_path / manifest.NAME).write_text(json.dumps(content))
  with pytest.raises(errors.DataError, match=r"damaged manifest .*shards"):
    manifest.read(tmp_path)
