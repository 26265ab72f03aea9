"""What `data.prepare` prints about a finished preparation."""

from data.clean import apply as clean
from data.manifest import REPAIRS, Manifest


def of(made: Manifest) -> str:
  """Returns a few lines about the vocabulary, the splits, the text, and what the user should know of them."""
  lines = [
    f"  vocabulary  {made.vocabulary.kind}, {made.vocabulary.size:,} pieces, sha256 "
    f"{made.vocabulary.digest[:12]}",
    f"  packing     {made.packing}, at most {made.length} tokens",
  ]
  for name, split in made.splits.items():
    size = sum(shard.bytes for shard in split.shards) / 1e6
    filled = split.tokens / max(1, split.records * made.length)
    lines.append(
      f"  {name:11} {split.records:,} records, {split.tokens:,} tokens ({filled:.0%} full), {size:.1f} MB in "
      f"{len(split.shards)} files"
    )
  counts = made.counts
  lines.append(
    f"  text        {counts.get('documents', 0):,} documents, {counts.get('characters', 0):,} characters"
  )
  for number, line in enumerate(clean.summary(made.settings.get("clean", ""), counts)):
    lines.append(f"  {'' if number else 'cleaning':11} {line}")
  worth_noting = ("empty_documents", "sentences_cut_to_length", "unknown_tokens", *REPAIRS)
  noted = [f"{counts[name]:,} {name.replace('_', ' ')}" for name in worth_noting if counts.get(name)]
  if noted:
    lines.append(f"  noted       {', '.join(noted)}")
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
