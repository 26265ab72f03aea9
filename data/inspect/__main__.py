"""`python -m data.inspect`."""

from data.inspect import command

if __name__ == "__main__":
  raise SystemExit(command.main())
