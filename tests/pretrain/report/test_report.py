"""The page: whole and harmless whatever a workdir holds, from finished, half-written and compared runs."""

import base64
import html.parser
import json
import pathlib
import re
import types
from typing import Any
from xml.etree import ElementTree

import jax
import numpy as np
import pytest

from data import page as look
from pretrain.report import examples, page, runs
from pretrain.report.__main__ import main
from pretrain.report.examples import Examples, Token

HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(1)> \" ' & \x00\u202e\ud800"


class _Page(html.parser.HTMLParser):
  """What a browser would find."""

  def __init__(self, text: str) -> None:
    super().__init__()
    self.tags, self.attributes, self.open = [], [], []
    self.feed(text)
    assert not self.open, self.open

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes += attrs
    if tag not in ("meta", "input", "img"):
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def all_of(self, name: str) -> list[str]:
    return [value for key, value in self.attributes if key == name]


def check(text: str) -> _Page:
  """Asserts what holds of every page; returns what is in it."""
  assert len(text.encode()) < page.MOST_BYTES
  found = _Page(text)
  assert not {"script", "link", "iframe", "object"} & set(found.tags)
  assert not [name for name, _ in found.attributes if name.startswith("on") or name == "srcset"]
  assert all(address.startswith("data:image/svg+xml;base64,") for address in found.all_of("src"))
  identities = found.all_of("id")
  assert len(set(identities)) == len(identities)
  for address in found.all_of("href"):
    assert (
      address.removeprefix("#") in identities if address.startswith("#") else address.startswith("https://")
    )
  for name in found.all_of("aria-labelledby"):
    assert name in identities
  return found


def write_run(directory: pathlib.Path, *, lines=(), tail="", **fields) -> pathlib.Path:
  directory.mkdir(parents=True)
  config = {
    "recipe": "roberta_tiny",
    "train": {"batch_size": 4, "total_steps": 100, **fields},
    "data": {"length": 8},
    "model": {"num_layers": 1, "hidden_size": 16, "vocab_size": 1_000},
  }
  (directory / "config.json").write_text(json.dumps(config))
  text = "".join(json.dumps(line) + "\n" for line in lines) + tail
  (directory / "metrics.jsonl").write_text(text)
  return directory


def curve(number: int, *, names=("loss",), speed=2.0) -> list[dict]:
  return [
    {"step": step, **{f"train/{name}": 9 - step / number for name in names}, "perf/steps_per_second": speed}
    for step in range(1, number + 1)
  ]


def made(*directories: pathlib.Path) -> str:
  return page.make(runs.read([str(directory) for directory in directories]), {}, [])


def test_hostile_text_stays_text(tmp_path):
  directory = write_run(
    tmp_path / "<b>&'\"",
    lines=[{"step": 1, f"train/{HOSTILE}": 1.0}, {"step": 2, f"train/{HOSTILE}": 2.0, "eval/loss": 3.0}],
    **{HOSTILE: HOSTILE},
  )
  (directory / "trackers.json").write_text(
    json.dumps({"a": {"address": "javascript:alert(1)"}, "b": {"address": 'https://x/"><script>'}})
  )
  for name in ("probe.json", "analyses.json"):
    (directory / name).write_text("{}")
  (directory / "analyses.md").write_text("# Analyses\n\n| a |\n| --- |\n| x |\n")
  (directory / "cosines.svg").write_text("<svg onload='alert(1)'/>")
  (directory / "probe.md").write_text(f"# {HOSTILE!r}\n\n| a | b |\n| --- | ---: |\n| {HOSTILE!r} | 1.0 |\n")
  text = made(directory)
  found = check(text)
  assert "javascript:alert(1)" not in found.all_of("href") and len(found.all_of("src")) == 3
  for address in found.all_of("src")[:2]:  # the charts, whose labels are a metric's name
    ElementTree.fromstring(base64.b64decode(address.partition(",")[2]))
  assert "\x00" not in text and "\u202e" not in text and "\ufffd" in text
  assert "&lt;script&gt;" in text
  block = [Token(HOSTILE, HOSTILE, 0.9, True), Token(HOSTILE, None, None, False)]
  examples = {"run": Examples("replaced", 1, [block]), "other": HOSTILE}
  check(page.make(runs.read([str(directory)]), examples, []))


def test_a_guess_is_right_if_it_is_the_piece_and_not_if_it_has_its_letters():
  words = types.SimpleNamespace(
    letters=lambda number: ("ing", True), special_ids=types.SimpleNamespace(cls=0, pad=1)
  )
  opened: Any = types.SimpleNamespace(encoder=types.SimpleNamespace(vocabulary=words))
  arrays = {"ids": [[5, 6]], "selected": [[True, True]], "guesses": [[5, 7]], "probability": [[0.9, 0.1]]}
  tokens = examples._guessed({name: np.array(rows) for name, rows in arrays.items()}, 0, opened)
  assert [token.is_right for token in tokens] == [True, False]


