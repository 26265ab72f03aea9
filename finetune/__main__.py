"""`python -m finetune` names the commands of this package; exit code 2."""

import sys

if __name__ == "__main__":
  print(
    "`finetune` is a package; its commands are python -m finetune.main, .predict, .evaluate and .mine;\n"
    "each has --help, and docs/guides/fine_tuning.md shows them",
    file=sys.stderr,
  )
  sys.exit(2)
