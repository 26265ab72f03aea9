"""Shows what is in prepared records or a vocabulary.

  python -m data.inspect prepared/mine
  python -m data.inspect prepared/mine/vocabulary --source='corpus/*.txt'

Sizes, fill, unknown pieces and repairs are exact; lengths, words and copies are those of a sample of records
without repetition. With --source, a vocabulary is applied to that text. Several directories are shown one
after the other.
"""

import argparse
import array
import hashlib
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from data import command, errors, fertility, manifest, progress, records, sources, vocabulary
from data.fertility import share
from data.tables import Column, Report, text_column

_QUANTILES = ("minimum", "5 % quantile", "median", "95 % quantile", "maximum")
_SHOWN = (400, 150)  # characters of a record, from its beginning and from its end
_BATCH = 256  # records read at a time
# Counts of a manifest that have a row of their own; the others are repairs and skipped text.
_AMONG_SIZES = ("documents", "sentences", "characters", "unknown_tokens")
_AMONG_SIZES += (manifest.SEGMENTS, manifest.MOST_SEGMENTS)
_AMONG_SIZES += tuple(f"{split}_{what}" for split in ("train", "heldout") for what in ("records", "tokens"))


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run(lambda: _run(_parse(arguments)))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
  """Parses the flags; ConfigError if one is unknown or has an invalid value."""
  parser = command.Parser(prog="python -m data.inspect", description=__doc__)
  parser.add_argument(
    "directories", nargs="+", metavar="DIR", help="output of data.prepare or data.vocabulary"
  )
  parser.add_argument(
    "--records",
    type=int,
    default=4096,
    help="most records of each split to read, or documents of --source (0: all)",
  )
  parser.add_argument("--blocks", type=int, default=3, help="records to show decoded")
  parser.add_argument("--seed", type=int, default=0, help="decides the sample of records")
  sources.add_flags(parser, is_required=False)
  asked = parser.parse_args(arguments)
  for name in ("records", "blocks", "seed", "limit", "workers"):
    if getattr(asked, name) < 0:
      raise errors.ConfigError(f"--{name}={getattr(asked, name)}: expected at least 0")
  return asked


def _run(asked: argparse.Namespace) -> None:
  are_vocabularies = [_is_vocabulary(directory) for directory in asked.directories]
  if asked.source:
    for directory, is_vocabulary in zip(asked.directories, are_vocabularies):
      if not is_vocabulary:
        raise errors.ConfigError(
          f"--source needs a vocabulary, {directory} is prepared records; remove --source, or name "
          f"{directory}/vocabulary"
        )
    sources.check(sources.request(asked))
  for directory, is_vocabulary in zip(asked.directories, are_vocabularies):
    for report in (of_vocabulary if is_vocabulary else of_records)(directory, asked):
      report.print()


def _is_vocabulary(directory: str) -> bool:
  """Returns whether a directory is a vocabulary, not prepared records; DataError if it is neither."""
  path = pathlib.Path(directory)
  is_there = path.is_dir()
  if is_there and not (path / manifest.NAME).exists():
    if (path / vocabulary.NAME).exists():
      return True
    is_there = (path / "work").is_dir()  # then `manifest.read` reports that it is unfinished
  if not is_there:
    found = f"has no {manifest.NAME} and no {vocabulary.NAME}" if path.is_dir() else "is no directory"
    raise errors.DataError(
      f"{directory} {found}; expected the --output of `python -m data.prepare` or of `python -m "
      "data.vocabulary`"
    )
  return False


