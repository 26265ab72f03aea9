"""Which functions of ours lie between a command and its gradient: the stack of a real run being traced.

The runs are small (records, checkpoint and GLUE rows of `tests/old_version/fixture.tar.xz`) and end as soon
as their loss is traced for the first time, so no step is compiled. Lambdas do not count: they have no name.
"""

import contextlib
import io
import pathlib
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from unittest import mock

from tests.test_layering import ROOT

FIXTURE = pathlib.Path(__file__).parent / "old_version" / "fixture.tar.xz"


class Traced(Exception):
  """The loss was reached; the frames are its only argument."""


def _ours() -> list[str]:
  """'file:function' of the product's frames, the outermost first, from a `main` on."""
  names, frame = [], sys._getframe(2)
  while frame is not None:
    path = pathlib.Path(frame.f_code.co_filename)
    if path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "tests"):
      names.append(f"{path.relative_to(ROOT)}:{frame.f_code.co_qualname}")
    frame = frame.f_back
  return [name for name in names[::-1] if "/site-packages/" not in name and not name.endswith("<lambda>")]


def _stop(*args, **options):
  raise Traced(_ours())


@contextlib.contextmanager
def _fixture() -> Iterator[pathlib.Path]:
  with tempfile.TemporaryDirectory() as temporary, tarfile.open(FIXTURE) as tar:
    tar.extractall(temporary, filter="data")
    yield pathlib.Path(temporary)


def _stack_of(command: Callable[[list[str]], int], arguments: list[str]) -> list[str]:
  silent = io.StringIO()
  try:
    with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
      code = command(arguments)
  except Traced as traced:
    return traced.args[0]
  raise RuntimeError(f"the run ended with code {code} before its loss was traced:\n{silent.getvalue()}")


def pretraining() -> list[str]:
  """The frames from `pretrain.main.main` to `Recipe.loss_fn`, both included."""
  from pretrain import main
  from pretrain.recipe import Recipe

  with _fixture() as place, mock.patch.object(Recipe, "loss_fn", _stop):
    arguments = [
      f"--config={ROOT / 'tests' / 'pretrain' / 'small_run.py'}:mlm",
      f"--config.data.directory={place / 'records'}",
      "--config.train.eval_batches=0",
      f"--workdir={place / 'workdir'}",
    ]
    return [*_stack_of(main.main, arguments), "pretrain/recipe.py:Recipe.loss_fn"]


def fine_tuning() -> list[str]:
  """The frames from `finetune.main.main` to the loss of a run, both included."""
  from finetune import main
  from finetune.search.program import Program

  with _fixture() as place, mock.patch.object(Program, "_loss", _stop):
    arguments = [
      f"--config={ROOT / 'configs' / 'finetune_glue.py'}",
      "--config.tasks=sst2",
      f"--config.checkpoint={place / 'encoder'}",
      f"--config.data.directory={place / 'glue'}",
      f"--workdir={place / 'search'}",
    ]
    return [*_stack_of(main.main, arguments), "finetune/search/program.py:Program._loss"]
