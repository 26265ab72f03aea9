"""Damage to the newest checkpoint of a run, of every kind that faults.md S3 and S4 name."""

import random
import shutil
from pathlib import Path

from pretrain.checkpoints import checkpoint

PAGE = 4096  # bytes
OF_FILES = ("bit", "page", "cut", "empty", "gone")
OF_STEPS = ("item gone", "step emptied", "empty step above", "renamed copy above", "items exchanged")
KINDS = (*OF_FILES, *OF_STEPS)


def hurt(rng: random.Random, place: Path, kind: str, item: str = "") -> str:
  """Does damage of a kind to the newest of at least two whole steps in `place`; says what was done."""
  older, newest = (place / str(step) for step in checkpoint.saved_steps(place)[-2:])
  item, above = item or rng.choice(checkpoint.ITEMS), place / str(int(newest.name) + 7)
  if kind in OF_FILES:
    path = rng.choice(sorted(path for path in newest.rglob("*") if path.is_file()))
    _hurt_file(rng, path, kind)
    return f"{kind} in {path.relative_to(place)}"
  if kind == "item gone":
    shutil.rmtree(newest / item)
  elif kind == "step emptied":
    shutil.rmtree(newest)
    newest.mkdir()
  elif kind == "empty step above":
    above.mkdir()
  elif kind == "renamed copy above":
    shutil.copytree(older, above)
  else:
    (older / item).rename(place / "aside")
    (newest / item).rename(older / item)
    (place / "aside").rename(newest / item)
  return f"{kind}: {newest.name}, {item}"


def _hurt_file(rng: random.Random, path: Path, kind: str) -> None:
  content = bytearray(path.read_bytes())
  if kind == "gone" or not content:
    path.unlink()
    return
  position = rng.randrange(len(content))
  if kind == "bit":
    content[position] ^= 1 << rng.randrange(8)
  elif kind == "page":
    start = position // PAGE * PAGE
    content[start : start + PAGE] = bytes(len(content[start : start + PAGE]))
  else:
    content = content[: position if kind == "cut" else 0]
  path.write_bytes(content)
