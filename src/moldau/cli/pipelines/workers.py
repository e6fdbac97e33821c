"""`--worker URL`: the verbs of pipelines against a worker, by its REST interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from moldau.cli.common import CommandParser, print_json, print_table
from moldau.errors import CommandError

_TIMEOUT_S = 60.0


def add_worker(parser: CommandParser, *, is_required: bool = False) -> None:
    parser.add_argument("--worker", metavar="URL", required=is_required, help="a worker, such as http://127.0.0.1:8083")


class WorkerClient:
    """`url` may have user:password@."""

    def __init__(self, url: str) -> None:
        self._url = url if "://" in url else f"http://{url}"

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of the answer, or None. Raises CommandError with what the worker said."""
        import httpx

        try:
            answer = httpx.request(method, f"{self._url.rstrip('/')}{path}", json=body, timeout=_TIMEOUT_S)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CommandError(f"cannot reach the worker ({error}): start one with `moldau worker`") from error
        if answer.is_success:
            return answer.json() if answer.content else None
        try:
            message = answer.json()["message"]
        except (ValueError, KeyError, TypeError):
            message = f"HTTP {answer.status_code}: is this the URL of a worker?"
        raise CommandError(message)

    def submit(self, name: str, text: str) -> None:
        self.ask("POST", "/pipelines", {"name": name, "file": text})

    def statuses(self, names: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Of these pipelines, or of all."""
        return [
            self.ask("GET", f"/pipelines/{quote(name, safe='')}") for name in names or self.ask("GET", "/pipelines")
        ]

    def delete(self, name: str) -> None:
        self.ask("DELETE", f"/pipelines/{quote(name, safe='')}")

    def logs(self, name: str) -> list[str]:
        return list(self.ask("GET", f"/pipelines/{quote(name, safe='')}/logs")["lines"])


def show_list(url: str, *, as_json: bool) -> int:
    found = WorkerClient(url).statuses()
    if as_json:
        print_json(found)
        return 0
    rows = [(each["name"], each["connector"]["state"], each["connector"]["worker_id"]) for each in found]
    print_table(("PIPELINE", "STATE", "WORKER"), rows)
    return 0


def show_status(url: str, names: Sequence[str], *, as_json: bool) -> int:
    found = WorkerClient(url).statuses(names)
    if as_json:
        print_json(found)
        return 0
    for each in found:
        trace = each["connector"].get("trace")
        print(f"{each['name']}: {each['connector']['state']}{': ' + trace if trace else ''}")
        rows = [(task["id"], task["state"], task.get("trace", "")) for task in each["tasks"]]
        if rows:
            print_table(("QUERY", "STATE", "REASON"), rows)
    return 0


def stop(url: str, names: Sequence[str], *, as_json: bool) -> int:
    """They end after their micro-batches and are forgotten; their offsets stay."""
    client = WorkerClient(url)
    for name in names:
        client.delete(name)
        if not as_json:
            print(f"stopped {name}")
    if as_json:
        print_json([{"pipeline": name, "stopped": True} for name in names])
    return 0
