"""Writes docs/reference/{flags,fields,exit_codes}.md from the program: `python docs/make_reference.py`.

  --check    writes nothing, and exits with 1 if a page is not current

Flags come from the commands' parsers, fields from the comments of the config files and the types of the
settings, exit codes from data/errors.py. Run it in the repository's root.
"""

import argparse
import ast
import io
import itertools
import math
import pathlib
import re
import runpy
import sys
import tokenize
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from data import command, errors  # noqa: E402
from data.tables import Cells  # noqa: E402
from finetune import main as fine_tuning  # noqa: E402
from pretrain import command as pretraining  # noqa: E402
from pretrain.settings import fields  # noqa: E402

FOLDER = ROOT / "docs" / "reference"
WHAT = "Made by `python docs/make_reference.py` from the program; edit the program or that script."
COMMANDS = {
  "Data": ("prepare", "inspect", "vocabulary"),
  "Pretraining": ("main", "demo", "checkpoints", "report"),
  "Fine-tuning": ("main", "predict", "evaluate", "mine"),
  "Vectors and export": ("embed", "search", "export", "export import"),
  "Probes and studies": ("probe", "analysis", "ablations"),
  "Measurements": ("step", "ahead", "compare", "parts", "gpu_day"),
}
PACKAGES = {"Data": "data", "Fine-tuning": "finetune", "Measurements": "benchmarks"}
WRITTEN = {
  "pretrain.main": pretraining.HELP,
  "finetune.main": fine_tuning.HELP,
}  # their parser is no argparse
HEADER = ("flag", "type", "default", "what it does")
TYPES = {int: "whole number", float: "number", pathlib.Path: "path", str: "text"}
# Codes that no class of data/errors.py has, and what to do about each code.
OTHER_CODES = {
  0: "The command finished.",
  1: "A bug: Python's traceback is on stderr.",
  command.STOPPED: "SIGTERM or Ctrl-C asked the command to stop; everything is saved.",
  130: "Ctrl-C ended the command; finished parts, if any, are kept.",
}
REMEDIES = {
  0: "-",
  1: "Please report it with the traceback.",
  2: "Correct the flags or fields that the message names.",
  3: "Correct or replace the file that the message names.",
  4: "Read `diverged.json` in the workdir; start again with a lower learning rate.",
  5: "Free space or correct permissions, then run the same command.",
  6: "Start the same command on all hosts; the message names the process.",
  command.STOPPED: "Run the same command: it continues.",
  130: "Run the same command.",
}


class _Caught(BaseException):
  """Ends a command as soon as it would read its flags."""


def parser_of(module: str, *words: str) -> argparse.ArgumentParser:
  """Returns the parser with which `python -m module words` reads its flags."""
  caught, read, arguments = [], argparse.ArgumentParser.parse_known_args, sys.argv

  def catch(parser, *_):
    caught.append(parser)
    raise _Caught

  argparse.ArgumentParser.parse_known_args = catch
  sys.argv = [module, *words]
  try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
  except _Caught:
    return caught[0]
  finally:
    argparse.ArgumentParser.parse_known_args, sys.argv = read, arguments
  raise SystemExit(f"{module}: reads no flags by argparse; add its help to WRITTEN")


def flags_page() -> str:
  """Returns a table of flags for every command."""
  parts = [
    "# Flags",
    "",
    WHAT,
    "",
    "Every command prints the same with `--help`. `--name=VALUE` and `--name VALUE` are equal.",
    "An *address* names a file or folder in a bucket, such as `s3://bucket/run`:",
    "[Buckets](../guides/launch.md#buckets).",
  ]
  for section, names in COMMANDS.items():
    parts += ["", f"## {section}"]
    for name in names:
      module, *words = f"{PACKAGES.get(section, 'pretrain')}.{name}".split()
      title = " ".join(["python -m", module, *words])
      if module == "pretrain.demo":
        parts += ["", f"### `{title}`", "", *_written(runpy.run_module(module)["HELP"])]
      elif module in WRITTEN:
        parts += ["", f"### `{title}`", "", *_written(WRITTEN[module])]
      else:
        parts += _parsed(parser_of(module, *words), title)
  return "\n".join(parts) + "\n"


def _parsed(parser: argparse.ArgumentParser, title: str) -> Iterator[str]:
  groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
  text = re.split(r"\.\s|\n\n|: `", (parser.description or "").strip())[0].removesuffix(".")
  yield from ("", f"### `{title}`", "", _escaped(text[:1].upper() + text[1:] + "."))
  rows = [
    _flag(parser, action) for action in parser._actions if action not in groups and action.dest != "help"
  ]
  if rows:
    yield from ("", Cells(HEADER, rows).as_markdown())
  for group in groups:
    for name, inner in group.choices.items():
      inner.description = next(c.help for c in group._choices_actions if c.dest == name)
      yield from _parsed(inner, f"{title} {name}")


