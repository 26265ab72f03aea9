"""The small records and the finished run of tests/pretrain."""

from tests.pretrain.conftest import finished, segment_records, small_records, text_file  # noqa: F401 (fixtures)
