"""Compares the lines of Python with the commit that a change began at: `python -m tests.growth`.

A change may grow by the lines that its commit messages name, each in a line of its own:
`grows: 120 because ...`. The base is GROWTH_BASE, else the merge base with origin/main, else, on main itself,
the last commit before HEAD.
Exit code 1: it grew by more. Without a git history nothing is compared.
"""

import collections
import os
import re
import subprocess
import sys
import time

from tests import test_layering

PARTS = ("product", "lab", "tests")
_PART_OF = dict.fromkeys(("pretrain", "finetune", "data", "configs"), "product") | {
  "lab": "lab",
  "tests": "tests",
}
_SAID = re.compile(r"^grows: (\d+) because \S", re.MULTILINE)


def _git(*words: str) -> str:
  done = subprocess.run(["git", *words], cwd=test_layering.ROOT, capture_output=True, text=True, check=False)
  return done.stdout if done.returncode == 0 else ""


def lines_at(commit: str) -> collections.Counter[str]:
  """Returns {part: lines of Python} of a commit; '' is the checkout."""
  counts: collections.Counter[str] = collections.Counter()
  for line in _git(
    "grep", "-c", *(["", commit] if commit else ["--untracked", ""]), "--", "*.py"
  ).splitlines():
    path, _, number = line.removeprefix(f"{commit}:").rpartition(":")
    counts[_PART_OF.get(path.partition("/")[0], "other")] += int(number)
  return counts


def base() -> str:
  """Returns the commit to compare with; '' without one."""
  asked = os.environ.get("GROWTH_BASE", "")
  head = _git("rev-parse", "HEAD").strip()
  shared = _git("merge-base", "HEAD", asked or "origin/main").strip()
  return shared if shared and (asked or shared != head) else _git("rev-parse", "HEAD~1").strip()


def main() -> int:
  """Prints lines, growth and the sum of the month; 1 where more grew than the messages say."""
  commit, now = base(), lines_at("")
  if not commit:
    print("no git history: lines are not compared")
    return 0
  before = lines_at(commit)
  allowed = sum(map(int, _SAID.findall(_git("log", "--format=%B", f"{commit}..HEAD"))))
  month = _git("rev-list", "-1", f"--before={time.strftime('%Y-%m-01')} 00:00", "HEAD").strip()
  monthly = lines_at(month) if month else collections.Counter()
  for part in PARTS:
    grown, of_month = now[part] - before[part], now[part] - monthly[part]
    print(f"{part:8} {now[part]:7,} lines, {grown:+,}; this month {of_month:+,}")
  grown = sum(max(0, now[part] - before[part]) for part in PARTS)  # fewer tests pay for no product
  if grown > allowed:
    print(
      f"{grown:,} lines more than {commit[:8]}, and messages since then name {allowed:,}; remove as much, "
      f"or say in a commit's message\n  grows: {grown} because ...",
      file=sys.stderr,
    )
  return int(grown > allowed)


if __name__ == "__main__":
  sys.exit(main())
