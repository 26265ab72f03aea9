"""`python -m data` names the commands of this package; exit code 2."""

import sys

if __name__ == "__main__":
  print(
    "`data` is a package; its commands are python -m data.prepare, .vocabulary, .inspect and .corpora;\n"
    "each has --help, and docs/guides/data.md shows them",
    file=sys.stderr,
  )
  sys.exit(2)
