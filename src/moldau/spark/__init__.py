"""Topics as DataFrames: Spark reads and writes any Kafka through the data source `moldau`.

    spark = moldau.spark.session()                     # or your own: moldau.spark.register(spark)
    spark.readStream.format("moldau").option("kafka.bootstrap.servers", "…").option("subscribe", "…").load()

`source`      the data source Spark sees; options, planning, readers and writers hang from it
`columns/`    record batches ⇄ Arrow columns, in bulk: the only code that touches single records
`fetching`, `producing`  raw Fetch and Produce from a Spark task, the next request in flight while decoding
`exactly_once`  the sink's transactions: tasks write, the driver ends them, a replayed batch changes nothing
`formats/`    typed keys and values (JSON, Avro, Protobuf, strings); what cannot be read becomes a dead letter
`session`     a local Spark that starts fast, with the right Java and Python

Talks to any Kafka by address and knows nothing of our broker's inside. Importing this package loads neither
Spark nor Arrow.
"""
