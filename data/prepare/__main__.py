"""`python -m data.prepare`."""

from data.prepare import command

if __name__ == "__main__":
  raise SystemExit(command.main())
