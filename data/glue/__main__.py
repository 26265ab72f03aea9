"""`python -m data.glue`."""

from data.glue import command

if __name__ == "__main__":
  raise SystemExit(command.main())
