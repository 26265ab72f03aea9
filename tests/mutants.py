"""Draws one-line faults from the code and sees whether a test notices.

  python -m tests.mutants --number=200 --seed=1

A fault changes one expression or statement of a room that computes: a comparison, an operator, a constant,
the order of two arguments, a statement that is left out, a key. Kinds are drawn equally often, then places.
The tests of the same folder and those that import the file run on a copy of the checkout, the quickest first,
until one fails; for a file of pretraining then those of whole programs. A line per fault says

  caught      a test failed,
  SURVIVED    none did: write one that asserts the value,
  equivalent  the fault changes no result; tests/equivalent.toml has the reason.

Exit code 0: at least 92 % of the faults that change a result were caught; 1: fewer.
"""

import argparse
import ast
import concurrent.futures
import json
import os
import pathlib
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from typing import NamedTuple

from tests import test_layering

ROOT = test_layering.ROOT
# The rooms that compute; a name without `.py` is a folder.
_OF_PRETRAIN = (
  "losses.py recipe.py gradients.py step.py optim.py evaluate.py corruption objectives models ops"
)
_ROOMS = {
  "pretrain": f"{_OF_PRETRAIN} reading search embed export/stock export/official.py export/tensor_rows.py",
  "data": "records.py prepare/packing.py prepare/pipeline.py vocabulary tasks clean",
  "finetune": "papers squad glue own embedding prompt",
}
KINDS = ("comparison", "operator", "constant", "arguments", "statement", "key")
ENOUGH = 0.92
_SECONDS = 90.0  # of tests for one fault, by the last measured seconds
# Whole programs of all rooms of pretraining, for faults that the tests nearby leave alive.
_WHOLE = "test_recipe.py test_recipe_gradients.py test_segments.py ops/attention test_train.py"
_LIMIT = 600.0  # seconds for one fault: it may make a test run without end
_PAIRS = "Lt LtE, Gt GtE, Eq NotEq, In NotIn, Is IsNot, And Or, Add Sub, Mult Div, BitAnd BitOr"
_PAIRS = [[getattr(ast, name) for name in pair.split()] for pair in _PAIRS.split(", ")]
_SWAPPED: dict[type, type] = {one: other for pair in _PAIRS for one, other in (pair, reversed(pair))}
_SWAPPED |= dict.fromkeys((ast.FloorDiv, ast.Mod, ast.Pow), ast.Mult)
_SAID = ("logger", "warnings", "print")  # what a user reads is not computed
_ERRORS = ("Error", "refuse", "unknown", "problem")


class Fault(NamedTuple):
  """A change of one place of a file; `start` and `end` are offsets in its UTF-8 bytes."""

  kind: str
  file: str
  line: int
  start: int
  end: int
  before: str
  after: str
  source: str  # the line, because a file has the same constant at many places

  @property
  def key(self) -> str:
    """The name in tests/equivalent.toml, which other lines of the file do not change."""
    return f"{self.file}: {self.before} -> {self.after} in {self.source}"


def _is_message(node: ast.AST) -> bool:
  """Whether a part of the code only speaks to people or to the type checker."""
  if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
    return True
  if not isinstance(node, ast.Call):
    return False
  name = ast.unparse(node.func)
  return name.partition(".")[0] in _SAID or any(word in name for word in _ERRORS)


