"""Arrow files with damaged bytes end in an error, never in a process that is aborted by C++."""

import random
import subprocess
import sys

import pyarrow

_PROGRAM = """
import sys
from data import errors, rows
for path in sys.argv[1:]:
  try:
    list(rows.read(path))
  except errors.DataError:
    pass
print("ended")
"""


def test_no_damage_aborts_the_process(tmp_path):
  table = pyarrow.table(
    {"text": [f"some text number {number}" for number in range(200)], "n": list(range(200))}
  )
  rng, paths = random.Random(1), []
  for name, opened in (("file", pyarrow.ipc.new_file), ("stream", pyarrow.ipc.new_stream)):
    with pyarrow.OSFile(str(tmp_path / name), "wb") as file, opened(file, table.schema) as writer:
      writer.write_table(table)
    whole = (tmp_path / name).read_bytes()
    for number in range(40):
      at = rng.randrange(2_000)
      damaged = whole[:at] + b"\xff" * 8 + whole[at + 8 :]
      paths.append(tmp_path / f"{name}{number}.arrow")
      paths[-1].write_bytes(damaged)
  done = subprocess.run([sys.executable, "-c", _PROGRAM, *map(str, paths)], capture_output=True, text=True)
  assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr[-2_000:]
