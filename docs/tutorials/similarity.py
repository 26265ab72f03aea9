"""From text to sentence similarity: pretrain, export, load with plain transformers.

  python docs/tutorials/similarity.py --steps=1000            # installed documentation, minutes on two cores
  python docs/tutorials/similarity.py --steps=1000 --config.data.source='/my/*.txt' --workdir=runs/mine

Run it in the repository's root with requirements-export.txt installed. Flags it does not know go to
pretrain.main. What comes after the export is what a user of the exported folder writes: it imports nothing of
this project.
"""

import argparse
import pathlib
import subprocess
import sys

SENTENCES = (
  "Returns the sum of the array elements over the given axis.",
  "Computes the total of the values along a dimension.",
  "Raises an error if the file does not exist.",
  "An exception is thrown when the path cannot be found.",
  "Use a smaller learning rate when training becomes unstable.",
)


def run(module: str, *flags: str) -> None:
  """Runs a command of this project and shows it; ends as it does where it fails."""
  print("$ python -m", module, *flags, flush=True)
  if code := subprocess.run([sys.executable, "-m", module, *flags]).returncode:
    sys.exit(code)


def similarities(folder: pathlib.Path) -> list[list[float]]:
  """Cosine of every two sentences: hidden states averaged over tokens."""
  import torch
  from transformers import AutoModel, AutoTokenizer

  tokenizer = AutoTokenizer.from_pretrained(folder)
  model = AutoModel.from_pretrained(folder).eval()
  inputs = tokenizer(list(SENTENCES), padding=True, truncation=True, return_tensors="pt")
  with torch.no_grad():
    hidden = model(**inputs).last_hidden_state
  mask = inputs["attention_mask"][..., None]
  pooled = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
  return (pooled @ pooled.T).tolist()


def main() -> None:
  """Pretrains, exports and compares sentences."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--steps", type=int, default=1_000, help="updates of pretraining")
  parser.add_argument("--workdir", default="runs/similarity")
  parser.add_argument("--output", default="exported/similarity", type=pathlib.Path)
  arguments, others = parser.parse_known_args()
  recipe = ("--config=configs/coco_lm_base.py:tiny", f"--config.train.total_steps={arguments.steps}")
  warmup = f"--config.optimizer.warmup_steps={min(200, arguments.steps // 5)}"
  run("pretrain.main", *recipe, warmup, f"--workdir={arguments.workdir}", *others)
  run("pretrain.export", f"--checkpoint={arguments.workdir}", f"--output={arguments.output}")
  print("\ncosines of mean-pooled hidden states")
  for row, sentence in zip(similarities(arguments.output), SENTENCES):
    print("  ".join(f"{value:6.3f}" for value in row), "", sentence)


if __name__ == "__main__":
  main()
