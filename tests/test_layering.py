"""The arrows between the parts, read from the source with `ast`.

Imports inside functions count too: a late import is still a dependency.
"""

import ast
import functools
import graphlib
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = ("configs", "data", "pretrain", "finetune", "lab", "benchmarks", "tests")

JAX_FAMILY = ("jax", "jaxlib", "flax", "optax", "orbax")
TENSORFLOW_FAMILY = ("tensorflow", "seqio", "tensorflow_datasets", "tensorflow_text", "t5")

# Who may not import what: (module prefix, forbidden prefixes, exceptions among the importers).
FORBIDDEN = [
  ("data", ("pretrain", "finetune", "configs", *JAX_FAMILY), ()),
  ("configs", ("pretrain", "finetune", *JAX_FAMILY, *TENSORFLOW_FAMILY), ()),
  ("pretrain", ("finetune", *TENSORFLOW_FAMILY), ()),
  ("finetune", TENSORFLOW_FAMILY, ()),
  (
    "finetune",
    ("pretrain.train", "pretrain.recipe", "pretrain.objectives", "pretrain.corruption"),
    (),
  ),
  ("pretrain.settings", JAX_FAMILY, ()),
  ("pretrain", ("flax",), ("pretrain.models",)),
  ("finetune", ("flax",), ()),
  ("pretrain", ("orbax",), ("pretrain.checkpoints.checkpoint", "pretrain.pod")),
  ("finetune", ("orbax",), ()),
  ("data", TENSORFLOW_FAMILY, ("data.tasks", "data.seqio_tasks", "data.tfds_reader")),
  ("lab", TENSORFLOW_FAMILY, ()),
  *((part, ("fsspec", "s3fs", "gcsfs"), ("data.fetched",)) for part in ("data", "pretrain", "finetune")),
  *(
    (part, ("apache_beam", "dask", "distributed"), ("data.prepare.beam",))
    for part in ("data", "pretrain", "finetune")
  ),
]

# A kind of fine-tuning knows nothing of its siblings; what they share is in `search` and `papers`.
ROOMS = ("glue", "squad", "prompt", "own", "embedding")
FORBIDDEN += [
  (f"finetune.{room}", tuple(f"finetune.{other}" for other in ROOMS if other != room), ()) for room in ROOMS
]

# The mathematics: each may import, of this project, only these.
LEAVES = {
  "pretrain.losses": ("data.errors",),
  "pretrain.ops": ("data.errors", "pretrain.ops", "pretrain.mesh.sharding"),
  "pretrain.optim": ("pretrain.settings", "pretrain.mesh.trees"),
  "pretrain.mesh.sharding": ("data.errors", "pretrain.settings", "pretrain.mesh.trees"),
  "pretrain.mesh.device_program": ("pretrain.mesh.sharding", "pretrain.mesh.trees"),
  "pretrain.settings": ("pretrain.settings", "configs.base", "data.errors", "data.files"),
  "pretrain.logs.metrics": ("data.errors", "data.files"),
  "pretrain.mesh.trees": (),
}


def _is_within(name: str, prefix: str) -> bool:
  return name == prefix or name.startswith(prefix + ".")


def _module_name(path: pathlib.Path) -> str:
  parts = path.relative_to(ROOT).with_suffix("").parts
  return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def _sources() -> dict[str, pathlib.Path]:
  """Module name to file, for every Python file of the project."""
  return {_module_name(path): path for part in PARTS for path in sorted((ROOT / part).rglob("*.py"))}


@functools.cache
def _tree(path: pathlib.Path) -> ast.Module:
  return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _imported(nodes: list[ast.AST], module: str) -> set[str]:
  """Names that import statements bring in; `from a import b` gives 'a.b', a module or a member of one."""
  found = set()
  package = module.split(".") + ["__init__"] * (_sources()[module].name == "__init__.py")
  for node in nodes:
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      base = package[: len(package) - node.level] if node.level else []
      base = ".".join([*base, *([node.module] if node.module else [])])
      found |= {f"{base}.{alias.name}" for alias in node.names}
  return found


def imports(module: str) -> set[str]:
  """Everything a module of the project imports, at any depth of its source."""
  return _imported(list(ast.walk(_tree(_sources()[module]))), module)


def start_imports(module: str) -> set[str]:
  """What runs when the module is imported: statements outside functions and `if TYPE_CHECKING`."""
  nodes, queue = [], list(_tree(_sources()[module]).body)
  while queue:
    node = queue.pop()
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
      continue
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
      continue
    nodes.append(node)
    queue.extend(ast.iter_child_nodes(node))
  return _imported(nodes, module)


def _closure(start: set[str]) -> set[str]:
  """Names reached from modules by imports that run at import time, through the project's own modules."""
  seen, queue = set(), sorted(start)
  while queue:
    module = queue.pop()
    for name in start_imports(module) - seen:
      seen.add(name)
      queue.extend(owner for owner in (name, name.rpartition(".")[0]) if owner in _sources())
  return seen


def _modules_imported(module: str) -> set[str]:
  """The project's modules that a module imports; `from a import b` is module a.b if there is one, else a."""
  owners = {name if name in _sources() else name.rpartition(".")[0] for name in imports(module)}
  return (owners & _sources().keys()) - {module}