def of_records(directory: str, asked: argparse.Namespace) -> Iterator[Report]:
  """Yields the tables about prepared records; `asked` has the numbers of records and blocks, and the seed.

  DataError: the preparation is unfinished or damaged.
  """
  made = manifest.read(directory)
  train = _opened(directory, "train", made, asked.seed)
  words = vocabulary.load(pathlib.Path(directory) / "vocabulary")
  counts = fertility.Counts(fertility.Pieces(words))
  lengths, digests = array.array("I"), array.array("Q")  # compact: there may be millions
  number = min(len(train), asked.records or len(train))
  for row in progress.track(_rows(train, number), name=f"look at {directory}", total=number):
    counts.add(row)
    lengths.append(row.size)
    digests.append(_digest(row))
  held = array.array("Q")
  if made.splits["heldout"].records:
    source = _opened(directory, "heldout", made, asked.seed)
    held.extend(map(_digest, _rows(source, min(len(source), asked.records or len(source)))))
  lengths, known = np.array(lengths, np.int64), np.array(digests, np.uint64)
  copies = known.size - np.unique(known).size
  leaked = int(np.isin(np.array(held, np.uint64), known).sum())
  notes = [
    f"Lengths, words and copies are those of a sample by seed {asked.seed}, all else is exact. A sample has "
    "few of the copies; --records=0 reads every record."
  ]
  facts = _sizes(made, words, counts.pieces, records.unigram(directory)) | {
    "training records read": f"{number:,}",
    "copies among them": f"{copies:,} ({share(copies, number)})",
    "held-out records read": f"{len(held):,}",
    "of these also in training": f"{leaked:,}",
  }
  yield _table("Records", directory, facts, notes if number < len(train) else [])
  of_lengths = {
    **{name: f"{value:,}" for name, value in zip(_QUANTILES, _quantiles(lengths))},
    "mean": f"{lengths.mean():,.1f}",
    "full": share(int(np.count_nonzero(lengths == made.length)), number),
  }
  yield _table("Tokens in a training record", directory, of_lengths)
  yield fertility.by_script({directory: counts})
  repairs = {name: f"{n:,}" for name, n in made.counts.items() if name not in _AMONG_SIZES}
  yield _table(
    "Repairs and skipped text", directory, {name.replace("_", " "): n for name, n in repairs.items()}
  )
  blocks = [words.decode(_unpadded(train, row).tolist()) for row in train.rows(0, asked.blocks)]
  rows = [{"text": _shortened(text)} for text in blocks]
  yield Report("", "First training records", [text_column("text", "text")] if rows else [], rows, [])


def _sizes(
  made: manifest.Manifest, words: vocabulary.Vocabulary, pieces: fertility.Pieces, unigram: np.ndarray
) -> dict[str, str]:
  """Returns the exact facts about records; `unigram` [vocab] counts each id in all training records."""
  train, held = made.splits["train"], made.splits["heldout"]
  size = sum(shard.bytes for split in (train, held) for shard in split.shards)
  segments = {}
  if made.packing == "segments":
    segments = {
      "segments in a training record": f"{unigram[words.special_ids.cls] / train.records:,.1f}",
      "most segments in a record": f"{made.counts.get(manifest.MOST_SEGMENTS, 0):,}",
    }
  return {
    **{name: f"{made.counts.get(name, 0):,}" for name in _AMONG_SIZES[:3]},
    "training records": f"{train.records:,}",
    "training tokens": f"{train.tokens:,}",
    "held-out records": f"{held.records:,}",
    "held-out tokens": f"{held.tokens:,}",
    "size of the records": f"{size / 1e6:,.1f} MB",
    "packing": made.packing,
    "most tokens in a record": f"{made.length:,}",
    "fill of training records": share(train.tokens, train.records * made.length),
    **segments,
    "kind of vocabulary": f"{words.kind}, {'cased' if words.cased else 'uncased'}",
    "pieces": f"{words.size:,}",
    "vocabulary sha256": words.digest[:12],
    **_use(words, pieces, unigram),
    "unknown pieces of all records": f"{made.counts.get('unknown_tokens', 0):,} with the held-out ones",
  }