def _flag(parser: argparse.ArgumentParser, action: argparse.Action) -> tuple[str, ...]:
  name = f"`{(action.option_strings or [action.metavar or action.dest])[-1]}`"
  text, default = action.help or "", ""
  if match := re.search(r"[\s;]*\(?default: (.*?)\)?$", text):
    text, default = text[: match.start()], match[1]
  if action.default not in (None, "", [], False, argparse.SUPPRESS) and default in ("", str(action.default)):
    default = f"`{_typed(action.default)}`"
  if action.required if action.option_strings else action.nargs not in ("?", "*"):
    default = "**required**"
  return name, _type(parser, action), _escaped(default), _escaped(text)


def _typed(value: object) -> str:
  """Returns a default as it is typed; a shape is 4x128."""
  if isinstance(value, tuple | list):
    is_shape = isinstance(value, tuple) and all(isinstance(one, int) for one in value)
    return ("x" if is_shape else " ").join(map(_typed, value))
  return str(value)


def _type(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
  if action.nargs == 0:
    return "switch"
  if action.choices:
    kind = ", ".join(f"`{choice}`" for choice in action.choices)
  elif action.dest in getattr(parser, "_buckets", {}):
    kind = "path or address"
  else:
    kind = TYPES.get(action.type or str, "`ROWSxTOKENS`")
  several = "one or more: " if action.nargs in ("+", "*") else ""
  return several + kind + (", repeatable" if isinstance(action, argparse._AppendAction) else "")


def _written(text: str) -> Iterator[str]:
  """Yields the first sentence of a written help, and a table of its flags."""
  yield text.partition("\n")[0]
  rows: list[list[str]] = []
  for line in text.splitlines():
    if match := re.match(r"  (--\S.*?)(?:  +(.*))?$", line):
      rows.append([match[1], match[2] or ""])
    elif rows and line.startswith(" " * 20):
      rows[-1][1] += f" {line.strip()}"
    elif not line.strip() and rows:
      break
  cells = []
  for names, what in rows:
    if names == "--help":
      continue
    pairs = [name.partition("=") for name in names.split(", ")]
    kinds = ["number" if kind.isdigit() else f"`{kind}`" for _, _, kind in pairs if kind]
    defaults = [kind for _, _, kind in pairs if kind.isdigit()]
    if match := re.search(r"\.? Default: ([^.]*(?:\.py[^.]*)?)", what):
      defaults, what = [match[1]], what.replace(match[0], "")
    if names.startswith("--config="):
      defaults = ["**required**"]
    shown = ", ".join(f"`{name}`" for name, _, _ in pairs)
    kind = ", ".join(kinds) or ("text" if "." in names else "switch")
    cells.append((shown, kind, _escaped(", ".join(defaults)), _escaped(what)))
  yield ""
  yield Cells(HEADER, cells).as_markdown() if cells else f"```\n{text.strip()}\n```"


def _escaped(text: str) -> str:
  text = " ".join(text.split()).replace("|", "&#124;").replace("<", "&lt;")
  text = text.replace("see below", "see `--help`").replace("are listed below", "are in [Fields](fields.md)")
  return text if "`" in text or text == "**required**" else text.replace("*", "\\*")


def fields_page() -> str:
  """Returns a table for every group of fields, of pretraining and of fine-tuning."""
  parts = [
    "# Fields of a config",
    "",
    WHAT,
    "",
    "`--config.NAME=VALUE` changes a field; several values are written with commas. The defaults are those",
    "before a recipe changes them: `--dry_run` prints the values of a run.",
  ]
  for title, program in (("Pretraining", pretraining.PRETRAINING), ("Fine-tuning", fine_tuning.PROGRAM)):
    schema = program.schema
    notes, comments = comments_of((ROOT / schema.file).read_text(encoding="utf-8"))
    parts += ["", f"## {title}", "", f"From `{schema.file}`."]
    known = sorted(schema.defaults.items(), key=lambda item: list(comments).index(item[0]))
    for group, members in itertools.groupby(known, lambda item: item[0].rpartition(".")[0]):
      rows = []
      for name, default in members:
        if name in notes:
          rows.append(("", "", "", f"*{_escaped(notes[name])}*"))
        if not comments[name]:
          raise SystemExit(f"{schema.file}: {name} has no comment that says what it is")
        kind = _kind(schema.kinds[name])
        rows.append((f"`{name}`", kind, _default(default), _escaped(comments[name])))
      heading = [f"### {title}: `{group}`", ""] if group else []
      parts += ["", *heading, Cells(("field", "type", "default", "what it is"), rows).as_markdown()]
  return "\n".join(parts) + "\n"


def _kind(kind: fields.Kind) -> str:
  if kind.choices:
    return ", ".join(f"`{choice}`" for choice in kind.choices)
  whole = "whole number" if kind.value_type is int else "number"
  if kind.limit is not None:
    text = str(kind.limit).replace("a number", whole)
    return (
      text if kind.limit.high < 1e6 or math.isinf(kind.limit.high) else f"{whole} from {kind.limit.low:g}"
    )
  return fields.TYPE_NAMES.get(kind.value_type, "text").removeprefix("a ")


def _default(value: object) -> str:
  if isinstance(value, bool):
    return f"`{str(value).lower()}`"
  return f"`{pretraining.as_text(value)}`" if value not in ("", ()) else "empty"


def comments_of(source: str) -> tuple[dict[str, str], dict[str, str]]:
  """Returns {field: note above it and the fields behind it} and {field: what its comment says}, in order.

  A comment on the line of a field, or above it, says what the field is. If a field has both, or a group has
  one above it, the one above is a note.
  """
  above: dict[int, str] = {}
  beside: dict[int, str] = {}
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.type == tokenize.COMMENT:
      table = beside if token.line[: token.start[1]].strip() else above
      table[token.start[0]] = token.string.lstrip("# ")
  notes: dict[str, str] = {}
  comments: dict[str, str] = {}
  tree = ast.parse(source)
  functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
  pending = ""
  for name, first, last, is_last_of_line in _sites(functions["get_config"], functions):
    lines = itertools.takewhile(above.get, itertools.count(first - 1, -1))
    block = " ".join(reversed([above[line] for line in lines]))
    own = " ".join(beside[n] for n in range(first, last + 1) if n in beside) if is_last_of_line else ""
    if not name.endswith("."):
      own = own.removeprefix(f"{name.rpartition('.')[2]}: ")
      comments[name] = own or block
    if (own or name.endswith(".")) and block:
      pending = block
    if pending and not name.endswith("."):
      notes[name], pending = pending, ""
  return notes, comments


def _sites(config: ast.FunctionDef, functions: dict) -> Iterator[tuple[str, int, int, bool]]:
  """Yields (dotted name, first line, last line, whether nothing follows there); 'group.' for a group."""

  def visit(prefix: str, group: ast.Dict) -> Iterator[tuple[str, int, int, bool]]:
    lines = [key.lineno for key in group.keys] + [0]
    for key, value, following in zip(group.keys, group.values, lines[1:]):
      if isinstance(value, ast.Dict):
        yield f"{prefix}{key.value}.", key.lineno, key.lineno, False
        yield from visit(f"{prefix}{key.value}.", value)
      else:
        yield prefix + key.value, key.lineno, value.end_lineno, following != value.end_lineno

  for node in config.body:
    if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)):
      continue
    name, value = node.targets[0].attr, node.value
    if isinstance(value, ast.Call):
      inner = functions.get(value.func.id, value)
      yield from visit(f"{name}.", next(found for found in ast.walk(inner) if isinstance(found, ast.Dict)))
    else:
      yield name, node.lineno, node.end_lineno, True


