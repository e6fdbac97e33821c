"""Why a query failed, in one plain sentence, from what Spark says in a hundred lines."""

from __future__ import annotations

import re

from moldau.errors import MoldauError
from moldau.pipelines.model.references import hidden

_LENGTH_MAX = 400
_OUR_LENGTH_MAX = 4_000  # commands that are ways out stand at the end
_END = re.compile(r"\n=== Streaming Query ===|\n\s*at [\w.$/]+\(|\nJVM stacktrace:|\nDriver stacktrace:|\n== ")
_OURS = re.compile(r"moldau\.errors\.(?:\w+\.)?\w+: (.+)")
_STATE = re.compile(r"\s*(?:SQLSTATE: \w+|\(SQLSTATE \w+\))(?:; line \d+ pos \d+)?")
_CONDITION = re.compile(r"^(?:[\w.$]+(?:Exception|Error): )*\[[A-Z][A-Z0-9_.]+\] ")
_JAVA_CLASS = re.compile(r"^(?:(?:java|javax|scala|org|py4j|pyspark)\.[\w.$]+: )+")
_CALL = re.compile(r"^An error occurred while calling \S+\s+: ")
_LOST_TASK = re.compile(r"^.*most recent failure: Lost task .*?\((?:TID|task) [^)]*\) \([^)]*\): ", re.DOTALL)
_QUERY = re.compile(r"^(?:\[STREAM_FAILED\] )?Query \[id = [^\]]*\] terminated with exception: ")
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+)', re.MULTILINE)
_PYTHON_ERROR = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Warning|Exit|Interrupt)\w*)(?:: (.*))?$", re.MULTILINE)
_PLACE = re.compile(r"\S+\.(?:yaml|yml|py):\d+:\d+: ")  # a file's name is no secret, and may be a value, too
_CAUSED_BY = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_PREAMBLES = (
    "An exception was thrown from the Python worker",
    "An exception was raised by the Python Proxy",
)

# No restart helps: a person has to change the pipeline, an option or a checkpoint.
_LASTING = (
    "moldau.errors.ConfigError",
    "moldau.errors.DataLossError",
    "moldau.errors.InDoubtError",
    "[USER_RAISED_EXCEPTION] expectation ",
    "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE]",
    "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE]",
    "[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA]",
)
_PYTHON_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    SyntaxError,
    SystemExit,
    TypeError,
    ValueError,
)
# The cause is outside of the batch, so no record is at fault.
_EXTERNAL = (
    "No broker could be reached",
    "Connection refused",
    "Connection reset",
    "timed out",
    "No space left on device",
    "cannot write to ",
    "OutOfMemoryError",
)


def reason_of(error: BaseException) -> str:
    """One sentence, without stacks, plans, names of Java classes and what references stand for."""
    if isinstance(error, SystemExit):
        return f"a Python function of the pipeline called sys.exit({error.code!r})"
    if isinstance(error, MoldauError):
        return _one_line(str(error), _OUR_LENGTH_MAX)
    text = _END.split(str(getattr(error, "desc", None) or error), maxsplit=1)[0]
    text = _QUERY.sub("", _STATE.sub("", text))
    if ours := _OURS.findall(text):
        return _one_line(ours[-1], _OUR_LENGTH_MAX)
    if "Traceback (most recent call last)" in text or any(preamble in text for preamble in _PREAMBLES):
        return _of_python(text, str(error))
    text = _LOST_TASK.sub("", _CALL.sub("", text.strip()))
    text = _CONDITION.sub("", _JAVA_CLASS.sub("", text))
    return _one_line(_without_plan(text)) or type(error).__name__


def is_lasting(error: BaseException) -> bool:
    """No restart would help. Errors of Python come from the user's functions when a query is built."""
    from pyspark.errors import AnalysisException

    return isinstance(error, (AnalysisException, *_PYTHON_MISTAKES)) or any(sign in str(error) for sign in _LASTING)


def is_external(error: BaseException) -> bool:
    return any(sign in str(error) for sign in _EXTERNAL)


def _of_python(text: str, whole: str) -> str:
    """The error of a Python function, and where in the user's code it was raised; `whole` has stacks of Java, too."""
    if not (errors := list(_PYTHON_ERROR.finditer(text))):
        return _one_line(_CONDITION.sub("", text))
    last = errors[-1]
    name, message = last[1].rpartition(".")[2], (last[2] or "").strip()
    if last[1].startswith("pyspark.errors.") and message:
        return _one_line(_CONDITION.sub("", message))
    if name == "Py4JJavaError" and (cause := _java_cause(text[last.end() :], whole)):
        return _one_line(cause)
    frames = [frame for frame in _FRAME.findall(text, 0, last.start()) if "/site-packages/" not in frame[0]]
    where = f" ({frames[-1][0].rpartition('/')[2]}, line {frames[-1][1]})" if frames else ""
    return _one_line(f"{name}: {message}" if message else name) + where


def _java_cause(message: str, whole: str) -> str:
    """What Java says, rather than which call of Python failed."""
    causes = _CAUSED_BY.findall(whole)
    text = causes[-1] if causes else message.strip().removeprefix(": ").partition("\n")[0]
    return _CONDITION.sub("", _JAVA_CLASS.sub("", _STATE.sub("", text)))


def _without_plan(text: str) -> str:
    return text.split("\n\n", maxsplit=1)[0].split(";\n", maxsplit=1)[0]


def _one_line(text: str, length_max: int = _LENGTH_MAX) -> str:
    place = _PLACE.match(text)
    start = place.end() if place else 0
    line = " ".join((text[:start] + hidden(text[start:])).split())
    return line if len(line) <= length_max else f"{line[: length_max - 1]}…"
