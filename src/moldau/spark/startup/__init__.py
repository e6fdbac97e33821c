"""A local Spark that starts fast: Java, the JVM of the driver, and the Python processes of a session."""
