"""All errors of the project.

    MoldauError
    ├── ConfigError          an invalid key, value or file; at startup the process prints it and exits with 2
    │   └── InvalidPipelineError     a pipeline with all that is wrong with it, each with its line and column
    ├── ProtocolError        bytes that are not a Kafka message; closes the connection they came on
    │   └── UnservedRequestError     an API or API version that this broker does not support
    ├── DataLossError        records were deleted before a query read them (Spark source)
    ├── InDoubtError         it is unknown whether rows were already written (Spark sink)
    ├── RecordFormatError    a record does not match its format and schema (typed topics, console consumers)
    ├── CorruptFileError     a damaged index, checkpoint or snapshot in a log directory; it is rebuilt
    ├── SimulationError      a test in a simulated cluster never ends, or uses what is not simulated (threads, sockets)
    ├── CommandError         a command failed; it prints the message and exits with 1
    └── KafkaError           returned to the client with its Kafka error code; the connection stays open
        ├── CorruptRecordError       a batch with a wrong CRC or an invalid header
        ├── RefusedRecordsError      a batch rejected because of some of its records; has their indexes
        ├── InvalidRegexError        a pattern that is not valid RE2 or takes too long to match
        ├── OffsetOutOfRangeError    a read outside [log start offset, log end offset]
        ├── OffsetMismatchError      records from a leader that do not continue the follower's log
        ├── DuplicateSequenceError   an idempotent batch that is already in the log; has its offset
        └── StorageError             a disk or metadata store failed; a log directory may go offline
            └── FencedControllerError    metadata written by a controller that has been replaced

A `KafkaError` without a class of its own is raised with its code: `KafkaError(ErrorCode.INVALID_CONFIG, "…")`.
A message says what happened, to what, and what to do. An exception that is caught where it is raised (in one module or
package) is defined there.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


class ErrorCode(IntEnum):
    """Apache Kafka's error codes. `True` marks those that Kafka calls retriable: the same request may succeed later."""

    retriable: bool

    def __new__(cls, code: int, retriable: bool = False) -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        return member

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2, True
    UNKNOWN_TOPIC_OR_PARTITION = 3, True
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5, True
    NOT_LEADER_OR_FOLLOWER = 6, True
    REQUEST_TIMED_OUT = 7, True
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9, True
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13, True
    COORDINATOR_LOAD_IN_PROGRESS = 14, True
    COORDINATOR_NOT_AVAILABLE = 15, True
    NOT_COORDINATOR = 16, True
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19, True
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41, True
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51, True
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56, True
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70, True
    INVALID_FETCH_SESSION_EPOCH = 71, True
    LISTENER_NOT_FOUND = 72, True
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74, True
    UNKNOWN_LEADER_EPOCH = 75, True
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78, True
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True
    ELECTION_NOT_NEEDED = 84, True
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88, True
    THROTTLING_QUOTA_EXCEEDED = 89, True
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100, True
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103, True
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122, True
    INVALID_SHARE_SESSION_EPOCH = 123, True
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133, True


RETRIABLE = frozenset(code for code in ErrorCode if code.retriable)

UNREACHABLE = frozenset({ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.BROKER_NOT_AVAILABLE})
"""No broker responded. Kafka does not mark BROKER_NOT_AVAILABLE as retriable; here it means that no known address
accepts a connection, which may change."""

COORDINATOR_UNAVAILABLE = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)
"""The coordinator is moving, loading or being created: find it again and repeat the request."""


class MoldauError(Exception):
    """The base class of all errors of this project."""


class ConfigError(MoldauError):
    """An invalid configuration; the message names the key, the value and what is allowed."""


class InvalidPipelineError(ConfigError):
    """A pipeline that cannot run: `problems` says all that is wrong with it, and each begins with its place."""

    def __init__(self, problems: Sequence[object]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class ProtocolError(MoldauError):
    """The peer sent bytes that are not a Kafka message: its connection is closed."""


class UnservedRequestError(ProtocolError):
    """A request with an API or API version that this broker does not support."""


class DataLossError(MoldauError):
    """Records were deleted before a query read them; the message says how to continue without them."""


class InDoubtError(MoldauError):
    """Writing could duplicate rows and not writing could lose some; the message says what to check."""


class RecordFormatError(MoldauError):
    """A key or value that cannot be read or written with its format and schema."""


class CorruptFileError(MoldauError):
    """A damaged file beside the records, which can be rebuilt from the records."""


class SimulationError(MoldauError):
    """A test in a simulated cluster never ends, or uses what is not simulated."""


class CommandError(MoldauError):
    """The message is what the command prints."""


class KafkaError(MoldauError):
    """An error with a Kafka error code, which is returned to the client in the response."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code

    @property
    def message(self) -> str:
        return str(self.args[0])


class CorruptRecordError(KafkaError):
    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)


class RefusedRecordsError(KafkaError):
    """A batch rejected because of some of its records: `indexes` are their positions in the batch."""

    def __init__(self, code: ErrorCode, message: str, indexes: Sequence[int]) -> None:
        super().__init__(code, message)
        self.indexes = indexes


class InvalidRegexError(KafkaError):
    def __init__(self, pattern: str, reason: str) -> None:
        super().__init__(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{pattern[:100]}` is not a valid regular expression: {reason}.",
        )
        self.reason = reason


class OffsetOutOfRangeError(KafkaError):
    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, message)


class OffsetMismatchError(KafkaError):
    def __init__(self, log_name: str, log_end_offset: int, offset: int) -> None:
        message = f"{log_name} ends at offset {log_end_offset}, the leader sent offset {offset}"
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, message)


class DuplicateSequenceError(KafkaError):
    """A retry of a batch that is already in the log: the producer gets the offset and timestamp of the first append."""

    def __init__(self, base_offset: int, last_offset: int, timestamp_ms: int) -> None:
        super().__init__(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, f"batch already written at offset {base_offset}")
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.timestamp_ms = timestamp_ms


class StorageError(KafkaError):
    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


class FencedControllerError(StorageError):
    """A newer controller has taken over, and nothing was acknowledged.

    If it took over in the middle of an append, it may have found the records: see its image.
    """
