"""Formats the summary of a finished preparation that `data.prepare` prints."""

from data.clean import apply as clean
from data.errors import counted
from data.manifest import MOST_SEGMENTS, NAME, NO_DOCUMENTS, REPAIRS, REPLACEMENTS, SEGMENTS, Manifest

MOST_FILES = 3  # damaged input files that are named
LEAST_FILLED = 0.5  # packing joins any two records that are emptier, unless they are of two shards
MOST_UNKNOWN = 0.1  # fraction of unknown tokens above which a line warns


def of(made: Manifest) -> str:
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
      f"  {name:11} {counted(split.records, 'record')}, {split.tokens:,} tokens ({filled:.0%} full), "
      f"{size:.1f} MB in {counted(len(split.shards), 'file')}"
    )
  counts = made.counts
  if number := counts.get(SEGMENTS):
    records = sum(split.records for split in made.splits.values())
    lines.append(
      f"  segments    {number:,}, {number / records:.1f} a record, at most {counts[MOST_SEGMENTS]:,}"
    )
  documents = counted(counts.get("documents", 0), "document")
  lines.append(f"  text        {documents}, {counts.get('characters', 0):,} characters")
  for number, line in enumerate(clean.summary(made.settings.get("clean", ""), counts)):
    lines.append(f"  {'' if number else 'cleaning':11} {line}")
  worth_noting = ("empty_documents", "sentences_cut_to_length", "tokens_dropped", "unknown_tokens")
  worth_noting += (*REPAIRS, NO_DOCUMENTS)
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


def _files(made: Manifest) -> list[str]:
  lines = []
  by_number = sorted(made.damaged_files.items(), key=lambda file: -sum(file[1].values()))
  for name, counts in by_number[:MOST_FILES]:
    repairs = [f"{what.replace('_', ' ')}: {number:,}" for what, number in counts.items() if what in REPAIRS]
    lines.append(f"  {'' if lines else 'files':11} {name}: {', '.join(repairs) or 'no documents'}")
  if len(by_number) > MOST_FILES:
    lines.append(f"  {'':11} and {len(by_number) - MOST_FILES:,} more: 'damaged_files' in {NAME}")
  invalid = made.counts.get("invalid_characters", 0)
  if 0 < invalid <= made.counts.get(REPLACEMENTS, 0):
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
