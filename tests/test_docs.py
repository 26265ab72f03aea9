"""What the pages at the top name is there; the programs in docs/ run as they are."""

import importlib
import pathlib
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys

import pytest

from data import errors
from finetune import main as fine_tuning
from pretrain import main
from pretrain.command import read_arguments
from pretrain.export import __main__ as export
from tests.pretrain import small_run
from tests.pretrain.conftest import small_records, text_file  # noqa: F401 (fixtures)

ROOT = pathlib.Path(__file__).resolve().parents[1]
TEXTS = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
PAGES = [page for page in TEXTS if not page.startswith("docs/lab/")]  # its notes are of older commits
PARTS = ("configs", "data", "pretrain", "finetune", "lab", "tests", "docs")
_PATH = re.compile(rf"(?<![\w/.])(?<!\]\()(?:{'|'.join(PARTS)})/[\w/.*]*(?:\{{[\w,/]+\}})?[\w/.]*")
_SMALL = {
  "model.vocab_size": small_run.VOCAB_SIZE,
  "model.max_length": small_run.LENGTH,
  "data.length": small_run.LENGTH,
  "model.hidden_size": 16,
  "model.num_layers": 1,
  "model.mlp_size": 32,
  "train.batch_size": 8,
  "train.eval_batches": 0,
  "generator.num_layers": 1,
  "objectives.scl.group_size": 8,
}


def _text(page: str) -> str:
  return (ROOT / page).read_text(encoding="utf-8")


def _expanded(path: str) -> list[str]:
  """['a/b.py', 'a/c.py'] of 'a/{b,c}.py'."""
  start, brace, rest = path.partition("{")
  if not brace:
    return [path]
  names, _, end = rest.partition("}")
  return [f"{start}{name}{end}" for name in names.split(",")]


def test_paths_and_commands_that_a_page_names_are_there():
  targets = set(re.findall(r"^([\w-]+):", _text("Makefile"), re.MULTILINE))
  missing = []
  for page in PAGES:
    named = {path.rstrip(".") for match in _PATH.findall(_text(page)) for path in _expanded(match)}
    missing += [f"{page}: {path}" for path in named if not any(ROOT.glob(path.rstrip("/")))]
    for module in set(re.findall(rf"python -m ((?:{'|'.join((*PARTS, 'benchmarks'))})[\w.]*)", _text(page))):
      file = ROOT.joinpath(*module.replace("benchmarks.", "lab.speed.").split("."))
      if not (file.with_suffix(".py").is_file() or file.is_dir()):
        missing.append(f"{page}: python -m {module}")
    missing += [f"{page}: make {name}" for name in set(re.findall(r"`make ([\w-]+)`", _text(page))) - targets]
  assert not missing, "\n".join(missing)


def test_every_recipe_has_a_line_of_evidence():
  files = (path.stem for path in ROOT.glob("configs/*.py"))
  others = ("__init__", "arguments", "backbones", "base", "sizes")
  recipes = {name for name in files if name not in others and not name.startswith("finetune")}
  methods = {re.sub(r"_(tiny|small|base|base_plus_plus|large_plus_plus)$", "", name) for name in recipes}
  lines = re.findall(
    r"^\| `(\w+?)(?:_\*)?`(?::[^|]*)? \|(.*)\|$", _text("docs/guides/recipes.md"), re.MULTILINE
  )
  evidence = {method: line for method, line in lines if method in methods}
  assert methods - set(evidence) == set()
  for method, line in evidence.items():  # a number, or that there is none
    assert re.search(r"\d\.\d|not measured here", line), method


_READ = {
  "pretrain.main": read_arguments,
  "finetune.main": lambda words: read_arguments(words, fine_tuning.PROGRAM),
}


_DOORS = {
  "pretrain.probe": "lab.analysis.probe",
  "pretrain.analysis": "lab.analysis.__main__",
  "pretrain.ablations": "lab.studies.__main__",
}


def _commands(page: str) -> list[str]:
  """The commands of a page whose flags are read here, whole: in its programs, or between backticks."""
  text = _text(page).replace("\\\n", " ")
  lines = re.findall(r"^python -m (.*)$", text, re.MULTILINE) + re.findall(r"`python -m ([^`]*)`", text)
  lines = [
    shlex.join(shlex.split(line, comments=True))
    for line in lines
    if " " in line.strip() and "..." not in line
  ]
  names = "ablations|analysis|checkpoints|embed|evaluate|main|predict|probe|report"
  read = re.compile(rf"(pretrain|finetune)\.({names})\b(?!.*--help)")
  return [line for line in lines if read.match(line)]


_UNKNOWN = re.compile(
  r"there is no such|no such (field|flag)|is an argument now|invalid choice|"
  r"unrecognized arguments: (?!--config\.)"
)