def _product() -> dict[str, set[str]]:
  """{module: modules it imports} without those of tests."""
  product = [module for module in _sources() if module.partition(".")[0] != "tests"]
  return {module: _modules_imported(module) for module in product}


def find_circle(graph: dict[str, set[str]]) -> list[str]:
  """The names of one circle in {module: modules it imports}, its first again at the end; [] without any."""
  try:
    graphlib.TopologicalSorter(graph).prepare()
  except graphlib.CycleError as error:
    return error.args[1][::-1]  # graphlib goes from what is imported to who imports it
  return []


def rooms(graph: dict[str, set[str]]) -> dict[str, set[str]]:
  """{room: rooms it imports} of {module: modules it imports}; a room is a folder without folders in it.

  A file beside folders stands for itself. So does a room's `__main__`, the command that nothing imports: it
  may start another room's work, which rests on its own room.
  """
  folders = {module.rpartition(".")[0] for module in graph}
  outer = {folder.rpartition(".")[0] for folder in folders}
  room_of, imported = {}, {}
  for module in graph:
    folder = module if module in folders else module.rpartition(".")[0]
    room_of[module] = module if folder in outer or module.endswith(".__main__") else folder
  for module, others in graph.items():
    room = room_of[module]
    imported[room] = imported.get(room, set()) | {room_of[other] for other in others} - {room}
  return imported


def test_no_part_imports_what_it_must_not_know():
  broken = [
    f"{module} imports {name}"
    for importer, forbidden, exceptions in FORBIDDEN
    for module in _sources()
    if _is_within(module, importer) and not any(_is_within(module, allowed) for allowed in exceptions)
    for name in sorted(imports(module))
    if any(_is_within(name, prefix) for prefix in forbidden)
  ]
  assert not broken, "\n".join(broken)


def test_the_mathematics_knows_nothing_of_the_rest():
  broken = [
    f"{module} imports {name}"
    for leaf, known in LEAVES.items()
    for module in _sources()
    if _is_within(module, leaf)
    for name in sorted(imports(module))
    if name.partition(".")[0] in PARTS and not any(_is_within(name, allowed) for allowed in known)
  ]
  assert not broken, "\n".join(broken)


def test_starting_the_trainer_does_not_load_tensorflow():
  trainers = {name for name in _sources() if _is_within(name, "pretrain")}
  loaded = {name for name in _closure(trainers) if name.partition(".")[0] in TENSORFLOW_FAMILY}
  assert not loaded, loaded


def test_nothing_imports_the_tests_or_from_outside_the_lab():
  broken = [
    f"{module} imports {name}"
    for module in _sources()
    for name in imports(module)
    for part, may in (("tests", ("tests",)), ("lab", ("lab", "tests")), ("benchmarks", ()))
    if name.partition(".")[0] == part and module.partition(".")[0] not in may
  ]
  assert not broken, broken


def test_no_modules_import_each_other_in_a_circle():
  # Imports inside functions and under TYPE_CHECKING count: they hide a circle, they do not open it.
  circle = find_circle(_product())
  assert not circle, " imports ".join(circle)


def test_no_rooms_import_each_other_in_a_circle():
  circle = find_circle(rooms(_product()))
  assert not circle, " imports ".join(circle)


def test_what_is_read_is_data_and_what_is_installed_is_pinned():
  """What the README calls Python is imported in two places; nothing else that is read is run."""
  careful = {"np.load": ("allow_pickle", False), "torch.load": ("weights_only", True)}
  running = {"eval", "exec", "os.system", "yaml.load", "shutil.unpack_archive"}
  unsafe = {"pickle", "dill", "joblib", "marshal", "shelve", "tarfile", "urllib.request", "requests"}
  own = ("data.user_module", "pretrain.command")
  product = [module for module in _sources() if not module.startswith("tests")]
  found = []
  for module in product:
    nodes = list(ast.walk(_tree(_sources()[module])))
    found += [f"{module} imports {name}" for name in _imported(nodes, module) & unsafe]
    for call in (node for node in nodes if isinstance(node, ast.Call)):
      given = {one.arg: getattr(one.value, "value", None) for one in call.keywords}
      name = ast.unparse(call.func) if isinstance(getattr(call.func, "value", call.func), ast.Name) else ""
      word, value = careful.get(name, ("", None))
      is_run = name in running or (name.endswith(".exec_module") and module not in own)
      if is_run or (word and given.get(word) is not value) or given.get("shell"):
        found.append(f"{module}:{call.lineno} {name}")
  assert len(product) > 100 and not found, found
  lines = [line for path in ROOT.glob("requirements*.txt") for line in path.read_text().splitlines()]
  loose = [line for line in lines if line and not line.startswith(("#", "-r ")) and "==" not in line]
  assert len(lines) > 30 and not loose, loose


def test_no_module_is_a_drawer_for_the_rest():
  drawers = {"utils", "util", "common", "helpers", "misc"}
  assert not [module for module in _sources() if module.rpartition(".")[2] in drawers]


def test_no_comment_puts_work_off():
  marker = re.compile(r"#.*\b(TODO|FIXME|XXX)\b")
  found = [
    f"{path.relative_to(ROOT)}:{number}"
    for path in _sources().values()
    if path != pathlib.Path(__file__).resolve()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    if marker.search(line)
  ]
  assert not found, found
