"""The sink of the queries that write dead letters: rows that are records already, with all of their parts."""

from __future__ import annotations

from moldau.pipelines.connectors.base import BatchSink, Connector, Guarantee, StreamSink, WriteRequest
from moldau.pipelines.connectors.topic import kafka_options
from moldau.pipelines.model.options import Option, OptionTable
from moldau.spark.options import DEAD_LETTER_BYTES_MAX


class DeadLetterConnector(Connector):
    """Made by the engine, so it has no name in the registry."""

    name = "moldau.pipelines.connectors.dead_letters:DeadLetterConnector"
    summary = "Dead letters."
    guarantee = Guarantee.EXACTLY_ONCE
    identity = ("topic",)
    sink_options = OptionTable.of(
        Option("topic", "The topic of the dead letters.", required=True), Option("kafka.*", "Client properties.")
    )

    def write(self, request: WriteRequest) -> StreamSink | BatchSink:
        options = {"kafka.max.request.size": str(DEAD_LETTER_BYTES_MAX), **kafka_options(request)}
        options["topic"] = str(request.options["topic"])
        if request.mode == "append":
            return StreamSink("moldau", options)
        import moldau.spark

        return BatchSink(moldau.spark.batch_sink(**options))
