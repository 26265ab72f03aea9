"""A downloaded folder may hold links, pipes and devices; none of them leads out of it."""

import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from data.errors import DataError
from pretrain.export.foreign import files


@pytest.fixture
def model(tmp_path):
  path = tmp_path / "model"
  (path / "vocabulary").mkdir(parents=True)
  save_file({"a": np.ones(2, np.float32)}, path / "model.safetensors")
  (path / "config.json").write_text("{}")
  return path


def _refused(path, message):
  with pytest.raises(DataError, match=message) as caught:
    files.read_state(path)
  assert "\n" not in str(caught.value)


def test_a_link_that_leads_out_of_the_folder_is_refused(model, tmp_path):
  (tmp_path / "secret.txt").write_text("of this machine")
  for name in ("vocab.txt", "vocabulary/vocab.txt"):
    (model / name).symlink_to(tmp_path / "secret.txt")
    _refused(model, f"{name}: a link to a file outside its folder .*secret.txt")
    (model / name).unlink()
  (model / "more.safetensors").symlink_to("/dev/zero")
  _refused(model, "more.safetensors: a link to a file outside its folder")


def test_a_pipe_is_refused_and_nobody_waits_for_it(model):
  os.mkfifo(model / "vocab.txt")
  _refused(model, "vocab.txt: not a regular file")
  _refused(model / "vocab.txt", "vocab.txt: not a regular file")


def test_links_within_the_folder_and_to_the_blobs_of_a_download_cache_are_followed(model, tmp_path):
  (model / "pytorch.safetensors").symlink_to("model.safetensors")
  assert list(files.read_state(model).state) == ["a"]
  blobs, snapshot = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshots" / "1a2b"
  blobs.mkdir(parents=True)
  snapshot.mkdir(parents=True)
  (model / "model.safetensors").rename(blobs / "0123")
  (snapshot / "model.safetensors").symlink_to("../../blobs/0123")
  assert list(files.read_state(snapshot).state) == ["a"]