def exit_codes_page() -> str:
  """Returns the table of exit codes."""
  meanings = OTHER_CODES | {kind.exit_code: kind.__doc__ for kind in errors.UserError.__subclasses__()}
  rows = [(str(code), meanings[code], REMEDIES[code]) for code in sorted(meanings)]
  rows.append(
    (
      "128 + N",
      "Signal N ended the process; 137 is SIGKILL; 134 is JAX's abort where process 0 of a run is lost.",
      "Run the same command: it continues.",
    )
  )
  return "\n".join(
    [
      "# Exit codes",
      "",
      WHAT,
      "",
      "They are the same for every command. The message on stderr after `error:` says what happened, and "
      "what to do.",
      "",
      Cells(("code", "meaning", "what to do"), rows).as_markdown(),
      "",
      "A scheduler may start a command again after 6, 75 and 128 + N. After 5 free space first.",
      "After 1, 2, 3 and 4 the same command fails again. 130 is a person's Ctrl-C.",
      "[Reliability](../guides/reliability.md) says what a command does after each of these ends.",
      "",
    ]
  )


def main() -> int:
  """Writes the pages, or with --check compares them; returns the exit code."""
  pages = {"flags": flags_page, "fields": fields_page, "exit_codes": exit_codes_page}
  texts = {FOLDER / f"{name}.md": make() for name, make in pages.items()}
  if "--check" not in sys.argv[1:]:
    for path, text in texts.items():
      path.write_text(text, encoding="utf-8")
    return 0
  old = [path for path, text in texts.items() if not path.is_file() or path.read_text("utf-8") != text]
  for path in old:
    print(f"{path.relative_to(ROOT)} is not current; run `python docs/make_reference.py`")
  return 1 if old else 0


if __name__ == "__main__":
  sys.exit(main())
