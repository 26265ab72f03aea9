"""The command `python -m data.glue import`: official files become a TFDS directory that works offline."""

from data.glue import import_files

if __name__ == "__main__":
  raise SystemExit(import_files.main())
