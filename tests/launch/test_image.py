"""The image of launch/Dockerfile, as far as reading it can tell: nothing is built here."""

import json
import re

from tests.launch.test_launch import LAUNCH, ROOT, container_of, jobsets


def test_the_image_has_a_python_that_is_supported_the_packages_and_the_program_alone():
  text = (LAUNCH / "Dockerfile").read_text().replace("\\\n", " ")
  steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
  names = [name for name, _ in steps]
  assert names == [
    "FROM",
    "ARG",
    "ENV",
    "WORKDIR",
    "COPY",
    "RUN",
    "COPY",
    "CMD",
  ]  # packages before the program
  words = dict(zip(names, (rest for _, rest in steps), strict=True)) | {"COPY": steps[4][1]}
  supported = re.search(r"info\[:2\] not in \(\((\d), (\d+)\), ", (ROOT / "Makefile").read_text())
  assert words["FROM"] == f"python:{'.'.join(supported.groups())}-slim"
  for platform in (jobset["metadata"]["labels"]["accelerator"] for jobset in jobsets()):
    *copied, target = words["COPY"].replace("${PLATFORM}", platform).split()
    assert target == "./" and all((ROOT / name).is_file() for name in copied)
    assert words["RUN"].replace("${PLATFORM}", platform).endswith(f"--requirement {copied[-1]}")
    needed = re.findall(r"^-r (\S+)", (ROOT / copied[-1]).read_text(), re.MULTILINE)
    assert needed and set(needed) < {*copied}
  assert steps[6][1] == ". ." and words["WORKDIR"].startswith("/")
  assert json.loads(words["CMD"])[:-1] == container_of(jobsets()[0])["command"]
  ignored = {line.strip("*/") for line in (ROOT / ".dockerignore").read_text().splitlines()}
  assert {line.strip("*/") for line in (ROOT / ".gitignore").read_text().splitlines()} | {".git"} <= ignored
