"""`python -m pretrain.export import`: a checkpoint of others becomes one of ours.

Everything is written into a folder aside, which takes its final name when all of it is there and checked.
"""

import collections
import fnmatch
import itertools
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from configs import base
from data import errors, files, vocabulary
from data.errors import DataError, nearest
from pretrain.checkpoints.saved_model import save_params
from pretrain.export.check import comparison
from pretrain.export.foreign.files import DIGEST_LISTS, ForeignCheckpoint, read_state
from pretrain.export.foreign.recognise import Recognised, read_extra, recognise
from pretrain.export.official import names as official_names
from pretrain.export.task_fields import TASK
from pretrain.export.tensor_rows import without_layer
from pretrain.mesh import trees

# Tensors that say nothing: numbers of positions, versions of a class.
IGNORED = ("*position_ids", "*.version", "*.rp_bucket")
# What a stock encoder brings that none of our tasks reads: BERT's layer for its next-sentence objective.
UNREAD_OF_STOCK = ("pooler.dense.weight", "pooler.dense.bias")
# What a run may need beside the encoder.
OPTIONAL = ("generator", *(f"heads/{name}" for name in official_names.HEADS))


def import_checkpoint(
  source: str,
  output: str,
  *,
  num_heads: int | None = None,
  allow_unmatched: Sequence[str] = (),
  vocabulary_directory: str = "",
  say: Callable[[str], None] = print,
) -> None:
  """Writes `<output>/checkpoints/0` and `<output>/vocabulary`, from which runs start and fine-tune.

  The arguments are the flags of `__main__.import_parser`; `say` takes lines for the user.

  Raises:
    DataError: see `read_state`, `recognise`; tensors left over; no vocabulary, or more pieces than rows; the
      stock class computes something else.
    ConfigError: the output holds something, or the number of heads is unknown.
    StorageError: it cannot be written.
  """
  target = Path(output)
  files.refuse_others(target)
  foreign = read_state(source)
  if foreign.wrapper:
    say(f"{foreign.wrapper} at the start of every name is of a wrapper of PyTorch and left out")
  recognised = recognise(foreign, num_heads=num_heads, extra=read_extra(foreign.folder))
  report_names(foreign, recognised, allow_unmatched, say)
  if not any((foreign.folder / name).is_file() for name in DIGEST_LISTS):
    say(
      f"nothing compared the numbers in {foreign.folder}: it has no {' or '.join(DIGEST_LISTS)}, and a "
      "matrix that was changed or transposed is not noticed where its shape fits"
    )
  with errors.writing(f"--output={output}"), files.whole_directory(target) as aside:
    words = _vocabulary(foreign.folder, vocabulary_directory, aside / "vocabulary")
    rows = recognised.fields["vocab_size"]
    if words.size > rows:
      raise DataError(
        f"{source}: its token table has {rows} rows, but the vocabulary has {words.size} pieces"
      )
    if recognised.family == "stock":
      say(comparison.compare(foreign, recognised, pad_id=words.special_ids.pad))
    if (foreign.folder / TASK).is_file():
      shutil.copyfile(foreign.folder / TASK, aside / TASK)
    _save(aside, source, foreign, recognised, words)
  say(f"Wrote {output}: {recognised.family} checkpoint, {words.kind} vocabulary of {words.size:,} pieces")
  say(f"Continue with --config.train.init_from={output} --config.data.vocabulary={target / 'vocabulary'}")


def report_names(
  foreign: ForeignCheckpoint, recognised: Recognised, allowed: Sequence[str], say: Callable[[str], None]
) -> None:
  """Reports which names were read, ignored, left out and are fresh; DataError for names nobody allowed."""
  left = sorted({*recognised.unmatched, *foreign.buffers})
  patterns = IGNORED + UNREAD_OF_STOCK * (recognised.family == "stock")
  ignored = [name for name in left if _is_like(name, patterns)]
  unmatched = [name for name in left if name not in ignored]
  there = trees.by_path(recognised.params)
  fresh = [part for part in OPTIONAL if not any(path.startswith(f"{part}/") for path in there)]
  for what, names in (("matched", recognised.matched), ("ignored", ignored), ("unmatched", unmatched)):
    say(_listing(what, names))
  say(_listing("fresh where a run needs them", fresh))
  refused = [name for name in unmatched if not _is_like(name, allowed)]
  if refused:
    shown = ", ".join(_with_nearest(name, (*recognised.known, *patterns)) for name in refused[:5])
    shown += f" and {len(refused) - 5} more" if len(refused) > 5 else ""
    flag = shlex.join(["--allow_unmatched", *_patterns(refused)])
    raise DataError(
      f"{foreign.folder}: nothing here reads {shown}; leave them out with {flag}, or give a checkpoint "
      "without them"
    )


def _with_nearest(name: str, known: Sequence[str]) -> str:
  found = nearest(name, known)
  return f"{name} (misspelt? {found} is missing)" if found else name


def _patterns(names: Sequence[str]) -> list[str]:
  """What --allow_unmatched needs for all of the names, those of one module together: 'pooler.dense.*'."""
  modules = collections.defaultdict(list)
  for name in names:
    modules[name.partition(".")[0]].append(name.split("."))
  patterns = []
  for together in modules.values():
    same = itertools.takewhile(lambda parts: len({*parts}) == 1, zip(*together))
    shared = [parts[0] for parts in same]
    is_whole = any(parts == shared for parts in together)
    patterns += [".".join(parts) for parts in together] if is_whole else [".".join([*shared, "*"])]
  return patterns


def _is_like(name: str, patterns: Sequence[str]) -> bool:
  return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _listing(what: str, names: Sequence[str]) -> str:
  """'matched: 12 (a.{}.weight, b)': one line, layers together."""
  together = sorted({*map(without_layer, names)})
  return f"{what}: {len(names)}" + (f" ({', '.join(together)})" if together else "")


def _vocabulary(folder: Path, directory: str, output: Path) -> vocabulary.Vocabulary:
  """Makes the vocabulary directory of the new checkpoint."""
  own = Path(directory) if directory else folder / "vocabulary"
  if directory or (own / vocabulary.NAME).is_file():
    vocabulary.load(own)  # before anything is copied
    output.mkdir()
    for name in vocabulary.FILES:
      if (own / name).is_file():
        shutil.copyfile(own / name, output / name)
  else:
    from pretrain.export.tokenizer import convert

    convert.read_tokenizer(folder, output)
  return vocabulary.load(output)


def _save(
  aside: Path, source: str, foreign: ForeignCheckpoint, recognised: Recognised, words: vocabulary.Vocabulary
) -> None:
  config = base.get_config()
  config.recipe = "imported"
  config.model.update(recognised.fields)
  if recognised.generator:
    config.corruption.kind = "generator"
    config.generator.update(recognised.generator)
  meta = {
    "config": config.to_dict(),
    "vocabulary_digest": words.digest,
    "source": {
      "path": str(source),
      "family": recognised.family,
      "sha256": foreign.digests,
      "parameters": sum(leaf.size for leaf in jax.tree.leaves(recognised.params)),
    },
  }
  if recognised.task:
    meta["task"] = recognised.task
  save_params(aside, recognised.params, meta, step=0)
