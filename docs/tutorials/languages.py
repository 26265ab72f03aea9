"""Ten languages in one model: Debian's man pages, one vocabulary, two temperatures compared.

  mkdir packages && (cd packages && apt-get download manpages-{de,es,fr,it,ja,pl,pt-br,ru,uk,zh})
  python docs/tutorials/languages.py --packages=packages --output=runs/languages

Run it in the repository's root, with `requirements-clean.txt` installed. It makes text of the pages, a
vocabulary on a sample of all languages, records of each language, and trains a tiny model twice: at
temperature 1, where a language has as many rows as it has records, and at temperature 2, where small ones
have more. It prints what each language costs in pieces, whether its text survives the vocabulary, and its
held-out loss in both runs. The same command resumes where it was stopped.
"""

import argparse
import collections
import gzip
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import sentencepiece

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from data import manifest, tables, vocabulary  # noqa: E402
from data.prepare import packing  # noqa: E402

# Directories of man pages, and the languages that CLD2 calls them.
LANGUAGES = {name: name[:2] for name in ("de", "es", "fr", "it", "ja", "pl", "pt_BR", "ru", "uk", "zh_CN")}
WITHOUT_SPACES = ("ja", "zh_CN")
TEMPERATURES = (1, 2)
VOCABULARY_SIZE = 16_384
HELDOUT = "--heldout_fraction=0.1"  # the smallest language has 90 pages

_LOSS = "eval/source_loss/"  # with the name of a language, in metrics.jsonl

_BREAK = re.compile(r"\.(?:TH|SH|SS|PP|P|LP|TP|TQ|IP|HP|RS|RE|sp|br)\b")
_FONTS = re.compile(r"\.(B|I|SB|SM|BR|RB|BI|IB|IR|RI)\s+(.*)")
_SKIPPED = {".nf": ".fi", ".EX": ".EE", ".TS": ".TE", ".de": ".."}  # code, tables, macros, and their ends
_WORD = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')
_SIGNS = {"lq": "“", "rq": "”", "oq": "‘", "cq": "’", "aq": "'", "dq": '"', "em": "—", "en": "–", "hy": "-"}
_SIGNS |= {"bu": "•", "co": "©", "Fo": "«", "Fc": "»", "ga": "`", "ha": "^", "ti": "~", "rs": "\\"}
_ESCAPES = re.compile(
  r"\\(?:f(?:\[[^\]]*\]|\(..|.)|s[-+]?\d+|\*?\[(?P<long>[^\]]*)\]|\*?\((?P<short>..)|(?P<one>.))"
)
_ONE = {"-": "-", "e": "\\", " ": " ", "~": " ", "0": " ", "t": " ", "\\": "\\"}


def paragraphs(page: str) -> list[str]:
  """Returns the running text of a man page in roff's `man` macros; [] of pages in other macros."""
  _, title, text = f"\n{page}".partition("\n.TH")  # macros of the page's own come before its title
  if not title:
    return []
  found: list[list[str]] = [[]]
  end = ""  # of what is skipped
  for line in re.sub(r'\\".*', "", text).splitlines()[1:]:  # without comments
    if end:
      end = "" if line.startswith(end) else end
    elif line[:3] in _SKIPPED:
      end = _SKIPPED[line[:3]]
    elif _BREAK.match(line) or not line.strip():
      found.append([])
    elif fonts := _FONTS.match(line):
      words = [plain or quoted.replace('""', '"') for quoted, plain in _WORD.findall(fonts[2])]
      found[-1].append(("" if len(fonts[1]) == 2 and fonts[1][0] != "S" else " ").join(words))
    elif not line.startswith((".", "'")):
      found[-1].append(line.strip())
  texts = (_ESCAPES.sub(_sign, " ".join(lines)) for lines in found)
  return [text for text in (" ".join(text.split()) for text in texts) if text]


def _sign(escape: re.Match) -> str:
  name = escape["long"] or escape["short"]
  if name:
    return chr(int(name[1:], 16)) if re.fullmatch(r"u[0-9A-F]{4,5}", name) else _SIGNS.get(name, "")
  return _ONE.get(escape["one"] or "", "")


def write_text(packages: pathlib.Path, folder: pathlib.Path) -> None:
  """Writes `LANGUAGE.jsonl`, a page a line, of the Debian packages in a folder."""
  found = sorted(packages.glob("manpages-*.deb"))
  if not found:
    sys.exit(f"error: --packages={packages} has no manpages-*.deb; run `apt-get download manpages-de` there")
  folder.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory() as unpacked:
    for package in found:
      subprocess.run(["dpkg-deb", "-x", package, unpacked], check=True)
    for language in LANGUAGES:
      pages = sorted(pathlib.Path(unpacked, "usr/share/man", language).glob("man*/*.gz"))
      texts = [paragraphs(gzip.decompress(page.read_bytes()).decode("utf-8", "replace")) for page in pages]
      rows = [json.dumps({"text": "\n".join(text)}, ensure_ascii=False) for text in texts if text]
      (folder / f"{language}.jsonl").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def make_records(text: pathlib.Path, output: pathlib.Path) -> None:
  """Trains a vocabulary at temperature 2 and prepares the records of each language with it."""
  sizes = {name: len((text / f"{name}.jsonl").read_text(encoding="utf-8")) for name in LANGUAGES}
  words = [f"--size={VOCABULARY_SIZE}", "--cased", f"--output={output / 'vocabulary'}", HELDOUT]
  words.append(f"--clean=language:{'+'.join(sorted(LANGUAGES.values()))}")
  for name, size in sizes.items():
    words += [f"--source={text / name}.jsonl", f"--rate={size**0.5:.0f}"]
  if not (output / "vocabulary").is_dir():
    _run("data.vocabulary", "train", *words)
  for name, code in LANGUAGES.items():
    flags = [f"--source={text / name}.jsonl", f"--clean=language:{code}", HELDOUT, "--length=64"]
    _run("data.prepare", *flags, f"--vocabulary={output / 'vocabulary'}", f"--output={output / name}")


