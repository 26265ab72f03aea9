"""Supports addresses of fsspec (`s3://`, `gs://`, `memory://`) in flags that expect a path.

The program works on local files, because buckets have no locks, renames or appends. Inputs are downloaded to
a cache. Outputs are written there and uploaded; the file that marks them complete is uploaded last.
"""