def test_a_half_written_run_has_a_page(tmp_path):
  lines = [{"step": 0, "eval/loss": 5.0}, {"step": 1, "train/loss": None, "train/skipped_updates": 1.0}]
  directory = write_run(tmp_path / "run", lines=lines, tail='{"step": 2, "train/lo')
  (directory / "config.json").write_text('{"recipe": "robe')
  (directory / "diverged.json").write_text('{"step": 7}')
  text = made(directory)
  check(text)
  assert "the run diverged" in text and "skipped updates that were not finite: 1" in text
  begun = write_run(tmp_path / "begun")
  assert "0 of 100" in made(begun)
  check(made(begun))


def test_runs_beside_each_other_show_what_differs(tmp_path):
  first = write_run(tmp_path / "a" / "run", lines=curve(10))
  second = write_run(tmp_path / "b" / "run", lines=curve(10), seed=3, spike_zscore=0.0)  # the first has none
  text = made(first, second)
  check(text)
  assert "a/run" in text and "b/run" in text
  (differing,) = re.findall(r"differ between the runs.*?</table>", text, re.DOTALL)
  assert re.findall(r"<code>(.*?)</code>", differing) == ["train.seed"]


def test_many_long_runs_fit_on_a_page(tmp_path):
  names = [f"metric_{number}" for number in range(20)]
  directories = [write_run(tmp_path / f"run_{at}", lines=curve(2_000, names=names)) for at in range(4)]
  check(made(*directories))


def test_the_command_shows_a_checkpoint_of_a_finished_run(finished, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(jax, "devices", lambda *_, real=jax.devices: real()[:1])
  output = tmp_path / "new" / "page.html"
  assert main([str(finished), f"--output={output}", "--examples=2"]) == 0
  text = output.read_text()
  check(text)
  assert text.count('class="example"') == 2 and "<ruby>" in text and "masked lm loss" in text
  assert "1 run" in capsys.readouterr().err


def test_without_an_output_the_page_is_in_the_first_workdir(tmp_path, capsys):
  first, second = (write_run(tmp_path / name, lines=curve(3)) for name in "ab")
  assert main([str(first), "--examples=0"]) == 0
  alone = (first / "report.html").read_text()
  assert main([str(first), str(second), "--examples=0"]) == 0
  assert "runs: a and b" in (first / "comparison.html").read_text()
  assert (first / "report.html").read_text() == alone  # what is there of one run stays
  assert str(first / "comparison.html") in capsys.readouterr().err and not (second / "report.html").exists()
  assert main([str(tmp_path / "nowhere")]) == 3 and not (tmp_path / "nowhere").exists()


def test_text_contrasts_with_what_is_behind_it_and_paper_is_light():
  style = pathlib.Path(look.__file__).with_name("style.css").read_text()
  light, dark = (
    {name: f"{value}{value}"[:6] for name, value in re.findall(r"--(\w+): #(\w+)", block)}
    for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
  )
  pairs = [(front, back) for front in ("ink", "soft", "link") for back in ("paper", "tint")]
  pairs += [*(("ink", back) for back in ("b1", "b2")), ("on", "b3"), ("on", "b4")]
  for colours in (light, dark):
    for front, back in pairs:
      low, high = sorted((_luminance(colours[front]), _luminance(colours[back])))
      assert (high + 0.05) / (low + 0.05) >= 4.5, (front, back)
  assert not re.search(r"\.example [^{]*\{[^}]*--soft", style)  # its tokens stand on shades
  assert "@media screen and (prefers-color-scheme: dark)" in style and "@media (prefers" not in style


def _luminance(colour: str) -> float:
  parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
  linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_small_numbers_are_set_at_the_right_and_short_times_are_in_seconds(tmp_path):
  directory = write_run(tmp_path / "run", lines=curve(10))
  (directory / "hours.md").write_text("# Hours\n\n| hours |\n| ---: |\n| 4.03e-05 |\n| 0.0001 |\n")
  (directory / "hours.json").write_text("{}")
  text = made(directory)
  assert '<td class="number">4.03e-05</td>' in text
  assert ">5.0 s</td>" in text


@pytest.mark.parametrize(
  ("flags", "code", "line"),
  [
    (("empty",), 3, "empty has no run: no config.json, no metrics.jsonl and no checkpoint"),
    (("nowhere",), 3, "nowhere is not a directory"),
    (("empty", "--examples=-1"), 2, "--examples=-1: expected a number from 0 to 50"),
    (("empty",) * 21, 2, "21 runs; expected at most"),
    (("begun", "--over=hour"), 2, "--over=hour needs every run's speed (perf/steps_per_second)"),
  ],
)
def test_mistakes_are_one_line(flags, code, line, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "empty").mkdir()
  write_run(tmp_path / "begun")
  assert main(["--examples=0", *flags, "--output=page.html"]) == code
  error, *ways = capsys.readouterr().err.splitlines()
  assert line in error and all(way.startswith("  ") for way in ways)
  assert not (tmp_path / "page.html").exists()
