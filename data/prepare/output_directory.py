"""Guards a preparation's output directory against other settings, changed input and leftovers; sums it up."""

import contextlib
import json
import logging
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

from data import errors, files, manifest, sources
from data.clean import steps as clean
from data.prepare import pipeline

logger = logging.getLogger(__name__)

FORMAT = 4  # of unfinished work; since 4 a unit has its records in order of the text
MOST_FILES = 3  # damaged input files that are named
LEAST_FILLED = 0.5  # packing joins any two records that are emptier, unless they are of two shards
MOST_UNKNOWN = 0.1  # fraction of unknown tokens above which a line warns


def refuse_other_settings(output: pathlib.Path, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
  """Raises a ConfigError that names every setting in which two preparations differ."""
  # Older versions did not store these.
  stored = {"clean": "", "module_code": wanted.get("module_code")} | stored
  different = [
    f"{key}: {stored.get(key)!r} there, {wanted[key]!r} asked"
    for key in wanted
    if stored.get(key) != wanted[key]
  ]
  if different:
    raise errors.ConfigError(
      f"--output={output} was prepared with other settings ({'; '.join(different)}); name another directory "
      f"or remove this one:\n  rm -r {output}"
    )


def missing_directories(output: pathlib.Path) -> list[pathlib.Path]:
  """Returns `output` and those of its parents that do not exist, innermost first."""
  return [path for path in (output, *output.parents) if not path.exists()]


@contextlib.contextmanager
def removed_on_failure(output: pathlib.Path, missing: list[pathlib.Path]) -> Iterator[None]:
  """Removes new files in `output` if a user's error occurs before any unit has records.

  Older files stay, because a vocabulary may have taken hours, and all files stay after a `ResumableError` or
  a full disk. The caller must hold the lock in `work/`; `missing` is the result of `missing_directories`
  before `output` was created.
  """
  work = output / "work"
  before = {*output.iterdir(), *work.iterdir()} - {work / "lock"}
  try:
    yield
  except (errors.ResumableError, errors.StorageError):
    raise
  except errors.UserError:
    numbers = [int(path.name[len("unit-") :].partition(".")[0]) for path in work.glob("unit-*.json")]
    counts = (pipeline.counts_of(work, number) for number in numbers)
    if not any(count and count.get("train_records") for count in counts):
      made = [path for path in (*work.iterdir(), *output.iterdir()) if path not in before]
      for path in made:
        if path.is_dir():
          shutil.rmtree(path, ignore_errors=True)
        else:
          path.unlink(missing_ok=True)
      for directory in (work, *missing):  # rmdir removes only empty ones
        with contextlib.suppress(OSError):
          directory.rmdir()
    raise


def start_or_continue(output: pathlib.Path, settings: dict[str, Any], *, is_alone: bool) -> None:
  """Writes the settings of a new preparation, or checks that an unfinished one has the same settings.

  `is_alone`: no other process works in the directory, so files that killed processes left are removed.
  ConfigError: the unfinished one has other settings. DataError: an older version of this program began it.
  """
  path = output / "work" / "settings.json"
  for aside in (output / "work").glob("*.part") if is_alone else ():  # left by killed workers
    # A worker of an earlier start may still be writing there, or renames it now.
    shutil.rmtree(aside, ignore_errors=True) if aside.is_dir() else aside.unlink(missing_ok=True)
  for aside in output.glob(".vocabulary.*") if is_alone else ():  # left while the vocabulary was made
    shutil.rmtree(aside, ignore_errors=True)
  if path.is_file():
    stored = _unfinished(path)
    if not isinstance(stored, dict):
      raise _damaged(path)
    refuse_other_settings(output, stored, settings)
    if stored.get("format") != FORMAT:
      raise errors.DataError(
        f"{output} has an unfinished preparation of an older version; remove it and start again:\n"
        f"  rm -r {output}"
      )
    logger.info(f"{output}: going on with an unfinished preparation")
  else:
    files.write_atomically(path, json.dumps(settings | {"format": FORMAT}).encode())


def refuse_changed_files(output: pathlib.Path, source: str, input_digest: str, *, advice: str) -> None:
  """Raises DataError, which ends in `advice`, if a finished preparation's input files have changed.

  `input_digest` is the digest of the input when the preparation ran.
  """
  if sources.have_changed(source, input_digest, since=(output / manifest.NAME).stat().st_mtime):
    raise errors.DataError(
      f"the files of --source={source} changed (names, sizes or content) since {output} was prepared from "
      f"them; {advice}"
    )


def _unfinished(path: pathlib.Path) -> Any:
  """Returns the value of a JSON file of an unfinished preparation; DataError if it is damaged."""
  try:
    return json.loads(path.read_bytes())
  except ValueError as error:
    raise _damaged(path) from error


def _damaged(path: pathlib.Path) -> errors.DataError:
  output = path.parent.parent
  return errors.DataError(
    f"{path}: damaged; remove the unfinished preparation and start again:\n  rm -r {output}"
  )


def refuse_other_input(output: pathlib.Path, input_digest: str) -> None:
  """Raises DataError if the input changed since an unfinished preparation began."""
  path = output / "work" / "input.json"
  # A part of the units has only names and sizes, which are the start of the whole digest.
  known = str(_unfinished(path)) if path.is_file() else input_digest
  if not (input_digest.startswith(known) or known.startswith(input_digest)):
    raise errors.DataError(
      f"the input changed since the unfinished preparation in {output} began; remove it and start again:\n"
      f"  rm -r {output}"
    )
  files.write_atomically(path, json.dumps(max(known, input_digest, key=len)).encode())


def summary(made: manifest.Manifest) -> str:
  """Returns lines about vocabulary, packing, splits, text and cleaning, and warnings."""
  lines = [
    f"  vocabulary  {made.vocabulary.kind}, {made.vocabulary.size:,} pieces, sha256 "
    f"{made.vocabulary.digest[:12]}",
    f"  packing     {made.packing}, at most {made.length} tokens",
  ]
  for name, split in made.splits.items():
    size = sum(shard.bytes for shard in split.shards) / 1e6
    filled = split.tokens / max(1, split.records * made.length)
    lines.append(
      f"  {name:11} {errors.counted(split.records, 'record')}, {split.tokens:,} tokens ({filled:.0%} full), "
      f"{size:.1f} MB in {errors.counted(len(split.shards), 'file')}"
    )
  counts = made.counts
  if number := counts.get(manifest.SEGMENTS):
    records = sum(split.records for split in made.splits.values())
    lines.append(
      f"  segments    {number:,}, {number / records:.1f} a record, at most {counts[manifest.MOST_SEGMENTS]:,}"
    )
  documents = errors.counted(counts.get("documents", 0), "document")
  lines.append(f"  text        {documents}, {counts.get('characters', 0):,} characters")
  for number, line in enumerate(clean.summary(made.settings.get("clean", ""), counts)):
    lines.append(f"  {'' if number else 'cleaning':11} {line}")
  worth_noting = ("empty_documents", "sentences_cut_to_length", "tokens_dropped", "unknown_tokens")
  worth_noting += (*manifest.REPAIRS, manifest.NO_DOCUMENTS)
  noted = [f"{name.replace('_', ' ')}: {counts[name]:,}" for name in worth_noting if counts.get(name)]
  if noted:
    lines.append(f"  noted       {', '.join(noted)}")
  lines += _files(made)
  unknown = counts.get("unknown_tokens", 0) / max(1, sum(split.tokens for split in made.splits.values()))
  if unknown > MOST_UNKNOWN:
    lines.append(
      f"  warning     {unknown:.0%} of the tokens are unknown, each a run of characters that the vocabulary "
      "lacks; train one on this text: leave out --vocabulary, with --train_vocabulary_kind=sentencepiece"
    )
  train = made.splits["train"]
  is_alone = made.packing in ("complete_doc", "eos")  # texts that share no record
  if train.records >= 10 and train.tokens < LEAST_FILLED * train.records * made.length and not is_alone:
    lines.append(
      "  warning     records are less than half full: texts of different shards never share a record; give "
      "the source fewer, larger shards, or prepare its files: --source='FOLDER/*'"
    )
  if counts.get("heldout_blocks"):
    lines.append(
      "  warning     too few documents to hold any out: held out are single blocks, whose neighbours are "
      "trained on; put blank lines between the documents of a text file"
    )
  if not made.splits["heldout"].records:
    lines.append(
      "  warning     no held-out records: there is nothing to evaluate on; give more text and a "
      "--heldout_fraction above 0, or train with --config.train.eval_batches=0"
    )
  return "\n".join(lines)


def _files(made: manifest.Manifest) -> list[str]:
  lines = []
  by_number = sorted(made.damaged_files.items(), key=lambda file: -sum(file[1].values()))
  for name, counts in by_number[:MOST_FILES]:
    repairs = [
      f"{what.replace('_', ' ')}: {number:,}" for what, number in counts.items() if what in manifest.REPAIRS
    ]
    lines.append(f"  {'' if lines else 'files':11} {name}: {', '.join(repairs) or 'no documents'}")
  if len(by_number) > MOST_FILES:
    lines.append(f"  {'':11} and {len(by_number) - MOST_FILES:,} more: 'damaged_files' in {manifest.NAME}")
  invalid = made.counts.get("invalid_characters", 0)
  if 0 < invalid <= made.counts.get(manifest.REPLACEMENTS, 0):
    lines.append(
      "  warning     the text has U+FFFD, which another program wrote for what it could not read; each "
      "became a space"
    )
  elif invalid:
    lines.append(
      "  warning     bytes that are not UTF-8 became spaces; if a file has another encoding, convert it: "
      "iconv -f ENCODING -t UTF-8 FILE > utf8.txt"
    )
  return lines
