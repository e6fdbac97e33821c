"""A broker that answers what a test tells it to: one listening socket, one thread, real frames."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

from moldau.client.config import ClientConfig
from moldau.wire.apis import APIS, ApiKey
from moldau.wire.messages import Schema, decode_request, encode_response, parse_request_header, response_schema

Answer = Callable[[Schema, Any], Any]  # the response's classes and the request, to the response


class FakeBroker:
    """`answers` by API key; ApiVersions is answered with exactly those APIs (and `versions` of them)."""

    def __init__(self, answers: dict[int, Answer], versions: dict[int, tuple[int, int]] | None = None) -> None:
        self.answers = answers
        self.versions = {
            key: (APIS[key].min_version, APIS[key].max_version) for key in (*answers, ApiKey.API_VERSIONS)
        } | (versions or {})
        self.requests: list[tuple[int, int, Any]] = []  # key, version, entity
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def config(self, **properties: str) -> ClientConfig:
        props = {name.replace("_", "."): value for name, value in properties.items()}
        return ClientConfig.from_properties(f"127.0.0.1:{self.port}", props)

    def refuse(self) -> None:
        """From now on nobody is let in."""
        self._listener.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        # shutdown wakes the thread out of accept; close alone would not
        with contextlib.suppress(OSError):  # done before
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self._open:
            connection.close()

    def sent(self, key: int) -> list[Any]:
        return [entity for api_key, _, entity in self.requests if api_key == key]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as stream:
                while size := stream.read(4):
                    answer = self._answer(stream.read(struct.unpack(">i", size)[0]))
                    if answer is None:
                        return
                    connection.sendall(answer)
        except OSError:
            pass  # the test closed it

    def _answer(self, frame: bytes) -> bytes | None:
        header = parse_request_header(frame)
        key, version = header.api_key, header.api_version
        if key == ApiKey.API_VERSIONS:
            return self._api_versions(header.correlation_id, version)
        request = decode_request(key, version, frame[header.body_offset :])
        self.requests.append((key, version, request))
        response = self.answers[key](response_schema(key, version), request)
        return None if response is None else encode_response(header.correlation_id, response)

    def _api_versions(self, correlation_id: int, version: int) -> bytes:
        highest = self.versions[ApiKey.API_VERSIONS][1]
        schema = response_schema(ApiKey.API_VERSIONS, version if version <= highest else 0)
        keys = tuple(
            schema.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in self.versions.items()
        )
        code = 0 if version <= highest else 35
        return encode_response(
            correlation_id,
            schema.ApiVersionsResponse(error_code=_error(code), api_keys=keys, throttle_time=_ms(0)),
        )


def _error(code: int) -> Any:
    from moldau.wire.messages import error

    return error(code)


def _ms(value: int) -> Any:
    from moldau.wire.messages import ms

    return ms(value)


def metadata_answer(broker: FakeBroker, *, controller_id: int = 1, topics: tuple[str, ...] = ("t",)) -> Answer:
    """One broker, number 1, that leads partitions 0 and 1 of every topic."""

    def answer(schema: Schema, request: Any) -> Any:
        asked = topics if request.topics is None else tuple(topic.name for topic in request.topics)
        return schema.MetadataResponse(
            throttle_time=_ms(0),
            brokers=(schema.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=broker.port, rack=None),),
            cluster_id="c",
            controller_id=controller_id,
            topics=tuple(
                schema.MetadataResponseTopic(
                    error_code=_error(0 if name in topics else 3),
                    name=name,
                    topic_id=None,
                    is_internal=False,
                    partitions=tuple(
                        schema.MetadataResponsePartition(
                            error_code=_error(0),
                            partition_index=index,
                            leader_id=1,
                            leader_epoch=0,
                            replica_nodes=(1,),
                            isr_nodes=(1,),
                            offline_replicas=(),
                        )
                        for index in (range(2) if name in topics else ())
                    ),
                )
                for name in asked
            ),
            error_code=_error(0),
        )

    return answer
