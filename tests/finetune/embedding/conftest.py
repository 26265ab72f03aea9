"""An encoder without a task, its compiled programs shared by commands, on one device."""

import pathlib
import shutil

import jax
import pytest

from pretrain.checkpoints.saved_model import OpenedEncoder
from pretrain.embed.schema import FILE, EmbeddingSchema


@pytest.fixture(scope="session")
def model(tmp_path_factory, small_encoder_run) -> pathlib.Path:
  """An embedding model: prefixes of both sides, sizes of vectors, 24 tokens."""
  folder = tmp_path_factory.mktemp("embedding") / "model"
  shutil.copytree(small_encoder_run, folder)
  schema = EmbeddingSchema("mean", False, "the ", "a ", 24, 24, (8, 4))
  (folder / FILE).write_text(schema.as_json(), encoding="utf-8")
  return folder


@pytest.fixture(scope="module", autouse=True)
def one_device():
  """Commands compute on the first of the eight fake devices."""
  devices = jax.devices()[:1]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax, "local_devices", lambda: devices)
    yield


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
  """Encoders with the same vocabulary directory and pooling share their programs within a test file."""
  made, make = {}, OpenedEncoder.program

  def program(self, function, params=None, **sizes):
    name = (str(self.vocabulary_directory), str(getattr(function, "keywords", function)), *sizes.items())
    return made.setdefault(name, make(self, function, params, **sizes))

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(OpenedEncoder, "program", program)
    yield
