"""What a manifest says is held against what lies beside it."""

import dataclasses
import re
import shutil

from data import errors, manifest, records


def test_a_flipped_bit_of_the_manifest_is_refused_or_changes_no_number(prepared, tmp_path):
  """All bits of numbers and of what is said of the vocabulary, a bit of each third letter of the rest."""
  copy = shutil.copytree(prepared, tmp_path / "copy")
  path, before = copy / manifest.NAME, manifest.read(copy)
  content, harmless = path.read_bytes(), 0
  numbers = {at for found in re.finditer(rb": \d+", content) for at in range(*found.span())}
  for at in range(len(content)):
    is_relevant = at in numbers or at > content.index(b'"vocabulary": {')
    for bit in range(8) if is_relevant else [at % 8] * (at % 3 == 0):
      flipped = bytearray(content)
      flipped[at] ^= 1 << bit
      path.write_bytes(flipped)
      try:
        made = manifest.read(copy)
        if made.splits != before.splits or made.vocabulary != before.vocabulary or made.dtype != before.dtype:
          records.PackedRecords(copy, length=32, seed=0)
          records.PackedRecords(copy, split="heldout", length=32, seed=0)
      except errors.UserError:
        continue
      harmless += 1
      same = dataclasses.replace(before.splits["heldout"], tokens=made.splits["heldout"].tokens)
      assert made.vocabulary == before.vocabulary and made.dtype == before.dtype, (at, bit)
      assert made.splits == {"train": before.splits["train"], "heldout": same}, (at, bit)
  assert harmless  # names of sources, counts for people
