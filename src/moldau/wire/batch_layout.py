"""Where each field of a record batch lies: the one definition, for the broker, the log, the client and Spark.

    base offset 8 · length 4 · leader epoch 4 · magic 1 · CRC32C 4 · attributes 2 · last offset delta 4
    · base timestamp 8 · max timestamp 8 · producer id 8 · producer epoch 2 · base sequence 4 · count 4
    · records

Plain numbers, so that compiled kernels can use them. Reading and writing batches is in `batch.py`.
"""

from __future__ import annotations

import struct

BASE_OFFSET_AT = 0
LENGTH_AT = 8
LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21  # the CRC covers everything from here on
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
PRODUCER_EPOCH_AT = 51
BASE_SEQUENCE_AT = 53
COUNT_AT = 57
HEADER_SIZE = 61

LOG_OVERHEAD = 12  # base offset and length: the bytes that `length` does not count
LENGTH_MIN = HEADER_SIZE - LOG_OVERHEAD
MAGIC = 2

# The fields up to the CRC, and those that it covers.
BEFORE_CRC = struct.Struct(">qiibI")
AFTER_CRC = struct.Struct(">hiqqqhii")
HEADER = struct.Struct(BEFORE_CRC.format + AFTER_CRC.format.removeprefix(">"))
# Base offset, length and last offset delta: all that hopping from batch to batch needs.
HOP = struct.Struct(f">qi{LAST_OFFSET_DELTA_AT - LEADER_EPOCH_AT}xi")

# Bits of the attributes.
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
