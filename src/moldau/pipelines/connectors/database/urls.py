"""Addresses of databases, also those of JDBC."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from moldau.errors import ConfigError

JDBC = "jdbc:"
_POSTGRES = ("postgresql", "postgres")
# Parameters of PostgreSQL's JDBC driver by their names in libpq. Others are about the driver, not the database.
_JDBC_PARAMETERS = {
    "sslmode": "sslmode",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslrootcert": "sslrootcert",
    "connectTimeout": "connect_timeout",
    "ApplicationName": "application_name",
    "targetServerType": "target_session_attrs",
    "options": "options",
}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Database:
    dialect: str  # postgres or sqlite
    url: str  # without a password; of sqlite, the path of the file
    password: str | None = None
    zone: str = "UTC"

    @property
    def connection_url(self) -> str:
        """For the driver alone: with the password."""
        if self.password is None or self.dialect != "postgres":
            return self.url
        parts = urlsplit(self.url)
        user, at, host = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}:{quote(self.password, safe='')}{at or '@'}{host}"))

    def __repr__(self) -> str:
        return f"Database({self.dialect}, {self.url})"


def database(url: str, user: str | None = None, password: str | None = None, zone: str = "UTC") -> Database:
    """The database at this URL; raises ConfigError for one that cannot be reached without a driver of Java's."""
    kind = dialect_of(url)
    if kind == "sqlite":
        return Database("sqlite", _sqlite_path(url), zone=zone)
    return replace(_postgres(url.removeprefix(JDBC), user, password, is_jdbc=url.startswith(JDBC)), zone=zone)


def dialect_of(url: str) -> str:
    scheme = url.removeprefix(JDBC).partition(":")[0].lower() if ":" in url else ""
    if scheme in _POSTGRES:
        return "postgres"
    if scheme in ("", "sqlite", "file") and "://" not in url.removeprefix("sqlite://").removeprefix("file://"):
        return "sqlite"
    if url.startswith(JDBC):
        raise ConfigError(
            f"jdbc:{scheme}: only postgresql and sqlite are supported. For others, use `connector: spark` with "
            "`format: jdbc` and the driver's jar in `spark.jars`"
        )
    raise ConfigError(f"unknown database '{scheme}': expected postgresql://host:port/database or the path of a file")


def _sqlite_path(url: str) -> str:
    for prefix in (JDBC, "sqlite:", "file:"):
        url = url.removeprefix(prefix)
    return (url.removeprefix("//") if url.startswith("//") else url).partition("?")[0]


def _postgres(url: str, user: str | None, password: str | None, *, is_jdbc: bool) -> Database:
    parts = urlsplit(url)
    if not parts.netloc and not parts.path.startswith("/"):  # jdbc:postgresql:database
        parts = urlsplit(f"postgresql://localhost/{parts.path}{'?' if parts.query else ''}{parts.query}")
    given, _, hosts = parts.netloc.rpartition("@")
    given_user, _, given_password = given.partition(":")
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    user = user or parameters.pop("user", None) or unquote(given_user) or None
    password = password or parameters.pop("password", None) or unquote(given_password) or None
    if is_jdbc:
        parameters = _libpq_parameters(parameters)
    netloc = f"{quote(user, safe='')}@{hosts}" if user else hosts
    query = urlencode(parameters, quote_via=quote)
    return Database("postgres", urlunsplit(("postgresql", netloc, parts.path, query, "")), password)


def _libpq_parameters(given: dict[str, str]) -> dict[str, str]:
    found = {_JDBC_PARAMETERS[name]: value for name, value in given.items() if name in _JDBC_PARAMETERS}
    if given.get("ssl", "false").lower() != "false":
        found.setdefault("sslmode", "verify-full")
    if schema := given.get("currentSchema"):
        found["options"] = f"{found.get('options', '')} -c search_path={schema}".strip()
    ignored = given.keys() - _JDBC_PARAMETERS.keys() - {"ssl", "currentSchema", "user", "password"}
    if ignored:
        logger.warning("parameters of the JDBC URL that have no effect here: %s", ", ".join(sorted(ignored)))
    return found
