"""Checks golden files, the inputs and outputs of the official code: `python -m tests.goldens DIRECTORY`.

A golden is `NAME.npz` with `NAME.json`; the name up to its second underscore is the kind. Every size, seed
and number is read from the file, and what is checked are the project's own functions. Prints a line for
every file and group of terms. Exit code 0: everything agrees; 1: a miss, an unreadable file, an unknown
kind, or a file of which nothing was compared; 3: no golden file there.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import jax

from data.errors import DataError, UserError
from tests.golden import (
  autoencoder,
  data_rules,
  files,
  finetuning,
  modern,
  networks,
  objectives,
  optimizer,
  recipes,
  sharing,
  tokenizer,
)
from tests.golden.compare import Checks
from tests.golden.files import Golden

CHECKS: dict[str, Callable[[Golden, Checks], None]] = {
  "a_hf": networks.check_encoder,
  "b_relpos": data_rules.check_relative_positions,
  "b2_data": data_rules.check_data_rules,
  "b3_packing": data_rules.check_packing,
  "c_clm": objectives.check_clm,
  "d_scl": objectives.check_scl,
  "e_amos": networks.check_mixture,
  "f_taco": objectives.check_taco,
  "g_rtd": objectives.check_rtd,
  "h_schedule": optimizer.check_schedule,
  "i_glue": finetuning.check_glue_metrics,
  "i_squad": finetuning.check_squad,
  "j_amos": recipes.check_amos,
  "j_cocolm": recipes.check_coco_lm,
  "k_tokenizer": tokenizer.check_tokenizer,
  "l_modernbert": modern.check_pre_norm,
  "l2_modernbert": modern.check_pre_norm,
  "m_ultrabert": modern.check_pre_norm,
  "m2_ultrabert": modern.check_pre_norm,
  "q_masks": data_rules.check_whole_words,
  "m_ngram": data_rules.check_windows,
  "n_maelm": autoencoder.check_autoencoder,
  "n_removal": autoencoder.check_removal,
  "p_metro": objectives.check_metro,
  "m_gdes": sharing.check_sharing,
  "m2_gdes": sharing.check_sharing,
  "q_schedules": optimizer.check_trapezoids,
  "q_stableadamw": optimizer.check_stable_adamw,
  "q_tiling": networks.check_growth,
}
# Keys that are given to us.
_GRADIENT_INPUTS = {"h_schedule": r"adam/grad\d+/", "q_stableadamw": r"\w+/g\d+/"}


def check_file(directory: Path, name: str) -> tuple[list[str], int, list[str]]:
  """Checks one file.

  Args:
    directory: where it is.
    name: without extension.

  Returns:
    Lines to print, number of compared keys, and misses.
  """
  kind = files.kind_of(name)
  if kind not in CHECKS:
    miss = f"unknown kind {kind!r}; known: {', '.join(CHECKS)}"
    return [f"{name:24} MISS  {miss}"], 0, [miss]
  try:
    golden = files.load(directory, name)
  except UserError as error:
    return [f"{name:24} MISS  {error}"], 0, [str(error)]
  checks, errors = Checks(golden), []
  try:
    CHECKS[kind](golden, checks)
  except Exception as error:  # whatever a file makes the code do is a miss of that file; the others go on
    text = " ".join(str(error).split())
    errors.append(f"stopped by {type(error).__name__}: {text[:300]}")
  errors += checks.finish(inputs=_GRADIENT_INPUTS.get(kind, r"(?!)"))
  return _report(golden, checks, errors)


def _report(golden: Golden, checks: Checks, errors: list[str]) -> tuple[list[str], int, list[str]]:
  lines, misses = [], list(errors)
  for name, group in checks.groups.items():
    atol, rtol = group.tolerance
    tolerance = "exact" if atol == rtol == 0.0 else f"atol {atol:.0e} rtol {rtol:.0e}"
    verdict = "ok" if not group.misses else f"MISS ({len(group.misses)})"
    lines.append(
      f"{golden.name:24} {name:10} {group.keys:4d} keys  max abs error {group.max_error:.1e}  "
      f"{tolerance:24} {verdict}"
    )
    lines += [f"{'':24} MISS  {miss}" for miss in group.misses]
    misses += group.misses
  lines += [f"{golden.name:24} MISS  {error}" for error in errors]
  left_out = golden.untouched()
  if left_out:
    lines.append(f"{golden.name:24} not compared: {', '.join(left_out)}")
  return lines, len(checks.compared), misses


def main(arguments: list[str]) -> int:
  """Checks every file of a directory; returns the exit code."""
  parser = argparse.ArgumentParser(prog="python -m tests.goldens", description=__doc__.split("\n")[0])
  parser.add_argument("directory", type=Path, help="folder with the golden .npz and .json files")
  directory = parser.parse_args(arguments).directory
  try:
    names = files.names_in(directory)
  except DataError as error:
    print(error, file=sys.stderr)
    return error.exit_code
  num_keys, num_wrong = 0, 0
  # The files are float32 against float32: no bfloat16 or TF32 products on accelerators.
  with jax.default_matmul_precision("highest"):
    for name in names:
      lines, keys, misses = check_file(directory, name)
      print("\n".join(lines), flush=True)
      num_keys += keys
      num_wrong += bool(misses)
  print(f"{len(names)} files, {num_keys} keys compared, {num_wrong} files with a miss")
  return 1 if num_wrong else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
