"""`python -m pretrain.export import`: converts another library's checkpoint to this project's format.

All files are written into a temporary folder, which is renamed when it is complete and checked.
"""

import fnmatch
import importlib.util
import logging
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from configs import base
from data import errors, files, vocabulary
from data.errors import DataError, named_reason, on_one_line
from data.vocabulary import table_rows
from pretrain.checkpoints import warm_start
from pretrain.checkpoints.saved_model import save_params
from pretrain.embed.schema import FILE
from pretrain.export import embedding_files
from pretrain.export.recognise import Recognised, read_extra, recognise
from pretrain.export.self_check import hidden_states
from pretrain.export.stock.classes import CLASSES
from pretrain.export.stock.config import repaired
from pretrain.export.stock.convert import in_class
from pretrain.export.task_fields import TASK
from pretrain.export.tensor_rows import without_layer
from pretrain.export.weight_files import ForeignCheckpoint, read_json, read_state
from pretrain.models.layers import EncoderConfig
from pretrain.ops.positions import segments_of_pairs

logger = logging.getLogger(__name__)

# Tensors that are not parameters: position and segment numbers, versions of a class.
IGNORED = ("*position_ids", "*token_type_ids", "*.version", "*.rp_bucket")
# Layers of a stock encoder that no task here reads: BERT's pooler, for its next-sentence objective.
UNREAD_OF_STOCK = ("pooler.dense.weight", "pooler.dense.bias")
# Released files have the positions of their generator, which the class of transformers does not read either.
UNREAD_OF_CLASS = {"deberta-v2": ("embeddings.position_embeddings.weight",)}
TOLERANCE = 1e-5  # largest |difference| of hidden states, float32 on the CPU
_ROWS, _MOST_LENGTH = 3, 32
# Tokenizers of transformers that have no class of their own; they give no token_type_ids.
GENERAL = ("PreTrainedTokenizerFast", "TokenizersBackend")
_PRECISION = ("dtype", "torch_dtype")  # fields of config.json; the comparison is in float32


def import_checkpoint(
  source: str,
  output: str,
  *,
  num_heads: int | None = None,
  allow_unmatched: Sequence[str] = (),
  vocabulary_directory: str = "",
  encoder_only: bool = False,
) -> None:
  """Writes `<output>/checkpoints/0` and `<output>/vocabulary`, from which runs start and fine-tune.

  A model of sentence-transformers, or an export of an embedding model, gets `embedding.json` too.

  The arguments are the flags of `__main__.import_parser`.

  Raises:
    DataError: see `read_state`, `recognise` and `embedding_files.read`; a tensor has no place; the vocabulary
      is missing, or larger than the token table; the stock class computes other hidden states.
    ConfigError: the output is not empty, or the number of heads is unknown.
    StorageError: the output cannot be written.
  """
  target = Path(output)
  files.refuse_others(target)
  foreign = read_state(source)
  if foreign.wrapper:
    logger.info(f"{foreign.wrapper} at the start of every name is from a wrapper of PyTorch; it is ignored")
  config, notes = repaired(foreign.config)
  foreign = foreign._replace(config=config)
  for note in notes:
    logger.info(f"config.json: {note}")
  recognised = recognise(foreign, num_heads=num_heads, extra=read_extra(foreign.folder))
  report_names(foreign, recognised, allow_unmatched)
  if _counts_texts(foreign, recognised):
    recognised.fields["pair_segments"] = True
    logger.info("The second text of a pair is segment 1, as the tokenizer says (model.pair_segments)")
  with errors.writing(f"--output={output}"), files.whole_directory(target) as aside:
    words = _vocabulary(foreign.folder, vocabulary_directory, aside / "vocabulary")
    rows = recognised.fields["vocab_size"]
    if words.size > rows and not words.extends:
      raise DataError(
        f"{source}: the token table has {rows} rows, but the vocabulary has {words.size} pieces"
      )
    if recognised.family == "stock":
      logger.info(compare(foreign, recognised, pad_id=words.special_ids.pad))
    known = {"cased": words.cased, "positions": recognised.fields["max_length"]}
    if not encoder_only and (schema := embedding_files.read(foreign.folder, **known)):
      (aside / FILE).write_text(schema.as_json(), encoding="utf-8")
      prefixes = f"prefixes {schema.query_prefix!r} of queries, {schema.passage_prefix!r} of passages"
      logger.info(f"{FILE}: a vector is {embedding_files.described(schema)}; {prefixes}")
    if words.extends:
      recognised = _with_new_words(recognised, words, foreign.folder)
    if (foreign.folder / TASK).is_file():
      shutil.copyfile(foreign.folder / TASK, aside / TASK)
    _save(aside, source, foreign, recognised, words)
  logger.info(
    f"Wrote {output}: {recognised.family} checkpoint, {words.kind} vocabulary of {words.size:,} pieces"
  )
  logger.info(
    "Continue by masked LM, or by another recipe in place of continue.py:\n"
    f"  python -m pretrain.main --config=configs/continue.py:{output} --config.data.source=..."
  )


