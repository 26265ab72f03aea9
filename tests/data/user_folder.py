"""A folder with a user's module, the text that it reads, and a vocabulary."""

import pathlib
import shutil

from tests.data.conftest import make_documents

USER_TASKS = pathlib.Path(__file__).with_name("user_tasks.py")


def make_folder(folder: pathlib.Path, vocabulary: pathlib.Path) -> pathlib.Path:
  """Makes a folder with `user_tasks.py` and what it reads, but no records."""
  folder.mkdir(parents=True)
  shutil.copy(USER_TASKS, folder)
  shutil.copytree(vocabulary, folder / "words")
  for name, seed in (("one", 1), ("two", 2)):
    for split, number in (("train", 60), ("validation", 20)):
      texts = [document[0][:80] for document in make_documents(number, seed + number)]
      lines = [text.partition(".")[0] + "." for text in texts]
      (folder / f"{name}_{split}.txt").write_text("\n".join(dict.fromkeys(lines)) + "\n")
  return folder
