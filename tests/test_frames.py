"""Functions of ours between a command and what its gradient is taken of: the stack of a traced run."""

import pathlib
import sys

import pytest

from finetune import main as fine_tuning
from finetune.search.train import Trainer
from pretrain import main as pretraining
from pretrain.recipe import Recipe
from tests.finetune.conftest import small_encoder_run, small_glue_folder  # noqa: F401 (fixtures)
from tests.pretrain.conftest import small_records, text_file  # noqa: F401 (fixtures)
from tests.test_layering import ROOT


class Traced(Exception):
  """The loss was reached; the frames are its only argument."""


def _stop(*args, **options):
  """Raises `Traced` with 'file:function' of the product's frames; lambdas do not count: they have no name."""
  names, frame = [], sys._getframe(1)
  while frame is not None:
    path = pathlib.Path(frame.f_code.co_filename)
    is_ours = path.is_relative_to(ROOT) and not {"tests", "site-packages"} & set(path.parts)
    if is_ours and frame.f_code.co_name != "<lambda>":
      names.append(f"{path.relative_to(ROOT)}:{frame.f_code.co_qualname}")
    frame = frame.f_back
  raise Traced(names[::-1])


def test_five_functions_lie_between_a_command_and_its_loss(
  small_records,  # noqa: F811
  small_encoder_run,  # noqa: F811
  small_glue_folder,  # noqa: F811
  tmp_path,
  monkeypatch,
):
  recipe = f"--config={ROOT / 'tests' / 'pretrain' / 'small_run.py'}:mlm"
  pretrain = [recipe, f"--config.data.directory={small_records}", "--config.train.eval_batches=0"]
  finetune = [f"--config={ROOT / 'configs' / 'finetune_glue.py'}", "--config.tasks=sst2"]
  finetune += [f"--config.checkpoint={small_encoder_run}", f"--config.data.directory={small_glue_folder}"]
  monkeypatch.setattr(Recipe, "loss_fn", _stop)
  monkeypatch.setattr(Trainer, "_loss", _stop)
  for command, flags, most in ((pretraining.main, pretrain, 5), (fine_tuning.main, finetune, 8)):
    with pytest.raises(Traced) as traced:
      command([*flags, f"--workdir={tmp_path / str(most)}"])
    (frames,) = traced.value.args
    assert 3 <= len(frames) <= most, frames
