"""The page: whole and harmless whatever a workdir holds, from finished, half-written and compared runs."""

import json
import pathlib
import re

import jax

from pretrain.report import page, runs
from pretrain.report.__main__ import main
from pretrain.report.page import Examples, Token
from tests.pretrain.export.refusals import failing_commands

HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(1)> \" ' & \x00\u202e\ud800"


def check(text: str) -> list[str]:
  """Asserts what holds of every page; returns the addresses of its links and pictures."""
  assert len(text.encode("utf-8", "replace")) < page.MOST_BYTES == 5_000_000
  tags = re.findall(r"<(\w+)((?:[^>\"]|\"[^\"]*\")*)>", text)
  assert not {"script", "link", "iframe", "object"} & {name for name, _ in tags}
  attributes = [pair for _, inside in tags for pair in re.findall(r'([\w-]+)="([^"]*)"', inside)]
  assert not [name for name, _ in attributes if name.startswith("on") or name == "srcset"]
  assert all(at.startswith("data:image/svg+xml;base64,") for name, at in attributes if name == "src")
  return [value for name, value in attributes if name in ("href", "src")]


def write_run(directory: pathlib.Path, *, lines=(), tail="", **fields) -> pathlib.Path:
  directory.mkdir(parents=True)
  config = {
    "recipe": "roberta_tiny",
    "train": {"batch_size": 4, "total_steps": 100, **fields},
    "data": {"length": 8},
    "model": {"num_layers": 1, "hidden_size": 16, "vocab_size": 1_000},
  }
  (directory / "config.json").write_text(json.dumps(config))
  (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
  return directory


def curve(number: int, speed=2.0) -> list[dict]:
  return [
    {"step": step, "train/loss": 9 - step / number, "perf/steps_per_second": speed}
    for step in range(1, number + 1)
  ]


def made(*directories: pathlib.Path) -> str:
  return page.make(runs.read([str(directory) for directory in directories]), {}, [])


def test_hostile_text_stays_text(tmp_path):
  lines = [{"step": 1, f"train/{HOSTILE}": 1.0}, {"step": 2, f"train/{HOSTILE}": 2.0, "eval/loss": 3.0}]
  directory = write_run(tmp_path / "<b>&'\"", lines=lines, **{HOSTILE: HOSTILE})
  addresses = {"a": {"address": "javascript:alert(1)"}, "b": {"address": 'https://x/"><script>'}}
  (directory / "trackers.json").write_text(json.dumps(addresses))
  for name, text in (
    ("analyses", "# A\n\n| a |\n| --- |\n| x |\n"),
    ("probe", f"# {HOSTILE!r}\n\n| a |\n| - |\n| {HOSTILE!r} |\n"),
  ):
    (directory / f"{name}.json").write_text("{}")
    (directory / f"{name}.md").write_text(text)
  (directory / "cosines.svg").write_text("<svg onload='alert(1)'/>")
  block = [Token(HOSTILE, HOSTILE, 0.9, True), Token(HOSTILE, None, None, False)]
  examples = {"run": Examples("replaced", 1, [block]), "other": HOSTILE}
  text = page.make(runs.read([str(directory)]), examples, [])
  found = check(text)
  assert "javascript:alert(1)" not in found and sum(at.startswith("data:") for at in found) == 3
  assert "\x00" not in text and "\u202e" not in text and "\ufffd" in text and "&lt;script&gt;" in text


def test_a_half_written_run_has_a_page_and_numbers_are_shown_in_their_units(tmp_path):
  lines = [{"step": 0, "eval/loss": 5.0}, {"step": 1, "train/loss": None, "train/skipped_updates": 1.0}]
  lines += [{"step": 2, "train/skipped_updates": 3.0, "train/loss_spikes": 1.0}]
  directory = write_run(tmp_path / "run", lines=lines, tail='{"step": 2, "train/lo')
  (directory / "config.json").write_text('{"recipe": "robe')
  (directory / "diverged.json").write_text('{"step": 7}')
  (run,) = runs.read([str(directory)])
  said = [(event.step, re.sub(r" \(.*|; loss terms.*", "", event.what)) for event in run.events]
  assert said == [
    (1, "skipped updates that were not finite: 1"),
    (2, "the loss jumped in the steps before"),
    (2, "skipped updates that were not finite: 2"),
    (7, "the run diverged and stopped"),
  ]
  assert run.step == 2
  check(made(directory))
  done = write_run(tmp_path / "done", lines=curve(10))
  (done / "hours.md").write_text("# Hours\n\n| hours |\n| ---: |\n| 4.03e-05 |\n| 0.0001 |\n")
  (done / "hours.json").write_text("{}")
  text = made(done)
  check(text)
  # 10 steps of 4 x 8 tokens at 2 steps per second.
  for cell in ("10 of 100", "320", "5.0 s"):
    assert f">{cell}</td>" in text, cell
  assert "Fields that differ from configs/roberta_base.py:tiny" in text
  assert '<td class="number">4.03e-05</td>' in text
  long = write_run(tmp_path / "long", lines=curve(10, speed=10 / 7200))
  assert ">2.0 h</td>" in made(long)


def test_runs_beside_each_other_show_what_differs(tmp_path, capsys):
  first = write_run(tmp_path / "a" / "run", lines=curve(10))
  second = write_run(tmp_path / "b" / "run", lines=curve(10), seed=3, spike_zscore=0.0)  # the first has none
  text = made(first, second)
  check(text)
  assert "a/run" in text and "b/run" in text
  (differing,) = re.findall(r"differ between the runs.*?</table>", text, re.DOTALL)
  assert re.findall(r"<code>(.*?)</code>", differing) == ["train.seed"]
  assert main([str(first), "--examples=0"]) == 0
  alone = (first / "report.html").read_text()
  assert main([str(first), str(second), "--examples=0"]) == 0
  assert "runs: a/run and b/run" in (first / "comparison.html").read_text()
  assert (first / "report.html").read_text() == alone and not (second / "report.html").exists()


def test_the_command_shows_a_checkpoint_of_a_finished_run(finished, tmp_path, monkeypatch):
  monkeypatch.setattr(jax, "devices", lambda *_, real=jax.devices: real()[:1])
  output = tmp_path / "new" / "page.html"
  assert main([str(finished), f"--output={output}", "--examples=2"]) == 0
  text = output.read_text()
  check(text)
  assert text.count('class="example"') == 2 and "<ruby>" in text and "masked lm loss" in text


def test_mistakes_leave_no_page(tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "empty").mkdir()
  write_run(tmp_path / "begun")
  rows = [
    (("empty",), 3, "empty has no run"),
    (("nowhere",), 3, "nowhere"),
    (("empty", "--examples=-1"), 2, "--examples=-1"),
    (("empty", "--examples=51"), 2, "--examples=51"),
    (("empty",) * 21, 2, "21 runs"),
    (("begun", "--over=hour"), 2, "  --over=step"),
  ]
  run = lambda flags: main(["--examples=0", "--output=page.html", *flags])  # noqa: E731
  assert not failing_commands(rows, run, capsys) and not (tmp_path / "page.html").exists()
