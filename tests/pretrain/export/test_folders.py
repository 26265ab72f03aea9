"""Files of an export: whoever may read the folder may read the weights."""

import os

import numpy as np

from pretrain.export import folders


def test_weights_have_the_mode_that_the_umask_gives(tmp_path):
  before = os.umask(0o027)
  try:
    folders.save_tensors(tmp_path / "model.safetensors", {"a": np.zeros(3, np.float32)})
    folders.save_json(tmp_path / "config.json", {})
  finally:
    os.umask(before)
  modes = {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()}
  assert modes == {"model.safetensors": "0o640", "config.json": "0o640"}
