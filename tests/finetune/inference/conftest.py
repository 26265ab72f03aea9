"""Models made once, and commands on one device: compiling is most of the time."""

import pathlib

import jax
import pytest

from tests.finetune.inference import small_models


@pytest.fixture(scope="session")
def colours(tmp_path_factory, small_encoder_run) -> pathlib.Path:
  """A model of three classes."""
  return small_models.own(
    small_encoder_run, tmp_path_factory.mktemp("models") / "colours", "classification", "red", "green", "blue"
  )


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
  """Of the eight fake ones."""
  monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