def _counts_texts(foreign: ForeignCheckpoint, recognised: Recognised) -> bool:
  """Returns whether a stock model reads the second text of a pair as segment 1, by its table and tokenizer.

  The tokenizer gives token_type_ids if `model_input_names` of tokenizer_config.json has them; without that
  entry, if it is the tokenizer of the class, not a general one.
  """
  table = recognised.params["encoder"]["embeddings"].get("segment", {}).get("embedding", [])
  if recognised.family != "stock" or len(table) < 2 or np.array_equal(table[0], table[1]):
    return False
  path = foreign.folder / "tokenizer_config.json"
  config = read_json(path) if path.is_file() else {}
  is_own = config.get("tokenizer_class") not in GENERAL and CLASSES[foreign.config["model_type"]].counts_texts
  return "token_type_ids" in config["model_input_names"] if "model_input_names" in config else is_own


def report_names(foreign: ForeignCheckpoint, recognised: Recognised, allowed: Sequence[str]) -> None:
  """Prints which tensors were read, ignored and unmatched; raises DataError for others than `allowed`."""
  left = sorted({*recognised.unmatched, *foreign.buffers})
  patterns = IGNORED
  if recognised.family == "stock":
    patterns += UNREAD_OF_STOCK + UNREAD_OF_CLASS.get(foreign.config["model_type"], ())
  ignored = [name for name in left if _is_like(name, patterns)]
  unmatched = [name for name in left if name not in ignored]
  for what, names in (("matched", recognised.matched), ("ignored", ignored), ("unmatched", unmatched)):
    together = sorted({*map(without_layer, names)})  # one name for all layers
    logger.info(f"{what}: {len(names)}" + (f" ({', '.join(together)})" if together else ""))
  refused = [name for name in unmatched if not _is_like(name, allowed)]
  if refused:
    shown = ", ".join(refused[:5]) + (f" and {len(refused) - 5} more" if len(refused) > 5 else "")
    wanted = sorted({without_layer(name).replace("{}", "*") for name in refused})
    flag = shlex.join(["--allow_unmatched", *wanted])
    raise DataError(
      f"{foreign.folder}: tensors with no place in this model: {shown}; to skip them, add\n  {flag}"
    )


def _is_like(name: str, patterns: Sequence[str]) -> bool:
  return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _vocabulary(folder: Path, directory: str, output: Path) -> vocabulary.Vocabulary:
  own = Path(directory) if directory else folder / "vocabulary"
  if directory or (own / vocabulary.NAME).is_file():
    return vocabulary.copy(own, output)
  from pretrain.export.tokenizer import convert

  return convert.read_tokenizer(folder, output)


def _with_new_words(recognised: Recognised, words: vocabulary.Vocabulary, folder: Path) -> Recognised:
  """Returns the model with rows for the ids of an extended or trimmed vocabulary.

  DataError: it was made from another vocabulary than that of the folder.
  """
  assert words.extends
  with tempfile.TemporaryDirectory() as temporary:
    old = _vocabulary(folder, "", Path(temporary) / "vocabulary")
  if old.digest == words.digest:  # an export of a model that has the words
    return recognised
  if old.digest != words.extends.digest:
    raise DataError(
      f"--vocabulary was made from another vocabulary ({words.extends.digest[:12]}...) than that of {folder} "
      f"({old.digest[:12]}...); import without it, and extend or trim the vocabulary of the import\n"
      "  python -m data.vocabulary extend --from=IMPORT/vocabulary --source=... --words=... --output=...\n"
      "  python -m data.vocabulary trim --vocabulary=IMPORT/vocabulary --source=... --output=..."
    )
  rows = table_rows(words.size)
  if not words.extends.trims:
    rows = max(recognised.fields["vocab_size"], rows)
  params = warm_start.add_rows(recognised.params, words.extends, rows=rows, where=str(folder))
  return recognised._replace(params=params, fields={**recognised.fields, "vocab_size": rows})


