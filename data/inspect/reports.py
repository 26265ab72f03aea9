"""Makes all tables about one directory, or two of one kind, for the console and the page."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from data import manifest
from data.inspect import fertility
from data.inspect.beside import facts_table, label, share
from data.inspect.look import Asked, Look
from data.tables import Report, Table, text_column

_MOST_FILES = 5  # repaired input files that are named
_QUANTILES = ("minimum", "5 % quantile", "median", "95 % quantile", "maximum")
_SHOWN = (400, 150)  # characters of a record, from its beginning and from its end
# Counts of a manifest that are in the table of sizes.
_AMONG_SIZES = ("documents", "sentences", "characters", "unknown_tokens")
_AMONG_SIZES += (manifest.SEGMENTS, manifest.MOST_SEGMENTS)
_AMONG_SIZES += tuple(f"{split}_{what}" for split in ("train", "heldout") for what in ("records", "tokens"))


def make(looks: Sequence[Look], asked: Asked) -> list[Report]:
  """Returns all tables about the inspected directories, in order of display; all must be of one kind."""
  of_words = [fertility.by_script, fertility.by_language, fertility.most_cut]
  if looks[0].records:
    parts = [_lengths, *of_words, _noted, _settings, _blocks]
    return [_sizes(looks, asked), *(part(looks) for part in parts)]
  parts = [*of_words, _unknown] if looks[0].text else []
  return [_vocabularies(looks), fertility.of_vocabulary(looks), *(part(looks) for part in parts)]


def quantiles(values: np.ndarray) -> list[int]:
  """Returns minimum, 5 % quantile, median, 95 % quantile and maximum of numbers [n], not interpolated."""
  return np.quantile(values, (0, 0.05, 0.5, 0.95, 1), method="inverted_cdf").tolist()


def _sizes(looks: Sequence[Look], asked: Asked) -> Report:
  def facts(look: Look) -> dict[str, Any]:
    assert look.records
    made, looked_at = look.records.made, look.records.lengths.size
    train, held = made.splits["train"], made.splits["heldout"]
    size = sum(shard.bytes for split in (train, held) for shard in split.shards)
    words = look.words
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
      **_segments(look),
      "kind of vocabulary": words.kind,
      "case": "cased" if words.cased else "uncased",
      "pieces": f"{words.size:,}",
      "vocabulary sha256": words.digest[:12],
      **_use(look, look.records.unigram),
      "unknown pieces of all records": f"{made.counts.get('unknown_tokens', 0):,} with the held-out ones",
      "training records read": f"{looked_at:,}",
      "copies among them": f"{look.records.copies:,} ({share(look.records.copies, looked_at)})",
      "held-out records read": f"{look.records.heldout:,}",
      "of these also in training": f"{look.records.leaked:,}",
    }

  notes = _same_vocabulary(looks)
  if any(look.records and look.records.is_sample for look in looks):
    notes.append(
      f"Lengths, words and copies are those of a sample by seed {asked.seed}, all else is exact. A sample "
      "has few of the copies; --records=0 reads every record."
    )
  return facts_table("Records", looks, facts, notes)


def _segments(look: Look) -> dict[str, str]:
  assert look.records
  made = look.records.made
  if made.packing != "segments":
    return {}
  begins = int(look.records.unigram[look.words.special_ids.cls])
  return {
    "segments in a training record": f"{begins / made.splits['train'].records:,.1f}",
    "most segments in a record": f"{made.counts.get(manifest.MOST_SEGMENTS, 0):,}",
  }


def _use(look: Look, times: np.ndarray) -> dict[str, str]:
  """Formats how often [UNK] occurs and how many pieces never occur; `times` [vocab] counts each id."""
  unk, unused = int(times[look.words.special_ids.unk]), np.count_nonzero(times[look.pieces.sizes > 0] == 0)
  return {
    "unknown pieces": f"{unk:,} ({share(unk, int(times.sum()))})",
    "pieces never used": f"{unused:,} ({share(int(unused), look.words.size)})",
  }


def _same_vocabulary(looks: Sequence[Look]) -> list[str]:
  if len(looks) < 2:
    return []
  if looks[0].words.digest == looks[1].words.digest:
    return ["The vocabularies are equal: one model can read both."]
  return ["The vocabularies differ: an id is not the same piece in both."]


def _lengths(looks: Sequence[Look]) -> Report:
  def facts(look: Look) -> dict[str, Any]:
    assert look.records
    lengths, length = look.records.lengths, look.records.made.length
    return {
      **{name: f"{value:,}" for name, value in zip(_QUANTILES, quantiles(lengths))},
      "mean": f"{lengths.mean():,.1f}",
      "full": share(int(np.count_nonzero(lengths == length)), lengths.size),
    }

  return facts_table("Tokens in a training record", looks, facts)


def _noted(looks: Sequence[Look]) -> Report:
  def facts(look: Look) -> dict[str, Any]:
    counts = look.records.made.counts if look.records else {}
    return {
      name.replace("_", " "): f"{value:,}" for name, value in counts.items() if name not in _AMONG_SIZES
    }

  report = facts_table("Repairs and skipped text", looks, facts)
  rows = [
    {"file": name, "repairs": ", ".join(f"{n:,} {kind.replace('_', ' ')}" for kind, n in repairs.items())}
    for look in looks
    for name, repairs in itertools.islice(
      (look.records.made.damaged_files if look.records else {}).items(), _MOST_FILES
    )
  ]
  files = Table([text_column("repaired files", "file"), text_column("", "repairs")], rows)
  if not report.rows:
    return Report("", report.title, [], [], ["Nothing."])
  return dataclasses.replace(report, details=[files] if rows else [])


def _settings(looks: Sequence[Look]) -> Report:
  def facts(look: Look) -> dict[str, Any]:
    settings = look.records.made.settings if look.records else {}
    return {name: "-" if value == "" else value for name, value in settings.items()}

  return facts_table("Settings", looks, facts, are_words=True)


def _blocks(looks: Sequence[Look]) -> Report:
  rows = [
    {"directory": label(look, looks), "text": _shortened(text)}
    for look in looks
    for text in (look.records.blocks if look.records else [])
  ]
  columns = [text_column("directory", "directory"), text_column("text", "text")][len(looks) == 1 :]
  return Report("", "First training records", columns if rows else [], rows, [])


def _shortened(text: str) -> str:
  return text if len(text) <= sum(_SHOWN) + 5 else f"{text[: _SHOWN[0]]} ... {text[-_SHOWN[1] :]}"


def _vocabularies(looks: Sequence[Look]) -> Report:
  def facts(look: Look) -> dict[str, Any]:
    words, sizes = look.words, look.pieces.sizes[look.pieces.sizes > 0]
    return {
      "kind": words.kind,
      "case": "cased" if words.cased else "uncased",
      "pretokenization": words.pretokenization,
      "pieces": f"{words.size:,}",
      f"ids of {', '.join(vars(words.special_ids))}": ", ".join(map(str, vars(words.special_ids).values())),
      "sha256": words.digest[:12],
      **dict(zip((f"characters of a piece: {name}" for name in _QUANTILES), map(str, quantiles(sizes)))),
      **(_facts_of_text(look) if look.text else {}),
    }

  notes = _same_vocabulary(looks)
  if looks[0].text and not looks[0].text.is_whole:
    notes.append("The first documents of each part of the source were read; --records=0 reads all of it.")
  return facts_table("Vocabulary", looks, facts, notes)


def _facts_of_text(look: Look) -> dict[str, str]:
  assert look.text and look.counts
  tokens = look.counts.used.copy()
  tokens[look.words.special_ids.sep] = 0  # added between sentences, not part of the text
  return {
    "documents read": f"{look.text.documents:,}",
    "characters read": f"{look.text.characters:,}",
    "pieces of this text": f"{tokens.sum():,}",
    **_use(look, tokens),
  }


def _unknown(looks: Sequence[Look]) -> Report:
  def facts(look: Look) -> dict[str, Any]:
    found = look.text.unknown if look.text else []
    return {
      f"{character} U+{ord(character):04X}": f"{times:,}" for character, times in found[: fertility.MOST_ROWS]
    }

  report = facts_table("Characters that become [UNK]", looks, facts)
  return report if report.rows else Report("", report.title, [], [], ["None."])