def of_vocabulary(directory: str, asked: argparse.Namespace) -> Iterator[Report]:
  """Yields the tables about a vocabulary, and about the text that `asked` may name.

  DataError: the vocabulary is damaged or has only special pieces, or the text has no usable document.
  """
  words = vocabulary.load(directory)
  special = vars(words.special_ids)
  if words.size == len(special):
    raise errors.DataError(f"{directory} has only special pieces; train or import another vocabulary")
  pieces = fertility.Pieces(words)
  sizes = _quantiles(pieces.sizes[pieces.sizes > 0])
  facts = {
    "kind": words.kind,
    "case": "cased" if words.cased else "uncased",
    "pretokenization": words.pretokenization,
    "pieces": f"{words.size:,}",
    f"ids of {', '.join(special)}": ", ".join(map(str, special.values())),
    "sha256": words.digest[:12],
    **{f"characters of a piece: {name}": str(value) for name, value in zip(_QUANTILES, sizes)},
  }
  if not asked.source:
    yield _table("Vocabulary", directory, facts)
    return
  request = sources.request(asked)
  text = fertility.of_text(words, request, most=asked.records, num_workers=asked.workers)
  tokens = text.counts.used.copy()
  tokens[words.special_ids.sep] = 0  # added between sentences, not part of the text
  facts |= {
    "documents read": f"{text.documents:,}",
    "characters read": f"{text.characters:,}",
    "pieces of this text": f"{tokens.sum():,}",
    **_use(words, pieces, tokens),
  }
  note = "The first documents of each part of the source were read; --records=0 reads all of it."
  yield _table("Vocabulary", directory, facts, [] if text.is_whole else [note])
  yield fertility.by_script({directory: text.counts})
  for title, found in (
    ("Characters that become [UNK]", text.unknown),
    ("Characters that are left out or read as a space", text.dropped),
  ):
    shown = {f"{each} U+{ord(each):04X}": f"{times:,}" for each, times in found[: fertility.MOST_ROWS]}
    yield _table(title, directory, shown)


def _use(words: vocabulary.Vocabulary, pieces: fertility.Pieces, times: np.ndarray) -> dict[str, str]:
  """Formats how often [UNK] occurs and how many pieces never occur; `times` [vocab] counts each id."""
  unk, unused = int(times[words.special_ids.unk]), int(np.count_nonzero(times[pieces.sizes > 0] == 0))
  return {
    "unknown pieces": f"{unk:,} ({share(unk, int(times.sum()))})",
    "pieces never used": f"{unused:,} ({share(unused, words.size)})",
  }


def _opened(directory: str, split: str, made: manifest.Manifest, seed: int) -> records.PackedRecords:
  return records.PackedRecords(directory, split=split, length=made.length, seed=seed, content=made)


def _rows(source: records.PackedRecords, number: int) -> Iterator[np.ndarray]:
  """Yields the first `number` records of the first epoch, so none twice, without padding."""
  for step in range(-(-number // _BATCH)):
    batch = source.batch(step, _BATCH, rows=range(min(_BATCH, number - step * _BATCH)))
    yield from (_unpadded(source, row) for row in batch)


def _unpadded(source: records.PackedRecords, row: np.ndarray) -> np.ndarray:
  return row[row != source.pad]


def _digest(row: np.ndarray) -> int:
  return int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little")


def _quantiles(values: np.ndarray) -> list[int]:
  """Returns minimum, 5 % quantile, median, 95 % quantile and maximum of numbers [n], not interpolated."""
  return np.quantile(values, (0, 0.05, 0.5, 0.95, 1), method="inverted_cdf").tolist()


def _shortened(text: str) -> str:
  return text if len(text) <= sum(_SHOWN) + 5 else f"{text[: _SHOWN[0]]} ... {text[-_SHOWN[1] :]}"


def _table(title: str, directory: str, facts: Mapping[str, str], notes: Iterable[str] = ()) -> Report:
  """Returns a table with a row for each fact about a directory, or the note 'None.' if there is no fact."""
  if not facts:
    return Report("", title, [], [], ["None."])
  rows = [{"fact": name, "value": value} for name, value in facts.items()]
  columns = [text_column("", "fact"), Column(directory, lambda row: row["value"])]
  return Report("", title, columns, rows, [*notes])


if __name__ == "__main__":
  raise SystemExit(main())