def _save(
  aside: Path, source: str, foreign: ForeignCheckpoint, recognised: Recognised, words: vocabulary.Vocabulary
) -> None:
  config = base.get_config()
  config.recipe = "imported"
  config.model.update(recognised.fields)
  if "table" in recognised.params.get("heads", {}).get("mlm", {}):
    config.objectives.mlm.head = "table"
  if recognised.generator:
    config.corruption.kind = "generator"
    config.generator.update(recognised.generator)
  meta = {
    "config": config.to_dict(),
    "vocabulary_digest": words.digest,
    "source": {
      "path": str(source),
      "family": recognised.family,
      "model_type": foreign.config.get("model_type", ""),
      "sha256": foreign.digests,
      "parameters": sum(leaf.size for leaf in jax.tree.leaves(recognised.params)),
    },
  }
  if recognised.task:
    meta["task"] = recognised.task
  save_params(aside, recognised.params, meta, step=0)


def compare(foreign: ForeignCheckpoint, recognised: Recognised, *, pad_id: int) -> str:
  """Compares hidden states of both models for random ids, the last row padded; returns a line for the user.

  DataError: transformers cannot build the model, or hidden states at tokens differ by more than `TOLERANCE`.
  """
  if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("torch") is None:
    return "Skipped the comparison with transformers: it is not installed (requirements-export.txt)"
  config = EncoderConfig(**{**recognised.fields, "dtype": "float32"})
  rng = np.random.default_rng(0)
  beyond_the_window = 2 * (config.window // 2) + 2  # shorter rows would not show a wrong one
  longest = beyond_the_window if config.has_windows else 0
  if config.relative_position == "disentangled":
    longest = config.relative_buckets  # half of them are single distances
  length = min(config.max_length, max(_MOST_LENGTH, longest))
  ids = rng.integers(0, config.vocab_size, (_ROWS, length))
  ids[ids == pad_id] = (pad_id + 1) % config.vocab_size
  mask = np.ones_like(ids)
  mask[-1, max(1, length // 2) :] = 0
  ids[:, length // 4] = ids[np.arange(_ROWS), mask.sum(1) - 1]  # as [SEP] of a pair
  ids[mask == 0] = pad_id
  ours = hidden_states(recognised.params["encoder"], ids, mask, config=config, pad_id=pad_id)
  types = np.asarray(segments_of_pairs(ids, mask > 0)) if config.pair_segments else None
  theirs = _hidden(foreign, ids, mask, types)
  difference = float(np.abs(np.asarray(ours) - theirs)[mask > 0].max())
  if not difference <= TOLERANCE:
    raise DataError(
      f"{foreign.folder}: hidden states differ by {difference:.2g} from transformers' "
      f"{foreign.config.get('model_type')}; expected at most {TOLERANCE:g}, from rounding; its config.json "
      "or tensors have another meaning there"
    )
  return f"Compared with transformers: hidden states differ by at most {difference:.2g}"


def _hidden(
  foreign: ForeignCheckpoint, ids: np.ndarray, mask: np.ndarray, types: np.ndarray | None
) -> np.ndarray:
  """Runs the class of transformers on the same tensors; returns hidden states [rows, length, embed]."""
  import torch
  import transformers

  settings = {name: value for name, value in foreign.config.items() if name not in _PRECISION}
  state = in_class(foreign.state, foreign.config["model_type"])
  tensors = {name: torch.tensor(array) for name, array in {**state, **foreign.buffers}.items()}
  verbosity = transformers.logging.get_verbosity()
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  try:
    config = transformers.AutoConfig.for_model(**settings)
    kind = transformers.MODEL_MAPPING[type(config)]
    model = kind.from_pretrained(None, config=config, state_dict=tensors).float().eval()  # pyright: ignore[reportAttributeAccessIssue] (by its type perhaps several classes)
    with torch.no_grad():
      more = {} if types is None else {"token_type_ids": torch.tensor(types)}
      output = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask), **more)
  except Exception as error:  # any field of a config may raise, with any type
    line = named_reason(error, words=on_one_line(error)[:160])
    raise DataError(f"{foreign.folder}: transformers cannot load it ({line})") from error
  finally:
    transformers.logging.set_verbosity(verbosity)
  return output.last_hidden_state.numpy()[:, : ids.shape[1]]
