"""How long a TPU kernel is by its compiled schedule, for kernels whose cycles libtpu does not estimate.

libtpu writes down the bundles of every kernel, each what a core starts in one cycle, if it is asked to before
it is loaded. A kernel of Pallas is a loop over its grid: bundles outside it count once, those inside once for
every turn, but for those that run at the first or last place of an axis alone. Waiting for memory is in none.
"""

import functools
import os
import re
import tempfile
from pathlib import Path

_DUMP = "--xla_jf_dump_to="
_LABEL = "final_bundles"  # of the pass that leaves the bundles as they run
_BUNDLE = re.compile(r"^\s*(?:0x[0-9a-f]+|0)\s*(?:[A-Z]{2})?\s*:\s*(>*)\s*\{(.*)")
_TURNS = re.compile(r"scmp\.ge\.s32\.totalorder %\w+, (\d+) /\* loop exit test \*/")
_LIMIT = re.compile(r"scmp\.ge\.s32\.totalorder %\w+, (\d+)")
_ELSEWHERE = re.compile(r"(%\w+) = scmp\.ne\.s32\.totalorder %\w+, \d+\b")  # not at one place of an axis
_SKIP = re.compile(r"sbr\.rel \((%\w+)\) target = \$region(\d+)\b")


def ask_for_them() -> None:
  """Has libtpu write bundles into a folder of this process, unless the environment has it dump elsewhere."""
  arguments = os.environ.get("LIBTPU_INIT_ARGS", "")
  if _DUMP not in arguments:
    dump = f"{_DUMP}{_folder().name} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex={_LABEL}"
    os.environ["LIBTPU_INIT_ARGS"] = f"{arguments} {dump}".strip()


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
  return tempfile.TemporaryDirectory(prefix="schedules-", ignore_cleanup_errors=True)


def forget() -> None:
  """Removes what was written by earlier compilations, whose kernels have the same names."""
  for path in Path(_folder().name).iterdir():
    path.unlink()


def cycles(name: str) -> int | None:
  """The cycles of one run of the kernel of an instruction's name; None: its schedule is not known."""
  paths = sorted(Path(_folder().name).glob(f"*-{name}-*-{_LABEL}.txt"))
  return total(paths[-1].read_text()) if paths else None


def total(bundles: str) -> int | None:
  """Bundles that run, from libtpu's text: those in the loop as often as it turns; None: it holds loops.

  The loop ends where its counter, which starts at 0 and grows by 1, has reached the number in its test.
  """
  lines = [bundle for line in bundles.splitlines() if (bundle := _BUNDLE.match(line))]
  inside = [bundle[2] for bundle in lines if bundle[1]]
  ending = next((test for text in inside if (test := _TURNS.search(text))), None)
  if not lines or any(len(bundle[1]) > 1 for bundle in lines) or bool(inside) != bool(ending):
    return None
  turns = int(ending[1]) if ending else 0
  rare = _at_one_place(inside)
  often = turns - turns // _shortest_axis(inside, turns - 2)  # turns in which those do not run
  return len(lines) - len(inside) + turns * len(inside) - often * rare


def _shortest_axis(inside: list[str], places: int) -> int:
  """Places of the shorter axis of a grid with two, from the tests that end them; 1: they do not tell."""
  limits = {int(number) for text in inside for number in _LIMIT.findall(text)}
  return min((limit for limit in limits if limit > 1 and places / limit in limits - {1}), default=1)


def _at_one_place(inside: list[str]) -> int:
  """How many bundles of the loop are jumped over but at one place of an axis."""
  elsewhere = {name for text in inside for name in _ELSEWHERE.findall(text)}
  count = 0
  for start, text in enumerate(inside):
    for condition, region in _SKIP.findall(text):
      if condition in elsewhere:
        ends = (at for at in range(start + 1, len(inside)) if f"region {region} " in inside[at])
        count += next(ends, start + 1) - start - 1
  return count
