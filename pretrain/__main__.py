"""`python -m pretrain` names the commands of this package; exit code 2."""

import sys

if __name__ == "__main__":
  print(
    "`pretrain` is a package with the commands python -m pretrain.main, .demo, .export, .checkpoints,\n"
    ".embed, .search, .report, .probe, .analysis and .ablations; each has --help, and README.md shows them",
    file=sys.stderr,
  )
  sys.exit(2)