def train(output: pathlib.Path, temperature: int, steps: int) -> dict[str, float]:
  """Trains a tiny model on all languages; returns the held-out loss of each in nats a masked token."""
  workdir = output / f"temperature_{temperature}"
  mixture = ",".join(str(output / name) for name in LANGUAGES)
  flags = [f"--config.data.mixture={mixture}", f"--config.data.temperature={temperature}"]
  flags += [f"--config.model.vocab_size={VOCABULARY_SIZE}", f"--config.train.total_steps={steps}"]
  flags += ["--config.train.eval_batches=20", f"--workdir={workdir}"]
  _run("pretrain.main", "--config=configs/roberta_base.py:tiny", *flags)
  lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
  evaluated = [line for line in map(json.loads, lines) if f"{_LOSS}{next(iter(LANGUAGES))}" in line]
  return {name: evaluated[-1][f"{_LOSS}{name}"] for name in LANGUAGES}


def _run(module: str, *words: str) -> None:
  if code := subprocess.run([sys.executable, "-m", module, *words], cwd=ROOT, check=False).returncode:
    sys.exit(code)


def measure(text: pathlib.Path, output: pathlib.Path, name: str) -> dict[str, float]:
  """Counts characters, words and pieces of a language's text, and the sentences that decoding gives back."""
  words = vocabulary.load(output / "vocabulary")
  normalizer = sentencepiece.SentencePieceProcessor(model_file=str(output / "vocabulary" / "sp.model"))
  pages = [json.loads(line)["text"] for line in (text / f"{name}.jsonl").read_text("utf-8").splitlines()]
  counts: collections.Counter = collections.Counter()
  lines = [s for page in pages for line in page.split("\n") for s in packing.split_sentences(line, counts)]
  normal = [normalizer.normalize(line).replace("▁", " ").strip() for line in lines]
  encoded = words.encode_batch(lines)
  pieces = sum(map(len, encoded))
  return {
    "characters": sum(map(len, normal)),
    "pieces a word": pieces / sum(len(line.split()) for line in normal),
    "characters a piece": sum(map(len, normal)) / pieces,
    "returned": sum(words.decode(ids) == line for ids, line in zip(encoded, normal)) / len(lines),
  }


def report(text: pathlib.Path, output: pathlib.Path, losses: dict[int, dict[str, float]]) -> tables.Report:
  """Returns the table of all languages."""
  made = {name: manifest.read(output / name) for name in LANGUAGES}
  records = {name: one.splits["train"].records for name, one in made.items()}
  rows = []
  for name in LANGUAGES:
    row = {"language": name, "pages": made[name].counts["documents"], "records": records[name]}
    row |= measure(text, output, name)
    for temperature in TEMPERATURES:
      whole = sum(number ** (1 / temperature) for number in records.values())
      row[f"share at {temperature}"] = records[name] ** (1 / temperature) / whole
      row[f"loss at {temperature}"] = losses[temperature][name]
    rows.append(row)
  counted = [
    tables.Column(key, lambda row, key=key: f"{row[key]:,}") for key in ("pages", "records", "characters")
  ]
  fertility = [
    tables.Column(
      "pieces a word",
      lambda row: "-" if row["language"] in WITHOUT_SPACES else f"{row['pieces a word']:.2f}",
    ),
    tables.Column("characters a piece", lambda row: f"{row['characters a piece']:.2f}"),
    tables.percent_column("returned %", "returned"),
  ]
  learned = []
  for temperature in TEMPERATURES:
    learned.append(tables.percent_column(f"share % at {temperature}", f"share at {temperature}"))
    loss = f"loss at {temperature}"
    learned.append(tables.Column(loss, lambda row, loss=loss: f"{row[loss]:.3f}"))
  columns = [tables.text_column("language", "language"), *counted, *fertility, *learned]
  notes = [
    "characters and pieces: of all pages, those in another language too. returned: sentences that "
    "decode(encode(text)) gives back as the normalized text. share: of the run's rows. loss: of held-out "
    "rows, in nats a masked token."
  ]
  return tables.Report("languages", "Ten languages at temperatures 1 and 2", columns, rows, notes)


def main() -> None:
  """Runs all steps that are not done yet, and writes the table."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--packages", required=True, type=pathlib.Path, help="folder with manpages-*.deb")
  parser.add_argument("--output", default="runs/languages", type=pathlib.Path)
  parser.add_argument("--steps", default=2_000, type=int, help="of each of the two runs")
  asked = parser.parse_args()
  text, output = asked.output.absolute() / "text", asked.output.absolute()
  if not text.is_dir():
    write_text(asked.packages, text)
  make_records(text, output)
  losses = {temperature: train(output, temperature, asked.steps) for temperature in TEMPERATURES}
  report(text, output, losses).publish(output, print)


if __name__ == "__main__":
  main()
