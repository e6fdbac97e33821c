"""Object stores through Arrow's file systems, without a jar: `s3://`, `gs://`, and local folders.

`connector` has the options; `stores` opens a store; `layout` decides where an object goes and what it is called;
`encoders` write the formats and `writer` the objects of a micro-batch; `listing` finds new objects and `source` reads
them.
"""