def _changes(node: ast.AST, keys: list[str]) -> Iterator[tuple[str, str]]:
  """Yields (kind, new source) of each fault that a node can have."""
  if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _SWAPPED:
    yield "comparison", ast.unparse(ast.Compare(node.left, [_SWAPPED[type(node.ops[0])]()], node.comparators))
  elif isinstance(node, ast.BoolOp):
    yield "comparison", f"({ast.unparse(ast.BoolOp(_SWAPPED[type(node.op)](), node.values))})"
  elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
    yield "comparison", f"({ast.unparse(node.operand)})"
  elif isinstance(node, ast.BinOp) and type(node.op) in _SWAPPED:
    sides = [getattr(side, "value", None) for side in (node.left, node.right)]
    if not any(isinstance(side, str) for side in sides):
      yield "operator", f"({ast.unparse(ast.BinOp(node.left, _SWAPPED[type(node.op)](), node.right))})"
  elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
    yield "operator", f"({ast.unparse(node.operand)})"
  elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
    yield "constant", repr(not node.value)
  elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
    yield "constant", repr(node.value + 1)
  elif isinstance(node, ast.Call) and len(node.args) >= 2:
    first, second, *others = node.args
    is_fixed = not any(isinstance(one, ast.Starred) for one in (first, second))
    if is_fixed and ast.dump(first) != ast.dump(second):
      yield "arguments", ast.unparse(ast.Call(node.func, [second, first, *others], node.keywords))
  elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
    yield "statement", "pass"
  elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
    key = node.slice.value
    if isinstance(key, str) and (others := [one for one in keys if one != key]):
      other = ast.Constant(others[len(key) % len(others)])
      yield "key", ast.unparse(ast.Subscript(node.value, other, node.ctx))


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
  """Yields the nodes that compute: no messages, annotations, or blocks for the type checker."""
  left = [tree]
  while left:
    node = left.pop()
    yield node
    for name, field in ast.iter_fields(node):
      if name in ("annotation", "returns", "decorator_list", "bases"):
        continue
      for child in field if isinstance(field, list) else [field]:
        is_block = isinstance(child, ast.If) and any(
          word in ast.unparse(child.test) for word in ("TYPE_CHECKING", "__name__")
        )
        if isinstance(child, ast.AST) and not is_block and not _is_message(child):
          left.append(child)


def faults_of(file: str) -> list[Fault]:
  """Returns every fault that a file of the product can have."""
  text = (ROOT / file).read_text(encoding="utf-8")
  starts, lines = [0], text.splitlines(keepends=True)
  for line in lines:
    starts.append(starts[-1] + len(line.encode()))
  nodes = list(_nodes(ast.parse(text)))
  slices = [node.slice for node in nodes if isinstance(node, ast.Subscript)]
  constants = {one.value for one in slices if isinstance(one, ast.Constant) and isinstance(one.value, str)}
  found = []
  for node in nodes:
    for kind, after in _changes(node, sorted(constants)):
      start = starts[node.lineno - 1] + node.col_offset  # pyright: ignore[reportAttributeAccessIssue]
      end = starts[node.end_lineno - 1] + node.end_col_offset  # pyright: ignore[reportAttributeAccessIssue]
      before = " ".join(text.encode()[start:end].decode().split())
      source = lines[node.lineno - 1].strip()  # pyright: ignore[reportAttributeAccessIssue]
      found.append(Fault(kind, file, node.lineno, start, end, before, after, source))  # pyright: ignore
  return sorted(found)


def draw(number: int, seed: int, only: str = "") -> list[Fault]:
  """Draws faults of the rooms: kinds in turn, places of a kind equally likely, none twice."""
  rooms = [ROOT / part / name for part, names in _ROOMS.items() for name in names.split()]
  paths = [path for room in rooms for path in ([room] if room.is_file() else sorted(room.rglob("*.py")))]
  files = [path.relative_to(ROOT).as_posix() for path in paths]
  rng, of_kind = random.Random(seed), {kind: [] for kind in KINDS}
  for file in files:
    for fault in faults_of(file) if only in file else ():
      of_kind[fault.kind].append(fault)
  for faults in of_kind.values():
    rng.shuffle(faults)
  turns = [faults[turn] for turn in range(number) for faults in of_kind.values() if turn < len(faults)]
  return turns[:number]