def test_flags_fields_and_choices_of_the_pages_commands_exist():
  problems = []
  for command in sorted({command for page in PAGES for command in _commands(page)}):
    module, *words = shlex.split(command)
    try:
      if module in _READ:
        _READ[module](words)
      else:
        name = _DOORS.get(module, f"{module}.__main__")
        name = name if ROOT.joinpath(*name.split(".")).with_suffix(".py").is_file() else module
        importlib.import_module(name).parser().parse_args(words)
    except errors.UserError as error:  # files of the pages are not here, and a text shows a flag alone
      if _UNKNOWN.search(str(error)):
        problems.append(f"{command}: {error}")
  assert not problems, "\n".join(problems)


def test_every_room_has_a_line():
  rooms = {
    path.parent.relative_to(ROOT).as_posix() for part in PARTS[:5] for path in ROOT.glob(f"{part}/**/*.py")
  }
  table = {path.rstrip("/") for match in _PATH.findall(_text("ARCHITECTURE.md")) for path in _expanded(match)}
  assert rooms - table - set(PARTS) == set()


def test_the_readme_is_short():
  assert len(_text("README.md").splitlines()) <= 150


def test_lines_of_pages_have_at_most_120_characters():
  """Except rows of tables, single URLs, and what a program printed."""
  long = []
  for page in TEXTS:
    parts = re.split(r"^ *```.*$", _text(page), flags=re.MULTILINE)
    lines = [line for line in "\n".join(parts[::2]).splitlines() if line[:1] != "|" and " " in line.strip()]
    lines += re.findall(r"^(?:python -m|  --).*$", "\n".join(parts[1::2]), re.MULTILINE)  # commands
    long += [f"{page}: {line}" for line in lines if len(line) > 120]
  assert not long, "\n".join(long)


def test_the_reference_is_current():
  command = [sys.executable, "docs/make_reference.py", "--check"]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stdout + done.stderr


def test_the_names_of_the_python_reference_have_docstrings():
  page, names = _text("docs/reference/python.md"), []
  for name, members in re.findall(r"^::: (\S+)(?:\n.*\n +members: \[(.*)\])?", page, re.MULTILINE):
    names += [name, *(f"{name}.{member}" for member in filter(None, members.split(", ")))]
  assert len(names) >= 20 and not [name for name in names if not pkgutil.resolve_name(name).__doc__]


def test_links_of_a_page_lead_to_a_heading_or_a_file():
  broken = []
  for page in TEXTS:
    for path, _, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(#([\w-]+))?\)", _text(page)):
      target = (ROOT / page).parent / path if path else ROOT / page
      text = target.read_text(encoding="utf-8") if target.suffix == ".md" and target.is_file() else ""
      headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
      slugs = [re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings]
      if not target.is_file() or (anchor and anchor not in slugs):
        broken.append(f"{page}: {path}#{anchor}")
  assert not broken, "\n".join(broken)


_run = subprocess.run
_MAINS = {"pretrain.main": main.main, "pretrain.export": export.main}


def _run_here(command, **options):
  """`subprocess.run`, but of our two commands, which are compiled here, for one device."""
  if command[:2] != [sys.executable, "-m"] or command[2] not in _MAINS:
    return _run(command, **options)
  assert options == {}
  with small_run.devices(1):  # given its arguments, a command hands the handlers of signals back
    return subprocess.CompletedProcess(command, _MAINS[command[2]](command[3:]))


def test_pretraining_exporting_and_comparing_sentences(tmp_path, small_records, monkeypatch, capsys):  # noqa: F811
  pytest.importorskip("torch", reason="needs requirements-export.txt")
  flags = [f"--config.{name}={value}" for name, value in _SMALL.items()]
  command = ["docs/tutorials/similarity.py", "--steps=3", f"--workdir={tmp_path / 'run'}"]
  command += [f"--output={tmp_path / 'exported'}", f"--config.data.directory={small_records}", *flags]
  monkeypatch.chdir(ROOT)
  monkeypatch.setattr(sys, "argv", command)
  monkeypatch.setattr(subprocess, "run", _run_here)
  runpy.run_path("docs/tutorials/similarity.py", run_name="__main__")
  rows = re.findall(r"^((?: *-?[01]\.\d{3}){5})  ", capsys.readouterr().out, re.MULTILINE)
  cosines = [[float(value) for value in row.split()] for row in rows]
  assert len(cosines) == 5
  assert all(cosines[i][i] == 1.0 and cosines[i][j] == cosines[j][i] for i in range(5) for j in range(5))
  assert (tmp_path / "exported" / "README.md").is_file()
  monkeypatch.setattr(sys, "argv", [*command, "--config.seed=x"])
  with pytest.raises(SystemExit, match="2"):
    runpy.run_path("docs/tutorials/similarity.py", run_name="__main__")
