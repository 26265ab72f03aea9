"""`python -m data.vocabulary`."""

from data.vocabulary import command

if __name__ == "__main__":
  raise SystemExit(command.main())