def tests_of(file: str) -> list[str]:
  """Returns the test files that have to notice a fault in a file: that of its name, then the quickest."""
  module = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
  folder, seconds = f"tests/{file.rpartition('/')[0]}", json.loads((ROOT / "tests/seconds.json").read_text())
  tests = {name: path for name, path in test_layering._sources().items() if path.name.startswith("test_")}
  folders, ranked = {path.parent.relative_to(ROOT).as_posix() for path in tests.values()}, []
  while folder not in folders:  # a folder without tests is tested by those of the one above
    folder = folder.rpartition("/")[0]
  for name, path in tests.items():
    test = path.relative_to(ROOT).as_posix()
    is_own = path.stem == f"test_{module.rpartition('.')[2]}"
    is_beside = test.rpartition("/")[0] == folder
    reads = any(one == module or one.startswith(f"{module}.") for one in test_layering.imports(name))
    if (is_own and is_beside) or reads or is_beside:
      rank = 0 if is_own and is_beside else 1 if reads and is_beside else 2 if is_beside else 3
      ranked.append((rank, seconds.get(test, 0.0), test))
  chosen, spent = [], 0.0
  for rank, second, test in sorted(ranked):
    if not rank or spent + second <= _SECONDS:
      chosen.append(test)
      spent += second
  return chosen


def _copy(folder: pathlib.Path) -> pathlib.Path:
  """Copies the files that git tracks or would track; `shared` stays beside them, if it is there."""
  command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
  listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
  for name in filter(None, listed):
    if (ROOT / name).is_file():
      (folder / "main" / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy2(ROOT / name, folder / "main" / name)
  if (ROOT.parent / "shared").is_dir():
    (folder / "shared").symlink_to(ROOT.parent / "shared")
  return folder / "main"


def _try(fault: Fault, tree: pathlib.Path, number: int) -> str:
  """Runs the tests on a copy with the fault; returns the name of what failed, '' if nothing did."""
  path = tree / fault.file
  sound = path.read_bytes()
  path.write_bytes(sound[: fault.start] + fault.after.encode() + sound[fault.end :])
  os.utime(path, (number * 10, number * 10))  # bytecode of another fault of the same size is not taken
  command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider", "--numprocesses=0"]
  environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax")}
  whole = [f"tests/pretrain/{name}" for name in _WHOLE.split()] if fault.file.startswith("pretrain/") else []
  try:
    for tests in filter(None, (tests_of(fault.file), whole)):
      done = subprocess.run(
        [*command, *tests],
        cwd=tree,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_LIMIT,
      )
      if done.returncode:
        break
  except subprocess.TimeoutExpired:
    return f"no end within {_LIMIT:.0f} s"
  finally:
    path.write_bytes(sound)
    os.utime(path, (number * 10 + 5, number * 10 + 5))
  failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
  return "" if done.returncode == 0 else failed[0][:150] if failed else f"code {done.returncode}"


def main(arguments: list[str]) -> int:
  """Draws and tries faults; returns the exit code."""
  parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--number", type=int, default=60)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--only", default="", help="a part of the file's name")
  parser.add_argument("--workers", type=int, default=2)
  asked = parser.parse_args(arguments)
  equivalent = tomllib.loads((ROOT / "tests" / "equivalent.toml").read_text(encoding="utf-8"))
  faults, counts = draw(asked.number, asked.seed, asked.only), {"caught": 0, "SURVIVED": 0, "equivalent": 0}
  with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(asked.workers) as pool:
    free: queue.SimpleQueue[pathlib.Path] = queue.SimpleQueue()
    for number in range(asked.workers):
      free.put(_copy(pathlib.Path(folder, str(number))))

    def tried(number: int) -> tuple[str, str]:
      if faults[number].key in equivalent:
        return "equivalent", equivalent[faults[number].key]
      tree = free.get()
      try:
        failed = _try(faults[number], tree, number + 1)
      finally:
        free.put(tree)
      return ("caught", failed) if failed else ("SURVIVED", "")

    for fault, (verdict, why) in zip(faults, pool.map(tried, range(len(faults)))):
      counts[verdict] += 1
      print(
        f"{verdict:10} {fault.kind:10} {fault.file}:{fault.line}  {fault.before} -> {fault.after}", flush=True
      )
      print(f"{'':10} {why}", flush=True)
  share = counts["caught"] / max(1, counts["caught"] + counts["SURVIVED"])
  print(f"seed {asked.seed}: {counts}; {share:.1%} of the faults that change a result are caught")
  return int(share < ENOUGH)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
