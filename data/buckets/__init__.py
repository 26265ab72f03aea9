"""Buckets and other addresses of fsspec (`s3://`, `gs://`, `memory://`) where a path is meant.

The program itself works on local files, whose locks, renames and appends no bucket has. What it reads is
brought into a cache first, what it writes goes up from there, the mark that makes it whole last.
"""
